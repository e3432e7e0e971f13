"""Times attention from Python on a GPU: these kernels beside PyTorch's, in turns, as text or JSON.

python benchmarks/speed.py                 # forward and backward passes at length 4096
python benchmarks/speed.py --host          # time of the host for a call
python benchmarks/speed.py --train         # a step of training of a small Llama
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ferroattn

Call = Callable[[], Any]


@contextmanager
def only(backend: SDPBackend) -> Iterator[None]:
    with sdpa_kernel(backend):
        yield


def flex(causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """PyTorch's flex_attention, compiled, with a mask of blocks if causal."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)
    masks: dict[int, Any] = {}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = q.shape[2]
        if causal and rows not in masks:
            masks[rows] = create_block_mask(lambda b, h, i, j: i >= j, None, None, rows, rows, device="cuda")
        return compiled(q, k, v, block_mask=masks.get(rows))

    return run


def contenders(causal: bool, with_flex: bool = True) -> dict[str, tuple[Any, Callable[..., Tensor]]]:
    """Names, what is entered around calls, and functions of `[batch, heads, seqlen, dim]`."""

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return ferroattn.flash_attn_func(q, k, v, causal=causal, deterministic=True).transpose(1, 2)

    found: dict[str, tuple[Any, Callable[..., Tensor]]] = {
        "flash_attn_func": (nullcontext, own),
        "enable()": (ferroattn.enable, sdpa),
        "cuDNN": (lambda: only(SDPBackend.CUDNN_ATTENTION), sdpa),
        "flash": (lambda: only(SDPBackend.FLASH_ATTENTION), sdpa),
    }
    if with_flex:
        found["flex"] = (nullcontext, flex(causal))
    return found


def gpu_times(call: Call, timed: int) -> list[float]:
    """Milliseconds of calls, each by events of its own, queued while the GPU is busy with others."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(timed)]
    torch.cuda._sleep(2_000_000)
    for _ in range(2):
        call()
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def passes(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    batch, heads, seqlen = arguments.batch, arguments.heads, arguments.seqlen
    for dtype in (torch.float16, torch.bfloat16):
        for dim in (64, 128, 256):
            # Rows first in memory, as projections leave them.
            q, k, v, d_o = (
                torch.randn(batch, seqlen, heads, dim, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(4)
            )
            for tensor in (q, k, v):
                tensor.requires_grad_()
            for causal in (False, True):
                rows += shape(arguments, (q, k, v), d_o, causal)
    return rows


def shape(arguments: argparse.Namespace, inputs: tuple[Tensor, ...], d_o: Tensor, causal: bool) -> list[dict[str, Any]]:
    batch, heads, seqlen, dim = inputs[0].shape
    calls: dict[str, tuple[Any, Call, Call]] = {}
    # PyTorch compiles it for each shape: for one type of numbers.
    with_flex = inputs[0].dtype == torch.bfloat16
    for name, (around, function) in contenders(causal, with_flex).items():
        if arguments.only and name not in arguments.only:
            continue
        try:
            with around():
                o = function(*inputs)
                torch.autograd.grad(o, inputs, d_o, retain_graph=True)
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        forward = lambda function=function: function(*(x.detach() for x in inputs))  # noqa: E731
        backward = lambda o=o: torch.autograd.grad(o, inputs, d_o, retain_graph=True)  # noqa: E731
        calls[name] = around, forward, backward
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(arguments.turns + 1):
        # A contender finds a GPU that the others have heated: every second turn is in reverse order.
        for name, (around, *both) in list(calls.items())[:: 1 if turn % 2 else -1]:
            with around():
                for kind, call in zip(("forward", "backward"), both, strict=True):
                    if kind not in arguments.kinds:
                        continue
                    found = gpu_times(call, arguments.repeats)
                    if turn > 0:
                        times.setdefault((name, kind), []).extend(found)
    flops = 4 * batch * heads * seqlen * seqlen * dim * (0.5 if causal else 1.0)
    return [
        {
            "dtype": str(inputs[0].dtype).removeprefix("torch."),
            "shape": [batch, heads, seqlen, dim],
            "causal": causal,
            "pass": kind,
            "contender": name,
            "ms": round(statistics.median(found), 4),
            "tflops": round(flops * (1.0 if kind == "forward" else 2.5) / statistics.median(found) / 1e9, 1),
        }
        for (name, kind), found in times.items()
    ]


def host(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Microseconds of the host for calls that are so small that the GPU waits."""
    q, k, v, d_o = (torch.randn(1, 64, 1, 64, device="cuda", dtype=torch.float16).transpose(1, 2) for _ in range(4))
    times: dict[tuple[str, str], list[float]] = {}
    rows_first = [x.transpose(1, 2) for x in (q, k, v)]
    d_rows = d_o.transpose(1, 2)
    every = contenders(True, with_flex=False)
    every["flash_attn_func, its axes"] = (
        nullcontext,
        lambda *inputs: ferroattn.flash_attn_func(*inputs, causal=True, deterministic=True),
    )
    for turn in range(arguments.turns + 1):
        for name, (around, function) in every.items():
            with around():
                for kind in ("forward", "forward, graded", "both"):
                    graded = kind != "forward"
                    for tensor in (*rows_first, q, k, v):
                        tensor.requires_grad_(graded)
                    inputs, d = (rows_first, d_rows) if "its axes" in name else ([q, k, v], d_o)

                    def call(function: Any = function, kind: str = kind, inputs: list[Tensor] = inputs, d: Tensor = d) -> None:
                        o = function(*inputs)
                        if kind == "both":
                            torch.autograd.grad(o, inputs, d)

                    for _ in range(20):
                        call()
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(300):
                        call()
                    elapsed = (time.perf_counter() - start) / 300
                    torch.cuda.synchronize()
                    if turn > 0:
                        times.setdefault((name, kind), []).append(elapsed * 1e6)
    return [
        {"contender": name, "call": kind, "us": round(statistics.median(found), 1)} for (name, kind), found in times.items()
    ]


def train(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a step of training of a Llama with 16 layers on 4096 tokens."""
    import transformers

    import ferroattn.transformers

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=16, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 32000, (1, 4096), device="cuda")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    times: dict[str, list[float]] = {}
    losses: dict[str, float] = {}
    for turn in range(arguments.turns + 1):
        for name, attention, around in (
            ("sdpa, PyTorch's choice", "sdpa", nullcontext),
            ("sdpa, enable()", "sdpa", ferroattn.enable),
            ("ferroattn", "ferroattn", nullcontext),
        ):
            model.set_attn_implementation(attention)
            with around():
                losses[name] = float(step())
                found = gpu_times(step, 5)
            if turn > 0:
                times.setdefault(name, []).extend(found)
    return [
        {"contender": name, "ms": round(statistics.median(found), 2), "loss": losses[name]} for name, found in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true", help="time of the host for a call")
    parser.add_argument("--train", action="store_true", help="a step of training")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=5, help="measured rounds over all contenders")
    parser.add_argument("--repeats", type=int, default=5, help="calls of a measurement")
    parser.add_argument("--kinds", nargs="*", default=["forward", "backward"], help="passes to time")
    parser.add_argument("--only", nargs="*", help="contenders to time, by their names")
    parser.add_argument("--output", help="file for the results as JSON")
    arguments = parser.parse_args()
    rows = host(arguments) if arguments.host else train(arguments) if arguments.train else passes(arguments)
    for row in rows:
        print("  ".join(f"{value}" for value in row.values()))
    if arguments.output:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": rows}
        with open(arguments.output, "w") as file:
            json.dump(about, file, indent=1)


if __name__ == "__main__":
    main()
