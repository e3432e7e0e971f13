"""q, k and v of float8_e4m3fn, and caches of it, in arrays of NumPy and JAX."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

from ferroattn.numpy import attention, attention_backward  # noqa: E402

E4M3 = ml_dtypes.float8_e4m3fn


def draw(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(E4M3)


def descales(rng: Any, *shape: int) -> Any:
    """Numbers that lie apart in memory."""
    wide = np.full((*shape, 2), np.nan, np.float32)
    wide[..., 0] = rng.random(shape) + 0.5
    return wide[..., 0]


def scaled(array: Any, descale: Any) -> Any:
    """The numbers for which an array `[batch, seqlen, heads, dim]` stands, in float32."""
    group = array.shape[2] // descale.shape[1]
    return array.astype(np.float32) * descale.repeat(group, 1)[:, None, :, None]


def assert_near(found: Any, expected: Any, error: float) -> None:
    """Compares in norm."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    assert np.linalg.norm(found - expected) <= error * np.linalg.norm(expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_inputs(causal: bool, dtype: str) -> None:
    rng = np.random.default_rng(20)
    inputs = [draw(rng, 2, 150, heads, 64) for heads in (4, 2, 2)]
    of_inputs = [descales(rng, 2, 2) for _ in range(3)]
    options: dict[str, Any] = dict(zip(("q_descale", "k_descale", "v_descale"), of_inputs, strict=True)) | {"causal": causal}
    o, lse = attention(*inputs, dtype=dtype, **options)
    assert (o.dtype, lse.dtype) == (np.dtype(dtype), np.float32)
    expected, expected_lse = attention(*(scaled(*pair) for pair in zip(inputs, of_inputs, strict=True)), causal=causal)
    # The CPU rounds no probabilities.
    assert_near(o, expected, 0.005)
    np.testing.assert_allclose(lse, expected_lse, atol=0.01)
    rotated, _ = attention(*inputs, dtype=np.dtype(dtype), fp8="hadamard", **options)
    assert_near(rotated, expected, 0.1)
    assert (rotated != o).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_o_of_rounded_inputs_may_be_of_float32(dtype: str) -> None:
    rng = np.random.default_rng(21)
    inputs = [rng.standard_normal((2, 70, heads, 64)).astype(np.dtype(dtype)) for heads in (4, 2, 2)]
    narrow, lse = attention(*inputs, fp8=True)
    wide, lse_of_wide = attention(*inputs, fp8=True, dtype="float32")
    assert (narrow.dtype, wide.dtype) == (np.dtype(dtype), np.float32)
    np.testing.assert_array_equal(wide.astype(narrow.dtype), narrow)
    np.testing.assert_array_equal(lse, lse_of_wide)
    # Digits that a type of 16 bits has not.
    assert (wide != narrow.astype(np.float32)).mean() > 0.9
    with pytest.raises(ValueError, match="fp8"):
        attention(*inputs, dtype="float32")


def test_o_is_of_bfloat16_unless_told() -> None:
    q = np.zeros((1, 3, 2, 16), E4M3)
    assert attention(q, q, q)[0].dtype == ml_dtypes.bfloat16
    assert attention(q, q, q, dtype=np.float16)[0].dtype == np.float16
    # Of other inputs o has the type of q.
    q = q.astype(np.float32)
    assert attention(q, q, q, dtype="float16")[0].dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("paged", [False, True])
def test_caches(paged: bool, dtype: str) -> None:
    rng = np.random.default_rng(21)
    batch, page, most = 3, 16, 9
    q = rng.standard_normal((batch, 2, 8, 64)).astype(dtype)
    k, v = (draw(rng, batch, page * most, 2, 64) for _ in range(2))
    k_descale, v_descale = (descales(rng, batch, 2) for _ in range(2))
    lengths = np.array([130, 2, 77], np.int32)
    options: dict[str, Any] = {"seqlens_q": np.full(batch, 2, np.int32), "seqlens_k": lengths, "causal": True}
    expected, expected_lse = attention(q, *(scaled(k, k_descale).astype(dtype), scaled(v, v_descale).astype(dtype)), **options)
    if paged:
        table = rng.permutation(batch * most).astype(np.int32).reshape(batch, most)
        pages = [np.zeros((batch * most, page, 2, 64), E4M3) for _ in range(2)]
        of_pages = [np.zeros((batch * most, 2), np.float32) for _ in range(2)]
        for to, array, to_descale, descale in zip(pages, (k, v), of_pages, (k_descale, v_descale), strict=True):
            to[table.ravel()] = array.reshape(-1, page, 2, 64)
            to_descale[table.ravel()] = descale.repeat(most, 0)
        (k, v), (k_descale, v_descale) = pages, of_pages
        options |= {"pages": table, "page_descales": True}
    o, lse = attention(q, k, v, k_descale=k_descale, v_descale=v_descale, **options)
    assert o.dtype == q.dtype
    assert_near(o, expected, 0.01 if dtype == "bfloat16" else 0.002)
    np.testing.assert_allclose(lse, expected_lse, atol=0.02)


def test_rotations() -> None:
    """An outlier costs the other elements digits, unless it is spread."""
    rng = np.random.default_rng(22)
    q, k, v = (rng.standard_normal((1, 256, 4, 128)) for _ in range(3))
    q, k, v = ((x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 0.001)).astype(np.float32) for x in (q, k, v))
    _, exact = attention(q, k, v)
    rounded, rotated = (np.abs(attention(q, k, v, fp8=fp8)[1] - exact).max() for fp8 in (True, "hadamard"))
    assert 0 < rotated < rounded / 2


@pytest.mark.parametrize(
    "changes, exception, reason",
    [
        ({"dtype": "float64"}, TypeError, "dtype is float64; it must be float16 or bfloat16 or float32"),
        ({"dtype": "fast"}, TypeError, "dtype is fast"),
        ({"dtype": E4M3}, TypeError, "dtype is float8_e4m3fn"),
        ({"fp8": "x"}, ValueError, "fp8 is 'x'; it must be True, False or \"hadamard\""),
        ({"v": np.zeros((1, 8, 2, 16), np.float16)}, TypeError, "v is of float16; it must be of float8_e4m3fn"),
        ({"k": np.zeros((1, 8, 2, 16), np.float16)}, TypeError, "k is of float16; it must be of float8_e4m3fn"),
        ({"q": np.zeros((1, 8, 2, 16), ml_dtypes.float8_e5m2)}, TypeError, "q is of float8_e5m2; it must be of float16 or"),
        ({"q": np.zeros((1, 8, 2, 16), np.uint8)}, TypeError, "q is of uint8; it must be of float16 or"),
        ({"q_descale": np.ones((1, 2))}, TypeError, "q_descale is of float64; it must be of float32"),
        ({"q_descale": np.ones(2, np.float32)}, ValueError, "q_descale has 1 axes; it must be [batch, kv_heads]"),
        ({"k_descale": np.ones((1, 1), np.float32)}, ValueError, "k_descale has shape [1, 1]; it must be [1, 2]"),
        ({"v_descale": np.ones((2, 2), np.float32)}, ValueError, "v_descale has shape [2, 2]; it must be [1, 2]"),
        ({"v_descale": 2.0}, TypeError, "v_descale must be an array, not float"),
        ({"page_descales": True}, ValueError, "descales of pages need a cache of e4m3"),
        ({"batch_invariant": True}, ValueError, "fp8 cannot be combined with batch_invariant"),
        ({"q": np.zeros((1, 8, 2, 16), np.float16), "page_descales": True}, ValueError, "descales of pages needs pages"),
        (
            {"q": np.zeros((1, 8, 2, 16), np.float16), "q_descale": np.ones((1, 2), np.float32)},
            ValueError,
            "q_descale needs q of e4m3",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments(changes: dict[str, Any], exception: type[Exception], reason: str) -> None:
    e4m3 = np.zeros((1, 8, 2, 16), E4M3)
    with pytest.raises(exception) as caught:
        attention(**{"q": e4m3, "k": e4m3, "v": e4m3} | changes)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_descales_need_e4m3() -> None:
    q, ones = np.zeros((1, 8, 2, 16), np.float16), np.ones((1, 2), np.float32)
    for name in ("q_descale", "k_descale", "v_descale"):
        with pytest.raises(TypeError, match="descales need k and v of float8_e4m3fn"):
            attention(q, q, q, **{name: ones})
    with pytest.raises(ValueError, match="descales need inputs of e4m3"):
        attention(q, q, q, page_descales=True)


def test_there_are_no_gradients() -> None:
    q = np.zeros((1, 8, 2, 16), E4M3)
    o, lse = attention(q, q, q)
    with pytest.raises(TypeError, match="q is of float8_e4m3fn; it must be of float16 or bfloat16 or float32"):
        attention_backward(o, q, q, q, o, lse)
    with pytest.raises(TypeError, match=r"k is of float8_e4m3fn; it must be of bfloat16$"):
        attention_backward(o, o, q, q, o, lse)


def test_calls_without_keys() -> None:
    q, keys = np.ones((2, 3, 2, 16), E4M3), np.zeros((2, 0, 2, 16), E4M3)
    for queries in (q, q.astype(np.float16)):
        o, lse = attention(queries, keys, keys)
        assert not o.astype(np.float32).any()
        assert (lse == -np.inf).all()


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(23)
    q, k, v = (draw(rng, 2, 9, 2, 16) for _ in range(3))
    k_descale = rng.random((2, 2)).astype(np.float32)
    o, lse = attention(*(jax.numpy.asarray(array) for array in (q, k, v)), k_descale=jax.numpy.asarray(k_descale))
    assert isinstance(o, jax.Array)
    assert o.dtype == ml_dtypes.bfloat16
    expected, expected_lse = attention(q, k, v, k_descale=k_descale)
    np.testing.assert_array_equal(np.asarray(o), expected)
    np.testing.assert_array_equal(np.asarray(lse), expected_lse)
