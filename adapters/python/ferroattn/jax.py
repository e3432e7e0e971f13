"""Attention on arrays of JAX, on the CPU and on NVIDIA GPUs, as calls of XLA: under `jax.jit`, with gradients.

    from ferroattn.jax import attention

    def loss(q, k, v):
        o, lse = attention(q, k, v, causal=True)  # arrays [batch, seqlen, heads, dim]
        return o.astype("float32").sum()

    dq, dk, dv = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)

Elements are of float16 or bfloat16; on the CPU of float32, too. Importing this module imports JAX.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ._call import NO_WINDOW, Array, Backward, Call, Forward, Window, bounds_of, check, cpu, interface

__all__ = ["attention"]

Arrays = dict[str, Any]

# XLA gives memory at multiples of fewer bytes than a workspace begins at.
_ALIGNMENT = 256


class _Numbers(NamedTuple):
    """Options that are numbers, known while JAX traces."""

    scale: float | None
    causal: bool
    window: Window
    softcap: float
    batch_invariant: bool
    heads_first: bool


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqlens_q: Any = None,
    seqlens_k: Any = None,
    first_keys: Any = None,
    cache_entries: Any = None,
    pages: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: Window = NO_WINDOW,
    softcap: float = 0.0,
    batch_invariant: bool = False,
    heads_first: bool = False,
) -> tuple[Any, Any]:
    """Computes `o = softmax(scale * q k^T + bias) v` and `lse`, the row log-sum-exp.

    A query that sees no key gets `o = 0` and `lse = -inf`. Query heads share key heads if there are fewer of those.

    Reverse differentiation gives gradients of q, k, v, bias and sinks, from those of o and lse. `jax.vmap` calls the kernels
    once for each element of its axis. Arrays that lie on several devices need `jax.shard_map` around the call, with
    `check_vma=False` for gradients; else each device computes all of it.

    Args:
        q: Queries, `[batch, seqlen_q, heads, dim]`; of packed sequences `[total_q, heads, dim]`.
        k: Keys, `[batch, seqlen_k, kv_heads, dim]` or `[total_k, kv_heads, dim]`.
        v: Values, `[batch, seqlen_k, kv_heads, dim_v]` or `[total_k, kv_heads, dim_v]`.
        bias: Added to scores, `[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]`.
        mask: Booleans of such a shape; a query sees the keys where it is true.
        sinks: Logits of keys without values, `float32[heads]`.
        alibi_slopes: `float32[heads]` or `float32[batch, heads]`; of packed sequences `float32[sequences, heads]`, too.
        seqlens_q: Lengths `int32[batch]`; of packed sequences offsets `int32[sequences + 1]`.
        seqlens_k: Lengths or offsets of keys; of keys in pages lengths always. Without seqlens_q all
            queries of each entry count.
        first_keys: The first key of each entry of the batch, `int32[batch]`.
        cache_entries: The entry of k and v for each entry of q, `int32[batch]`; such a call has no gradient.
        pages: The pages of k and v for each entry of q, or each packed sequence, `int32[batch, most]`: k is
            `[pages, page, kv_heads, dim]`, v alike, the keys of a page a power of 2. Such a call has no gradient.
        scale: Factor of scores, `1 / sqrt(dim)` if it is None. Like all numbers, it is known while JAX traces.
        causal: Whether query `i` sees only keys up to `i + seqlen_k - seqlen_q`.
        window: Keys before and after a query's own that it sees; -1 is no bound.
        softcap: The bound `c` of scores, which become `c * tanh(score / c)`; 0 is none.
        batch_invariant: Whether results of a query have the same bits beside any neighbours in the batch, and in any chunk of
            its sequence; gradients beside any neighbours.
        heads_first: Whether axes are `[batch, heads, seqlen, dim]`.

    Returns:
        o, of q's form with v's dim, and lse, `float32[batch, heads, seqlen_q]` or `float32[heads, total_q]`.

    Raises:
        ValueError, TypeError: A shape, a type or a number is wrong, alone or beside the others.
        NotImplementedError: A gradient is wanted that there is none of.
        jax.errors.JaxRuntimeError: On the CPU, elements of lengths, offsets, entries or pages are wrong; on a GPU they are not
            checked. No kernel of the GPU serves the call.
    """
    inputs = {"q": q, "k": k, "v": v}
    options = {
        "bias": bias,
        "mask": mask,
        "sinks": sinks,
        "alibi_slopes": alibi_slopes,
        "seqlens_q": seqlens_q,
        "seqlens_k": seqlens_k,
        "first_keys": first_keys,
        "cache_entries": cache_entries,
        "pages": pages,
    }
    arrays = inputs | {name: array for name, array in options.items() if array is not None}
    for name, array in arrays.items():
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise TypeError(f"{name} must be an array, not {type(array).__name__}")
    numbers = _Numbers(
        scale=None if scale is None else _number("scale", scale),
        causal=_flag("causal", causal),
        window=bounds_of(window),
        softcap=_number("softcap", softcap),
        batch_invariant=_flag("batch_invariant", batch_invariant),
        heads_first=_flag("heads_first", heads_first),
    )
    return _attention(numbers, arrays)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(numbers: _Numbers, arrays: Arrays) -> tuple[Any, Any]:
    """The call as JAX differentiates it."""
    return _forward(numbers, arrays)


def _with_residuals(numbers: _Numbers, arrays: Arrays) -> tuple[tuple[Any, Any], Any]:
    """o and lse, and what their gradients need."""
    # Keys of a dictionary are no arrays, which could not be told apart while JAX traces.
    wanted = dict.fromkeys(name for name, array in arrays.items() if array.perturbed)
    arrays = {name: array.value for name, array in arrays.items()}
    for name in ("cache_entries", "pages"):
        if name in arrays:
            raise NotImplementedError(f"there are no gradients of a call with {name}")
    if "alibi_slopes" in wanted:
        raise NotImplementedError("there is no gradient of alibi_slopes; jax.lax.stop_gradient leaves it out")
    results = _forward(numbers, arrays)
    return results, (arrays, results, wanted)


def _gradients(numbers: _Numbers, residuals: Any, cotangents: Any) -> tuple[Arrays]:
    """Gradients of the arrays, None of those that have none."""
    arrays, (o, lse), wanted = residuals
    d_o, d_lse = cotangents
    results = {"o": o, "lse": lse, "d_o": jax.numpy.zeros_like(o) if _is_zero(d_o) else d_o}
    if not _is_zero(d_lse):
        results["d_lse"] = d_lse
    of_options = tuple(name for name in ("bias", "sinks") if name in wanted)
    found = _backward(numbers, of_options, arrays, results)
    return ({name: found.get(name) for name in arrays},)


_attention.defvjp(_with_residuals, _gradients, symbolic_zeros=True)


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


@partial(jax.jit, static_argnums=0)
def _forward(numbers: _Numbers, arrays: Arrays) -> tuple[Any, Any]:
    """o and lse."""
    shape, dtype = (*arrays["q"].shape[:-1], *arrays["v"].shape[-1:]), arrays["q"].dtype
    calls = _calls(numbers, arrays)
    rows = calls[0].rows

    def args(call: Call) -> Forward:
        o, lse = _stand_in(shape, dtype), _stand_in(rows, np.float32)
        return call.args(Forward, o=call.tensor("o", o), lse=call.tensor_of_rows("lse", lse))

    workspace = max(_workspace("ferroattn_plan_forward", args(call)) for call in calls)
    results = {"o": jax.ShapeDtypeStruct(shape, dtype), "lse": jax.ShapeDtypeStruct(rows, np.float32)}
    found = _run("ferroattn_forward", numbers, arrays, results, workspace)
    return found["o"], found["lse"]


@partial(jax.jit, static_argnums=(0, 1))
def _backward(numbers: _Numbers, wanted: tuple[str, ...], arrays: Arrays, results: Arrays) -> Arrays:
    """Gradients of q, k, v and of the options that are wanted, by the names of those.

    Args:
        numbers: Options that are numbers.
        wanted: `bias` or `sinks` or both, if their gradients are.
        arrays: What the forward call had.
        results: o and lse, and their gradients.
    """
    outputs = {f"d{name}": jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in "qkv"}
    outputs |= {f"d_{name}": jax.ShapeDtypeStruct(arrays[name].shape, np.float32) for name in wanted}

    def args(call: Call) -> Backward:
        stands = {name: _stand_in(array.shape, array.dtype) for name, array in (results | outputs).items()}
        tensors = {name: call.tensor(name, stands[name]) for name in ("o", "d_o", "dq", "dk", "dv")}
        found = call.args(Backward, lse=call.tensor_of_rows("lse", stands["lse"]), **tensors)
        if "d_lse" in results:
            found.d_lse = ctypes.pointer(call.tensor_of_rows("d_lse", stands["d_lse"]))
        for name in wanted:
            setattr(found, f"d_{name}", ctypes.pointer(call.keep(stands[f"d_{name}"])))
        return found

    workspace = max(_workspace("ferroattn_plan_backward", args(call)) for call in _calls(numbers, arrays))
    found = _run("ferroattn_backward", numbers, arrays | results, outputs, workspace)
    gradients = {name: found[f"d{name}"] for name in "qkv"}
    return gradients | {name: found[f"d_{name}"].astype(arrays[name].dtype) for name in wanted}


def _run(target: str, numbers: _Numbers, arguments: Arrays, results: Arrays, workspace: int) -> Arrays:
    """The results of a handler of the binary, and a workspace, by their names."""
    # Memory that XLA assigns belongs to the call in a CUDA graph, too; memory that a handler asks for does not.
    results = results | {"workspace": jax.ShapeDtypeStruct((workspace,), np.uint8)}
    left, right = numbers.window
    call = jax.ffi.ffi_call(target, list(results.values()), vmap_method="sequential")
    found = call(
        *arguments.values(),
        arguments=" ".join(arguments),
        results=" ".join(results),
        # NaN is none.
        scale=np.float32(np.nan if numbers.scale is None else numbers.scale),
        causal=numbers.causal,
        left=np.int64(left),
        right=np.int64(right),
        softcap=np.float32(numbers.softcap),
        batch_invariant=numbers.batch_invariant,
        heads_first=numbers.heads_first,
    )
    return dict(zip(results, found, strict=True))


def _calls(numbers: _Numbers, arrays: Arrays) -> list[Call]:
    """The call for the C interface, checked, on arrays that are not there; and again with v in k's place.

    Where v is k, XLA may pass one array for both, for which other kernels may be the best.
    """
    calls = []
    stands = {name: _stand_in(array.shape, array.dtype) for name, array in arrays.items()}
    values = [stands["v"]]
    if arrays["v"].shape == arrays["k"].shape and arrays["v"].dtype == arrays["k"].dtype:
        values.append(stands["k"])
    for value in values:
        call = Call(stands["q"], stands["k"], value, numbers.heads_first, in_pages="pages" in stands)
        call.set_numbers(numbers.scale, numbers.causal, numbers.window, numbers.softcap, numbers.batch_invariant)
        call.set_arrays(*(stands.get(name) for name in ("bias", "mask", "sinks", "alibi_slopes")))
        lengths = ("seqlens_q", "seqlens_k", "first_keys", "cache_entries", "pages")
        call.set_lengths(*(stands.get(name) for name in lengths))
        calls.append(call)
    return calls


def _stand_in(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of NumPy of a shape, without memory for its elements: plans read none."""
    dtype = np.dtype(dtype)
    first = np.empty(1, dtype)
    strides = [dtype.itemsize] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def _workspace(function: str, args: ctypes.Structure) -> int:
    """Bytes of the workspace that a call needs on any GPU, and room to align it. Raises what is wrong with the call."""
    plan = getattr(interface(), function)
    handle = ctypes.c_void_p()
    most = 0
    for device in (cpu(), *_gpus()):
        status = plan(device, ctypes.byref(args), ctypes.byref(handle))
        if device is cpu():
            check(status)
        # What a GPU does not serve, its handler refuses: the call may be for the CPU.
        if status == 0:
            most = max(most, interface().ferroattn_plan_workspace_bytes(handle))
            interface().ferroattn_plan_free(handle)
    return most + _ALIGNMENT if most else 0


@cache
def _gpus() -> list[ctypes.c_void_p]:
    """JAX's GPUs as devices, opened once."""
    try:
        found = jax.local_devices(backend="cuda")
    except RuntimeError:
        return []
    devices = []
    for gpu in found:
        device = ctypes.c_void_p()
        if interface().ferroattn_open_cuda(gpu.local_hardware_id, ctypes.byref(device)) == 0:
            devices.append(device)
    return devices


def _number(name: str, value: Any) -> float:
    if not hasattr(_known(name, value), "__float__"):
        raise TypeError(f"{name} must be a real number, not {type(value).__name__}")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    return bool(_known(name, value))


def _known(name: str, value: Any) -> Any:
    """The value, unless JAX traces it."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced; it must be known while JAX traces")
    return value


def _register() -> None:
    """Tells XLA the handlers of the binary."""
    for name in ("forward", "backward"):
        for platform in ("cpu", "CUDA"):
            handler = getattr(interface(), f"ferroattn_jax_{name}_{platform.lower()}")
            jax.ffi.register_ffi_target(f"ferroattn_{name}", jax.ffi.pycapsule(handler), platform=platform)


_register()
