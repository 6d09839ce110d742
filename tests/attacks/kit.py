"""What an author needs to attack the bench: a mark for a kernel, and honest work to hide.

Each kernel of a family (`answers.py`, `memory.py`, `time_.py`, `judge.py`, `neighbours.py`) says by
its mark what becomes of it, which `test_attacks.py` reads from its source:

    @attack("wrong", "mean absolute error")

A status of "ok" says that the attack gains nothing: the run records its true time, and the words of
the mark are in a note. Such a kernel works slowly on purpose, and the run must show that. If it
worked as fast as its baseline, a gain could be chance. If it slowed its baseline down, the ratio
would show that as well.
"""

import gc
import time

from torch.nn.functional import scaled_dot_product_attention

from nsabench import implementation

SLOW_S = 0.01  # the time of an honest call, which an attack tries to hide


def attack(status, says="", *, device="cpu"):
    """Register `call(q, k, v, sm_scale)`, for one device or `any`."""

    devices = ("cpu", "cuda") if device == "any" else (device,)

    def mark(call):
        @implementation(op="selection_rows", name=call.__name__, devices=devices)
        def run(q, k, v, *, sm_scale):
            out = call(q, k, v, sm_scale)
            if out is not None:
                return out
            return (slow if status == "ok" else honest)(q, k, v, sm_scale)

        return call

    return mark


def honest(q, k, v, sm_scale):
    out = scaled_dot_product_attention(
        q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), scale=sm_scale, enable_gqa=True
    )
    return out.squeeze(2)


def slow(q, k, v, sm_scale):
    """The right answer after so much work; asleep it would be no less."""
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        pass
    return honest(q, k, v, sm_scale)


def instances(name):
    """Everything in this process that is of a class of this name."""
    gc.unfreeze()
    return [one for one in gc.get_objects() if type(one).__name__ == name]


def once(function):
    """Call the function only once, so that a patch is made only once."""
    done = []

    def call(*given):
        if not done:
            done.append(function(*given))

    return call
