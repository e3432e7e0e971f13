"""Times PyTorch's scaled_dot_product_attention, as a child process of `bench --peers torch`.

Speaks JSON, one object a line. First it says what it is, or why it cannot run:

    {"device": ..., "versions": {...}, "contenders": [...]}    or    {"error": ...}

Then it answers each command on standard input, until that ends:

    {"setup": {"batch": ..., "heads": ..., "kv_heads": ..., "seqlen_q": ..., "seqlen_kv": ...,
               "dim": ..., "dtype": "f16", "causal": false, "seed": 0}}
        -> {"refusals": {contender: reason, ...}}     the contenders that do not serve the shape
    {"time": {"contender": ..., "lead": 2, "iters": 5}}
        -> {"ms": [...]}                              of `iters` launches, after `lead` untimed ones

A command that fails is answered by {"error": ...}.
"""

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
# GPU clock cycles that a launch from Python may take, with ample room.
LAUNCH_CYCLES = 200_000
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class Shape:
    """Inputs of one shape, on the GPU."""

    def __init__(self, batch, heads, kv_heads, seqlen_q, seqlen_kv, dim, dtype, causal, seed):
        torch.manual_seed(seed)

        def normal(heads, seqlen):
            return torch.randn(batch, heads, seqlen, dim, device="cuda", dtype=DTYPES[dtype])

        self.inputs = normal(heads, seqlen_q), normal(kv_heads, seqlen_kv), normal(kv_heads, seqlen_kv)
        self.options = {"is_causal": causal}
        if kv_heads != heads:
            self.options["enable_gqa"] = True
        # torch aligns the mask top-left, the project bottom-right.
        self.same_mask = not causal or seqlen_q == seqlen_kv

    def call(self):
        return scaled_dot_product_attention(*self.inputs, **self.options)

    def refusal(self, backend):
        """Why a back end does not serve the shape, or None."""
        if not self.same_mask:
            return "its causal mask is aligned top-left"
        try:
            with sdpa_kernel(backend):
                self.call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            return first_line(error)
        return None


def milliseconds(shape, backend, lead, iters):
    """The GPU's time for each launch; they are queued back to back, with events around each."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iters)]
    with sdpa_kernel(backend):
        # The GPU waits until all is queued, so that a slow launch does not count as a slow kernel.
        torch.cuda._sleep(LAUNCH_CYCLES * (lead + iters))
        for _ in range(lead):
            shape.call()
        for start, end in pairs:
            start.record()
            shape.call()
            end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def main():
    warnings.filterwarnings("ignore")  # a back end that refuses warns of its reasons
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    versions["cuda"] = torch.version.cuda
    versions["cudnn"] = str(torch.backends.cudnn.version())
    reply(device=torch.cuda.get_device_name(), versions=versions, contenders=list(BACKENDS))
    shape = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "setup" in command:
                shape = None  # frees the last one's memory first
                torch.cuda.empty_cache()
                shape = Shape(**command["setup"])
                refusals = {name: shape.refusal(backend) for name, backend in BACKENDS.items()}
                reply(refusals={name: reason for name, reason in refusals.items() if reason})
            else:
                time = command["time"]
                backend = BACKENDS[time["contender"]]
                reply(ms=milliseconds(shape, backend, time["lead"], time["iters"]))
        except Exception as error:
            reply(error=first_line(error))


with torch.inference_mode():
    main()
