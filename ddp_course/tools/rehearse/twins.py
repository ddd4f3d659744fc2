"""What only GPUs have kernels for, written with operators of the CPU.

Arguments and results are those of the operator of the same name, on the CPU. Halves are computed
in float32. The formulas are those of torch's CUDA kernels.
"""

import torch

TWINS = {}
ASKED = {}  # these get the tensors of the GPU: they ask, and compute nothing


def twin(function):
    TWINS[function.__name__] = function
    return function


def asked(function):
    ASKED[function.__name__] = function
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


# ---- Attention: the CPU's flash attention ----
@asked
def _fused_sdp_choice(
    q, k, v, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False
):
    """0: by matrix products; 1: flash; 2: efficient; -1: none that is allowed. As on a GPU, but
    dropout, a gradient for the mask and grouped queries go by matrix products."""
    able = torch.backends.cuda
    learns = mask is not None and mask.requires_grad
    plain = not (dropout or learns or enable_gqa) and q.dim() == 4 and q.dtype != torch.float64
    if plain and q.size(-1) == v.size(-1):
        if able.flash_sdp_enabled() and mask is None and q.dtype != torch.float32:
            return 1
        if able.mem_efficient_sdp_enabled():
            return 2
    return 0 if able.math_sdp_enabled() else -1


def attend(q, k, v, mask, causal, scale):
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mask = None if mask is None else mask.float()
    out, log = flash(q.float(), k.float(), v.float(), 0.0, causal, attn_mask=mask, scale=scale)
    return out.to(q.dtype), log


def attend_backward(grad, q, k, v, mask, out, log, causal, scale):
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mask = None if mask is None else mask.float()
    given = (t.float() for t in (grad, q, k, v, out))
    found = flash(*given, log, 0.0, causal, attn_mask=mask, scale=scale)
    return tuple(g.to(q.dtype) for g in found)


def no_seed():
    return torch.zeros((), dtype=torch.int64)


@twin
def _scaled_dot_product_efficient_attention(
    q, k, v, mask, keep_log, dropout=0.0, causal=False, *, scale=None
):
    return *attend(q, k, v, mask, causal, scale), no_seed(), no_seed()


@twin
def _scaled_dot_product_efficient_attention_backward(
    grad, q, k, v, mask, out, log, seed, offset, dropout, needed, causal=False, *, scale=None
):
    return *attend_backward(grad, q, k, v, mask, out, log, causal, scale), None


@twin
def _scaled_dot_product_flash_attention(
    q, k, v, dropout=0.0, causal=False, keep_mask=False, *, scale=None
):
    out, log = attend(q, k, v, None, causal, scale)
    none = torch.empty(0, dtype=torch.int32)
    seed, most = torch.zeros(2, dtype=torch.uint64), (q.size(2), k.size(2))
    return out, log, none, none.clone(), *most, seed, no_seed(), torch.empty(0)


@twin
def _scaled_dot_product_flash_attention_backward(
    grad,
    q,
    k,
    v,
    out,
    log,
    cum_q,
    cum_k,
    max_q,
    max_k,
    dropout,
    causal,
    seed,
    offset,
    *,
    scale=None,
):
    return attend_backward(grad, q, k, v, None, out, log, causal, scale)


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
