"""Attention in float64 by its definition, with gradients by PyTorch, and what is compared with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Errors that rounding alone explains, of the largest element.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, mask: Tensor | None = None, sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None, seqlens_q: Tensor | None = None, seqlens_k: Tensor | None = None,
    first_keys: Tensor | None = None, scale: float | None = None, causal: bool = False, window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse on `[batch, seqlen, heads, dim]`."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    batch, heads, rows, dim = q.shape
    columns = k.shape[2]
    group = heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    lengths_q = torch.full((batch,), rows) if seqlens_q is None else seqlens_q
    lengths_k = torch.full((batch,), columns) if seqlens_k is None else seqlens_k
    lengths_q, lengths_k = (lengths.to(q.device).view(-1, 1, 1, 1) for lengths in (lengths_q, lengths_k))
    i = torch.arange(rows, device=q.device).view(1, 1, -1, 1)
    j = torch.arange(columns, device=q.device).view(1, 1, 1, -1)
    distance = i + lengths_k - lengths_q - j
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double().view(-1, heads, 1, 1) * distance.abs()
    if bias is not None:
        scores = scores + bias.double()
    seen = (i < lengths_q) & (j < lengths_k)
    if first_keys is not None:
        seen = seen & (j >= first_keys.view(-1, 1, 1, 1))
    if causal:
        seen = seen & (distance >= 0)
    left, right = window
    if left >= 0:
        seen = seen & (distance <= left)
    if right >= 0:
        seen = seen & (distance >= -right)
    if mask is not None:
        seen = seen & mask
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        sink = sinks.double().view(1, -1, 1, 1).expand(batch, heads, rows, 1)
        scores = torch.cat((scores, sink), -1)
        v = torch.cat((v, v.new_zeros(batch, heads, 1, v.shape[-1])), 2)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return (weights @ v).transpose(1, 2), scores.logsumexp(-1)


def gradients(function: Any, inputs: list[Tensor], d_o: Tensor, d_lse: Tensor | None = None, **options: Any) -> list[Tensor]:
    """o, lse and the gradients of the inputs, and of those options that want one."""
    inputs = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in inputs]
    wanted = [name for name in ("bias", "sinks") if options.get(name) is not None]
    options |= {name: options[name].detach().clone().requires_grad_() for name in wanted}
    o, lse = function(*inputs, **options)
    loss = (o.double() * d_o.double()).sum()
    if d_lse is not None:
        loss = loss + (lse.double() * d_lse.double()).nan_to_num(0.0, 0.0, 0.0).sum()
    return [o, lse, *torch.autograd.grad(loss, [*inputs, *(options[name] for name in wanted)])]


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype, what: object = "") -> None:
    """Compares results whose inputs are of a type."""
    assert len(found) == len(expected)
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, f"{what}: tensor {index} has shape {a.shape}, not {b.shape}"
        a, b = a.detach().double(), b.detach().double()
        finite = b.isfinite()
        assert torch.equal(finite, a.isfinite()), f"{what}: tensor {index} is finite elsewhere"
        assert torch.equal(a[~finite], b[~finite]), f"{what}: tensor {index} differs where it is infinite"
        if finite.any():
            error, largest = (a - b)[finite].abs().max().item(), b[finite].abs().max().item()
            bound = TOLERANCE[dtype] * max(largest, 1.0)
            assert error <= bound, f"{what}: tensor {index} is off by {error}, of {largest}"
