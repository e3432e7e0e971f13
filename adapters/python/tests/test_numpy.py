"""Attention on arrays of NumPy and JAX, outputs and gradients, against formulas in float64."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from ferroattn._call import in_rows  # noqa: E402
from ferroattn.numpy import attention, attention_backward, csr_pages  # noqa: E402

Tolerance = dict[str, tuple[float, float, float]]
# Errors that rounding alone explains, of the largest element or of 1: of o, of lse and of gradients.
TOLERANCE: Tolerance = {"float32": (1e-6, 1e-6, 3e-6), "float16": (6e-4, 1e-6, 2e-3), "bfloat16": (5e-3, 1e-6, 2e-2)}
NAMES = ["o", "lse", "dq", "dk", "dv", "d_bias", "d_sinks"]


def dtype_of(name: str) -> Any:
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def reference(
    q: Any, k: Any, v: Any, d_o: Any, d_lse: Any, *, bias: Any = None, mask: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, seqlens_q: Any = None, seqlens_k: Any = None, first_keys: Any = None,
    cache_entries: Any = None, scale: float | None = None, causal: bool = False, window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> list[Any]:  # fmt: skip
    """o, lse and all gradients, None of what is not given.

    Args:
        q, k, v, d_o: `[batch, seqlen, heads, dim]` or `[total, heads, dim]`. NaN counts as 0.
        d_lse: `[batch, heads, seqlen_q]` or `[heads, total]`.
    """
    packed = q.ndim == 3
    if packed:
        q, k, v, d_o, d_lse = (array[None] for array in (q, k, v, d_o, d_lse))
    q, k, v, d_o = (np.nan_to_num(array.astype(np.float64)).swapaxes(1, 2) for array in (q, k, v, d_o))
    if cache_entries is not None:
        k, v = k[cache_entries], v[cache_entries]
    batch, heads, rows, dim = q.shape
    kv_heads, columns = k.shape[1:3]
    group = heads // max(kv_heads, 1)
    k, v = k.repeat(group, 1), v.repeat(group, 1)

    # Which pairs are of one sequence, and how far a key is before the query's own place.
    together = np.zeros((batch, 1, rows, columns), bool)
    distance = np.zeros((batch, 1, rows, columns))
    slopes = np.zeros((batch, heads, rows, 1))
    of_sequences = np.zeros((batch, 1, rows), bool)
    if seqlens_q is None and seqlens_k is not None:
        seqlens_q = [rows] * batch
    if seqlens_q is None:
        places: list[Any] = [(entry, 0, rows, 0, columns) for entry in range(batch)]
    elif packed:
        offsets = zip(seqlens_q, seqlens_q[1:], seqlens_k, seqlens_k[1:], strict=False)
        places = [(0, *(int(offset) for offset in four)) for four in offsets]
    else:
        places = [(entry, 0, int(seqlens_q[entry]), 0, int(seqlens_k[entry])) for entry in range(batch)]
    for sequence, (entry, q0, q1, k0, k1) in enumerate(places):
        first = 0 if first_keys is None else first_keys[entry]
        of_sequences[entry, :, q0:q1] = True
        i, j = np.arange(q1 - q0)[:, None], np.arange(k1 - k0)
        together[entry, :, q0:q1, k0:k1] = j >= first
        distance[entry, :, q0:q1, k0:k1] = i + (k1 - k0) - (q1 - q0) - j
        if alibi_slopes is not None:
            own = alibi_slopes if alibi_slopes.ndim == 1 else alibi_slopes[sequence % len(alibi_slopes)]
            slopes[entry, :, q0:q1, 0] = own[:, None]
    seen = together & (distance >= 0) if causal else together
    left, right = window
    if left >= 0:
        seen = seen & (distance <= left)
    if right >= 0:
        seen = seen & (distance >= -right)
    if mask is not None:
        seen = seen & mask

    scale = dim**-0.5 if scale is None else scale
    scores = scale * q @ k.swapaxes(2, 3)
    slope = np.ones_like(scores)
    if softcap:
        bounded = np.tanh(scores / softcap)
        scores, slope = softcap * bounded, 1 - bounded**2
    scores = scores - slopes * abs(distance)
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    scores = np.where(seen, scores, -np.inf)
    lse = np.logaddexp.reduce(scores, 3, initial=-np.inf)
    if sinks is not None:
        lse = np.logaddexp(lse, sinks.astype(np.float64)[:, None])
    finite = np.where(lse == -np.inf, 0.0, lse)
    weights = np.exp(scores - finite[..., None])
    o = weights @ v

    d_weights = d_o @ v.swapaxes(2, 3)
    d_rows = d_lse - (o * d_o).sum(3)
    d_scores = weights * (d_weights + d_rows[..., None])
    d_products = scale * slope * d_scores
    grouped = (batch, kv_heads, group, columns, -1)
    dq = d_products @ k
    dk, dv = d_products.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ d_o
    dk, dv = (gradient.reshape(*grouped[:4], gradient.shape[3]).sum(2) for gradient in (dk, dv))
    d_bias = d_sinks = None
    if bias is not None:
        once = tuple(axis for axis in range(3) if bias.shape[axis] == 1)
        d_bias = d_scores.sum(once, keepdims=True)
    if sinks is not None:
        # Rows of no sequence have no part.
        d_sinks = (np.exp(sinks.astype(np.float64)[:, None] - finite) * d_rows * of_sequences).sum((0, 2))
    o, dq, dk, dv = (array.swapaxes(1, 2) for array in (o, dq, dk, dv))
    if packed:
        o, lse, dq, dk, dv = (array[0] for array in (o, lse, dq, dk, dv))
    return [o, lse, dq, dk, dv, d_bias, d_sinks]


def computed(q: Any, k: Any, v: Any, d_o: Any, d_lse: Any, **options: Any) -> list[Any]:
    """o, lse and all gradients of the functions, None of what is not given."""
    o, lse = attention(q, k, v, **options)
    return [o, lse, *attention_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)]


def assert_close(found: list[Any], expected: list[Any], dtype: Any, tolerance: Tolerance = TOLERANCE) -> None:
    of_o, of_lse, of_gradients = tolerance[str(dtype)]
    for name, a, b in zip(NAMES, found, expected, strict=True):
        if b is None:
            assert a is None, name
            continue
        bound = {"o": of_o, "lse": of_lse}.get(name, of_gradients)
        if name == "d_bias":
            bound = max(bound, tolerance[str(a.dtype)][0])
        assert a.shape == b.shape, f"{name} has shape {a.shape}, not {b.shape}"
        if name not in ("lse", "d_bias"):
            assert a.dtype == (np.float32 if name == "d_sinks" else dtype), name
        a = a.astype(np.float64)
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite], name)
        if finite.any():
            error, largest = abs(a[finite] - b[finite]).max(), max(abs(b[finite]).max(), 1.0)
            assert error <= bound * largest, f"{name} is off by {error}, of {largest}"


def draw(rng: Any, dtype: Any, shape_q: Any, shape_k: Any, dim_v: int | None = None) -> list[Any]:
    """q, k, v, d_o and d_lse, with axes `[..., seqlen, heads, dim]`."""
    dim_v = shape_q[-1] if dim_v is None else dim_v
    *before, rows, heads, _dim = shape_q
    shapes = [shape_q, shape_k, (*shape_k[:-1], dim_v), (*shape_q[:-1], dim_v)]
    q, k, v, d_o = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return [q, k, v, d_o, rng.standard_normal((*before, heads, rows)).astype(np.float32)]


def case(name: str, rng: Any, batch: int, heads: int, rows: int, columns: int) -> dict[str, Any]:
    """Options by name."""

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    def mask(*shape: int) -> Any:
        return rng.random(shape) < 0.6

    # Whole rows and a whole head are hidden.
    sparse = mask(batch, heads, rows, columns)
    sparse[0, 0] = False
    sparse[:, :, ::3] = False
    hidden = normal(1, heads, rows, columns)
    hidden[:, :, : rows // 2, 1:] = -np.inf
    hidden[:, :, 0] = -np.inf

    def lengths(most: int) -> Any:
        return np.array([1, most, 0, most // 2][:batch], np.int32)

    padded: dict[str, Any] = {"seqlens_q": lengths(rows), "seqlens_k": lengths(columns)[::-1]}
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": {"causal": True},
        "scale": {"scale": -0.3},
        "scale_of_numpy": {"scale": np.float32(0.7)},
        "window": {"window": (5, 2)},
        "left": {"window": (3, -1)},
        "right": {"window": (-7, 0)},
        "widest": {"window": (2**80, 2**63)},
        "causal_window": {"causal": True, "window": (4, 9)},
        "softcap": {"softcap": 1.5},
        "alibi": {"alibi_slopes": abs(normal(heads))},
        "alibi_of_batch": {"alibi_slopes": abs(normal(batch, heads)), "causal": True},
        "sinks": {"sinks": normal(heads)},
        "bias": {"bias": normal(batch, heads, rows, columns)},
        "bias_of_keys": {"bias": normal(1, 1, 1, columns)},
        "bias_of_heads": {"bias": normal(1, heads, 1, columns)},
        "bias_of_batch": {"bias": normal(batch, 1, rows, columns).astype(np.float16)},
        "bias_hides": {"bias": hidden},
        "mask": {"mask": mask(batch, heads, rows, columns)},
        "mask_of_keys": {"mask": mask(batch, 1, 1, columns)},
        "mask_hides": {"mask": sparse},
        "mask_and_sinks": {"mask": sparse, "sinks": normal(heads)},
        "padded": padded,
        "padded_keys": {"seqlens_k": lengths(columns)},
        "padded_causal": padded | {"causal": True, "sinks": normal(heads)},
        "first_keys": {"first_keys": np.array([0, columns, 3, 1][:batch], np.int32), "causal": True},
        "all": padded
        | {
            "bias": normal(batch, 1, rows, columns),
            "mask": mask(1, heads, rows, columns),
            "sinks": normal(heads),
            "alibi_slopes": abs(normal(batch, heads)),
            "first_keys": np.array([0, 1, 2, 0][:batch], np.int32),
            "scale": 0.4,
            "causal": True,
            "window": (9, 0),
            "softcap": 2.0,
        },
    }
    return cases[name]


CASES = [
    "plain", "causal", "scale", "scale_of_numpy", "window", "left", "right", "widest", "causal_window", "softcap",
    "alibi", "alibi_of_batch", "sinks", "bias", "bias_of_keys", "bias_of_heads", "bias_of_batch", "bias_hides", "mask",
    "mask_of_keys", "mask_hides", "mask_and_sinks", "padded", "padded_keys", "padded_causal", "first_keys", "all",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_options(name: str, dtype: str) -> None:
    rng = np.random.default_rng(CASES.index(name))
    of = dtype_of(dtype)
    batch, heads, rows, columns = 4, 6, 19, 37
    inputs = draw(rng, of, (batch, rows, heads, 24), (batch, columns, 2, 24), 20)
    options = case(name, rng, batch, heads, rows, columns)
    found, expected = computed(*inputs, **options), reference(*inputs, **options)
    assert_close(found, expected, of)
    if "bias" in options:
        assert found[5].dtype == options["bias"].dtype
    # Other axes are no other numbers.
    swapped = [*(array.swapaxes(1, 2) for array in inputs[:4]), inputs[4]]
    again = computed(*swapped, heads_first=True, **options)
    for index in (0, 2, 3, 4):
        again[index] = again[index].swapaxes(1, 2)
    for name_of, a, b in zip(NAMES, found, again, strict=True):
        np.testing.assert_array_equal(a, b, name_of)


@pytest.mark.parametrize("rows, columns", list(itertools.product([1, 2, 33, 129], [1, 31, 130])))
def test_lengths(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows * columns)
    for heads, kv_heads, dim, dim_v in [(1, 1, 1, 1), (4, 4, 59, 64), (3, 1, 128, 8)]:
        inputs = draw(rng, np.float32, (2, rows, heads, dim), (2, columns, kv_heads, dim), dim_v)
        assert_close(computed(*inputs, causal=True), reference(*inputs, causal=True), np.dtype(np.float32))


def packed(names: list[str], rng: Any, of: Any) -> tuple[list[Any], dict[str, Any]]:
    """Inputs of packed sequences, and these options beside their offsets. Rows of no sequence are NaN."""
    # Rows before the first sequence and after the last, and sequences without queries, without keys and without both.
    offsets_q = np.array([2, 2, 3, 20, 20, 24, 37], np.int32)
    offsets_k = np.array([0, 5, 6, 9, 9, 9, 50], np.int32)
    inputs = draw(rng, of, (40, 4, 16), (55, 2, 16))
    for array in inputs[:4]:
        array[50:] = np.nan
    inputs[0][:2] = inputs[0][37:] = inputs[3][:2] = inputs[3][37:] = np.nan
    options: dict[str, Any] = {
        "causal": True,
        "window": (4, 3),
        "sinks": rng.standard_normal(4).astype(np.float32),
        "alibi": rng.random(4).astype(np.float32),
        "alibi_of_sequences": rng.random((6, 4)).astype(np.float32),
        "softcap": 3.0,
        "bias": rng.standard_normal((1, 4, 1, 55)).astype(np.float32),
        "mask": rng.random((1, 1, 40, 55)) < 0.7,
    }
    options = {("alibi_slopes" if "alibi" in name else name): options[name] for name in names}
    return inputs, options | {"seqlens_q": offsets_q, "seqlens_k": offsets_k}


PACKED = pytest.mark.parametrize(
    "names",
    [[], ["causal"], ["window", "sinks"], ["alibi_of_sequences"], ["alibi", "softcap"], ["bias", "mask"]],
    ids=lambda names: "+".join(names) or "plain",
)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@PACKED
def test_packed(names: list[str], dtype: str) -> None:
    of = dtype_of(dtype)
    inputs, options = packed(names, np.random.default_rng(len(names)), of)
    assert_close(computed(*inputs, **options), reference(*inputs, **options), of)


def test_a_cache_is_read_where_it_lies() -> None:
    rng = np.random.default_rng(1)
    inputs = draw(rng, np.float32, (3, 2, 4, 16), (7, 40, 2, 16))
    q, k, v, d_o, d_lse = inputs
    options: dict[str, Any] = {
        "cache_entries": np.array([5, 0, 5], np.int32),
        "seqlens_q": np.full(3, 2, np.int32),
        "seqlens_k": np.array([40, 3, 17], np.int32),
        "causal": True,
    }
    # No entry but those that are named is read, nor what is behind their lengths.
    k[[1, 2, 3, 4, 6]] = v[[1, 2, 3, 4, 6]] = np.nan
    k[0, 3:] = v[0, 3:] = np.nan
    o, lse = attention(q, k, v, **options)
    expected = reference(*inputs, **options)
    np.testing.assert_allclose(o, expected[0], atol=1e-6)
    np.testing.assert_allclose(lse, expected[1], atol=1e-6)
    with pytest.raises(NotImplementedError, match="no gradients of a call with cache_entries"):
        attention_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page", [1, 2, 8, 64])
def test_pages_are_read_where_they_lie(page: int, dtype: str) -> None:
    rng = np.random.default_rng(page)
    inputs = draw(rng, dtype_of(dtype), (3, 4, 4, 16), (3, 40, 2, 16), 24)
    q, keys, values, d_o, d_lse = inputs
    lengths = np.array([40, 3, 0], np.int32)
    counts = -(-lengths // page)
    # Pages lie in any order; no other one is read, nor what is behind the lengths.
    order = rng.permutation(counts.sum() + 2)
    table = np.full((3, counts.max() + 1), -1, np.int32)
    k, v = (np.full((len(order), page, 2, array.shape[3]), np.nan, q.dtype) for array in (keys, values))
    for entry, first in enumerate(counts.cumsum() - counts):
        table[entry, : counts[entry]] = order[first : first + counts[entry]]
        for key in range(lengths[entry]):
            place = table[entry, key // page], key % page
            k[place], v[place] = keys[entry, key], values[entry, key]
    options: dict[str, Any] = {"seqlens_q": np.array([4, 2, 4], np.int32), "seqlens_k": lengths, "causal": True}
    expected = reference(*inputs, **options)
    of_o, of_lse, _ = TOLERANCE[dtype]
    o, lse = attention(q, k, v, pages=table, **options)
    np.testing.assert_allclose(o.astype(np.float64), expected[0], atol=4 * of_o)
    np.testing.assert_allclose(lse, expected[1], rtol=4 * of_lse, atol=4 * of_lse)
    outside = attention(*(array.swapaxes(1, 2) for array in (q, k, v)), pages=table, heads_first=True, **options)
    np.testing.assert_array_equal(outside[0].swapaxes(1, 2), o)
    # Queries one after another.
    own = [q[0], q[1, :2], q[2]]
    packed = attention(np.concatenate(own), k, v, pages=table, **options | {"seqlens_q": np.array([0, 4, 6, 10], np.int32)})
    np.testing.assert_allclose(
        packed[0].astype(np.float64), np.concatenate([o[0], o[1, :2], o[2]]).astype(np.float64), atol=of_o
    )
    np.testing.assert_allclose(packed[1], np.concatenate([lse[0], lse[1, :, :2], lse[2]], 1), atol=of_lse)
    with pytest.raises(NotImplementedError, match="no gradients of a call with pages"):
        attention_backward(d_o, q, k, v, o, lse, d_lse=d_lse, pages=table, **options)


def test_what_is_not_read_may_be_nan() -> None:
    rng = np.random.default_rng(2)
    inputs = draw(rng, np.float32, (3, 20, 2, 16), (3, 30, 2, 16))
    options = {
        "seqlens_q": np.array([20, 1, 0], np.int32),
        "seqlens_k": np.array([12, 30, 9], np.int32),
        "first_keys": np.array([4, 29, 0], np.int32),
    }
    expected = reference(*inputs, **options)
    for entry in range(3):
        for array in (inputs[0], inputs[3]):
            array[entry, options["seqlens_q"][entry] :] = np.nan
        for array in inputs[1:3]:
            array[entry, options["seqlens_k"][entry] :] = np.nan
            array[entry, : options["first_keys"][entry]] = np.nan
    assert_close(computed(*inputs, **options), expected, np.dtype(np.float32))


def unread(array: Any) -> Any:
    """What no call may read: NaN, or the largest number."""
    if array.dtype == bool:
        return True
    return np.iinfo(array.dtype).max if array.dtype.kind == "i" else np.nan


def in_gaps(array: Any) -> Any:
    wide = np.full([2 * extent + 3 for extent in array.shape], unread(array), array.dtype)
    view = wide[tuple(slice(1, 1 + 2 * extent, 2) for extent in array.shape)]
    view[...] = array
    return view


def in_longer_rows(array: Any) -> Any:
    wide = np.full((*array.shape[:-1], array.shape[-1] + 5), unread(array), array.dtype)
    wide[..., 2:-3] = array
    return wide[..., 2:-3]


def backwards(array: Any) -> Any:
    return np.flip(np.flip(array).copy())


def backwards_in_heads(array: Any) -> Any:
    return np.flip(np.flip(array, -2).copy(), -2) if array.ndim > 1 else array


def in_columns(array: Any) -> Any:
    return np.asfortranarray(array)


def off_by_a_byte(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def fields_of_records(array: Any) -> Any:
    records = np.zeros(array.shape[:-1], np.dtype([("row", array.dtype, array.shape[-1:]), ("flag", "u1")]))
    records["row"] = array
    return records["row"]


def read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS = [
    in_gaps, in_longer_rows, backwards, backwards_in_heads, in_columns, off_by_a_byte, fields_of_records, read_only,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_strides(layout: Any, dtype: str) -> None:
    rng = np.random.default_rng(3)
    inputs = draw(rng, dtype_of(dtype), (2, 9, 4, 16), (2, 13, 2, 16))
    options = case("all", rng, 2, 4, 9, 13)
    expected = computed(*inputs, **options)

    def laid(values: list[Any]) -> list[Any]:
        return [layout(value) if isinstance(value, np.ndarray) else value for value in values]

    q, k, v, d_o, d_lse = laid(inputs)
    options = dict(zip(options, laid(list(options.values())), strict=True))
    o, lse = attention(q, k, v, **options)
    gradients = attention_backward(d_o, q, k, v, *laid([o, lse]), d_lse=d_lse, **options)
    for name, a, b in zip(NAMES, [o, lse, *gradients], expected, strict=True):
        np.testing.assert_array_equal(a, b, name)


def test_repeated_elements() -> None:
    rng = np.random.default_rng(4)
    q, k, v, d_o, d_lse = draw(rng, np.float32, (1, 5, 4, 8), (1, 7, 4, 8))
    views = [np.broadcast_to(array, (3, *array.shape[1:])) for array in (q, k, v, d_o, d_lse)]
    mask = np.broadcast_to(np.array([[[[True]]]]), (3, 1, 5, 7))
    found = computed(*views, mask=mask)
    assert_close(found, reference(*views, mask=mask), np.dtype(np.float32))


def test_rows_side_by_side_are_not_copied() -> None:
    array = np.zeros((2, 9, 4, 16), np.float32)
    for view in (array, array.swapaxes(1, 2), array[::-1, 1:7:2, ::3, 4:11], np.broadcast_to(array, (5, 2, 9, 4, 16))):
        assert in_rows(view) is view


EMPTY = pytest.mark.parametrize(
    "shape_q, shape_k",
    [
        ((2, 3, 4, 8), (2, 0, 2, 8)),
        ((2, 0, 4, 8), (2, 3, 2, 8)),
        ((2, 0, 4, 8), (2, 0, 2, 8)),
        ((0, 3, 4, 8), (0, 5, 2, 8)),
        ((2, 3, 0, 8), (2, 5, 1, 8)),
    ],
    ids=str,
)


@EMPTY
@pytest.mark.parametrize("with_options", [False, True])
def test_nothing(shape_q: Any, shape_k: Any, with_options: bool) -> None:
    rng = np.random.default_rng(5)
    inputs = draw(rng, np.float32, shape_q, shape_k)
    options: dict[str, Any] = {}
    if with_options:
        heads, columns = shape_q[2], shape_k[1]
        options["bias"] = rng.standard_normal((1, 1, 1, columns)).astype(np.float32)
        options["sinks"] = rng.standard_normal(heads).astype(np.float32)
        options["alibi_slopes"] = rng.random(heads).astype(np.float32)
    assert_close(computed(*inputs, **options), reference(*inputs, **options), np.dtype(np.float32))


def test_nothing_packed() -> None:
    rng = np.random.default_rng(6)
    for total_q, total_k in [(0, 0), (3, 0), (0, 3)]:
        inputs = draw(rng, np.float32, (total_q, 2, 8), (total_k, 1, 8))
        options = {"seqlens_q": np.array([0, total_q], np.int32), "seqlens_k": np.array([0, total_k], np.int32)}
        assert_close(computed(*inputs, **options), reference(*inputs, **options), np.dtype(np.float32))


def test_gradients_without_that_of_lse() -> None:
    rng = np.random.default_rng(7)
    q, k, v, d_o, d_lse = draw(rng, np.float32, (1, 5, 2, 8), (1, 5, 2, 8))
    o, lse = attention(q, k, v)
    for a, b in zip(attention_backward(d_o, q, k, v, o, lse), computed(q, k, v, d_o, np.zeros_like(d_lse))[2:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_references_gradients() -> None:
    """The formulas against differences of the reference's own results."""
    rng = np.random.default_rng(8)
    inputs = draw(rng, np.float64, (4, 3, 2, 4), (4, 5, 1, 4))
    options = case("all", rng, 4, 2, 3, 5)
    options["bias"], options["sinks"] = options["bias"].astype(np.float64), options["sinks"].astype(np.float64)
    q, k, v, d_o, d_lse = inputs
    for entry, length in enumerate(options["seqlens_q"]):
        d_lse[entry, :, length:] = 0.0

    def loss() -> float:
        o, lse = reference(*inputs, **options)[:2]
        return float((o * d_o).sum() + (lse * d_lse).sum())

    gradients = reference(*inputs, **options)[2:]
    for array, gradient in zip((q, k, v, options["bias"], options["sinks"]), gradients, strict=True):
        step = 1e-5 * rng.standard_normal(array.shape)
        array += step
        above = loss()
        array -= 2 * step
        below = loss()
        array += step
        np.testing.assert_allclose((above - below) / 2, (gradient * step).sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant(dtype: str) -> None:
    """Results of a query in any chunk of its sequence, and with its gradients beside any neighbours."""
    rng = np.random.default_rng(10)
    q, k, v, d_o, d_lse = draw(rng, dtype_of(dtype), (3, 150, 4, 40), (3, 150, 2, 40))
    options: dict[str, Any] = {"causal": True, "window": (100, -1), "batch_invariant": True}
    o, lse = attention(q, k, v, **options)
    for first, end in itertools.pairwise([0, 1, 40, 64, 150]):
        chunk, of_chunk = attention(q[:, first:end], k[:, :end], v[:, :end], **options)
        np.testing.assert_array_equal(chunk, o[:, first:end])
        np.testing.assert_array_equal(of_chunk, lse[:, :, first:end])

    lengths = numbers(150, 7, 90)
    padded = computed(q, k, v, d_o, d_lse, seqlens_q=lengths, seqlens_k=lengths, **options)
    for entry, length in enumerate(lengths):
        rows = (slice(entry, entry + 1), slice(length))
        of_rows = (rows[0], slice(None), rows[1])
        alone = computed(*(array[rows] for array in (q, k, v, d_o)), d_lse[of_rows], **options)
        for name, a, b in zip(NAMES[:5], alone, padded, strict=False):
            np.testing.assert_array_equal(a, b[of_rows if name == "lse" else rows], name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_fp8(causal: bool, dtype: str) -> None:
    rng = np.random.default_rng(11)
    q, k, v, *_ = draw(rng, dtype_of(dtype), (2, 200, 4, 64), (2, 200, 2, 64))
    o, lse = attention(q, k, v, causal=causal)
    rounded, rounded_lse = attention(q, k, v, causal=causal, fp8=True)
    error = np.linalg.norm(rounded.astype(np.float32) - o.astype(np.float32))
    assert 0 < error < 0.06 * np.linalg.norm(o.astype(np.float32))
    assert np.abs(rounded_lse - lse).max() < 0.25
    with pytest.raises(ValueError, match="fp8"):
        attention(q, k, v, causal=causal, batch_invariant=True, fp8=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page", [None, 1, 16])
@pytest.mark.parametrize("keys", [0, 32, 37])
def test_prefix(keys: int, page: int | None, dtype: str) -> None:
    """Keys that all entries share, in arrays or in pages, of which the last may have NaN behind them."""
    rng = np.random.default_rng(keys)
    q, k, v, d_o, d_lse = draw(rng, dtype_of(dtype), (3, 2, 4, 16), (3, 20, 2, 16), 24)
    _, prefix_k, prefix_v, *_ = draw(rng, q.dtype, (1, 1, 4, 16), (1, keys, 2, 16), 24)
    lengths = {"seqlens_q": numbers(2, 2, 2), "seqlens_k": numbers(20, 1, 7)}
    options: dict[str, Any] = {"causal": True, "sinks": rng.standard_normal(4).astype(np.float32)}
    if page is None:
        found = attention(q, k, v, prefix=(prefix_k, prefix_v), **lengths, **options)
    else:
        # First the prefix's pages, then as many of each entry.
        shared, own = -(-keys // page), -(-20 // page)
        caches = []
        for prefix, array in ((prefix_k, k), (prefix_v, v)):
            cache = np.full((shared + 3 * own, page, *array.shape[2:]), np.nan, q.dtype)
            rows = cache.reshape(-1, *array.shape[2:])
            rows[:keys] = prefix[0]
            for entry in range(3):
                first = (shared + entry * own) * page
                rows[first : first + 20] = array[entry]
            caches.append(cache)
        table = np.arange(shared, shared + 3 * own, dtype=np.int32).reshape(3, own)
        pages: dict[str, Any] = {"pages": table, "prefix_pages": np.arange(shared, dtype=np.int32)}
        if keys % page:
            pages["prefix_keys"] = keys
        found = attention(q, *caches, **pages, **lengths, **options)
    joined = (np.concatenate((np.repeat(prefix, 3, 0), own), 1) for prefix, own in ((prefix_k, k), (prefix_v, v)))
    lengths["seqlens_k"] = lengths["seqlens_k"] + np.int32(keys)
    expected = reference(q, *joined, d_o, d_lse, **lengths, **options)
    of_o, of_lse, _ = TOLERANCE[dtype]
    np.testing.assert_allclose(found[0].astype(np.float64), expected[0], atol=4 * of_o)
    # lse follows o of both parts, which are merged in the type of o.
    np.testing.assert_allclose(found[1], expected[1], rtol=8 * of_lse, atol=8 * of_lse)


def test_csr_pages() -> None:
    indptr, indices, last = numbers(0, 2, 2, 3), numbers(4, 0, 7, 99), numbers(3, 50, 8)
    table, lengths = csr_pages(indptr, indices, last, 8)
    np.testing.assert_array_equal(table, [[4, 0], [0, 0], [7, 0]])
    np.testing.assert_array_equal(lengths, [11, 0, 8])
    assert table.dtype == lengths.dtype == np.int32
    # In any strides, and with more room.
    apart = [np.repeat(array, 2)[::2] for array in (indptr, indices, last)]
    table, lengths = csr_pages(*apart, 8, max_pages=3)
    np.testing.assert_array_equal(table, [[4, 0, 0], [0, 0, 0], [7, 0, 0]])
    np.testing.assert_array_equal(lengths, [11, 0, 8])
    assert [array.shape for array in csr_pages(numbers(0), numbers(), numbers(), 4)] == [(0, 0), (0,)]


def test_threads() -> None:
    rng = np.random.default_rng(9)
    inputs = [draw(rng, np.float32, (1, 40, 2, 16), (1, 40, 2, 16)) for _ in range(16)]
    expected = [computed(*each) for each in inputs]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: computed(*each), inputs))
    for a, b in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        np.testing.assert_array_equal(a, b)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def numbers(*values: int) -> Any:
    return np.array(values, np.int32)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"q": [[1.0]]}, TypeError, "q must be an array, not list"),
    ({"q": None}, TypeError, "q must be an array, not NoneType"),
    (
        {"q": zeros(2, 5, 4, 8, dtype=np.float64)},
        TypeError,
        "q is of float64; it must be of float16 or bfloat16 or float32",
    ),
    ({"q": zeros(2, 5, 4, 8, dtype=">f4")}, TypeError, "q is of >f4"),
    ({"q": zeros(2, 5, 4, 8, dtype=object)}, TypeError, "q is of object"),
    ({"q": zeros()}, ValueError, r"q has 0 axes; it must be \[batch, seqlen, heads, dim\]"),
    ({"q": zeros(5, 8)}, ValueError, "q has 2 axes"),
    ({"q": zeros(5, 8), "heads_first": True}, ValueError, r"it must be \[batch, heads, seqlen, dim\]"),
    ({"k": zeros(2, 7, 2, 8, dtype=np.float16)}, TypeError, "k is of float16; it must be of float32"),
    ({"k": zeros(7, 2, 8)}, ValueError, "k has 3 axes"),
    ({"v": zeros()}, ValueError, "v has 0 axes"),
    ({"v": zeros(2, 6, 2, 8)}, ValueError, "v has shape"),
    ({"k": zeros(2, 7, 2, 4)}, ValueError, "k has shape"),
    ({"k": zeros(3, 7, 2, 8), "v": zeros(3, 7, 2, 8)}, ValueError, "k has shape"),
    ({"k": zeros(2, 7, 3, 8), "v": zeros(2, 7, 3, 8)}, ValueError, "heads is 4; it must be a multiple of kv_heads"),
    ({"k": zeros(2, 7, 0, 8), "v": zeros(2, 7, 0, 8)}, ValueError, "kv_heads is 0|multiple of kv_heads"),
    ({"q": zeros(2, 5, 4, 0), "k": zeros(2, 7, 2, 0)}, ValueError, "dim is 0"),
    ({"bias": zeros(5, 7)}, ValueError, "bias has 2 axes"),
    ({"bias": zeros(2, 3, 5, 7)}, ValueError, "bias has shape"),
    ({"bias": zeros(1, 1, 1, 1)}, ValueError, "bias has shape"),
    ({"bias": zeros(1, 1, 1, 7, dtype=np.int32)}, TypeError, "bias is of int32"),
    ({"mask": zeros(2, 4, 5, 7)}, TypeError, "mask is of float32; it must be of bool"),
    ({"mask": zeros(2, 4, 5, 6, dtype=bool)}, ValueError, "mask has shape"),
    ({"sinks": zeros(4, dtype=np.float16)}, TypeError, "sinks is of float16; it must be of float32"),
    ({"sinks": zeros(3)}, ValueError, "sinks has shape"),
    ({"sinks": zeros(1, 4)}, ValueError, r"sinks has 2 axes; it must be \[heads\]"),
    ({"alibi_slopes": zeros()}, ValueError, "alibi_slopes has 0 axes"),
    ({"alibi_slopes": zeros(5)}, ValueError, "alibi has shape"),
    ({"alibi_slopes": zeros(3, 4)}, ValueError, "alibi has shape"),
    ({"alibi_slopes": zeros(4, dtype=np.float64)}, TypeError, "alibi_slopes is of float64"),
    ({"seqlens_q": numbers(1, 2)}, ValueError, "padded sequences need the lengths of keys, too"),
    ({"seqlens_q": numbers(1, 6), "seqlens_k": numbers(1, 1)}, ValueError, r"lengths_q\[1\] is 6"),
    ({"seqlens_q": numbers(1, 1), "seqlens_k": numbers(-1, 1)}, ValueError, r"lengths_kv\[0\] is -1"),
    ({"seqlens_q": numbers(1), "seqlens_k": numbers(1)}, ValueError, "lengths_q has shape"),
    (
        {"seqlens_q": np.array([1, 2]), "seqlens_k": numbers(1, 2)},
        TypeError,
        "seqlens_q is of int64; it must be of int32",
    ),
    ({"first_keys": numbers(0, 8)}, ValueError, r"first_keys\[1\] is 8"),
    ({"first_keys": zeros(2)}, TypeError, "first_keys is of float32"),
    ({"first_keys": zeros(1, 2, dtype=np.int32)}, ValueError, "first_keys has 2 axes"),
    ({"cache_entries": numbers(0, 2)}, ValueError, r"cache_entries\[1\] is 2"),
    ({"pages": numbers(0, 1)}, ValueError, r"pages has 1 axes; it must be \[batch, most pages\]"),
    ({"pages": zeros(2, 1)}, TypeError, "pages is of float32; it must be of int32"),
    ({"pages": zeros(2, 1, dtype=np.int32)}, ValueError, "a page has 7 keys; it must have a power of 2"),
    ({"scale": float("nan")}, ValueError, "scale is nan; it must be finite"),
    ({"scale": float("inf")}, ValueError, "scale is inf; it must be finite"),
    ({"scale": 1e300}, ValueError, "scale is inf; it must be finite"),
    ({"scale": "1"}, TypeError, "must be (a )?real number"),
    ({"softcap": -1.0}, ValueError, "softcap is -1"),
    ({"softcap": float("nan")}, ValueError, "softcap is NaN"),
    ({"softcap": 1e-60}, ValueError, "softcap is 1e-60"),
    ({"window": 3}, TypeError, "window must be two whole numbers, not 3"),
    ({"window": (1, 2, 3)}, TypeError, "window must be two whole numbers"),
    ({"window": (1.0, 2)}, TypeError, "window must be two whole numbers"),
    ({"kernel": "cpu"}, TypeError, "unexpected keyword argument 'kernel'"),
]


@pytest.mark.parametrize("changes, kind, reason", WRONG, ids=lambda value: None if isinstance(value, type) else str(value)[:40])
def test_wrong_inputs(changes: dict[str, Any], kind: type[Exception], reason: str) -> None:
    right = {"q": zeros(2, 5, 4, 8), "k": zeros(2, 7, 2, 8), "v": zeros(2, 7, 2, 8)}
    arguments = right | changes
    with pytest.raises(kind, match=reason) as caught:
        attention(**arguments)
    assert "\n" not in str(caught.value)
    o, lse = attention(**right)
    for name in ("cache_entries", "pages"):
        if name in changes:
            kind, reason = NotImplementedError, f"no gradients of a call with {name}"
    with pytest.raises(kind, match=reason) as caught:
        attention_backward(o, o=o, lse=lse, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, kind, reason",
    [
        ({"indptr": [0, 1]}, TypeError, "indptr must be an array, not list"),
        ({"indptr": zeros(3)}, TypeError, "indptr is of float32; it must be of int32"),
        ({"indptr": numbers()}, ValueError, "indptr is empty"),
        ({"indptr": numbers(0, 2, 1)}, ValueError, r"indptr\[2\] is 1; it must be from 2"),
        ({"indices": zeros(1, 3, dtype=np.int32)}, ValueError, "indices has 2 axes"),
        ({"last_page_len": numbers(3)}, ValueError, "last_page has shape"),
        ({"last_page_len": numbers(3, 9)}, ValueError, r"last_page\[1\] is 9; it must be from 1 to 8"),
        ({"page_size": 6}, ValueError, "a page has 6 keys; it must have a power of 2"),
        ({"page_size": 8.0}, TypeError, "page_size must be a whole number, not 8.0"),
        ({"max_pages": 1}, ValueError, "entry 1 has 2 pages; the table has room for 1"),
        ({"max_pages": -1}, ValueError, "max_pages is -1; it must be at least 0"),
    ],
)
def test_wrong_csr_pages(changes: dict[str, Any], kind: type[Exception], reason: str) -> None:
    right: dict[str, Any] = {"indptr": numbers(0, 1, 3), "indices": numbers(2, 0, 1), "last_page_len": numbers(3, 8)}
    right["page_size"] = 8
    csr_pages(**right)
    with pytest.raises(kind, match=f"^{reason}") as caught:
        csr_pages(**right | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, kind, reason",
    [
        ({"prefix": zeros(1, 9, 2, 8)}, TypeError, "prefix must be two arrays, its keys and its values"),
        ({"prefix": (zeros(1, 9, 2, 8), None)}, TypeError, "the prefix's v must be an array"),
        ({"prefix": (zeros(9, 2, 8),) * 2}, ValueError, "the prefix's k has 3 axes"),
        ({"prefix": (zeros(2, 9, 2, 8),) * 2}, ValueError, "the prefix's k has shape"),
        ({"prefix": (zeros(1, 9, 2, 8),) * 2, "window": (3, -1)}, ValueError, "prefix cannot be combined with window"),
        ({"prefix": (zeros(1, 9, 2, 8),) * 2, "prefix_pages": numbers(1)}, ValueError, "prefix_pages is given beside"),
        ({"prefix_pages": numbers(1)}, ValueError, "prefix_pages needs pages"),
        ({"prefix_pages": zeros(1)}, TypeError, "prefix_pages is of float32"),
        ({"prefix_keys": 3}, ValueError, "prefix_keys is 3; without prefix_pages it must be 0"),
        ({"prefix_pages": numbers(1), "prefix_keys": -1}, ValueError, "prefix_keys is -1; it must be at least 0"),
        (
            {"pages": zeros(2, 1, dtype=np.int32), "prefix_pages": numbers(1, 0), "prefix_keys": 8},
            ValueError,
            "the prefix has 8 keys; with 2 pages of 8 keys it must have from 9 to 16",
        ),
        (
            {"pages": zeros(2, 1, dtype=np.int32), "prefix_pages": numbers(1, 2)},
            ValueError,
            r"prefix_pages\[1\] is 2; it must be from 0 to 1",
        ),
    ],
)
def test_wrong_prefixes(changes: dict[str, Any], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=f"^{reason}") as caught:
        attention(zeros(2, 5, 4, 8), zeros(2, 8, 2, 8), zeros(2, 8, 2, 8), **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, kind, reason",
    [
        ({"d_o": zeros(2, 5, 4, 7)}, ValueError, "d_o has shape"),
        ({"d_o": zeros(2, 5, 4, 8, dtype=np.float16)}, TypeError, "d_o is of float16"),
        ({"o": zeros(2, 4, 5, 8)}, ValueError, "o has shape"),
        ({"o": zeros(2, 5, 8)}, ValueError, "o has 3 axes"),
        ({"lse": zeros(2, 4, 6)}, ValueError, "lse has shape"),
        ({"lse": zeros(4, 5)}, ValueError, r"lse has 2 axes; it must be \[batch, heads, seqlen\]"),
        ({"lse": zeros(2, 4, 5, dtype=np.float64)}, TypeError, "lse is of float64"),
        ({"d_lse": zeros(2, 4, 4)}, ValueError, "d_lse has shape"),
        ({"d_lse": zeros(2, 4, 5, dtype=np.float16)}, TypeError, "d_lse is of float16"),
        ({"lse": None}, TypeError, "lse must be an array"),
    ],
)
def test_wrong_gradients(changes: dict[str, Any], kind: type[Exception], reason: str) -> None:
    right = {name: zeros(2, 5, 4, 8) for name in ("d_o", "q", "k", "v", "o")} | {"lse": zeros(2, 4, 5)}
    attention_backward(**right)
    with pytest.raises(kind, match=f"^{reason}") as caught:
        attention_backward(**right | changes)
    assert "\n" not in str(caught.value)


def test_wrong_packed_inputs() -> None:
    q, offsets = zeros(5, 2, 8), numbers(0, 2, 5)
    attention(q, q, q, seqlens_q=offsets, seqlens_k=offsets)
    for changes, reason in [
        ({"seqlens_q": None, "seqlens_k": None}, "packed sequences need the offsets of both queries and keys"),
        ({"seqlens_q": None}, "packed sequences need the offsets of both queries and keys"),
        ({"seqlens_q": numbers(0, 6, 5)}, r"offsets_q\[1\] is 6"),
        ({"seqlens_k": numbers(0, 3, 2)}, r"offsets_kv\[2\] is 2"),
        ({"seqlens_k": numbers(0, 5)}, "offsets_kv has shape"),
        ({"seqlens_q": numbers(0), "seqlens_k": numbers(0)}, "offsets_q has 1 elements"),
        ({"alibi_slopes": zeros(3, 2)}, "alibi has shape"),
    ]:
        with pytest.raises(ValueError, match=reason):
            attention(q, q, q, **{"seqlens_q": offsets, "seqlens_k": offsets} | changes)
    with pytest.raises(ValueError, match=r"lse has 3 axes; it must be \[heads, total\]"):
        attention_backward(q, q, q, q, q, zeros(1, 2, 5), seqlens_q=offsets, seqlens_k=offsets)


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OnlyArray:
    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array


class Broken:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("on another machine\nfar away")


def test_arrays_of_other_libraries() -> None:
    rng = np.random.default_rng(10)
    inputs = draw(rng, np.float32, (2, 9, 4, 16), (2, 13, 2, 16))
    expected = computed(*inputs)
    for other in (OnlyDlpack, OnlyArray):
        found = computed(*(other(array) for array in inputs))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(TypeError, match=r"^k is no array that NumPy reads: on another machine$"):
        attention(inputs[0], Broken(), inputs[2])


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(11)
    q, k, v = draw(rng, np.float32, (2, 9, 4, 16), (2, 13, 2, 16))[:3]
    o, _ = attention(*(torch.from_numpy(array) for array in (q, k, v)))
    np.testing.assert_array_equal(o, attention(q, k, v)[0])
    with pytest.raises(TypeError, match=r"^q is no array that NumPy reads: ") as caught:
        attention(torch.from_numpy(q).requires_grad_(), k, v)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(12)
    of = dtype_of(dtype)
    inputs = draw(rng, of, (2, 9, 4, 16), (2, 13, 2, 16))
    options = case("all", rng, 2, 4, 9, 13)
    expected = computed(*inputs, **options)
    arrays = {name: jax.numpy.asarray(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    found = computed(*(jax.numpy.asarray(array) for array in inputs), **arrays)
    for name, a, b in zip(NAMES, found, expected, strict=True):
        assert isinstance(a, jax.Array), name
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(np.asarray(a), b, name)
    # What q is decides.
    o, _ = attention(inputs[0], *(jax.numpy.asarray(array) for array in inputs[1:3]))
    assert isinstance(o, np.ndarray)
    q, k, v = (jax.numpy.asarray(array) for array in inputs[:3])
    o, lse = attention(q, k, v)
    assert attention_backward(o, q, k, v, o, lse).d_bias is None


def test_jax_has_no_numbers_while_it_traces() -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(TypeError, match=r"^q is no array that NumPy reads: ") as caught:
        jax.jit(lambda q: attention(q, q, q)[0])(jax.numpy.zeros((1, 2, 1, 8)))
    assert "\n" not in str(caught.value)
