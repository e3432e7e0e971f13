"""FlashInfer's calls on caches, planned before. It compiles its kernels at their first call."""

import contextlib
import functools

from cached import E4M3, Cached
from protocol import serve, starting

with starting():
    import flashinfer
    import torch


@functools.cache
def workspace():
    return torch.zeros(512 << 20, device="cuda", dtype=torch.uint8)


class FlashInfer(Cached):
    """Each back end is a contender, and fa2 without tensor cores."""

    FA3, CORES = "FlashInfer fa3", "FlashInfer CUDA cores"
    BACKENDS = {"FlashInfer fa2": "fa2", FA3: "fa3", CORES: "fa2"}
    contenders = list(BACKENDS)

    def __init__(self, **setup):
        super().__init__(**setup)
        self.is_step = self.seqlen_q == 1 and not self.holds_values
        self.calls = {}

    def obstacle(self, contender):
        if self.q.dtype == E4M3:
            return "it is called with queries of 16 bits here"
        if contender == self.CORES and not self.is_step:
            return "it decodes one query, and no latents"
        if contender == self.FA3 and self.is_step:
            return "FlashInfer decodes one query with fa2"
        return super().obstacle(contender)

    def in_csr(self):
        """Where the pages of each sequence begin, their numbers, and the keys of the last one."""
        counts = (self.lengths + self.page - 1) // self.page
        begins = torch.zeros_like(self.offsets)
        begins[1:] = counts.cumsum(0)
        used = torch.arange(self.table.shape[1], device="cuda") < counts[:, None]
        return begins, self.table[used], self.lengths - (counts - 1) * self.page

    @property
    def options(self):
        return {"sm_scale": self.scale, "q_data_type": self.q.dtype, "kv_data_type": self.k.dtype}

    def step(self, contender):
        """One query of each sequence."""
        options = {"use_tensor_cores": contender != self.CORES, "backend": self.BACKENDS[contender]}
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), **options)
        wrapper.plan(*self.in_csr(), self.heads, self.kv_heads, self.dim, self.page, **self.options)
        return functools.partial(wrapper.run, self.q, (self.k, self.v))

    def chunk(self, contender):
        """Several queries of each sequence."""
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), backend=self.BACKENDS[contender])
        sizes = self.heads, self.kv_heads, self.dim, self.page
        wrapper.plan(self.offsets, *self.in_csr(), *sizes, head_dim_vo=self.dim_v, causal=self.causal, **self.options)
        return functools.partial(wrapper.run, self.q, (self.k, self.v))

    def latents(self, contender):
        """Queries on latents, which hold their values."""
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(), backend=self.BACKENDS[contender])
        begins, pages, _ = self.in_csr()
        wrapper.plan(
            qo_indptr=self.offsets,
            kv_indptr=begins,
            kv_indices=pages,
            kv_len_arr=self.lengths,
            num_heads=self.heads,
            head_dim_ckv=self.dim_v,
            head_dim_kpe=self.dim - self.dim_v,
            page_size=self.page,
            causal=self.causal,
            **self.options,
        )
        parts = [self.dim_v, self.dim - self.dim_v]
        q_nope, q_pe = self.q.split(parts, dim=-1)
        ckv, kpe = self.k.squeeze(2).split(parts, dim=-1)
        return functools.partial(wrapper.run, q_nope=q_nope, q_pe=q_pe, ckv_cache=ckv, kpe_cache=kpe)

    def chosen(self, contender):
        if contender not in self.calls:
            plan = self.latents if self.holds_values else self.step if self.is_step else self.chunk
            self.calls[contender] = plan(contender)
        return contextlib.nullcontext(self.calls[contender])


serve(FlashInfer, flashinfer=flashinfer.__version__)
