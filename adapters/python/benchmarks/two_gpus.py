"""Times attention on two GPUs beside one that does the whole: forward and backward pass, in turns, as text or JSON.

    torchrun --nproc-per-node 2 benchmarks/two_gpus.py            # these kernels
    torchrun --nproc-per-node 2 benchmarks/two_gpus.py --peers    # PyTorch's own, too

Attention is causal, of one sequence in bfloat16, with heads of 128. An efficiency is the rate of two GPUs over twice the rate
of one. Lengths up to 131072 take less than 24 GiB of each GPU.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

import ferroattn
import ferroattn.flash_attn

DEVICE = "cuda"
DIM = 128
# Query heads and key heads.
HEADS = [(16, 16), (32, 8)]

# Passes of a call: o and the gradients of q, k and v, `[batch, heads, seqlen, dim]`.
Call = Callable[[], list[Tensor]]
# What puts kernels under PyTorch's function.
Around = Callable[[], AbstractContextManager[Any]]


@dataclass
class Contender:
    """Kernels under an engine, with one GPU or two, and a context that gives a call of them on a whole sequence."""

    kernels: str
    engine: str
    gpus: int
    prepare: Callable[[list[Tensor]], AbstractContextManager[Call]]


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def passes(function: Callable[..., Tensor], inputs: list[Tensor], d_o: Tensor) -> list[Tensor]:
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    o = function(*inputs)
    return [o.detach(), *torch.autograd.grad(o, inputs, d_o)]


def balanced(whole: Tensor, axis: int) -> Tensor:
    """This rank's two quarters of a sequence, one from each end, with equal work under a causal mask."""
    quarters, rank = whole.chunk(4, axis), dist.get_rank()
    return torch.cat((quarters[rank], quarters[3 - rank]), axis)


@cache
def mesh() -> DeviceMesh:
    return init_device_mesh(DEVICE, (2,))


@contextmanager
def alone(around: Around, whole: list[Tensor]) -> Iterator[Call]:
    *inputs, d_o = whole
    with around():
        yield lambda: passes(sdpa, inputs, d_o)


@contextmanager
def by_context_parallel(around: Around, rotate_method: str, whole: list[Tensor]) -> Iterator[Call]:
    set_rotate_method(rotate_method)
    parts = [tensor.clone() for tensor in whole]
    function = F.scaled_dot_product_attention
    try:
        with (
            around(),
            context_parallel(mesh(), buffers=parts, buffer_seq_dims=[2] * 4, no_restore_buffers=set(parts)),
        ):
            *inputs, d_o = parts
            yield lambda: passes(sdpa, inputs, d_o)
    finally:
        # After an error, PyTorch's context leaves its own function there.
        F.scaled_dot_product_attention = function


@contextmanager
def by_ring(whole: list[Tensor]) -> Iterator[Call]:
    library = ring_flash_attn()

    def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return library.zigzag_ring_flash_attn_func(q, k, v, causal=True)

    *inputs, d_o = (balanced(tensor.transpose(1, 2), 1) for tensor in whole)
    yield lambda: [tensor.transpose(1, 2) for tensor in passes(ring, inputs, d_o)]


@cache
def ring_flash_attn() -> Any:
    """The library over these kernels, without its adapters, which need an older transformers."""
    ferroattn.flash_attn.install(replace=True)
    adapters = ModuleType("ring_flash_attn.adapters")
    vars(adapters).update(substitute_hf_flash_attn=None, update_ring_flash_attn_params=None)
    sys.modules.setdefault(adapters.__name__, adapters)
    return importlib.import_module("ring_flash_attn")


def contenders(peers: bool) -> list[Contender]:
    kernels: dict[str, Around] = {"ferroattn": ferroattn.enable}
    if peers:
        kernels["flash"] = lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)
        kernels["cuDNN"] = lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
    found = []
    for name, around in kernels.items():
        found.append(Contender(name, "one GPU", 1, partial(alone, around)))
        for method in ("allgather", "alltoall"):
            prepare = partial(by_context_parallel, around, method)
            found.append(Contender(name, f"context_parallel, {method}", 2, prepare))
        if name == "ferroattn" and importlib.util.find_spec("ring_flash_attn") is not None:
            found.append(Contender(name, "ring-flash-attn, zigzag", 2, by_ring))
    return found


def greatest(number: float) -> float:
    """The greatest of both processes' numbers, by the CPU: a GPU that waits stays idle."""
    both = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both.item()


def measure(contender: Contender, call: Call) -> float:
    """Milliseconds of a call, by events, of the slower GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    greatest(0.0)
    elapsed = 0.0
    if dist.get_rank() < contender.gpus:
        start.record()
        call()
        end.record()
        end.synchronize()
        elapsed = start.elapsed_time(end)
    return greatest(elapsed)


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    """The greatest error of o and the gradients, each over its largest element."""
    errors = [
        ((a - b).abs().max() / b.abs().max()).item() if a.isfinite().all() else float("inf")
        for a, b in zip(found, expected, strict=True)
    ]
    return max(errors)


def check(contender: Contender, whole: list[Tensor], expected: list[Tensor]) -> tuple[float, float] | None:
    """The error of a contender and the GiB that it takes; None if it computes no such call."""
    off, failure = 0.0, ""
    torch.cuda.reset_peak_memory_stats()
    try:
        with contender.prepare(whole) as call:
            if dist.get_rank() < contender.gpus:
                found = call()
                off = error(found if contender.gpus == 2 else [balanced(tensor, 2) for tensor in found], expected)
    except RuntimeError as reason:
        failure = str(reason).splitlines()[0]
        print(f"rank {dist.get_rank()}: {contender.kernels}, {contender.engine}: {failure}", flush=True)
    if greatest(float(bool(failure))) > 0.0:
        return None
    return greatest(off), greatest(torch.cuda.max_memory_allocated() / 2**30)


def shape(every: list[Contender], seqlen: int, heads: tuple[int, int], turns: int, deadline: float) -> list[dict[str, Any]]:
    """Results of all contenders on one shape."""
    torch.manual_seed(0)
    # Rows first in memory, as projections leave them.
    whole = [
        torch.randn(1, seqlen, count, DIM, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
        for count in (heads[0], heads[1], heads[1], heads[0])
    ]
    with every[0].prepare(whole) as call:
        expected = [balanced(tensor, 2) for tensor in call()]
    checked = {index: result for index, one in enumerate(every) if (result := check(one, whole, expected)) is not None}
    times: dict[int, list[float]] = {index: [] for index in checked}
    for turn in range(turns):
        if turn > 0 and greatest(time.monotonic()) > deadline:
            break
        for index, found in times.items():
            with every[index].prepare(whole) as call:
                found.append(measure(every[index], call))
    alone = {every[index].kernels: statistics.median(found) for index, found in times.items() if every[index].gpus == 1}
    flops = 3.5 * 2 * heads[0] * seqlen**2 * DIM
    rows = []
    for index, found in times.items():
        one, median, (off, memory) = every[index], statistics.median(found), checked[index]
        efficiency = alone[one.kernels] / (2 * median) if one.gpus == 2 and one.kernels in alone else None
        rows.append(
            {
                "seqlen": seqlen,
                "heads": list(heads),
                "kernels": one.kernels,
                "engine": one.engine,
                "gpus": one.gpus,
                "ms": round(median, 2),
                "tflops": round(flops / median / 1e9, 1),
                "efficiency": None if efficiency is None else round(efficiency, 3),
                "error": round(off, 5),
                "memory_gib": round(memory, 1),
                "turns": len(found),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, nargs="+", default=[65536, 131072])
    parser.add_argument("--peers", action="store_true", help="PyTorch's own kernels, too")
    parser.add_argument("--turns", type=int, default=5, help="measured rounds over all contenders")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds after which no other turn or shape begins")
    parser.add_argument("--output", help="file for the results as JSON")
    arguments = parser.parse_args()
    if any(seqlen % 4 for seqlen in arguments.seqlen):
        parser.error("a length is no multiple of 4: each GPU has two equal parts of a sequence")
    if os.environ.get("WORLD_SIZE") != "2":
        parser.error("there must be two processes: run it by torchrun --nproc-per-node 2")
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    # Both processes are on this host, whose name may mean no address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=60))
    deadline = greatest(time.monotonic()) + arguments.limit
    every = contenders(arguments.peers)
    rows: list[dict[str, Any]] = []
    for seqlen in arguments.seqlen:
        for heads in HEADS:
            if greatest(time.monotonic()) > deadline:
                continue
            found = shape(every, seqlen, heads, arguments.turns, deadline)
            rows += found
            for row in found if rank == 0 else []:
                print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if rank == 0 and arguments.output:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": rows}
        with open(arguments.output, "w") as file:
            json.dump(about, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
