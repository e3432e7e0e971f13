"""PyTorch's scaled_dot_product_attention, with the argument `options` also its flex_attention, or with `gemm` its matmul."""

import contextlib
import functools
import inspect
import sys

from protocol import Subject, serve, starting

with starting():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if sys.argv[1:] == ["options"]:
        import torch._functorch.config
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            varlen_attn = None
    from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class Attention(Subject):
    """Inputs of one shape, on the GPU."""

    contenders = list(BACKENDS)

    def __init__(self, batch, heads, kv_heads, seqlen_q, seqlen_kv, dim, dim_v, causal, scale, dtype, seed, **options):
        torch.manual_seed(seed)
        self.backward = options.get("pass") == "backward"
        if self.backward:
            self.launch_cycles = 600_000  # autograd takes longer than a function

        def normal(heads, seqlen, dim):
            shape = batch, heads, seqlen, dim
            return torch.randn(shape, device="cuda", dtype=DTYPES[dtype], requires_grad=self.backward)

        k, v = normal(kv_heads, seqlen_kv, dim), normal(kv_heads, seqlen_kv, dim_v)
        self.inputs = normal(heads, seqlen_q, dim), k, v
        self.d_o = normal(heads, seqlen_q, dim_v).detach() if self.backward else None
        self.options = {"is_causal": causal, "scale": scale}
        if kv_heads != heads:
            self.options["enable_gqa"] = True
        # torch aligns the mask top-left, the project bottom-right.
        self.same_mask = not causal or seqlen_q == seqlen_kv

    def leaves(self, _):
        """The tensors whose gradients a contender computes."""
        return self.inputs

    def forward(self, _):
        return scaled_dot_product_attention(*self.inputs, **self.options)

    def backend(self, contender):
        return sdpa_kernel(BACKENDS[contender])

    @contextlib.contextmanager
    def chosen(self, contender):
        """Gives the call to time."""
        with self.backend(contender):
            if not self.backward:
                yield lambda: self.forward(contender)
                return
            with torch.enable_grad():
                o = self.forward(contender)
            leaves = self.leaves(contender)
            yield lambda: torch.autograd.grad(o, leaves, self.d_o, retain_graph=True)

    def obstacle(self, _):
        return None if self.same_mask else "its causal mask is aligned top-left"


def within(behind, left, right):
    """Whether queries see keys that lie so far before their places; one bound may be None."""
    if left is None:
        return behind >= -right
    if right is None:
        return behind <= left
    return (behind <= left) & (behind >= -right)


def in_blocks(q, kv, every):
    """Whether a mask of one in `every` blocks shows pairs."""
    return (q // 128 - kv // 128) % every == 0


class Options(Attention):
    """Calls with a window, softcap, ALiBi, sinks, a bias, a mask or sequences: flex_attention computes them all, SDPA
    some, varlen_attn sequences."""

    FLEX = "flex"
    VARLEN = "varlen"
    contenders = [*BACKENDS, FLEX, VARLEN]

    def __init__(self, window, softcap, alibi, sinks, bias, block_mask, offsets, lengths, page, **sizes):
        super().__init__(**sizes)
        heads, self.seqlen_q, self.seqlen_kv = sizes["heads"], sizes["seqlen_q"], sizes["seqlen_kv"]
        self.causal, self.scale = sizes["causal"], sizes["scale"]
        self.has_window = window["left"] is not None or window["right"] is not None
        self.bounds = window["left"], 0 if self.causal else window["right"]
        self.is_bounded = self.bounds != (None, None)
        self.softcap, self.every = softcap, block_mask
        self.slopes = self.sinks = self.bias = self.offsets = None
        if offsets is not None:
            self.offsets = torch.tensor(offsets, device="cuda", dtype=torch.int32)
            self.longest = max(end - start for start, end in zip(offsets, offsets[1:]))
        self.lengths, self.page = lengths, page
        if lengths is not None:
            self.lengths = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        if alibi:
            exponents = torch.arange(1, heads + 1, device="cuda", dtype=torch.float32)
            self.slopes = torch.exp2(-8 * exponents / heads)
        if sinks:
            self.sinks = torch.randn(heads, device="cuda", requires_grad=self.backward)
        dtype = DTYPES[sizes["dtype"]]
        if bias:
            # Without an axis for the batch: flex_attention would index it with a tensor of its own.
            shape = heads, self.seqlen_q, self.seqlen_kv
            self.bias = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=self.backward)
        self.has_mask = self.has_window or alibi or bias or block_mask is not None

    # What only some contenders need is made for the first of them, so that the others do not fail with it.
    @functools.cached_property
    def mask(self):
        """The mask, or with ALiBi or a bias their sum, of all pairs: cuDNN and the efficient back end take one."""
        q, kv = torch.arange(self.seqlen_q, device="cuda"), torch.arange(self.seqlen_kv, device="cuda")
        behind = q[:, None] + (self.seqlen_kv - self.seqlen_q) - kv
        seen = within(behind, *self.bounds) if self.is_bounded else torch.ones_like(behind, dtype=torch.bool)
        if self.every is not None:
            seen &= in_blocks(q[:, None], kv, self.every)
        if self.slopes is None and self.bias is None:
            return seen[None, None]
        bias = 0 if self.bias is None else self.bias.detach()
        if self.slopes is not None:
            bias = bias - self.slopes[:, None, None] * behind.abs()
        bias = bias.masked_fill(~seen, -torch.inf).to(self.inputs[0].dtype)
        return bias.expand(1, -1, -1, -1).requires_grad_(self.backward and self.bias is not None)

    def leaves(self, contender):
        if contender == self.FLEX:
            extra = [leaf for leaf in (self.sinks, self.bias) if leaf is not None]
        else:
            extra = [] if self.bias is None else [self.mask]
        return *self.inputs, *extra

    @functools.cached_property
    def flex(self):
        """flex_attention with all options as one compiled function of q, k, v and sinks."""
        # Other shapes and options make other kernels; more than a few of a function would not be compiled.
        torch.compiler.reset()
        # The backward pass is timed many times on one graph.
        torch._functorch.config.donated_buffer = False
        softcap, slopes, causal, bounds = self.softcap, self.slopes, self.causal, self.bounds
        bias, every, is_bounded, keys = self.bias, self.every, self.is_bounded, self.lengths
        lengths = self.seqlen_q, self.seqlen_kv
        # A sequence has as many keys as queries.
        offset = 0 if self.offsets is not None else self.seqlen_kv - self.seqlen_q

        def score_mod(score, batch, head, q, kv):
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            if slopes is not None:
                behind = q + offset - kv
                score = score - slopes[head] * (behind if causal else behind.abs())
            if bias is not None:
                score = score + bias[head, q, kv]
            return score

        documents = None
        if self.offsets is not None:
            rows = torch.arange(max(lengths), device="cuda")
            documents = torch.searchsorted(self.offsets, rows, right=True)

        def mask_mod(batch, head, q, kv):
            seen = q >= 0
            if is_bounded:
                seen = seen & within(q + offset - kv, *bounds)
            if every is not None:
                seen = seen & in_blocks(q, kv, every)
            if keys is not None:
                seen = seen & (kv < keys[batch])
            if documents is not None:
                seen = seen & (documents[q] == documents[kv])
            return seen

        options = {"scale": self.scale, "enable_gqa": "enable_gqa" in self.options}
        if softcap is not None or slopes is not None or bias is not None:
            options["score_mod"] = score_mod
        if is_bounded or every is not None or documents is not None or keys is not None:
            # Compiled, it never holds the mask of all pairs. Fewer need no compiler, which takes many seconds.
            is_large = self.seqlen_q * self.seqlen_kv > 1 << 28
            make = torch.compile(create_block_mask) if is_large else create_block_mask
            batch = None if keys is None else len(keys)
            options["block_mask"] = make(mask_mod, batch, None, *lengths, device="cuda")

        def attention(q, k, v, sinks, **options):
            if sinks is None:
                return flex_attention(q, k, v, **options)
            o, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True), **options)
            of_keys = torch.sigmoid(aux.lse - sinks[:, None])
            return (o * of_keys[..., None]).to(o.dtype)

        # One graph: outside of one, flex_attention computes without a kernel of its own, slowly.
        return functools.partial(torch.compile(attention, dynamic=False, fullgraph=True), **options)

    def forward(self, contender):
        if contender == self.FLEX:
            return self.flex(*self.inputs, self.sinks)
        if contender == self.VARLEN:
            return self.varlen()
        if contender == "SDPA flash" and self.has_window:
            return self.flash_window()
        if not self.has_mask:
            return super().forward(contender)
        options = {**self.options, "is_causal": False, "attn_mask": self.mask}
        return scaled_dot_product_attention(*self.inputs, **options)

    def flash_window(self):
        """What SDPA calls as its flash back end, with the window that SDPA does not pass on."""
        q, k, v = (tensor.transpose(1, 2) for tensor in self.inputs)
        lengths, (left, right) = (self.seqlen_q, self.seqlen_kv), self.bounds
        options = {"scale": self.scale, "window_size_left": left, "window_size_right": right}
        flash = torch.ops.aten._flash_attention_forward
        o, *_ = flash(q, k, v, None, None, *lengths, 0.0, False, False, **options)
        return o.transpose(1, 2)

    def varlen(self):
        # The gradient of an index would copy the tensor, the gradient of `squeeze` is a view.
        q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in self.inputs)
        left, right = (-1 if bound is None else bound for bound in self.bounds)
        options = {"scale": self.scale, "window_size": (left, right)}
        offsets, longest = self.offsets, self.longest
        o = varlen_attn(q, k, v, offsets, offsets, longest, longest, **options)
        return o.transpose(0, 1)[None]

    def backend(self, contender):
        own = contender in (self.FLEX, self.VARLEN)
        return contextlib.nullcontext() if own else super().backend(contender)

    def obstacle(self, contender):
        if self.page is not None:
            return "its keys lie in one piece"
        if contender == self.FLEX:
            is_ragged = self.lengths is not None and self.is_bounded
            return "its mask has one offset for all lengths" if is_ragged else None
        if self.lengths is not None:
            return "it has no lengths"
        if contender == self.VARLEN:
            if self.offsets is None:
                return "it is for sequences"
            if varlen_attn is None or "window_size" not in inspect.signature(varlen_attn).parameters:
                return "this torch lacks it, or its windows"
        elif self.offsets is not None:
            return "it has no sequences"
        options = {"softcap": self.softcap, "sinks": self.sinks}
        if contender in ("SDPA flash", self.VARLEN):
            options |= {"ALiBi": self.slopes, "bias": self.bias, "mask": self.every}
        lacking = [name for name, option in options.items() if option is not None]
        if lacking:
            return f"it has no {lacking[0]}"
        exempt = contender == self.VARLEN or self.has_mask
        return None if exempt else super().obstacle(contender)


class Gemm(Subject):
    """Inputs of one matrix product, on the GPU, and where it goes."""

    contenders = ["cuBLAS"]

    def __init__(self, m, n, k, dtype, acc, seed):
        torch.manual_seed(seed)
        shape = {"device": "cuda", "dtype": DTYPES[dtype]}
        self.a, self.b = torch.randn(m, k, **shape), torch.randn(n, k, **shape)
        self.c = torch.empty(m, n, **shape)
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False
        self.half = acc == "f16"
        if hasattr(matmul, "allow_fp16_accumulation"):
            matmul.allow_fp16_accumulation = self.half
            self.half = False

    def chosen(self, _):
        return contextlib.nullcontext(lambda: torch.matmul(self.a, self.b.T, out=self.c))

    def refusal(self, _):
        return "this torch cannot add up in f16" if self.half else None


SUBJECTS = {"attention": Attention, "gemm": Gemm, "options": Options}
serve(SUBJECTS[sys.argv[1]], cudnn=str(torch.backends.cudnn.version()))
