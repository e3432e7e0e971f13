"""FlashAttention's functions, and the inner ones that other libraries call: each pass alone, without a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import operators
from ..functions import (
    _no_dropout,
    _of_pages,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

# Read by FlashAttention's own tests.
USE_TRITON_ROCM = False


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The forward pass on `[batch, seqlen, heads, dim]`.

    Returns:
        o, lse `float32[batch, heads, seqlen_q]`, and two tensors of a dropout that is none.
    """
    _no_dropout(dropout_p)
    o, lse = _forward(
        q, k, v, None, None, None, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, 0
    )
    return o, lse, q.new_empty(0), _no_state(q)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The forward pass on packed sequences, `[total, heads, dim]`; keys and values may lie in pages of a block_table.

    Returns:
        o, lse `float32[heads, total_q]`, and two tensors of a dropout that is none.
    """
    _no_dropout(dropout_p)
    if leftpad_k is not None:
        raise NotImplementedError("leftpad_k is not served beside offsets of packed sequences")
    if block_table is not None:
        seqlens_k = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        o, lse = _of_pages(
            q, k, v, cu_seqlens_q, seqlens_k, max_seqlen_q, block_table, scale=softmax_scale, causal=causal,
            window=(window_size_left, window_size_right), softcap=softcap, alibi_slopes=alibi_slopes, splits=num_splits,
        )  # fmt: skip
        return o, lse, q.new_empty(0), _no_state(q)
    if seqused_k is not None:
        raise NotImplementedError("seqused_k is served beside a block_table alone")
    o, lse = _forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, None, softmax_scale, causal, window_size_left, window_size_right, softcap,
        alibi_slopes, num_splits,
    )  # fmt: skip
    return o, lse, q.new_empty(0), _no_state(q)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    rng_state: Tensor | None = None,
) -> Tensor:
    """The backward pass; it writes dq, dk and dv.

    Returns:
        A tensor without elements.
    """
    _no_dropout(dropout_p)
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, None, None, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic,
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """The backward pass on packed sequences; it writes dq, dk and dv.

    Returns:
        A tensor without elements.
    """
    _no_dropout(dropout_p)
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
    )  # fmt: skip


def _forward(
    q: Tensor, k: Tensor, v: Tensor, seqlens_q: Tensor | None, seqlens_k: Tensor | None, first_keys: Tensor | None,
    scale: float | None, causal: bool, left: int, right: int, softcap: float, alibi_slopes: Tensor | None, splits: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        return operators.call(
            q, k, v, None, None, None, alibi_slopes, seqlens_q, seqlens_k, first_keys, None, None,
            None, None, None, None, scale, causal, left, right, softcap, splits, 0, True, False, False, False,
        )  # fmt: skip


def _backward(
    d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, seqlens_q: Tensor | None, seqlens_k: Tensor | None,
    scale: float | None, causal: bool, left: int, right: int, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool,
) -> Tensor:  # fmt: skip
    given = (dq, dk, dv)
    gradients = [torch.empty_like(x) if d is None else d for d, x in zip(given, (q, k, v), strict=True)]
    options: tuple[Any, ...] = (
        None, None, None, alibi_slopes, seqlens_q, seqlens_k, None, None, None, None, None, None, None,
        scale, causal, left, right, softcap, 0, 0, deterministic, False, False, False,
    )  # fmt: skip
    with torch.no_grad():
        operators.call_into(*gradients, d_o, None, q, k, v, o, lse, False, False, *options)
    return lse.new_empty(0)


def _no_state(q: Tensor) -> Tensor:
    """State of a generator that nothing reads."""
    return torch.empty(2, dtype=torch.int64, device=q.device)


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys of a block, which FlashAttention's own tests ask for: they read masks of dropout in such blocks."""
    return 128 if head_dim <= 64 else 64
