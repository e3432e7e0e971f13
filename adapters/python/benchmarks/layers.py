"""Times layers that decode in a CUDA graph, each on keys of its own, by the number of splits.

python benchmarks/layers.py                     # 0 splits are those that the library chooses
python benchmarks/layers.py --lengths           # lengths lie on the device
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

import ferroattn

LAYERS = 32
HEADS, KV_HEADS = 32, 8
REPLAYS = 30
SPLITS = (0, 1, 4, 8, 11, 16, 22, 32)
# Sequences, keys and head dims.
SHAPES = (
    (1, 64, 128),
    (1, 128, 128),
    (1, 256, 128),
    (1, 512, 128),
    (1, 1024, 128),
    (1, 2048, 128),
    (1, 4096, 128),
    (1, 512, 64),
    (1, 1024, 64),
    (1, 128, 256),
    (1, 1024, 256),
    (4, 256, 128),
    (4, 1024, 128),
    (4, 2048, 128),
    (8, 512, 128),
    (8, 1024, 128),
    (16, 512, 128),
)
E4M3 = ((1, 256, 128), (1, 512, 128), (1, 1024, 128), (1, 2048, 128), (8, 512, 128), (1, 1024, 64), (1, 1024, 256))


def least(replay: Callable[[], None]) -> float:
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


def layer(batch: int, keys: int, dim: int, e4m3: bool, lengths: bool, splits: int) -> float:
    """The least time of a layer, in microseconds."""
    torch.manual_seed(0)
    dtype = torch.float16 if e4m3 else torch.bfloat16
    of_cache = torch.float8_e4m3fn if e4m3 else dtype
    q = torch.randn(batch, 1, HEADS, dim, device="cuda").to(dtype)
    caches = [torch.randn(2, batch, keys, KV_HEADS, dim, device="cuda").to(of_cache) for _ in range(LAYERS)]
    known = torch.full((batch,), keys, device="cuda", dtype=torch.int32) if lengths else None

    def step() -> None:
        for cache in caches:
            ferroattn.flash_attn_with_kvcache(q, cache[0], cache[1], cache_seqlens=known, num_splits=splits)

    # Kernels are compiled before the capture.
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    return least(graph.replay) / LAYERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", action="store_true", help="lengths of sequences lie on the device")
    lengths = parser.parse_args().lengths
    print(f"{torch.cuda.get_device_name()}, {HEADS} heads on {KV_HEADS}, us of a layer, by splits:")
    print(f"{'batch, keys, dim':22}" + "".join(f"{splits:>8}" for splits in SPLITS))
    for e4m3, shapes in ((False, SHAPES), (True, E4M3)):
        for batch, keys, dim in shapes:
            times = (layer(batch, keys, dim, e4m3, lengths, splits) for splits in SPLITS)
            name = f"{batch}, {keys}, {dim}" + (", e4m3" if e4m3 else "")
            print(f"{name:22}" + "".join(f"{time:8.2f}" for time in times), flush=True)


if __name__ == "__main__":
    main()
