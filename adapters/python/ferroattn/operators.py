"""Attention as operators of PyTorch: `torch.ops.ferroattn.forward` and its gradient.

The binary registers the operators for the CPU and for CUDA. This module adds what PyTorch asks Python for: shapes for
`torch.compile`, and the gradient's formula.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import _library

_library.register_torch(str(Path(torch.__file__).parent / "lib"))

forward = torch.ops.ferroattn.forward.default
backward = torch.ops.ferroattn.backward.default
backward_into = torch.ops.ferroattn.backward_into.default
forward_e4m3 = torch.ops.ferroattn.forward_e4m3.default
append = torch.ops.ferroattn.append.default
csr_pages = torch.ops.ferroattn.csr_pages.default

# Types of o, by the numbers of `forward_e4m3`.
DTYPES = torch.float16, torch.bfloat16, torch.float32

# Where options are among the arguments of `forward`: tensors first, then numbers.
_BIAS, _SINKS, _TENSORS = 3, 5, 15

# Calls below autograd pass no kernel of Python.
_below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", torch.no_grad)

_EXCEPTIONS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "MemoryError": torch.OutOfMemoryError,
}


def fail(error: RuntimeError) -> NoReturn:
    """Raises what an operator's error means, in one line."""
    text = str(error).split("\n", 1)[0]
    name, _, reason = text.removeprefix("ferroattn.").partition(": ")
    if not text.startswith("ferroattn.") or name not in _EXCEPTIONS:
        raise error
    raise _EXCEPTIONS[name](reason) from None


def _fake_outputs(q: Tensor, dim: int, heads_first: bool) -> tuple[Tensor, Tensor]:
    """o, of q's type, and lse."""
    if q.dim() == 3:
        total, heads, _dim = q.shape
        return q.new_empty(total, heads, dim), q.new_empty(heads, total, dtype=torch.float32)
    if heads_first:
        batch, heads, seqlen, _dim = q.shape
        o = q.new_empty(batch, seqlen, heads, dim).transpose(1, 2)
    else:
        batch, seqlen, heads, _dim = q.shape
        o = q.new_empty(batch, seqlen, heads, dim)
    return o, q.new_empty(batch, heads, seqlen, dtype=torch.float32)


@torch.library.register_fake("ferroattn::forward")
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _fake_outputs(q, v.shape[-1], options[-1])


@torch.library.register_fake("ferroattn::forward_e4m3")
def _(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
    page_descales: bool, dtype: int, *options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    # k alone is e4m3 in a cache.
    if (q.dtype == torch.float8_e4m3fn) == (k.dtype == torch.float8_e4m3fn):
        q = q.new_empty(q.shape, dtype=DTYPES[dtype])
    return _fake_outputs(q, v.shape[-1], options[-1])


def _fake_like(tensor: Tensor, heads_first: bool) -> Tensor:
    if tensor.dim() == 3 or not heads_first:
        return tensor.new_empty(tensor.shape)
    batch, heads, seqlen, dim = tensor.shape
    return tensor.new_empty(batch, seqlen, heads, dim).transpose(1, 2)


def _fakes_of_options(q: Tensor, with_bias: bool, with_sinks: bool, bias: Tensor, heads_first: bool) -> list[Tensor]:
    heads = q.shape[2] if q.dim() == 4 and not heads_first else q.shape[1]
    shapes = [bias.shape if with_bias else (0,), (heads,) if with_sinks else (0,)]
    return [q.new_empty(shape, dtype=torch.float32) for shape in shapes]


@torch.library.register_fake("ferroattn::backward")
def _(
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    with_bias: bool, with_sinks: bool, bias: Tensor, *options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    heads_first = options[-1]
    dq, dk, dv = (_fake_like(tensor, heads_first) for tensor in (q, k, v))
    return dq, dk, dv, *_fakes_of_options(q, with_bias, with_sinks, bias, heads_first)


@torch.library.register_fake("ferroattn::backward_into")
def _(
    dq: Tensor, dk: Tensor, dv: Tensor,
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    with_bias: bool, with_sinks: bool, bias: Tensor, *options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(_fakes_of_options(q, with_bias, with_sinks, bias, options[-1]))


@torch.library.register_fake("ferroattn::append")
def _(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, q: Tensor | None, *options: Any) -> tuple[Tensor, Tensor]:
    rotated = k.new_empty(0) if q is None else _fake_like(q, options[-1])
    return rotated, k.new_empty(k.shape[0] if k.dim() == 4 else 1, dtype=torch.int32)


@torch.library.register_fake("ferroattn::csr_pages")
def _(indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int, max_pages: int) -> tuple[Tensor, Tensor]:
    return indptr.new_empty(last_page_len.shape[0], max_pages), indptr.new_empty(last_page_len.shape[0])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keeps what the gradient needs."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], *output)
    ctx.numbers = inputs[_TENSORS:]


def _gradient(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of the arguments of `forward`."""
    q, k, v, *tensors, o, lse = ctx.saved_tensors
    if d_o is None:
        d_o = torch.zeros_like(o)
    with_bias, with_sinks = ctx.needs_input_grad[_BIAS], ctx.needs_input_grad[_SINKS]
    dq, dk, dv, d_bias, d_sinks = backward(d_o, d_lse, q, k, v, o, lse, with_bias, with_sinks, *tensors, *ctx.numbers)
    others = (None,) * (_TENSORS - 6 + len(ctx.numbers))
    d_bias = d_bias.to(tensors[0].dtype) if with_bias else None
    return dq, dk, dv, d_bias, None, d_sinks if with_sinks else None, *others


torch.library.register_autograd("ferroattn::forward", _gradient, setup_context=_setup)


class _Attention(torch.autograd.Function):
    """The operator with its gradient, without PyTorch's kernels of Python for both."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        with _below_autograd():
            output = forward(*inputs)
        _setup(ctx, inputs, output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, *gradients)


# Tensors without a class of their own, whose calls may pass PyTorch's kernels of Python.
_PLAIN = (Tensor, torch.nn.Parameter)

_native = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_carry = torch.ops.ferroattn.carry.default
# Numbers of sets of options, by the options.
_sets: dict[tuple[Any, ...], float] = {}


def call(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The operator `forward` by its arguments in their order, all of them, with gradients of o and lse if one is wanted.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: No kernel of the device computes the call.
        torch.OutOfMemoryError: Memory ran out.
    """
    if torch.compiler.is_compiling() or type(inputs[0]) not in _PLAIN:
        return forward(*inputs)
    try:
        if torch.is_grad_enabled():
            return _Attention.apply(*inputs)
        with _below_autograd():
            return forward(*inputs)
    except RuntimeError as error:
        fail(error)


def call_for_output(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Like `call`, with gradients of o alone, which PyTorch computes in its own code where its operator has the arguments.

    Raises: as `call`.
    """
    q, k, v, bias, mask, sinks, alibi, seqlens_q, seqlens_k, first_keys, cache_entries, pages, *others = inputs
    prefix_k, prefix_v, prefix_pages, prefix_keys, *numbers = others
    if (
        first_keys is not None
        or cache_entries is not None
        or pages is not None
        or prefix_k is not None
        or prefix_v is not None
        or prefix_pages is not None
        or prefix_keys is not None
        or (mask is not None and (bias is not None or mask.dtype != torch.bool))
        or (bias is not None and bias.dtype == torch.bool)
        or (sinks is not None and sinks.requires_grad)
        or torch.compiler.is_compiling()
        or type(q) not in _PLAIN
    ):
        return call(*inputs)
    carries = seqlens_q is not None or seqlens_k is not None or alibi is not None or sinks is not None
    key = (*numbers, carries)
    number = _sets.get(key)
    if number is None:
        number = _intern(*key)
        if number < 0:
            return call(*inputs)
        _sets[key] = number
    try:
        if carries:
            _carry(seqlens_q, seqlens_k, alibi, sinks)
        return _native(q, k, v, mask if bias is None else bias, number)[:2]
    except RuntimeError as error:
        fail(error)


def _intern(scale: float | None, *numbers: Any) -> float:
    """The number of a set of options in the binary; -1.0 if it keeps no more, or one is wrong."""
    if scale is not None and math.isnan(scale):
        return -1.0
    intern = _library.load().ferroattn_intern
    long, double = ctypes.c_int64, ctypes.c_double
    flag = ctypes.c_uint32
    intern.argtypes = [double, flag, long, long, double, long, long, flag, flag, flag, flag, flag]
    intern.restype = long
    return float(intern(math.nan if scale is None else scale, *numbers))


def call_into(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The operator `backward_into` by its arguments in their order, all of them, without a gradient of its own.

    Raises: as `call`.
    """
    if torch.compiler.is_compiling():
        return backward_into(*inputs)
    try:
        with _below_autograd():
            return backward_into(*inputs)
    except RuntimeError as error:
        fail(error)


def call_e4m3(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The operator `forward_e4m3` by its arguments in their order, all of them, without a gradient.

    Raises: as `call`.
    """
    if torch.compiler.is_compiling() or type(inputs[0]) not in _PLAIN:
        with torch.no_grad():
            return forward_e4m3(*inputs)
    try:
        with _below_autograd():
            return forward_e4m3(*inputs)
    except RuntimeError as error:
        fail(error)


def call_append(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The operator `append` by its arguments in their order, all of them, without a gradient.

    Raises: as `call`.
    """
    if torch.compiler.is_compiling() or type(inputs[0]) not in _PLAIN:
        with torch.no_grad():
            return append(*inputs)
    try:
        with _below_autograd():
            outputs = append(*inputs)
    except RuntimeError as error:
        fail(error)
    # A gradient that has kept a cache must not use it now.
    torch.autograd.graph.increment_version(inputs[2:4])
    return outputs


def call_csr_pages(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The operator `csr_pages` by its arguments in their order.

    Raises: as `call`.
    """
    if torch.compiler.is_compiling():
        return csr_pages(*inputs)
    try:
        return csr_pages(*inputs)
    except RuntimeError as error:
        fail(error)
