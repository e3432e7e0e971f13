"""New keys and values in caches of NumPy, against formulas in float64."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from ferroattn.numpy import append, attention  # noqa: E402

# Half a unit in the last place, of numbers below 8; in float32 products and sums are rounded, too.
ROUNDING = {"float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name) if name in ("bfloat16", "float8_e4m3fn") else name)


def normal(rng: Any, dtype: Any, *shape: int) -> Any:
    return np.clip(rng.standard_normal(shape), -4, 4).astype(dtype)


def numbers(*values: Any, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


def angles(rng: Any, positions: int, pairs: int) -> tuple[Any, Any]:
    angles = 7 * rng.random((positions, pairs))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(x: Any, cos: Any, sin: Any, positions: Any, interleaved: bool) -> Any:
    """Rows `[seqlen, heads, dim]` at positions, in float64, pairs as complex numbers."""
    x = x.astype(np.float64)
    pairs = cos.shape[1]
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    both = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin.astype(np.float64))[positions, None]
    x[..., first], x[..., second] = both.real, both.imag
    return x


def places_of(where: str, before: list[int], rows: int) -> tuple[list[list[Any]], int, int, dict[str, Any]]:
    """Where new rows go, entries or pages of the cache, keys of one, and the call's options."""
    places: list[list[Any]] = [[(entry, length + row) for row in range(rows)] for entry, length in enumerate(before)]
    if where == "entries":
        return places, 3, 16, {}
    if where == "cache_entries":
        entries = [4, 0, 2]
        return [[(entries[entry], key) for entry, key in of] for of in places], 5, 16, {where: numbers(*entries)}
    table = numbers([7, 2, -1, 9], [5, -1, -1, -1], [0, 1, 8, 6])
    places = [[(int(table[entry, key // 4]), key % 4) for entry, key in of] for of in places]
    if where == "pages":
        return places, 10, 4, {where: table}
    slots = [[page * 4 + key for page, key in of] for of in places]
    slots[1][2] = slots[2][0] = -1
    places[1][2] = places[2][0] = None
    return places, 10, 4, {where: numbers(*slots, dtype=np.int64)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("where", ["entries", "cache_entries", "pages", "slots"])
@pytest.mark.parametrize("interleaved", [None, False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_append(where: str, interleaved: bool | None, heads_first: bool, dtype: str) -> None:
    rng = np.random.default_rng(1)
    of, before, rows = dtype_of(dtype), [4, 0, 11], 3
    k, v, q = normal(rng, of, 3, rows, 2, 24), normal(rng, of, 3, rows, 2, 8), normal(rng, of, 3, rows, 4, 24)
    places, count, keys, options = places_of(where, before, rows)
    caches = [normal(rng, of, count, keys, 2, dim) for dim in (24, 8)]
    expected = [cache.astype(np.float64) for cache in caches]
    rotated_q = q.astype(np.float64)
    if interleaved is not None:
        # Two of three pairs.
        cos, sin = angles(rng, 14, 8)
        options |= {"cos": cos, "sin": sin, "interleaved": interleaved}
    for entry, length in enumerate(before):
        new = k[entry]
        if interleaved is not None:
            positions = np.arange(length, length + rows)
            new = turned(new, cos, sin, positions, interleaved)
            rotated_q[entry] = turned(q[entry], cos, sin, positions, interleaved)
        for row, place in enumerate(places[entry]):
            if place is not None:
                expected[0][place], expected[1][place] = new[row], v[entry, row]
    inputs = [k, v, *caches]
    if heads_first:
        inputs, q = [array.swapaxes(1, 2) for array in inputs], q.swapaxes(1, 2)
    rotated, lengths = append(*inputs, q=q, lengths=numbers(*before), heads_first=heads_first, **options)
    np.testing.assert_array_equal(lengths, [7, 3, 14])
    assert (lengths.dtype, rotated.dtype, rotated.shape) == (np.int32, of, q.shape)
    rotated = rotated.swapaxes(1, 2) if heads_first else rotated
    bound = 0.0 if interleaved is None else ROUNDING[dtype]
    np.testing.assert_array_equal(caches[1], expected[1])
    np.testing.assert_allclose(caches[0].astype(np.float64), expected[0], rtol=0, atol=bound)
    np.testing.assert_allclose(rotated.astype(np.float64), rotated_q, rtol=0, atol=bound)


def test_packed_rows() -> None:
    """Rows of any sequences, each with a slot and a position, into both halves of one array, with heads outside of keys."""
    rng = np.random.default_rng(2)
    k, v, q = (normal(rng, np.float32, 5, heads, 16) for heads in (2, 2, 4))
    slots, positions = [7, 0, -1, 22, 3], [9, 2, 5, 0, 9]
    cos, sin = angles(rng, 10, 8)
    cache = np.zeros((6, 2, 2, 4, 16), np.float32)
    rotated, lengths = append(
        k, v, cache[:, 0], cache[:, 1], q=q, slots=numbers(*slots, dtype=np.int64), positions=numbers(*positions),
        cos=cos, sin=sin, heads_first=True,
    )  # fmt: skip
    np.testing.assert_array_equal(lengths, [5])
    expected = np.zeros_like(cache)
    new = turned(k, cos, sin, positions, False)
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // 4, 0, :, slot % 4], expected[slot // 4, 1, :, slot % 4] = new[row], v[row]
    np.testing.assert_allclose(cache, expected, rtol=0, atol=ROUNDING["float32"])
    np.testing.assert_allclose(rotated, turned(q, cos, sin, positions, False), rtol=0, atol=ROUNDING["float32"])


def test_queries_at_the_first_position() -> None:
    rng = np.random.default_rng(3)
    k, q = normal(rng, np.float32, 2, 1, 2, 16), normal(rng, np.float32, 2, 4, 2, 16)
    cos, sin = angles(rng, 9, 8)
    caches = np.zeros((2, 2, 9, 2, 16), np.float32)
    rotated, _ = append(k, k, *caches, q=q, lengths=numbers(8, 3), cos=cos, sin=sin, q_at_first=True)
    for entry, position in enumerate([8, 3]):
        expected = turned(q[entry], cos, sin, [position] * 4, False)
        np.testing.assert_allclose(rotated[entry], expected, rtol=0, atol=ROUNDING["float32"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("of_pages", [False, True])
def test_caches_of_e4m3(of_pages: bool, dtype: str) -> None:
    e4m3 = dtype_of("float8_e4m3fn")
    rng = np.random.default_rng(4)
    k, v = (normal(rng, dtype_of(dtype), 2, 3, 2, 16) for _ in range(2))
    k[0, 0, 0, :2] = 2000, -2000
    table = numbers([3, 0], [1, 2])
    descales = [2.0 ** rng.integers(-2, 2, (4 if of_pages else 2, 2)).astype(np.float32) for _ in range(2)]
    caches = [np.zeros((4, 16, 2, 16), e4m3) for _ in range(2)]
    append(
        k, v, *caches, lengths=numbers(15, 0), pages=table, k_descale=descales[0], v_descale=descales[1], page_descales=of_pages
    )
    for new, cache, descale in zip((k, v), caches, descales, strict=True):
        expected = np.zeros(cache.shape, np.float32)
        for entry, row in np.ndindex(2, 3):
            key = [15, 0][entry] + row
            page = table[entry, key // 16]
            of_heads = descale[page if of_pages else entry][:, None]
            expected[page, key % 16] = np.clip(new[entry, row].astype(np.float32) / of_heads, -448, 448)
        np.testing.assert_array_equal(cache, expected.astype(e4m3))


@pytest.mark.parametrize("page", [None, 4])
def test_steps_are_a_prefill(page: int | None) -> None:
    """Twenty tokens one by one, against all at once."""
    rng = np.random.default_rng(5)
    q, k, v = (normal(rng, np.float32, 2, 20, heads, 32) for heads in (4, 2, 2))
    cos, sin = angles(rng, 20, 16)
    options: dict[str, Any] = {} if page is None else {"pages": rng.permutation(10).astype(np.int32).reshape(2, 5)}
    shape = (2, 20, 2, 32) if page is None else (10, page, 2, 32)
    caches = [np.full(shape, np.nan, np.float32) for _ in range(2)]
    lengths, rows = numbers(0, 0), []
    for step in range(20):
        new = [x[:, step : step + 1] for x in (q, k, v)]
        rotated, lengths = append(*new[1:], *caches, q=new[0], lengths=lengths, cos=cos, sin=sin, **options)
        o, _ = attention(rotated, *caches, seqlens_q=numbers(1, 1), seqlens_k=lengths, causal=True, **options)
        rows.append(o)
    np.testing.assert_array_equal(lengths, [20, 20])
    all_q, all_k = (np.stack([turned(x, cos, sin, range(20), False) for x in of]).astype(np.float32) for of in (q, k))
    expected, _ = attention(all_q, all_k, v, causal=True)
    np.testing.assert_allclose(np.concatenate(rows, 1), expected, rtol=0, atol=2e-6)


def test_nothing() -> None:
    caches = np.ones((2, 2, 4, 2, 16), np.float32)
    none = caches[0][:, :0]
    assert append(none, none, *caches)[0] is None
    np.testing.assert_array_equal(append(none, none, *caches, lengths=numbers(3, 0))[1], [3, 0])
    rotated, lengths = append(none[:0], none[:0], *caches[:, :0], q=none[:0])
    assert (rotated.shape, lengths.shape) == ((0, 0, 2, 16), (0,))
    assert (caches == 1).all()


def test_strides() -> None:
    """New rows of any strides, and a cache inside of another array."""
    rng = np.random.default_rng(6)
    k, v = (normal(rng, np.float32, 2, 3, 2, 16) for _ in range(2))
    plain, wide = np.zeros((2, 2, 5, 2, 16), np.float32), np.full((2, 2, 5, 2, 24), np.nan, np.float32)
    append(k, v, *plain)
    backwards = np.flip(np.flip(v, 3).copy(), 3)
    append(np.asfortranarray(k), backwards, *wide[..., 8:], lengths=numbers(0, 0, 0)[::2])
    np.testing.assert_array_equal(wide[:, :, :3, :, 8:], plain[:, :, :3])
    assert np.isnan(wide[..., :8]).all()
    assert np.isnan(wide[:, :, 3:]).all()


def test_jax() -> None:
    """New rows may be arrays of JAX, and caches may not: these never change."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(7)
    k, v, q = (jax.numpy.asarray(normal(rng, np.float32, 2, 1, 2, 16)) for _ in range(3))
    caches = np.zeros((2, 2, 4, 2, 16), np.float32)
    rotated, lengths = append(k, v, *caches, q=q)
    assert isinstance(rotated, jax.Array)
    assert isinstance(lengths, jax.Array)
    np.testing.assert_array_equal(caches[:, :, :1], [k, v])
    with pytest.raises(TypeError, match=r"^k_cache must be an array of NumPy, which is written in place, not ArrayImpl$"):
        append(k, v, jax.numpy.asarray(caches[0]), caches[1])
    with pytest.raises(TypeError, match=r"^v_cache must be an array of NumPy"):
        append(k, v, caches[0], jax.numpy.asarray(caches[1]))
    with pytest.raises(ValueError, match=r"^k_cache is read-only$"):
        append(k, v, np.asarray(jax.numpy.asarray(caches[0])), caches[1])


def test_the_function_of_pytorch() -> None:
    """Names, order and bits."""
    torch = pytest.importorskip("torch")
    import ferroattn

    assert list(inspect.signature(append).parameters) == list(inspect.signature(ferroattn.append).parameters)
    rng = np.random.default_rng(8)
    k, v, q = (normal(rng, np.float16, 2, 3, 2, 16) for _ in range(3))
    cos, sin = angles(rng, 9, 4)
    options = {"q": q, "lengths": numbers(6, 0), "cos": cos, "sin": sin}
    ours, of_torch = np.zeros((2, 2, 2, 9, 2, 16), np.float16)
    rotated, lengths = append(k, v, *ours, **options)
    options = {name: torch.from_numpy(array) for name, array in options.items()}
    found = ferroattn.append(*(torch.from_numpy(array) for array in (k, v, *of_torch)), **options)
    for a, b in zip((ours, rotated, lengths), (of_torch, *found), strict=True):
        np.testing.assert_array_equal(a, b)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"k": [[1.0]]}, TypeError, "k must be an array, not list"),
    ({"k": zeros(2, 16)}, ValueError, r"k has 2 axes; it must be \[batch, seqlen, heads, dim\]"),
    ({"k": zeros(2, 1, 2, 16, dtype=np.int8)}, TypeError, "k is of int8; it must be of float16 or bfloat16 or float32$"),
    ({"v": zeros(2, 1, 2, 16, dtype=np.float16)}, TypeError, "v is of float16; it must be of float32$"),
    ({"v": zeros(2, 1, 1, 16)}, ValueError, "v has shape"),
    ({"q": zeros(2, 2, 16)}, ValueError, "q has 3 axes"),
    ({"q": zeros(1, 1, 2, 16)}, ValueError, "q has shape"),
    ({"k_cache": None}, TypeError, "k_cache must be an array of NumPy, which is written in place, not NoneType$"),
    (
        {"k_cache": zeros(2, 8, 2, 16, dtype=np.float16)},
        TypeError,
        "k_cache is of float16; it must be of float32 or",
    ),
    ({"v_cache": zeros(2, 8, 2, 16, dtype=np.float16)}, TypeError, "v_cache is of float16; it must be of float32$"),
    ({"k_cache": zeros(8, 2, 16)}, ValueError, "k_cache has 3 axes"),
    ({"k_cache": zeros(3, 8, 2, 16), "v_cache": zeros(3, 8, 2, 16)}, ValueError, r"k_cache has shape \[3\]; it must be \[2\]"),
    (
        {"k_cache": zeros(2, 8, 16, 2).swapaxes(2, 3)},
        ValueError,
        "k_cache must have aligned elements, those of a row",
    ),
    ({"k_cache": np.broadcast_to(zeros(8, 2, 16), (2, 8, 2, 16))}, ValueError, "k_cache is read-only$"),
    ({"v_cache": zeros(2, 9, 2, 16)}, ValueError, "v_cache has shape"),
    ({"lengths": [0, 1]}, TypeError, "lengths must be an array, not list"),
    ({"lengths": numbers(0)}, ValueError, "lengths has shape"),
    ({"lengths": numbers(0, 1, dtype=np.int64)}, TypeError, "lengths is of int64; it must be of int32$"),
    ({"lengths": numbers(0, 8)}, ValueError, "entry 1 has 8 keys and gets 1 more"),
    ({"lengths": numbers(0, -1)}, ValueError, r"lengths\[1\] is -1"),
    ({"pages": numbers(0, 1)}, ValueError, "pages has 1 axes"),
    ({"pages": numbers([0], [2])}, ValueError, r"pages\[1, 0\] is 2"),
    ({"cache_entries": numbers(0, 0)}, ValueError, "two new keys would be key 0"),
    ({"cache_entries": numbers(0, 1), "pages": numbers([0], [1])}, ValueError, "pages cannot be combined with cache_entries"),
    ({"slots": numbers([0], [1])}, TypeError, "slots is of int32; it must be of int64$"),
    ({"slots": numbers(0, 1, dtype=np.int64)}, ValueError, r"slots has 1 axes; it must be \[batch, seqlen\]"),
    ({"slots": numbers([0], [16], dtype=np.int64)}, ValueError, r"slots\[1, 0\] is 16"),
    ({"positions": numbers([0, 1], [1, 0])}, ValueError, "positions has shape"),
    ({"cos": zeros(8, 8)}, ValueError, "a rotary embedding needs both cosines and sines$"),
    ({"cos": zeros(8, 9), "sin": zeros(8, 9)}, ValueError, "cos has 9 pairs"),
    ({"cos": zeros(8, 8), "sin": zeros(4, 8)}, ValueError, "sin has shape"),
    ({"cos": zeros(8, 8, dtype=np.float16), "sin": zeros(8, 8)}, TypeError, "cos is of float16; it must be of float32$"),
    ({"cos": zeros(7, 8), "sin": zeros(7, 8), "lengths": numbers(0, 7)}, ValueError, "entry 1 has a row at position 7"),
    ({"k_descale": zeros(2, 2)}, TypeError, "descales need caches of float8_e4m3fn$"),
    ({"page_descales": True}, ValueError, "descales need a cache of e4m3"),
    ({"heads_first": 3, "k": zeros(2, 16)}, ValueError, r"k has 2 axes; it must be \[batch, heads, seqlen, dim\]"),
]


@pytest.mark.parametrize("changes, kind, reason", WRONG, ids=lambda value: None if isinstance(value, type) else str(value)[:40])
def test_wrong_arguments(changes: dict[str, Any], kind: type[Exception], reason: str) -> None:
    new, caches = np.ones((2, 1, 2, 16), np.float32), zeros(2, 2, 8, 2, 16)
    with pytest.raises(kind, match=f"^{reason}") as caught:
        append(**{"k": new, "v": new, "k_cache": caches[0], "v_cache": caches[1], **changes})
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert not caches.any()
