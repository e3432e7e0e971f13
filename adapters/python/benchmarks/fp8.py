"""Measures what FP8 costs in exactness on a Hopper GPU, by length, with outliers, and in a model.

python benchmarks/fp8.py            # errors of o against float64, in norm
python benchmarks/fp8.py --model    # logits of a Llama with random weights
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from torch import Tensor

import ferroattn

HEADS, DIM = 8, 128
# Rows of each head that are compared: float64 holds no more at the longest lengths.
ROWS = 256


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o of the first rows in float64, `[heads, rows, dim]`."""
    q, k, v = (tensor[0].transpose(0, 1).double() for tensor in (q[:, :ROWS], k, v))
    o = torch.empty_like(q)
    for head in range(HEADS):
        o[head] = (q[head] @ k[head].T / DIM**0.5).softmax(-1) @ v[head]
    return o


@dataclasses.dataclass
class Errors:
    """Errors of o: in norm, of the mean square, and how much of o along the exact one is lost."""

    norm: float
    rmse: float
    lost: float

    @classmethod
    def of(cls, o: Tensor, reference: Tensor) -> Errors:
        o = o[0, :ROWS].transpose(0, 1).double()
        norm = ((o - reference).norm() / reference.norm()).item()
        kept = ((o * reference).sum() / (reference * reference).sum()).item()
        return cls(norm, (o - reference).square().mean().sqrt().item(), 1 - kept)

    def __str__(self) -> str:
        return f"{self.norm:10.2e} {self.rmse:10.2e} {100 * self.lost:9.3f} %"


def compare(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    reference = exact(q, k, v)
    kinds: tuple[tuple[str, ferroattn.functions.Fp8], ...] = (("16 bits", False), ("FP8", True), ("rotated", "hadamard"))
    for kind, fp8 in kinds:
        o, _ = ferroattn.attention(q, k, v, fp8=fp8)
        print(f"{name:36} {kind:8} {Errors.of(o, reference)}")


def errors() -> None:
    """By length, with values of mean 0 and of mean 1; and with FlashAttention-3's outliers: N(0, 100) added to one in 1000."""
    print(f"{'inputs, float16':36} {'kernel':8} {'norm':>10} {'RMSE':>10} {'lost':>11}")
    torch.manual_seed(0)
    for rows in (1024, 4096, 16384, 65536):
        q, k, v = (torch.randn(1, rows, HEADS, DIM, device="cuda").half() for _ in range(3))
        for mean in (0.0, 1.0):
            compare(f"{rows} keys, values of mean {mean:.0f}", q, k, v + mean)
    for rows in (1024, 4096, 16384):
        q, k, v = (torch.randn(1, rows, HEADS, DIM, device="cuda") for _ in range(3))
        q, k, v = (x + 10 * torch.randn_like(x) * (torch.rand_like(x) < 1e-3) for x in (q, k, v))
        compare(f"{rows} keys, outliers", q.half(), k.half(), v.half())


def model(rows: int = 8192) -> None:
    """Logits of a Llama of 16 layers with random weights in bfloat16, by the kernels of 16 bits and of FP8."""
    import transformers

    import ferroattn.transformers as names

    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=rows,
    )
    ids = torch.randint(0, 32000, (1, rows), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    logits = {}
    for name in ("sdpa", names.NAME, names.NAME_FP8):
        torch.manual_seed(0)
        config._attn_implementation = name
        llama = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
        with torch.no_grad():
            logits[name] = llama(input_ids=ids).logits[0].float()
    reference = logits["sdpa"]
    for name, found in logits.items():
        error = (found - reference).norm() / reference.norm()
        same = (found.argmax(-1) == reference.argmax(-1)).float().mean()
        print(f"{name:16} logits off by {error:.2e} in norm, the same token in {100 * same:.2f} % of {rows} places")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="store_true", help="compare logits of a model")
    if parser.parse_args().model:
        model()
    else:
        errors()
