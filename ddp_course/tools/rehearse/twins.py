"""What only GPUs have kernels for, written with operators of the CPU.

Arguments and results are those of the operator of the same name, on the CPU. Halves are computed
in float32. The formulas are those of torch's CUDA kernels.
"""

import torch

TWINS = {}


def twin(function):
    TWINS[function.__name__] = function
    return function


# ---- SyncBatchNorm ----
def channels(v, x):
    return v.float().view(-1, *[1] * (x.dim() - 2))


def others(x):
    return [d for d in range(x.dim()) if d != 1]


@twin
def batch_norm_stats(x, eps):
    var, mean = torch.var_mean(x.float(), others(x), correction=0)
    return mean, (var + eps).rsqrt()


@twin
def batch_norm_gather_stats_with_counts(x, mean, invstd, r_mean, r_var, momentum, eps, counts):
    n, counts = counts.sum(), counts.view(-1, 1)
    m = (mean * counts).sum(0) / n
    var = ((invstd**-2 - eps + (mean - m) ** 2) * counts).sum(0) / n
    if r_mean is not None:
        r_mean.lerp_(m.to(r_mean.dtype), momentum)
        r_var.lerp_((var * n / (n - 1)).to(r_var.dtype), momentum)
    return m, (var + eps).rsqrt()


@twin
def batch_norm_elemt(x, weight, bias, mean, invstd, eps):
    y = (x.float() - channels(mean, x)) * channels(invstd, x)
    return (y if weight is None else y * channels(weight, x) + channels(bias, x)).to(x.dtype)


@twin
def batch_norm_backward_reduce(dy, x, mean, invstd, weight, *needed):
    s, sx = dy.float().sum(others(x)), (dy * (x.float() - channels(mean, x))).sum(others(x))
    dtype = s.dtype if weight is None else weight.dtype
    return s, sx, (sx * invstd).to(dtype), s.to(dtype)


@twin
def batch_norm_backward_elemt(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    n, xmu = count.sum(), x.float() - channels(mean, x)
    dx = dy.float() - channels(sum_dy / n, x) - xmu * channels(invstd**2 * sum_dy_xmu / n, x)
    return (dx * channels(invstd if weight is None else invstd * weight, x)).to(x.dtype)


# ---- RMSNorm's backward (forward: the CPU's) ----
@twin
def _fused_rms_norm_backward(dy, x, shape, rstd, weight, needed):
    normed = x.float() * rstd
    g = dy.float() if weight is None else dy.float() * weight.float()
    last = tuple(range(-len(shape), 0))
    dx = rstd * (g - normed * (g * normed).mean(last, keepdim=True))
    if weight is None:
        return dx.to(x.dtype), None
    dw = (dy.float() * normed).flatten(0, -len(shape) - 1).sum(0)
    return dx.to(x.dtype), dw.to(weight.dtype)


# ---- Attention: by matrix products, and the mask of dropout from a seed, as on a GPU ----
def products(q, k, v, bias, causal, scale, dropout, seed):
    """Weights, which of them dropout keeps (divided by their share), and the float32 inputs."""
    q, k, v = q.float(), k.float(), v.float()
    if q.size(1) != k.size(1):  # grouped queries
        k, v = (t.repeat_interleave(q.size(1) // k.size(1), 1) for t in (k, v))
    scale = q.size(-1) ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        late = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(late, -torch.inf)
    kept = torch.ones(())
    if dropout:
        draws = torch.rand(scores.shape, generator=torch.Generator().manual_seed(int(seed)))
        kept = (draws >= dropout) / (1 - dropout)
    return scores, kept, q, k, v, scale


def attend(q, k, v, bias, causal, scale, dropout):
    seed = torch.randint(2**62, ()) if dropout else torch.zeros((), dtype=torch.int64)
    scores, kept, _, _, wide, _ = products(q, k, v, bias, causal, scale, dropout, seed)
    out = (scores.softmax(-1).nan_to_num(0) * kept) @ wide
    # A GPU's kernels leave it in this order of memory, too.
    return out.transpose(1, 2).contiguous().transpose(1, 2).to(q.dtype), scores.logsumexp(-1), seed


def attend_backward(grad, q, k, v, bias, causal, scale, dropout, seed):
    scores, kept, wq, wk, wv, scale = products(q, k, v, bias, causal, scale, dropout, seed)
    weights, grad = scores.softmax(-1).nan_to_num(0), grad.float()
    of_weights = grad @ wv.mT * kept
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_v = (weights * kept).mT @ grad
    of_q, of_k = of_scores @ wk * scale, of_scores.mT @ wq * scale
    if q.size(1) != k.size(1):
        of_k, of_v = (t.unflatten(1, (k.size(1), -1)).sum(2) for t in (of_k, of_v))
    return (*(g.to(q.dtype) for g in (of_q, of_k, of_v)), of_scores)


@twin
def _scaled_dot_product_efficient_attention(
    q, k, v, bias, keep_log, dropout=0.0, causal=False, *, scale=None
):
    out, log, seed = attend(q, k, v, bias, causal, scale, dropout)
    return out, log, seed, seed.clone()


@twin
def _scaled_dot_product_efficient_attention_backward(
    grad, q, k, v, bias, out, log, seed, offset, dropout, needed, causal=False, *, scale=None
):
    *found, of_bias = attend_backward(grad, q, k, v, bias, causal, scale, dropout, seed)
    return *found, of_bias.to(bias.dtype) if needed[3] else None


@twin
def _scaled_dot_product_flash_attention(
    q, k, v, dropout=0.0, causal=False, keep_mask=False, *, scale=None
):
    out, log, seed = attend(q, k, v, None, causal, scale, dropout)
    none = torch.empty(0, dtype=torch.int32)
    return out, log, none, none.clone(), q.size(2), k.size(2), seed, seed.clone(), torch.empty(0)


@twin
def _scaled_dot_product_flash_attention_backward(
    grad, q, k, v, out, log, cum_q, cum_k, max_q, max_k, dropout, causal, seed, more, *, scale=None
):
    return attend_backward(grad, q, k, v, None, causal, scale, dropout, seed)[:3]


# ---- Softmax from half to float32, in one operator ----
@twin
def _softmax(x, dim, to_float):
    return torch.ops.aten._softmax(x.float() if to_float else x, dim, False)


@twin
def _log_softmax(x, dim, to_float):
    return torch.ops.aten._log_softmax(x.float() if to_float else x, dim, False)


@twin
def _softmax_backward_data(grad, out, dim, dtype):
    return torch.ops.aten._softmax_backward_data(grad, out, dim, out.dtype).to(dtype)


@twin
def _log_softmax_backward_data(grad, out, dim, dtype):
    return torch.ops.aten._log_softmax_backward_data(grad, out, dim, out.dtype).to(dtype)


# ---- Cells of LSTM and GRU, without cuDNN ----
def added(gates, *biases):
    return sum((b.float() for b in biases if b is not None), gates.float())


@twin
def _thnn_fused_lstm_cell(from_x, from_h, c, bias_x=None, bias_h=None):
    i, f, g, o = added(from_x.float() + from_h.float(), bias_x, bias_h).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c.float() + i * g
    found = o * new.tanh(), new, torch.cat([i, f, g, o], 1)
    return tuple(t.to(from_x.dtype) for t in found)


@twin
def _thnn_fused_lstm_cell_backward_impl(grad_h, grad_c, c, new, gates, has_bias):
    i, f, g, o = gates.float().chunk(4, 1)
    grad_h, grad_c = (0.0 if t is None else t.float() for t in (grad_h, grad_c))
    squashed = new.float().tanh()
    grad = grad_c + grad_h * o * (1 - squashed**2)
    parts = grad * g * i * (1 - i), grad * c.float() * f * (1 - f), grad * i * (1 - g**2)
    grads = torch.cat([*parts, grad_h * squashed * o * (1 - o)], 1).to(gates.dtype)
    return grads, (grad * f).to(c.dtype), grads.sum(0) if has_bias else None


@twin
def _thnn_fused_gru_cell(from_x, from_h, h, bias_x=None, bias_h=None):
    rx, zx, nx = added(from_x, bias_x).chunk(3, 1)
    rh, zh, nh = added(from_h, bias_h).chunk(3, 1)
    r, z = (rx + rh).sigmoid(), (zx + zh).sigmoid()
    n = (nx + r * nh).tanh()
    found = n + z * (h.float() - n), torch.cat([r, z, n, h.float(), nh], 1)
    return tuple(t.to(from_x.dtype) for t in found)


@twin
def _thnn_fused_gru_cell_backward(grad, saved, has_bias):
    r, z, n, h, nh = saved.float().chunk(5, 1)
    g = grad.float()
    gn = g * (1 - z) * (1 - n**2)
    gz, gr = g * (h - n) * z * (1 - z), gn * nh * r * (1 - r)
    of_x, of_h = torch.cat([gr, gz, gn], 1), torch.cat([gr, gz, gn * r], 1)
    biases = (of_x.sum(0), of_h.sum(0)) if has_bias else (None, None)
    found = of_x, of_h, g * z, *biases
    return tuple(None if t is None else t.to(grad.dtype) for t in found)
