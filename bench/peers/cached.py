"""Inputs of one call with a cache of keys and values, and what its output must be."""

import sys

from protocol import Subject, starting

with starting():
    import torch

    if sys.argv[1:] == ["gemm"]:
        raise RuntimeError("it computes attention alone")

E4M3 = torch.float8_e4m3fn
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
# Types of the queries and of the cache where they are not the call's.
FP8 = {None: {}, "e4m3": {"queries": E4M3, "cache": E4M3}, "cache": {"cache": E4M3}}


class Cached(Subject):
    """Keys and values lie in pages, in any order. A cache in one piece is one page of each sequence."""

    # A planned call checks its arguments in Python first.
    launch_cycles = 600_000

    def __init__(
        self, batch, heads, kv_heads, seqlen_q, seqlen_kv, dim, dim_v, causal, scale, dtype, seed, lengths, page, fp8, **options
    ):
        torch.manual_seed(seed)
        self.heads, self.kv_heads, self.seqlen_q, self.seqlen_kv = heads, kv_heads, seqlen_q, seqlen_kv
        self.dim, self.dim_v, self.causal, self.scale = dim, dim_v, causal, scale
        asked = {
            "gradient": options["pass"] == "backward",
            "rounding to FP8": fp8 not in FP8,
            "window": any(bound is not None for bound in options["window"].values()),
            "softcap": options["softcap"],
            "ALiBi": options["alibi"],
            "sinks": options["sinks"],
            "bias": options["bias"],
            "mask": options["block_mask"],
            "packed sequences": options["offsets"],
            "shared prefix": options["prefix"],
        }
        self.lacking = [name for name, is_asked in asked.items() if is_asked]
        self.holds_values = options["values_in_keys"]
        self.in_pages, self.page = page is not None, page or seqlen_kv
        types = {"queries": DTYPES[dtype], "cache": DTYPES[dtype]} | FP8.get(fp8, {})

        def normal(of, *shape):
            return torch.randn(shape, device="cuda", dtype=DTYPES[dtype]).to(types[of])

        most = -(-seqlen_kv // self.page)
        pages = batch * most
        self.q = normal("queries", batch * seqlen_q, heads, dim)
        self.k = normal("cache", pages, self.page, kv_heads, dim)
        self.v = self.k[..., :dim_v] if self.holds_values else normal("cache", pages, self.page, kv_heads, dim_v)
        order = torch.randperm(pages) if self.in_pages else torch.arange(pages)
        self.table = order.view(batch, most).to("cuda", torch.int32)
        self.lengths = torch.tensor(lengths or [seqlen_kv] * batch, device="cuda", dtype=torch.int32)
        self.offsets = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * seqlen_q

    def obstacle(self, _):
        return f"it is called without {self.lacking[0]} here" if self.lacking else None

    def expected(self, sequence):
        """What the last query of a sequence must give."""
        length = self.lengths[sequence]
        k, v = (cache[self.table[sequence]].flatten(0, 1)[:length].float() for cache in (self.k, self.v))
        q = self.q[(sequence + 1) * self.seqlen_q - 1].float().view(self.kv_heads, -1, self.dim)
        shares = torch.einsum("hgd,nhd->hgn", self.scale * q, k).softmax(-1)
        return torch.einsum("hgn,nhd->hgd", shares, v).flatten(0, 1)

    def flaw(self, o):
        allowed = 0.02 if self.q.dtype != E4M3 else 0.1
        for sequence in (0, len(self.lengths) - 1):
            expected = self.expected(sequence)
            error = (o[(sequence + 1) * self.seqlen_q - 1] - expected).norm() / expected.norm()
            if not error < allowed:
                return f"its output differs by {100 * error:.1f} %"
        return None
