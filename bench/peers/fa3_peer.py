"""FlashAttention-3 as vLLM's wheel has it, on caches."""

import contextlib
import functools
import importlib.metadata

from cached import E4M3, Cached
from protocol import serve, starting

with starting():
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata


class FlashAttention3(Cached):
    """Calls whose schedule is computed before, as an engine does once for all layers."""

    contenders = ["FlashAttention-3"]

    def obstacle(self, contender):
        if self.q.dtype != self.k.dtype:
            return "its queries have the type of the keys"
        return super().obstacle(contender)

    @functools.cached_property
    def call(self):
        q, k, q_v = self.q, self.k, None
        if self.holds_values:
            # Latents: what their values are not is the key.
            q_v, q = q.split([self.dim_v, self.dim - self.dim_v], dim=-1)
            k = k[..., self.dim_v :]
        sizes = {"max_seqlen_q": self.seqlen_q, "max_seqlen_k": self.seqlen_kv, "causal": self.causal}
        schedule = get_scheduler_metadata(
            batch_size=len(self.lengths),
            num_heads_q=self.heads,
            num_heads_kv=self.kv_heads,
            headdim=q.shape[-1],
            headdim_v=self.dim_v,
            cache_seqlens=self.lengths,
            qkv_dtype=q.dtype,
            cu_seqlens_q=self.offsets,
            page_size=self.page if self.in_pages else None,
            **sizes,
        )
        scales = {}
        if q.dtype == E4M3:
            ones = torch.ones(len(self.lengths), self.kv_heads, device="cuda")
            scales = {"q_descale": ones, "k_descale": ones, "v_descale": ones}
        return functools.partial(
            flash_attn_varlen_func,
            q=q,
            k=k,
            v=self.v,
            q_v=q_v,
            cu_seqlens_q=self.offsets,
            seqused_k=self.lengths,
            block_table=self.table if self.in_pages else None,
            softmax_scale=self.scale,
            scheduler_metadata=schedule,
            fa_version=3,
            **sizes,
            **scales,
        )

    def chosen(self, _):
        return contextlib.nullcontext(self.call)


serve(FlashAttention3, vllm=importlib.metadata.version("vllm"))
