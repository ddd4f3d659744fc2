"""Numbers that stand for tensors: fingerprints of their bits, and projections of gradients."""

import functools

import torch

WORDS = 2**20  # fingerprinted at once


def bits(rows):
    """A fingerprint of every bit of each row.

    Parameters
    ----------
    rows : torch.Tensor, shape (N, ...)

    Returns
    -------
    torch.Tensor, int64, shape (N,), on the same device
    """
    n, flat = len(rows), rows.detach().contiguous().flatten().view(torch.uint8)
    if not len(flat):
        return torch.zeros(n, dtype=torch.int64, device=flat.device)
    rows = flat.view(n, len(flat) // n)
    if rows.shape[1] % 8 or rows.storage_offset() % 8:
        rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8))
    total, weights = 0, _weights(rows.device)
    words = rows.view(torch.int64)
    for at in range(0, words.shape[1], WORDS):
        part = words[:, at : at + WORDS]
        total = total * 0x2545F491 + (part * weights[: part.shape[1]]).sum(1)
    return total


def named_bits(named):
    """Fingerprints of named tensors.

    Parameters
    ----------
    named : iterable of (str, torch.Tensor)

    Returns
    -------
    dict of str to int
    """
    found = {name: bits(tensor[None])[0] for name, tensor in named}
    return dict(zip(found, to_list(list(found.values()))))


def to_list(tensors):
    """The numbers of tensors with one element, with one wait for the device."""
    return torch.stack([t.to(tensors[0].device) for t in tensors]).tolist() if tensors else []


def flat(gradient):
    """A gradient as a dense vector of float32."""
    gradient = gradient.detach()
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return gradient.float().flatten()


class Projector:
    """Projects gradients on one random vector, the same on all ranks."""

    def __init__(self):
        self.size, self.vectors = 0, {}  # {device: vector of that size}

    def make_room(self, size):
        """For gradients of up to so many numbers; between two steps, since the vector changes."""
        if size > self.size:
            self.size, self.vectors = size, {}

    def __call__(self, gradient):
        """A number that is linear in the gradient: of an average it is the average."""
        values = flat(gradient)
        vector = self.vectors.get(values.device)
        if vector is None:
            vector = torch.randn(self.size, generator=torch.Generator().manual_seed(20))
            vector = self.vectors[values.device] = vector.to(values.device)
        return torch.dot(values, vector[: values.numel()])


@functools.cache
def _weights(device):
    # Odd weights, all arithmetic modulo 2**64: another word or order, another sum.
    return torch.arange(1, 2 * WORDS, 2, device=device) * 0x9E3779B97F4A7C1
