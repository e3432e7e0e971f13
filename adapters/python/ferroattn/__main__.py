"""The command `python -m ferroattn`: it prints what is there, and checks results of each device against float64."""

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import random
import struct
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from operator import mul
from typing import Any

from . import __version__, _library

# The check: causal attention of few queries to more keys, with grouped heads.
SEQLEN_Q, SEQLEN_K, HEADS, KV_HEADS, DIM = 40, 50, 4, 2, 32
# Errors that rounding alone explains, of the largest element or of 1.
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
# `FERROATTN_DTYPE_F32`.
F32 = 3
RESULTS = ["o", "lse", "dq", "dk", "dv"]

# Rows of elements, and rows of heads of elements.
Heads = list[list[float]]
Rows = list[Heads]
# q, k, v and d_o.
Case = tuple[Rows, Rows, Rows, Rows]
# Results in the order of `RESULTS`, each with all its elements in one list.
Results = list[list[float]]
Check = tuple[str, str, Callable[[Case], Results]]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: What follows the command's name; None for those of the process.

    Returns:
        The exit status: 1 if the binary or the operators do not load or a check failed, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m ferroattn", description="Prints what is there, and checks it.")
    parser.add_argument("--no-check", action="store_true", help="print what is there, and compute nothing")
    options = parser.parse_args(arguments)
    binary, library = find_binary()
    torch, registered = find_torch()
    rows = [("ferroattn", __version__), ("binary", binary), ("driver", find_driver())]
    if library is not None:
        rows += find_gpus(library)
    rows.append(("PyTorch", torch))
    rows += [(name, find_package(name)) for name in ("NumPy", "JAX", "transformers")]
    for name, text in rows:
        print(f"{name:<14}{text}")
    failed = library is None or registered is False
    if library is not None and not options.no_check:
        print()
        failed |= not run_checks(library, registered is True)
    return int(failed)


def find_binary() -> tuple[str, ctypes.CDLL | None]:
    """The binary's path and size, or why it does not load, and the binary."""
    try:
        library = _library.load()
    except ImportError as error:
        return first_line(error), None
    for function in (library.ferroattn_device_name, library.ferroattn_last_error):
        function.restype = ctypes.c_char_p
    return f"{_library.PATH}, {_library.PATH.stat().st_size / 1e6:.1f} MB", library


def find_driver() -> str:
    """The CUDA version of the NVIDIA driver."""
    number = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return "none"
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}" if status == 0 else f"CUDA error {status}"


def find_gpus(library: ctypes.CDLL) -> list[tuple[str, str]]:
    """The GPUs by name up to the first that does not open, and why it does not."""
    rows: list[tuple[str, str]] = []
    for index in itertools.count():
        device = ctypes.c_void_p()
        if library.ferroattn_open_cuda(index, ctypes.byref(device)) != 0:
            reason = library.ferroattn_last_error().decode()
            # Indices end behind the last GPU.
            if index == 0 or not reason.startswith("there is no CUDA device"):
                rows.append((f"GPU {index}" if index else "GPU", reason))
            return rows
        rows.append((f"GPU {index}", library.ferroattn_device_name(device).decode()))
        library.ferroattn_close(device)
    return rows


def find_torch() -> tuple[str, bool | None]:
    """PyTorch's version, and whether it has the operators, None where it is not installed."""
    try:
        import torch
    # A PyTorch that is broken raises exceptions of many kinds.
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        return "not installed" if missing else f"does not load: {first_line(error)}", None
    try:
        from . import operators  # noqa: F401
    except Exception as error:
        return f"{torch.__version__}, no operators: {first_line(error)}", False
    return f"{torch.__version__}, operators registered", True


def find_package(name: str) -> str:
    """The version of a package."""
    try:
        return version(name.lower())
    except PackageNotFoundError:
        return "not installed"


def run_checks(library: ctypes.CDLL, with_torch: bool) -> bool:
    """Prints the largest error of each result on each device.

    Returns:
        Whether all errors are within the tolerance.
    """
    case = draw()
    expected = reference(case)
    print(f"{'largest error':<24}" + "".join(f"{name:<10}" for name in RESULTS).rstrip())
    all_ok = True
    for device, dtype, compute in checks(library, with_torch):
        print(f"{device + ', ' + dtype:<24}", end="", flush=True)
        try:
            found = compute(case)
        # Whatever fails on one device, the others have their turn.
        except Exception as error:
            print(f"FAILED: {first_line(error)}")
            all_ok = False
            continue
        errors = [largest_error(*pair) for pair in zip(found, expected, strict=True)]
        bounds = [TOLERANCE[dtype] * max(1.0, *map(abs, values)) for values in expected]
        # NaN is within no bound.
        ok = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
        print("".join(f"{error:<10.1e}" for error in errors) + ("ok" if ok else "FAILED"))
        all_ok &= ok
    return all_ok


def checks(library: ctypes.CDLL, with_torch: bool) -> Iterator[Check]:
    """Devices, types and what computes there: PyTorch if it has the operators, else NumPy, else the C interface."""
    if with_torch:
        import torch

        yield "CPU", "float32", partial(by_torch, device="cpu", dtype=torch.float32)
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            for dtype in (torch.float16, torch.bfloat16):
                name = str(dtype).removeprefix("torch.")
                yield f"GPU {index}", name, partial(by_torch, device=f"cuda:{index}", dtype=dtype)
        return
    try:
        import numpy  # noqa: F401
    except ImportError:
        yield "CPU", "float32", partial(by_interface, library=library)
    else:
        yield "CPU", "float32", by_numpy


def draw() -> Case:
    """A random case, whose numbers every type of elements has."""
    rng = random.Random(0)

    def rows(seqlen: int, heads: int) -> Rows:
        return [[[rng.randrange(-32, 32) / 16 for _ in range(DIM)] for _ in range(heads)] for _ in range(seqlen)]

    return rows(SEQLEN_Q, HEADS), rows(SEQLEN_K, KV_HEADS), rows(SEQLEN_K, KV_HEADS), rows(SEQLEN_Q, HEADS)


def reference(case: Case) -> Results:
    """The results by their definition, in float64."""
    q, k, v, d_o = case
    scale = DIM**-0.5
    o, dq, dk, dv = ([[[0.0] * DIM for _ in row] for row in rows] for rows in (q, q, k, v))
    lse = []
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        for i in range(SEQLEN_Q):
            seen = range(i + SEQLEN_K - SEQLEN_Q + 1)
            scores = [scale * dot(q[i][head], k[j][kv_head]) for j in seen]
            most = max(scores)
            lse.append(most + math.log(math.fsum(math.exp(score - most) for score in scores)))
            weights = [math.exp(score - lse[-1]) for score in scores]
            d_weights = [dot(d_o[i][head], v[j][kv_head]) for j in seen]
            mean = dot(weights, d_weights)
            for j, weight, d_weight in zip(seen, weights, d_weights, strict=True):
                d_score = scale * weight * (d_weight - mean)
                add(o[i][head], weight, v[j][kv_head])
                add(dv[j][kv_head], weight, d_o[i][head])
                add(dq[i][head], d_score, k[j][kv_head])
                add(dk[j][kv_head], d_score, q[i][head])
    return [flat(o), lse, flat(dq), flat(dk), flat(dv)]


def by_torch(case: Case, device: str, dtype: Any) -> Results:
    """The results of the operators."""
    import torch

    from .functions import attention

    q, k, v, d_o = (torch.tensor([rows], dtype=dtype, device=device) for rows in case)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    o, lse = attention(q, k, v, causal=True)
    results = [o, lse, *torch.autograd.grad(o, inputs, d_o)]
    return [tensor.double().flatten().tolist() for tensor in results]


def by_numpy(case: Case) -> Results:
    """The results of the functions for arrays of NumPy."""
    import numpy as np

    from .numpy import attention, attention_backward

    q, k, v, d_o = (np.array([rows], np.float32) for rows in case)
    o, lse = attention(q, k, v, causal=True)
    gradients = attention_backward(d_o, q, k, v, o, lse, causal=True)
    return [results.ravel().tolist() for results in (o, lse, *gradients[:3])]


def by_interface(case: Case, library: ctypes.CDLL) -> Results:
    """The results of the C interface, called with the standard library alone."""
    q, k, v, d_o = (array("f", flat(rows)) for rows in case)
    o, dq, dk, dv = (array("f", bytes(4 * len(like))) for like in (q, q, k, v))
    lse = array("f", bytes(4 * HEADS * SEQLEN_Q))

    def tensor(data: array[float], heads: int) -> list[int]:
        """Words of an `AttentionTensor` on rows of heads."""
        rows = len(data) // (heads * DIM)
        return [data.buffer_info()[0], 1, heads, rows, DIM, len(data), DIM, heads * DIM, 1]

    inputs = [*tensor(q, HEADS), *tensor(k, KV_HEADS), *tensor(v, KV_HEADS)]
    outputs = [*tensor(o, HEADS), lse.buffer_info()[0], 1, HEADS, SEQLEN_Q, 0, len(lse), SEQLEN_Q, 1, 0]
    gradients = [*tensor(d_o, HEADS), *tensor(dq, HEADS), *tensor(dk, KV_HEADS), *tensor(dv, KV_HEADS)]
    device, options = ctypes.c_void_p(), ctypes.create_string_buffer(struct.calcsize("2I2q2f6I9P"))

    def succeed(status: int) -> None:
        if status != 0:
            raise RuntimeError(library.ferroattn_last_error().decode())

    def run(function: str, words: list[int], pointers: int) -> None:
        form = f"2IP{len(words)}q{pointers}P"
        args = struct.pack(form, struct.calcsize(form), F32, ctypes.addressof(options), *words, *[0] * pointers)
        succeed(getattr(library, function)(device, args, ctypes.c_uint64(0), ctypes.c_size_t(0), None))

    succeed(library.ferroattn_open_cpu(ctypes.byref(device)))
    succeed(library.ferroattn_options_init(options, len(options)))
    # The flag `causal` follows the size.
    struct.pack_into("I", options, struct.calcsize("I"), 1)
    run("ferroattn_forward", [*inputs, *outputs], 0)
    run("ferroattn_backward", [*inputs, *outputs, *gradients], 3)
    library.ferroattn_close(device)
    return [list(results) for results in (o, lse, dq, dk, dv)]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(map(mul, a, b))


def add(to: list[float], factor: float, values: list[float]) -> None:
    """Adds a multiple of values."""
    to[:] = [a + factor * b for a, b in zip(to, values, strict=True)]


def flat(rows: Rows) -> list[float]:
    return [element for heads in rows for elements in heads for element in elements]


def largest_error(found: list[float], expected: list[float]) -> float:
    """The largest difference; NaN if one is NaN."""
    errors = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    return max(errors, key=lambda error: (math.isnan(error), error))


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


if __name__ == "__main__":
    raise SystemExit(main())
