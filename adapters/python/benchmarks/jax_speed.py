"""Times attention from JAX: these kernels beside cuDNN by `jax.nn.dot_product_attention`, in turns, as text or JSON.

python benchmarks/jax_speed.py                  # batch 4, 16 heads of 128, length 4096, bfloat16, causal
python benchmarks/jax_speed.py --full --dims 64 128 256
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ferroattn.jax import attention

Call = Callable[[], Any]


def contenders(causal: bool) -> dict[str, Callable[..., Any]]:
    """Names, and functions of `[batch, seqlen, heads, dim]`."""
    other = partial(jax.nn.dot_product_attention, is_causal=causal)
    return {
        "ferroattn": lambda q, k, v: attention(q, k, v, causal=causal)[0],
        "cudnn": partial(other, implementation="cudnn"),
        "xla": partial(other, implementation="xla"),
    }


def calls(function: Callable[..., Any], inputs: list[Any], d_o: Any) -> dict[str, Call]:
    """The passes, compiled: each alone, and both in one program."""
    forward = jax.jit(function)
    _, pull = jax.jit(partial(jax.vjp, function))(*inputs)
    backward = jax.jit(lambda pull, d_o: pull(d_o))
    both = jax.jit(lambda inputs, d_o: jax.vjp(function, *inputs)[1](d_o))
    return {
        "forward": lambda: forward(*inputs),
        "backward": lambda: backward(pull, d_o),
        "both": lambda: both(inputs, d_o),
    }


def measure(call: Call, repeats: int) -> float:
    """Milliseconds of a call, of so many that are queued."""
    jax.block_until_ready(call())
    start = time.perf_counter()
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) * 1e3 / repeats


def shape(arguments: argparse.Namespace, dim: int) -> list[dict[str, Any]]:
    """Rows of results of one head dim."""
    batch, heads, seqlen, causal = arguments.batch, arguments.heads, arguments.seqlen, not arguments.full
    keys = jax.random.split(jax.random.key(0), 4)
    *inputs, d_o = (jax.random.normal(key, (batch, seqlen, heads, dim), jnp.dtype(arguments.dtype)) for key in keys)
    every: dict[tuple[str, str], Call] = {}
    for name, function in contenders(causal).items():
        if name not in arguments.only:
            continue
        try:
            found = calls(function, inputs, d_o)
            for kind, call in found.items():
                jax.block_until_ready(call())
                every[kind, name] = call
        # What a library does not serve, it refuses by exceptions of many kinds.
        except Exception as error:
            print(f"{name}: {str(error).splitlines()[0]}")
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(arguments.turns):
        # A contender finds a GPU that the others have heated: every second turn is in reverse order.
        for key, call in list(every.items())[:: 1 if turn % 2 else -1]:
            times.setdefault(key, []).append(measure(call, arguments.repeats))
    flops = 4 * batch * heads * seqlen * seqlen * dim * (0.5 if causal else 1.0)
    factor = {"forward": 1.0, "backward": 2.5, "both": 3.5}
    return [
        {
            "dtype": arguments.dtype,
            "shape": [batch, heads, seqlen, dim],
            "causal": causal,
            "pass": kind,
            "contender": name,
            "ms": round(statistics.median(found), 4),
            "tflops": round(flops * factor[kind] / statistics.median(found) / 1e9, 1),
        }
        for (kind, name), found in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--dims", type=int, nargs="*", default=[128], help="head dims")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--full", action="store_true", help="without the causal mask")
    parser.add_argument("--only", nargs="*", default=["ferroattn", "cudnn"], help="contenders, of ferroattn, cudnn and xla")
    parser.add_argument("--turns", type=int, default=9, help="rounds over all contenders")
    parser.add_argument("--repeats", type=int, default=50, help="calls of a measurement")
    parser.add_argument("--output", help="file for the results as JSON")
    arguments = parser.parse_args()
    rows = [row for dim in arguments.dims for row in shape(arguments, dim)]
    for row in sorted(rows, key=lambda row: (row["shape"], row["pass"], row["ms"])):
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
