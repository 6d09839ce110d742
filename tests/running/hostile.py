"""Implementations that misbehave in every way we know of, for `--kernels`."""

import ctypes
import gc
import json
import os
import signal
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported, implementation


def honest(q, k, v, sm_scale):
    out = scaled_dot_product_attention(
        q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), scale=sm_scale, enable_gqa=True
    )
    return out.squeeze(2)


def hostile(call):
    """Register `call(q, k, v)`, which returns the output, or None for the right output."""

    @implementation(op="selection_rows", name=call.__name__, devices=("cuda", "cpu"))
    def run(q, k, v, *, sm_scale):
        out = call(q, k, v)
        return honest(q, k, v, sm_scale) if out is None else out

    return call


@hostile
def well_behaved(q, k, v):
    return None


@hostile
def loop_in_c_that_ignores_term(q, k, v):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).pause()  # with the GIL released, as in a kernel launch
    while True:
        ctypes.PyDLL(None).pause()  # with the GIL held


@hostile
def segfault(q, k, v):
    ctypes.string_at(0)


@hostile
def sys_exit(q, k, v):
    sys.exit(0)


@hostile
def out_of_memory(q, k, v):
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)) * 64)


@hostile
def memory_error(q, k, v):
    raise MemoryError("no more")


@hostile
def raises(q, k, v):
    raise ValueError("not today")


@hostile
def keyboard_interrupt(q, k, v):
    raise KeyboardInterrupt


@hostile
def unsupported(q, k, v):
    raise Unsupported("head dimensions over 8")


@hostile
def wrong_shape(q, k, v):
    return torch.zeros(q.shape[0], q.shape[1], v.shape[2] + 1, dtype=q.dtype)


@hostile
def returns_no_tensor(q, k, v):
    return [1.0]


@hostile
def nan(q, k, v):
    return torch.full((q.shape[0], q.shape[1], v.shape[2]), float("nan"), dtype=q.dtype)


large = []


@hostile
def children_share_memory(q, k, v):
    if not large:
        large.append(b"1" * (1 << 28))
        for _ in range(6):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)


@hostile
def much_stderr(q, k, v):
    line = b"x" * (1 << 20)
    for _ in range(256):
        os.write(2, line)
    os.abort()


@hostile
def prints_to_stdout(q, k, v):
    print('{"kind": "measured", "observations": []}', flush=True)
    os.write(1, b"garbage\n")


@hostile
def mlir_assertion(q, k, v):
    os.write(
        2,
        b"python: /source/llvm-project/mlir/lib/IR/Types.cpp:126: unsigned int "
        b"mlir::Type::getIntOrFloatBitWidth() const: Assertion `isIntOrFloat() && "
        b'"only integers and floats have a bitwidth"\' failed.\n',
    )
    os.abort()


@hostile
def fails_only_when_timed(q, k, v):
    fails_only_when_timed.calls = getattr(fails_only_when_timed, "calls", 0) + 1
    if fails_only_when_timed.calls > 8:
        raise ValueError("tired")


@hostile
def dies_only_when_timed(q, k, v):
    dies_only_when_timed.calls = getattr(dies_only_when_timed, "calls", 0) + 1
    if dies_only_when_timed.calls > 9:
        os.abort()


def forge(line):
    """Write a line to every pipe, one of which leads to the supervisor."""
    for fd in range(3, 64):
        try:
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("pipe:"):
                os.write(fd, line)
        except OSError:
            continue


def nonce():
    """Find the secret with which the worker signs its answers, as code that knows nsabench can."""
    gc.unfreeze()
    [channel] = [o for o in gc.get_objects() if type(o).__name__ == "Channel"]
    return channel._nonce + b" "


def await_answer():
    os.read(0, 1 << 16)


def forging(name, kind, *, then=await_answer, again=False, **fields):
    """Register a kernel that answers in the worker's name, once or for ever."""

    def call(q, k, v):
        line = nonce() + json.dumps({"kind": kind, **fields}).encode() + b"\n"
        forge(line)
        then()
        while again:
            forge(line)
            then()

    call.__name__ = name
    hostile(call)


def delivering(name, implementation, computes="", **given):
    forging(name, "delivery", implementation=implementation, computes=computes, set=0, **given)


def pause():
    time.sleep(0.05)


WELL = {"sentence": "all is well", "remedy": "", "exit_code": 0}
forging("forges_a_refusal", "refused", **WELL)
forging("blames_the_baseline", "lost_device", implementation="sdpa_gqa", reason="not me")
forging("dies_before_any_call_it_says", "step", phase="inputs", then=os.abort)
forging("asks_for_hours", "step", phase="parity", allowance=64, then=pause, again=True)
STEP = {"phase": "parity", "implementation": "somebody"}
forging("reports_steps_for_ever", "step", **STEP, then=pause, again=True)
delivering("delivers_for_ever", "delivers_for_ever", again=True)
delivering("delivers_for_another", "sdpa_gqa")
delivering("delivers_for_another_op", "delivers_for_another_op", "decode_dense")
delivering("delivers_for_a_stranger", "somebody")


@cache  # once, because it looks through all objects
def refuse_behind_the_answer():
    gc.unfreeze()
    [channel] = [o for o in gc.get_objects() if type(o).__name__ == "Channel"]
    stream = channel._stream
    text = b'{"kind": "refused", "sentence": "no", "remedy": "", "exit_code": 2}\n'

    def write(data):
        stream.write(data + nonce() + text if b'"kind":"measured"' in data else data)

    channel._stream = SimpleNamespace(write=write, flush=stream.flush)


@hostile
def refuses_the_next_case(q, k, v):
    refuse_behind_the_answer()


def in_place_of_the_compiler(reset):
    """Replace torch's compiler. The worker resets it before the next case if it compiled
    anything."""
    sys.modules["torch._dynamo"] = SimpleNamespace(reset=reset)
    sys.modules["torch._dynamo.convert_frame"] = SimpleNamespace(FRAME_COUNTER=1)


@hostile
def spoils_the_next_case(q, k, v):
    in_place_of_the_compiler(lambda: 1 / 0)


@hostile
def holds_up_the_next_case(q, k, v):
    in_place_of_the_compiler(lambda: time.sleep(600))
