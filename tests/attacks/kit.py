"""Helpers of attacks: a decorator that marks a kernel, and honest work to hide.

The mark of each kernel of a family (`answers.py`, `memory.py`, `time_.py`, `judge.py`,
`neighbours.py`) names the result that nsabench must report. `test_attacks.py` reads it from the
source:

    @attack("wrong", "mean absolute error")

The status "ok" says that the attack gains nothing: the run records its true time, and a note has
the words of the mark. Such a kernel is slow on purpose, and the run must show that. If it were as
fast as its baseline, a gain could be chance.
"""

import gc
import time

from torch.nn.functional import scaled_dot_product_attention

from nsabench import implementation

SLOW_S = 0.01  # the time of an honest call, which an attack tries to hide


def attack(status, says="", *, device="cpu"):
    """Return a decorator that registers `call(q, k, v, sm_scale)` for one device or `any`. If the
    call returns None, `slow` (status `ok`) or `honest` computes the answer."""

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
    """Return the right answer after `SLOW_S` of work."""
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        pass
    return honest(q, k, v, sm_scale)


def instances(name):
    """Return all objects in this process whose class has this name."""
    gc.unfreeze()
    return [one for one in gc.get_objects() if type(one).__name__ == name]


def once(function):
    """Call the function only once, so that a patch is made only once."""
    done = []

    def call(*given):
        if not done:
            done.append(function(*given))

    return call
