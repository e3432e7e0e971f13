"""How a peer, a child process of `bench --peers`, is asked for times.

Speaks JSON, one object a line. First it says what it is, or why it cannot run:

    {"device": ..., "versions": {...}, "contenders": [...]}    or    {"error": ...}

Then it answers each command on standard input, until that ends:

    {"setup": {"batch": ..., "heads": ..., "kv_heads": ..., "seqlen_q": ..., "seqlen_kv": ...,
               "dim": ..., "dim_v": ..., "causal": false, "scale": ..., "dtype": "f16", "pass": "forward", "seed": 0,
               "window": {"left": null, "right": null}, "softcap": null, "alibi": false, "sinks": false,
               "bias": false, "block_mask": null, "offsets": null, "lengths": null, "page": null, "prefix": null,
               "values_in_keys": false, "fp8": null}}
    or of a matrix product {"setup": {"m": ..., "n": ..., "k": ..., "dtype": "f16", "acc": "f32", "seed": 0}}
        -> {"refusals": {contender: reason, ...}}     the contenders that do not serve the shape
    {"time": {"contender": ..., "lead": 2, "iters": 5}}
        -> {"ms": [...]}                              of `iters` launches, after `lead` untimed ones

A command that fails is answered by {"error": ...}, and is the last if the GPU serves the process no more.
"""

import contextlib
import json
import os
import sys
import warnings

# Compilers and their processes print with the errors: this pipe is for answers, and ends with this process.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(**fields):
    print(json.dumps(fields), file=ANSWERS, flush=True)


def first_line(error):
    lines = (str(error).strip() or type(error).__name__).splitlines()
    # Compilers name themselves before the reason.
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


@contextlib.contextmanager
def starting():
    """What goes wrong in it is the only answer."""
    try:
        yield
    except Exception as error:
        reply(error=first_line(error))
        sys.exit()


with starting():
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")


def serves():
    """Whether the GPU serves this process: after some errors it never does again."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


class Subject:
    """Inputs of one shape, on the GPU.

    Classes of it name their `contenders`. Their `chosen` is a context that gives a contender's call.
    """

    # GPU clock cycles that a call from Python may take, with ample room.
    launch_cycles = 200_000

    def obstacle(self, _):
        """What no call of a contender computes, or None."""
        return None

    def flaw(self, _):
        """What is wrong with the result of a call, or None."""
        return None

    def refusal(self, contender):
        """Why a contender does not serve the shape, or None."""
        if reason := self.obstacle(contender):
            return reason
        try:
            with self.chosen(contender) as call:
                flaw = self.flaw(call())
            torch.cuda.synchronize()
        except Exception as error:  # compilers fail in many ways
            if not serves():
                raise
            return first_line(error)
        return flaw


def milliseconds(shape, contender, lead, iters):
    """The GPU's time for each launch; they are queued back to back, with events around each."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iters)]
    with shape.chosen(contender) as call:
        # The GPU waits until all is queued, so that a slow launch does not count as a slow kernel.
        torch.cuda._sleep(shape.launch_cycles * (lead + iters))
        for _ in range(lead):
            call()
        for start, end in pairs:
            start.record()
            call()
            end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


@torch.no_grad()
def serve(subject, **versions):
    """Answers commands about a class of subjects; `versions` are of the libraries that it calls."""
    warnings.filterwarnings("ignore")  # a back end that refuses warns of its reasons
    versions |= {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    reply(device=torch.cuda.get_device_name(), versions=versions, contenders=subject.contenders)
    shape = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "setup" in command:
                shape = None  # frees the last one's memory first
                torch.cuda.empty_cache()
                shape = subject(**command["setup"])
                refusals = {name: shape.refusal(name) for name in subject.contenders}
                reply(refusals={name: reason for name, reason in refusals.items() if reason})
            else:
                time = command["time"]
                reply(ms=milliseconds(shape, time["contender"], time["lead"], time["iters"]))
        except Exception as error:
            reply(error=first_line(error))
            if not serves():
                break
