"""Attention of the models in `transformers`, by the name "ferroattn".

    import ferroattn.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="ferroattn")

It reads masks of padding, packed sequences, sliding windows, softcaps and sinks as models pass them. So does the name
"ferroattn-fp8", which rounds q, k and v of long prompts to e4m3.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from .functions import output

NAME = "ferroattn"
NAME_FP8 = "ferroattn-fp8"
# Queries from which calls are in FP8. Inputs are rounded first: at D = 128 causal calls of 4096 are slower than in 16 bits, and
# those of 16384 faster (docs/fp8.md); between these nothing was measured.
FP8_QUERIES = 8192
# Keys of a window from which they are. All keys are rounded, but those of a window alone multiplied: 4096 of 16384 gain
# (docs/fp8.md), and fewer, or of fewer queries, were not measured.
FP8_WINDOW = 4096


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    fp8: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer, as `transformers` calls it.

    Args:
        module: The layer, which says in `is_causal` if the argument does not.
        query: `[batch, heads, seqlen_q, dim]`.
        key: `[batch, kv_heads, seqlen_k, dim]`.
        value: `[batch, kv_heads, seqlen_k, dim_v]`.
        attention_mask: `[batch, seqlen_k]`, true where a token is there; or any mask of four axes, then alone.
        dropout: 0.0; there is no dropout.
        scaling: Factor of scores.
        sliding_window: Keys that a query sees, its own among them.
        softcap: The bound of scores.
        s_aux: Sinks, `[heads]`.
        position_ids: `[batch, seqlen_q]`; in a batch of one, sequences are packed where they start again.
        cu_seq_lens_q, cu_seq_lens_k: Offsets of packed sequences.
        fp8: Whether calls that gain by it are computed in FP8: those of FP8_QUERIES or more without a window of fewer keys than
            FP8_WINDOW, padding or a gradient, on the CPU and on Hopper.

    Returns:
        o, `[batch, seqlen_q, heads, dim_v]`, and None.

    Raises:
        NotImplementedError: There is dropout.
    """
    if dropout != 0.0:
        raise NotImplementedError(f"attention dropout is {dropout}; set it to 0 in the model's config, there is none here")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, -1 if causal else sliding_window - 1)
    dtype = _dtype(module, query)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    options: dict[str, Any] = {
        "scale": scaling,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
        "window": window,
        "causal": causal,
    }
    batch = query.shape[0]
    if attention_mask is None and cu_seq_lens_q is None and position_ids is not None and _starts_again(position_ids, query):
        cu_seq_lens_q = cu_seq_lens_k = _offsets(position_ids)
    if attention_mask is None and cu_seq_lens_q is not None:
        q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
        o, _lse = output(q, k, v, seqlens_q=cu_seq_lens_q, seqlens_k=cu_seq_lens_k, **options)
        return o.unflatten(0, (batch, -1)), None
    if attention_mask is not None and attention_mask.dim() == 2:
        # A static cache is longer than the tokens that are there.
        seen = attention_mask.shape[1]
        key, value = key[:, :, :seen], value[:, :, :seen]
        options["mask"] = attention_mask.bool()[:, None, None, :]
    elif attention_mask is not None:
        seen = key.shape[2]
        options["mask" if attention_mask.dtype == torch.bool else "bias"] = attention_mask[..., :seen]
        options["causal"], options["window"] = False, (-1, -1)
    fp8 = fp8 and _gains_by_fp8(query, key, value, options)
    o, _lse = output(query, key, value, heads_first=True, fp8=fp8, **options)
    return o.transpose(1, 2), None


def register() -> None:
    """Makes "ferroattn" and "ferroattn-fp8" known to `transformers`; importing this module does."""
    for name, forward in ((NAME, attention_forward), (NAME_FP8, partial(attention_forward, fp8=True))):
        AttentionInterface.register(name, forward)
        AttentionMaskInterface.register(name, flash_attention_mask)


def _gains_by_fp8(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> bool:
    """Whether a call is served in FP8, and faster."""
    left, _right = options["window"]
    return (
        query.shape[2] >= FP8_QUERIES
        and (left == -1 or left + 1 >= FP8_WINDOW)
        and max(query.shape[3], value.shape[3]) <= 256
        and not any(name in options for name in ("mask", "bias"))
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)))
        and (query.device.type == "cpu" or torch.cuda.get_device_capability(query.device)[0] == 9)
    )


def _dtype(module: nn.Module, query: Tensor) -> torch.dtype:
    """The type to compute in: float32, which normalisation leaves behind, is the weights' type on a GPU."""
    if torch.is_autocast_enabled(query.device.type):
        return torch.get_autocast_dtype(query.device.type)
    if query.dtype != torch.float32 or query.device.type == "cpu":
        return query.dtype
    weights = (layer.weight.dtype for layer in module.modules() if isinstance(layer, nn.Linear))
    return next(weights, query.dtype)


# The positions that were looked at last, their version, and what was found.
_looked_at: tuple[weakref.ref[Tensor], int, bool] | None = None


def _starts_again(position_ids: Tensor, query: Tensor) -> bool:
    """Whether several sequences are packed in a batch of one, by their positions.

    The answer waits for the GPU, so all layers of a model, which share the positions, share it.
    """
    global _looked_at
    if query.shape[0] != 1 or position_ids.shape[-1] != query.shape[2] or query.shape[2] < 2:
        return False
    if torch.compiler.is_compiling():
        return bool((position_ids.reshape(-1).diff() != 1).any())
    version = position_ids._version
    if _looked_at is not None and _looked_at[0]() is position_ids and _looked_at[1] == version:
        return _looked_at[2]
    found = bool((position_ids.reshape(-1).diff() != 1).any())
    _looked_at = weakref.ref(position_ids), version, found
    return found


def _offsets(position_ids: Tensor) -> Tensor:
    """Offsets of sequences, each of which begins at the least position."""
    positions = position_ids.reshape(-1)
    starts = (positions == positions.min()).nonzero().flatten()
    return torch.cat((starts, starts.new_tensor([positions.shape[0]]))).to(torch.int32)


register()
