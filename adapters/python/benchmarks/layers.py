"""Times layers that decode in a CUDA graph, each on keys of its own, by the number of splits.

python benchmarks/layers.py                     # 0 splits are those that the library chooses
python benchmarks/layers.py --lengths even      # lengths lie on the device
python benchmarks/layers.py --lengths uneven --splits 0 --page 16 --shape 8,32,8,32768,128
python benchmarks/layers.py --host --splits 0   # what a replay takes of the host
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import ferroattn

LAYERS = 32
# Bytes of all caches.
MOST_BYTES = 24e9
REPLAYS = 30
SPLITS = (0, 1, 4, 8, 11, 16, 22, 32)
# Sequences, heads, key/value heads, keys and head dim, and whether caches are of e4m3. Of dim 576 values are the first 512
# columns of the keys: latents.
Shape = tuple[int, int, int, int, int, bool]
SHAPES = [
    (batch, 32, 8, keys, dim, False)
    for batch, keys, dim in (
        (1, 64, 128), (1, 128, 128), (1, 256, 128), (1, 512, 128), (1, 1024, 128), (1, 2048, 128), (1, 4096, 128),
        (1, 512, 64), (1, 1024, 64), (1, 128, 256), (1, 1024, 256), (4, 256, 128), (4, 1024, 128), (4, 2048, 128),
        (8, 512, 128), (8, 1024, 128), (16, 512, 128),
    )
]  # fmt: skip
SHAPES += [
    (batch, 32, 8, keys, dim, True)
    for batch, keys, dim in (
        (1, 256, 128), (1, 512, 128), (1, 1024, 128), (1, 2048, 128), (8, 512, 128), (1, 1024, 64), (1, 1024, 256),
    )
]  # fmt: skip


def parse_shape(text: str) -> Shape:
    """A shape, `batch,heads,kv_heads,keys,dim`, with `,e4m3` behind it for caches of e4m3."""
    *numbers, last = text.split(",")
    e4m3 = last == "e4m3"
    if not e4m3:
        numbers.append(last)
    batch, heads, kv_heads, keys, dim = map(int, numbers)
    return batch, heads, kv_heads, keys, dim, e4m3


def of_device(replay: Callable[[], None]) -> float:
    """The least time of a replay, in microseconds."""
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return min(times)


def of_host(replay: Callable[[], None]) -> float:
    """The host's median time of a replay, in microseconds."""
    times = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        replay()
        times.append(1e6 * (time.perf_counter() - start))
    return sorted(times)[REPLAYS // 2]


def key_lengths(kind: str | None, batch: int, keys: int) -> torch.Tensor | None:
    """All keys for each sequence, or for the n-th one n-th of them."""
    if kind is None:
        return None
    numbers = [keys if kind == "even" else max(1, keys // n) for n in range(1, batch + 1)]
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def layer(shape: Shape, splits: int, options: argparse.Namespace) -> float:
    """The time of a layer; of the host, that of a replay of all layers."""
    batch, heads, kv_heads, keys, dim, e4m3 = shape
    torch.manual_seed(0)
    dtype = torch.float16 if e4m3 else torch.bfloat16
    of_cache = torch.float8_e4m3fn if e4m3 else dtype
    layers = max(2, min(LAYERS, int(MOST_BYTES / (2 * batch * keys * kv_heads * dim * of_cache.itemsize))))
    q = torch.randn(batch, options.queries, heads, dim, device="cuda").to(dtype)
    rows, table = (batch, keys), None
    if options.page:
        rows = (batch * keys // options.page, options.page)
        table = torch.randperm(rows[0], device="cuda").int().view(batch, -1)
    caches = [torch.randn(2, *rows, kv_heads, dim, device="cuda", dtype=dtype).to(of_cache) for _ in range(layers)]
    lengths = key_lengths(options.lengths, batch, keys)

    def step() -> None:
        for cache in caches:
            values = cache[0][..., :512] if dim == 576 else cache[1]
            ferroattn.flash_attn_with_kvcache(
                q, cache[0], values, cache_seqlens=lengths, block_table=table, causal=options.queries > 1, num_splits=splits
            )

    # Kernels are compiled before the capture.
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    return of_host(graph.replay) if options.host else of_device(graph.replay) / layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lengths", choices=("even", "uneven"), help="lengths of keys lie on the device: all, or one n-th of them"
    )
    parser.add_argument("--page", type=int, default=0, help="keys of a page, which lie in any order; in one piece by default")
    parser.add_argument("--queries", type=int, default=1, help="causal queries of each sequence")
    parser.add_argument("--splits", type=int, nargs="+", default=SPLITS, help="numbers of splits; 0 for the library's choice")
    parser.add_argument(
        "--shape", type=parse_shape, action="append", help="batch,heads,kv_heads,keys,dim[,e4m3]; may be repeated"
    )
    parser.add_argument("--host", action="store_true", help="times of the host, for a replay of all layers")
    options = parser.parse_args()
    what = "us of the host, for a replay of all layers" if options.host else "us of a layer"
    print(f"{torch.cuda.get_device_name()}, {what}, by splits:")
    print(f"{'batch, heads on kv heads, keys, dim':38}" + "".join(f"{splits:>8}" for splits in options.splits))
    for shape in options.shape or SHAPES:
        batch, heads, kv_heads, keys, dim, e4m3 = shape
        times = (layer(shape, splits, options) for splits in options.splits)
        name = f"{batch}, {heads} on {kv_heads}, {keys}, {dim}" + (", e4m3" if e4m3 else "")
        print(f"{name:38}" + "".join(f"{time:8.2f}" for time in times), flush=True)


if __name__ == "__main__":
    main()
