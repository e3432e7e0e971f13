"""Attention as calls of XLA, outputs and gradients, against formulas in float64, on each device that JAX has."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest

# JAX would take most of a GPU's memory, which other tests need.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
np = pytest.importorskip("numpy")
jax = pytest.importorskip("jax")

from test_numpy import (  # noqa: E402
    CASES,
    EMPTY,
    NAMES,
    PACKED,
    TOLERANCE,
    WRONG,
    assert_close,
    case,
    draw,
    dtype_of,
    numbers,
    packed,
    reference,
    zeros,
)

import ferroattn.jax  # noqa: E402
import ferroattn.numpy  # noqa: E402
from ferroattn import _call, _library  # noqa: E402
from ferroattn.jax import attention  # noqa: E402


def devices() -> list[Any]:
    """The CPU, and at most two GPUs."""
    try:
        gpus = jax.devices("cuda")[:2]
    except RuntimeError:
        gpus = []
    return [jax.devices("cpu")[0], *gpus]


def tolerance(device: Any) -> Any:
    """Errors that rounding alone explains; kernels of a GPU round weights of keys, too."""
    if device.platform == "cpu":
        return TOLERANCE
    return {"float32": (4e-3,) * 3, "float16": (4e-3,) * 3, "bfloat16": (3e-2,) * 3}


DEVICES = devices()
ON_EACH_DEVICE = pytest.mark.parametrize("device", DEVICES, ids=str)
OF_EACH_TYPE = pytest.mark.parametrize(
    "device, dtype",
    [
        (device, dtype)
        for device in DEVICES
        for dtype in ("float32", "float16", "bfloat16")
        if device.platform == "cpu" or dtype != "float32"
    ],
    ids=str,
)


def put(device: Any, value: Any) -> Any:
    """Arrays of NumPy on a device; other values as they are."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, device) if isinstance(leaf, np.ndarray) else leaf, value)


def computed(device: Any, q: Any, k: Any, v: Any, d_o: Any, d_lse: Any, **options: Any) -> list[Any]:
    """o, lse and all gradients as arrays of NumPy, None of what is not given."""
    learned = {name: options.pop(name) for name in ("bias", "sinks") if name in options}
    fixed = {name: put(device, value) for name, value in options.items()}

    @jax.jit
    def run(inputs: Any, cotangents: Any) -> Any:
        results, pull = jax.vjp(lambda q, k, v, learned: attention(q, k, v, **learned, **fixed), *inputs)
        return results, pull(cotangents)

    (o, lse), (*gradients, of_options) = run(put(device, (q, k, v, learned)), put(device, (d_o, d_lse)))
    found = [o, lse, *gradients, of_options.get("bias"), of_options.get("sinks")]
    assert all(array is None or array.devices() == {device} for array in found)
    return [array if array is None else np.asarray(array) for array in found]


def compare(device: Any, dtype: Any, inputs: list[Any], options: dict[str, Any]) -> None:
    """Compares all results with the formulas."""
    found = computed(device, *inputs, **options)
    assert_close(found, reference(*inputs, **options), dtype, tolerance(device))


def random(device: Any, shape_q: Any = (2, 9, 4, 16), shape_k: Any = (2, 13, 2, 16)) -> list[Any]:
    """q, k and v of a type that each device has."""
    return put(device, draw(np.random.default_rng(0), np.float16, shape_q, shape_k)[:3])


def assert_equal(found: Any, expected: Any) -> None:
    """Compares the bits."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@OF_EACH_TYPE
@pytest.mark.parametrize("name", CASES)
def test_options(name: str, device: Any, dtype: str) -> None:
    rng = np.random.default_rng(CASES.index(name))
    batch, heads, rows, columns = 4, 6, 19, 37
    inputs = draw(rng, dtype_of(dtype), (batch, rows, heads, 24), (batch, columns, 2, 24), 20)
    compare(device, dtype_of(dtype), inputs, case(name, rng, batch, heads, rows, columns))


@OF_EACH_TYPE
@PACKED
def test_packed(names: list[str], device: Any, dtype: str) -> None:
    inputs, options = packed(names, np.random.default_rng(len(names)), dtype_of(dtype))
    compare(device, dtype_of(dtype), inputs, options)


@ON_EACH_DEVICE
def test_what_is_behind_a_length_is_not_read(device: Any) -> None:
    inputs = draw(np.random.default_rng(1), np.float16, (3, 70, 4, 64), (3, 150, 2, 64))
    options = {"seqlens_q": numbers(70, 3, 0), "seqlens_k": numbers(129, 150, 20), "causal": True}
    for arrays, lengths in ((inputs[:1] + inputs[3:4], options["seqlens_q"]), (inputs[1:3], options["seqlens_k"])):
        for array in arrays:
            for entry, length in enumerate(lengths):
                array[entry, length:] = np.nan
    compare(device, np.dtype(np.float16), inputs, options)


@ON_EACH_DEVICE
def test_lengths_of_keys_alone(device: Any) -> None:
    inputs = draw(np.random.default_rng(6), np.float16, (3, 5, 4, 64), (3, 150, 2, 64))
    compare(device, np.dtype(np.float16), inputs, {"seqlens_k": numbers(129, 0, 150), "causal": True})


@OF_EACH_TYPE
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_common_shapes(dim: int, causal: bool, device: Any, dtype: str) -> None:
    inputs = draw(np.random.default_rng(dim), dtype_of(dtype), (2, 130, 4, dim), (2, 150, 2, dim))
    compare(device, dtype_of(dtype), inputs, {"causal": causal})


@ON_EACH_DEVICE
@EMPTY
@pytest.mark.parametrize("with_options", [False, True])
def test_nothing(shape_q: Any, shape_k: Any, with_options: bool, device: Any) -> None:
    rng = np.random.default_rng(5)
    options: dict[str, Any] = {}
    if with_options:
        options["bias"] = rng.standard_normal((1, 1, 1, shape_k[1])).astype(np.float32)
        options["sinks"] = rng.standard_normal(shape_q[2]).astype(np.float32)
    compare(device, np.dtype(np.float16), draw(rng, np.float16, shape_q, shape_k), options)


@ON_EACH_DEVICE
def test_caches(device: Any) -> None:
    """Entries and pages are read as `ferroattn.numpy` reads them."""
    rng = np.random.default_rng(2)
    q, k, v, *_ = draw(rng, np.float16, (3, 2, 4, 16), (7, 8, 2, 16))
    lengths = {"seqlens_q": numbers(2, 2, 1), "seqlens_k": numbers(8, 3, 5), "causal": True}
    table = np.array([[5, 0], [3, -7], [6, 2]], np.int32)
    in_pages = {"pages": table, "seqlens_k": numbers(16, 3, 9)}
    packed = q.reshape(6, 4, 16)[:5]
    for queries, options in (
        (q, {"cache_entries": numbers(5, 0, 5)}),
        (q, in_pages),
        (packed, in_pages | {"seqlens_q": numbers(0, 2, 4, 5)}),
    ):
        expected = ferroattn.numpy.attention(queries, k, v, **lengths | options)
        found = attention(*put(device, (queries, k, v)), **put(device, lengths | options))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a, np.float64), b.astype(np.float64), atol=4e-3)


@ON_EACH_DEVICE
def test_heads_first(device: Any) -> None:
    inputs = random(device)
    expected = attention(*inputs, causal=True)
    o, lse = attention(*(array.swapaxes(1, 2) for array in inputs), causal=True, heads_first=True)
    assert_equal((o.swapaxes(1, 2), lse), expected)


@ON_EACH_DEVICE
def test_transformations(device: Any) -> None:
    """Under each transformation of JAX results have the same bits."""
    q, k, v = random(device)

    def loss(q: Any, k: Any, v: Any) -> Any:
        o, lse = attention(q, k, v, causal=True)
        return (o.astype(np.float32) ** 2).sum() + lse.sum()

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(q, k, v)
    np.testing.assert_allclose(jax.jit(loss)(q, k, v), value, rtol=1e-5)
    assert_equal(jax.jit(lambda *inputs: attention(*inputs, window=(3, 1)))(q, k, v), attention(q, k, v, window=(3, 1)))
    assert_equal(jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v), gradients)
    assert_equal(jax.grad(jax.checkpoint(loss), (0, 1, 2))(q, k, v), gradients)
    stacked = [jax.numpy.stack([array, array[:, ::-1]]) for array in (q, k, v)]
    found = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2))))(*stacked)
    assert_equal([array[0] for array in found], gradients)
    # Of one array, that is queries, keys and values at once.
    of_k = jax.vmap(jax.grad(lambda k: loss(k, k, k)))(stacked[1])
    assert_equal(of_k[1], jax.grad(lambda k: loss(k, k, k))(stacked[1][1]))


@ON_EACH_DEVICE
def test_one_of_two_results_has_a_gradient(device: Any) -> None:
    q, k, v = random(device)
    d_o, d_lse = put(device, (np.ones(q.shape, np.float16), np.ones((2, 4, 9), np.float32)))
    _, pull = jax.vjp(attention, q, k, v)
    none = pull((d_o * 0, d_lse * 0))
    assert all((array == 0).all() for array in none)
    of_o = jax.vjp(lambda *inputs: attention(*inputs)[0], q, k, v)[1](d_o)
    assert_equal(of_o, pull((d_o, d_lse * 0)))
    of_lse = jax.vjp(lambda *inputs: attention(*inputs)[1], q, k, v)[1](d_lse)
    assert_equal(of_lse, pull((d_o * 0, d_lse)))


@ON_EACH_DEVICE
def test_a_graph_is_replayed(device: Any) -> None:
    """XLA captures so many calls in a CUDA graph; a replay has the bits of the first run, which is not captured."""

    def step(q: Any, k: Any, v: Any) -> Any:
        def loss(q: Any) -> Any:
            for _ in range(4):
                q = attention(q, k, v, causal=True)[0] + q
            return q.astype(np.float32).sum()

        return jax.value_and_grad(loss)(q)

    run = jax.jit(step)
    for length in (64, 200):
        inputs = [random(device, (1, length, 2, 64), (1, length + index, 2, 64)) for index in (0, 1)]
        for q, k, v in inputs:
            expected = jax.tree.map(np.asarray, run(q, k, v))
            for _ in range(4):
                assert_equal(run(q, k, v), expected)


@pytest.mark.parametrize("changes, kind, reason", WRONG, ids=lambda value: None if isinstance(value, type) else str(value)[:40])
def test_wrong_inputs(changes: dict[str, Any], kind: type[Exception], reason: str) -> None:
    arrays = [value for value in changes.values() if isinstance(value, np.ndarray)]
    if any(array.dtype not in (np.float32, np.float16, np.int32, bool) for array in arrays):
        pytest.skip("JAX has no such arrays")
    right = {"q": zeros(2, 5, 4, 8), "k": zeros(2, 7, 2, 8), "v": zeros(2, 7, 2, 8)}
    arguments = put(DEVICES[0], right | changes)
    if r"\] is" in reason:
        # Elements are not known while JAX traces.
        kind, reason = RuntimeError, f"INVALID_ARGUMENT: {reason}"
    with pytest.raises(kind, match=reason) as caught:
        jax.block_until_ready(attention(**arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"scale": 0.5}, "scale is traced; it must be known while JAX traces"),
        ({"softcap": 0.5}, "softcap is traced; it must be known while JAX traces"),
        ({"causal": True}, "causal is traced; it must be known while JAX traces"),
        ({"window": (1, 2)}, "window must be two whole numbers, not"),
    ],
)
def test_numbers_must_be_known(changes: dict[str, Any], reason: str) -> None:
    q = zeros(1, 2, 1, 8)
    with pytest.raises(TypeError, match=f"^{reason}") as caught:
        jax.jit(lambda changes: attention(q, q, q, **changes))(changes)
    assert "\n" not in str(caught.value)


def test_gradients_that_are_not_there() -> None:
    q = jax.numpy.zeros((1, 2, 1, 8))

    def gradient(name: str, value: Any) -> Any:
        options = {"seqlens_q": numbers(2), "seqlens_k": numbers(2), name: value}
        return jax.grad(lambda q: attention(q, q, q, **options)[0].sum())(q)

    for name, value in [("pages", zeros(1, 1, dtype=np.int32)), ("cache_entries", numbers(0))]:
        with pytest.raises(NotImplementedError, match=f"^there are no gradients of a call with {name}"):
            gradient(name, value)
    slopes = jax.numpy.ones(1)
    with pytest.raises(NotImplementedError, match=r"^there is no gradient of alibi_slopes"):
        jax.grad(lambda slopes: attention(q, q, q, alibi_slopes=slopes)[0].sum())(slopes)
    stopped = jax.grad(lambda slopes: attention(q, q, q, alibi_slopes=jax.lax.stop_gradient(slopes))[0].sum())(slopes)
    assert (stopped == 0).all()


@pytest.mark.skipif(len(DEVICES) == 1, reason="there is no GPU")
def test_a_gpu_has_no_kernels_of_float32() -> None:
    q = put(DEVICES[1], zeros(1, 2, 1, 8))
    with pytest.raises(RuntimeError, match="UNIMPLEMENTED: no kernel computes f32"):
        jax.block_until_ready(attention(q, q, q))


def test_the_workspace_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a result of the call, as large as the plan for any GPU says. The CPU reads none."""
    device = ctypes.c_void_p()
    _call.check(_call.interface().ferroattn_open_emulator(ctypes.byref(device)))
    monkeypatch.setattr(ferroattn.jax, "_gpus", lambda: [device])
    # No other test has this shape: what was traced before would stay.
    inputs = draw(np.random.default_rng(3), np.float16, (1, 77, 2, 20), (1, 77, 2, 20))
    q, k, v, d_o, _ = put(DEVICES[0], inputs)

    def run(q: Any, k: Any, v: Any) -> Any:
        o, pull = jax.vjp(lambda *inputs: attention(*inputs)[0], q, k, v)
        return o, *pull(d_o)

    text = str(jax.make_jaxpr(run)(q, k, v))
    sizes = {int(part.split("]")[0]) for part in text.split("u8[")[1:]}
    # Rows of 40 bytes are copied to others; gradients of q are sums in float32.
    assert min(sizes) > 3 * 77 * 2 * 40, sizes
    o, *gradients = jax.jit(run)(q, k, v)
    expected = reference(*inputs[:4], np.zeros((1, 2, 77)))
    for name, a, b in zip(["o", *NAMES[2:5]], [o, *gradients], [expected[0], *expected[2:5]], strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, atol=4e-3, err_msg=name)


def test_the_package_imports_no_jax() -> None:
    folder = str(_library.PATH.parent.parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import ferroattn; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
