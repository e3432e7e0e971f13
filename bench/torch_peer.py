"""Times PyTorch's scaled_dot_product_attention or, with the argument `gemm`, its matmul, as a child process
of `bench --peers torch`.

Speaks JSON, one object a line. First it says what it is, or why it cannot run:

    {"device": ..., "versions": {...}, "contenders": [...]}    or    {"error": ...}

Then it answers each command on standard input, until that ends:

    {"setup": {"batch": ..., "heads": ..., "kv_heads": ..., "seqlen_q": ..., "seqlen_kv": ...,
               "dim": ..., "causal": false, "scale": ..., "dtype": "f16", "pass": "forward", "seed": 0}}
    or of a matrix product {"setup": {"m": ..., "n": ..., "k": ..., "dtype": "f16", "acc": "f32", "seed": 0}}
        -> {"refusals": {contender: reason, ...}}     the contenders that do not serve the shape
    {"time": {"contender": ..., "lead": 2, "iters": 5}}
        -> {"ms": [...]}                              of `iters` launches, after `lead` untimed ones

A command that fails is answered by {"error": ...}.
"""

import contextlib
import json
import sys
import warnings


def reply(**fields):
    print(json.dumps(fields), flush=True)


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
except Exception as error:
    reply(error=first_line(error))
    sys.exit()

BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# GPU clock cycles that a call from Python may take, with ample room; autograd takes longer than a function.
LAUNCH_CYCLES = {"forward": 200_000, "backward": 600_000}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class Attention:
    """Inputs of one shape, on the GPU."""

    contenders = list(BACKENDS)

    def __init__(self, batch, heads, kv_heads, seqlen_q, seqlen_kv, dim, causal, scale, dtype, seed, **options):
        torch.manual_seed(seed)
        self.backward = options.get("pass") == "backward"

        def normal(heads, seqlen):
            shape = batch, heads, seqlen, dim
            return torch.randn(shape, device="cuda", dtype=DTYPES[dtype], requires_grad=self.backward)

        self.inputs = normal(heads, seqlen_q), normal(kv_heads, seqlen_kv), normal(kv_heads, seqlen_kv)
        self.d_o = normal(heads, seqlen_q).detach() if self.backward else None
        self.options = {"is_causal": causal, "scale": scale}
        if kv_heads != heads:
            self.options["enable_gqa"] = True
        # torch aligns the mask top-left, the project bottom-right.
        self.same_mask = not causal or seqlen_q == seqlen_kv

    @contextlib.contextmanager
    def chosen(self, contender):
        """Gives the call to time."""

        def forward():
            return scaled_dot_product_attention(*self.inputs, **self.options)

        with sdpa_kernel(BACKENDS[contender]):
            if not self.backward:
                yield forward
                return
            with torch.enable_grad():
                o = forward()
            yield lambda: torch.autograd.grad(o, self.inputs, self.d_o, retain_graph=True)

    def refusal(self, contender):
        """Why a contender does not serve the shape, or None."""
        if not self.same_mask:
            return "its causal mask is aligned top-left"
        try:
            with self.chosen(contender) as call:
                call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            return first_line(error)
        return None


class Gemm:
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

    backward = False

    def chosen(self, _):
        return contextlib.nullcontext(lambda: torch.matmul(self.a, self.b.T, out=self.c))

    def refusal(self, _):
        return "this torch cannot add up in f16" if self.half else None


SUBJECT = Gemm if sys.argv[1:] == ["gemm"] else Attention


def milliseconds(shape, contender, lead, iters):
    """The GPU's time for each launch; they are queued back to back, with events around each."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iters)]
    cycles = LAUNCH_CYCLES["backward" if shape.backward else "forward"]
    with shape.chosen(contender) as call:
        # The GPU waits until all is queued, so that a slow launch does not count as a slow kernel.
        torch.cuda._sleep(cycles * (lead + iters))
        for _ in range(lead):
            call()
        for start, end in pairs:
            start.record()
            call()
            end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def main():
    warnings.filterwarnings("ignore")  # a back end that refuses warns of its reasons
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    versions["cuda"] = torch.version.cuda
    versions["cudnn"] = str(torch.backends.cudnn.version())
    reply(device=torch.cuda.get_device_name(), versions=versions, contenders=SUBJECT.contenders)
    shape = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "setup" in command:
                shape = None  # frees the last one's memory first
                torch.cuda.empty_cache()
                shape = SUBJECT(**command["setup"])
                refusals = {name: shape.refusal(name) for name in SUBJECT.contenders}
                reply(refusals={name: reason for name, reason in refusals.items() if reason})
            else:
                time = command["time"]
                reply(ms=milliseconds(shape, time["contender"], time["lead"], time["iters"]))
        except Exception as error:
            reply(error=first_line(error))


with torch.no_grad():
    main()
