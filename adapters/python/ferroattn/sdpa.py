"""PyTorch's `scaled_dot_product_attention`: a function of its signature, and these kernels under PyTorch's own.

import ferroattn
ferroattn.enable()           # from here on
with ferroattn.enable():     # or here alone
    F.scaled_dot_product_attention(q, k, v)
"""

from __future__ import annotations

import ctypes
import warnings
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _library
from .functions import output

_OPERATORS = {
    "CUDA": [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
    ],
    "CPU": [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ],
}

# How often `enable` is in force, by device.
_enabled = {"CUDA": 0, "CPU": 0}
# Whether PyTorch was to use cuDNN before `enable`.
_cudnn: list[bool] = []
# What holds PyTorch's own kernels, by device.
_saved: dict[str, torch.library.Library] = {}


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's function by these kernels; by its own for dropout, other types, and gradients above head dim 256 on a GPU.

    Args:
        query: `[batch, heads, seqlen_q, dim]`; like the others, without batch or heads, too.
        key: `[batch, kv_heads, seqlen_k, dim]`.
        value: `[batch, kv_heads, seqlen_k, dim_v]`.
        attn_mask: Booleans, true where a query sees a key, or numbers that are added to scores; a shape that broadcasts to
            `[batch, heads, seqlen_q, seqlen_k]`.
        dropout_p: Probability that a weight is dropped.
        is_causal: Whether query `i` sees only keys up to `i`.
        scale: Factor of scores, `1 / sqrt(dim)` if it is None.
        enable_gqa: Whether query heads share key heads if there are fewer of those.

    Returns:
        `[batch, heads, seqlen_q, dim_v]`. A query that sees no key gets 0.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
    """
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(dtype)
    if dropout_p != 0.0 or not _is_served(query, value) or query.dim() > 4:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal are both given; one of them must say what is seen")
    rank = query.dim()
    if rank < 4:
        # Heads before a batch: a mask of as many axes broadcasts to them.
        query, key, value = (tensor[(None,) * (4 - rank)] for tensor in (query, key, value))
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(f"query has {query.shape[1]} heads and key {key.shape[1]}; they must be as many, or enable_gqa true")
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    window = (-1, -1)
    causal = is_causal
    if is_causal and seqlen_k > seqlen_q:
        key, value = key[:, :, :seqlen_q], value[:, :, :seqlen_q]
    elif is_causal and seqlen_k < seqlen_q:
        # A window counts from the last key.
        causal, window = False, (-1, seqlen_q - seqlen_k)
    mask = bias = None
    if attn_mask is not None:
        full = attn_mask[(None,) * (4 - attn_mask.dim())]
        if full.shape[-1] != seqlen_k:
            full = full.expand(*full.shape[:3], seqlen_k)
        mask, bias = (full, None) if full.dtype == torch.bool else (None, full)
    o, _ = output(query, key, value, mask=mask, bias=bias, scale=scale, causal=causal, window=window, heads_first=True)
    return o[(0,) * (4 - rank)] if rank < 4 else o


def _is_served(query: Tensor, value: Tensor) -> bool:
    """Whether these kernels compute a call, and its gradient if there may be one."""
    if query.device.type == "cpu":
        return query.dtype in (torch.float32, torch.float16, torch.bfloat16)
    dim = max(query.shape[-1], value.shape[-1])
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and dim <= (256 if torch.is_grad_enabled() else 1024)
    )


class _Enabled:
    """What `enable` returns: a context at whose end the kernels are PyTorch's own again."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices

    def __enter__(self) -> _Enabled:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        disable(self._devices)


def enable(devices: tuple[str, ...] | str = ("cuda",)) -> _Enabled:
    """Puts these kernels under PyTorch's `scaled_dot_product_attention`, until `disable` or the end of a `with` block.

    PyTorch's own kernels serve what these do not: dropout, and other types of numbers. Which of its operators PyTorch chooses
    changes nothing, except that its `MATH` back end stays as it is.

    Args:
        devices: "cuda", "cpu" or both.

    Raises:
        ValueError: A device has another name.
    """
    devices = (devices,) if isinstance(devices, str) else tuple(devices)
    for device in devices:
        _key(device)
    for device in devices:
        key = _key(device)
        if key == "CUDA" and not torch.cuda.is_available():
            continue
        if _enabled[key] == 0:
            if key not in _saved:
                _saved[key] = _save(key)
            with warnings.catch_warnings():
                # PyTorch warns of the first kernel that is replaced.
                warnings.simplefilter("ignore")
                _Replace.apply(key)
            if key == "CUDA":
                # For cuDNN, PyTorch hides keys by a finite number: rows that see none would differ from its other back ends.
                _cudnn.append(torch.backends.cuda.cudnn_sdp_enabled())
                torch.backends.cuda.enable_cudnn_sdp(False)
        _enabled[key] += 1
    return _Enabled(devices)


def disable(devices: tuple[str, ...] | str = ("cuda",)) -> None:
    """Undoes one `enable` of these devices; nothing if there was none."""
    devices = (devices,) if isinstance(devices, str) else tuple(devices)
    for device in devices:
        key = _key(device)
        if _enabled[key] > 0:
            _enabled[key] -= 1
            if _enabled[key] == 0:
                _call("ferroattn_restore_sdpa", key)
                if key == "CUDA":
                    torch.backends.cuda.enable_cudnn_sdp(_cudnn.pop())


def _key(device: str) -> str:
    if device.upper() not in _OPERATORS:
        raise ValueError(f"device is {device!r}; it must be 'cuda' or 'cpu'")
    return device.upper()


class _Replace(torch.autograd.Function):
    """Replaces the operators of a device inside a function of PyTorch's binary, where its warnings are Python's."""

    @staticmethod
    def forward(ctx: Any, key: str) -> Tensor:
        _call("ferroattn_replace_sdpa", key)
        return torch.empty(0)


def _call(function: str, key: str) -> None:
    entry = getattr(_library.load(), function)
    entry.restype = ctypes.c_char_p
    reason = entry(key.encode())
    if reason is not None:
        raise RuntimeError(f"ferroattn: {reason.decode()}")


def _save(key: str) -> torch.library.Library:
    """Registers an operator `ferroattn::NAME` with PyTorch's own kernel of each operator that is replaced."""
    library = torch.library.Library("ferroattn", "FRAGMENT")
    for name in _OPERATORS[key]:
        operator = getattr(torch.ops.aten, name).default
        kernel = torch.library.get_kernel(operator, key)

        def saved(keys: Any, *args: Any, kernel: Any = kernel, **kwargs: Any) -> Any:
            outputs = kernel.call_boxed(keys, *args, **kwargs)
            # Lengths, which some return between tensors, the caller knows.
            return tuple(output for output in outputs if not isinstance(output, int))

        inputs, outputs = str(operator._schema).removeprefix("aten::").split(" -> ")
        outputs = outputs.replace("SymInt max_q, SymInt max_k, ", "")
        library.define(f"{inputs} -> {outputs}")
        library.impl(name, saved, key, with_keyset=True)
    return library
