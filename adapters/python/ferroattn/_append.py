"""New keys and values of a cache, as the C interface takes them, from arrays of any library."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ._call import (
    DTYPES,
    E4M3,
    Array,
    Kept,
    Tensor,
    TensorPointer,
    array_of,
    check,
    cpu,
    expect_axes,
    form_of,
    in_rows,
    interface,
    tensor_of,
)


class Append(ctypes.Structure):
    """`FerroattnAppend`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        *((name, Tensor) for name in ("k", "v", "k_cache", "v_cache")),
        *((name, TensorPointer) for name in ("q", "rotated", "pages", "cache_entries", "lengths", "new_lengths")),
        *((name, TensorPointer) for name in ("slots", "positions", "cos", "sin")),
        *((name, ctypes.c_uint32) for name in ("rotary_dtype", "interleaved", "q_at_first", "check_lengths")),
        *((name, TensorPointer) for name in ("k_descale", "v_descale")),
        *((name, ctypes.c_uint32) for name in ("e4m3_cache", "page_descales")),
    ]


class AppendCall(Kept):
    """New rows, the cache that gets them, and options."""

    def __init__(self, k: Any, v: Any, k_cache: Any, v_cache: Any, heads_first: bool) -> None:
        k = array_of("k", k, *DTYPES)
        super().__init__(str(k.dtype), k.ndim == 3, heads_first)
        of_cache = str(_cache("k_cache", k_cache, self.dtype, E4M3).dtype)
        _cache("v_cache", v_cache, of_cache)
        self._args = Append(struct_size=ctypes.sizeof(Append), dtype=DTYPES[self.dtype], e4m3_cache=of_cache == E4M3)
        self._args.k, self._args.v = self.tensor("k", k), self.tensor("v", v)
        form, order = form_of(False, heads_first)
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            expect_axes(name, cache, 4, form)
            if in_rows(cache) is not cache:
                raise ValueError(f"{name} must have aligned elements, those of a row side by side")
            setattr(self._args, name, tensor_of(cache.transpose(order)))
        self.batch = self._args.k.shape[0]

    def set_queries(self, q: Any) -> Array:
        """Sets queries, and returns the array that gets the rotated ones."""
        q = array_of("q", q, self.dtype)
        rotated = np.empty(q.shape, q.dtype)
        self._args.q, self._args.rotated = (
            ctypes.pointer(self.tensor(name, array)) for name, array in (("q", q), ("rotated", rotated))
        )
        return rotated

    def set_places(self, lengths: Any, pages: Any, cache_entries: Any, slots: Any, positions: Any) -> Array:
        """Sets where rows go, and returns the array that gets the lengths behind them."""
        row = "a row of numbers"
        self._set("lengths", lengths, "int32", 1, row)
        self._set("cache_entries", cache_entries, "int32", 1, row)
        self._set("pages", pages, "int32", 2, "[batch, most pages]")
        for name, numbers, dtype in (("slots", slots, "int64"), ("positions", positions, "int32")):
            if self._packed and numbers is not None:
                numbers = array_of(name, numbers, dtype)
                expect_axes(name, numbers, 1, "[total]")
                numbers = numbers[None]
            self._set(name, numbers, dtype, 2, "[batch, seqlen]")
        new_lengths = np.empty(self.batch, np.int32)
        self._args.new_lengths = ctypes.pointer(self.keep(new_lengths))
        return new_lengths

    def set_rotary(self, cos: Any, sin: Any, interleaved: bool, q_at_first: bool) -> None:
        """Sets the rotation of keys and queries."""
        if (cos is None) != (sin is None):
            raise ValueError("a rotary embedding needs both cosines and sines")
        if cos is not None:
            cos = array_of("cos", cos, *dict.fromkeys(("float32", self.dtype)))
            self._args.rotary_dtype = DTYPES[str(cos.dtype)]
            for name, table in (("cos", cos), ("sin", sin)):
                self._set(name, table, str(cos.dtype), 2, "[positions, rotary_dim / 2]")
        self._args.interleaved, self._args.q_at_first = bool(interleaved), bool(q_at_first)

    def set_descales(self, k_descale: Any, v_descale: Any, page_descales: bool) -> None:
        """Sets what multiplies the numbers of caches of e4m3."""
        if not self._args.e4m3_cache and (k_descale is not None or v_descale is not None):
            raise TypeError(f"descales need caches of {E4M3}")
        for name, descale in (("k_descale", k_descale), ("v_descale", v_descale)):
            self._set(name, descale, "float32", 2, "[batch, kv_heads]; of pages [pages, kv_heads]")
        self._args.page_descales = bool(page_descales)

    def run(self) -> None:
        check(interface().ferroattn_append(cpu(), ctypes.byref(self._args), None))

    def _set(self, name: str, value: Any, dtype: str, axes: int, form: str) -> None:
        """Sets an optional array."""
        if value is not None:
            array = array_of(name, value, dtype)
            expect_axes(name, array, axes, form)
            setattr(self._args, name, ctypes.pointer(self.keep(array)))


def _cache(name: str, value: Any, *dtypes: str) -> Array:
    """An array that is written in place. Of other libraries' arrays NumPy may see a copy, and those of JAX never change."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be an array of NumPy, which is written in place, not {type(value).__name__}")
    array = array_of(name, value, *dict.fromkeys(dtypes))
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return array
