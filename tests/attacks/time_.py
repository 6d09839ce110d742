"""Clocks that lie, and work that is done while nobody looks at one."""

import ctypes
import os
import sys
import threading
import time

import torch

from nsabench.execution.timing import bursts, sampling, timer
from nsabench.execution.timing.timer import CpuTimer, Sample
from nsabench.machine import clock
from nsabench.model.measurement import Outside
from tests.attacks.kit import attack, honest, instances, once, slow

CLOCK = "by the supervisor's"
NEW = "on inputs that only the referee knew, "
true_ns = time.perf_counter_ns
SHARE = 20  # of the time that goes by


def lying_ns():
    return true_ns() // SHARE


@attack("ok")
def the_clock_of_python(q, k, v, sm_scale):
    time.perf_counter_ns = lying_ns
    time.perf_counter = lambda: lying_ns() * 1e-9
    return slow(q, k, v, sm_scale)


@once
def patch_names():
    for module in (clock, timer, bursts, sampling):
        module.now_s = lambda: lying_ns() * 1e-9


@attack("implausible", CLOCK)
def the_clock_of_the_bench(q, k, v, sm_scale):
    patch_names()
    return slow(q, k, v, sm_scale)


@attack("implausible", CLOCK)
def the_default_of_a_clock(q, k, v, sm_scale):
    clock.now_s.__defaults__ = (lying_ns,)
    return slow(q, k, v, sm_scale)


def other():
    import time as _time

    return _time.monotonic() / 100


@attack("implausible", CLOCK)
def the_code_of_a_clock(q, k, v, sm_scale):
    clock.now_s.__code__ = (lambda _ns=None: __import__("time").monotonic() / 100).__code__
    return slow(q, k, v, sm_scale)


libc = ctypes.CDLL(None)


class Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def monotonic_ns():
    now = Timespec()
    libc.clock_gettime(1, ctypes.byref(now))
    return now.s * 10**9 + now.ns


in_c = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(
    lambda itself, nothing: monotonic_ns() // SHARE
)


@once
def patch_c():
    """The builtin's own entry in the table of its module: whoever bound it before calls this."""
    table = ctypes.c_void_p.from_address(id(true_ns) + 16).value
    ctypes.c_void_p.from_address(table + 8).value = ctypes.cast(in_c, ctypes.c_void_p).value


@attack("implausible", CLOCK)
def a_function_of_c(q, k, v, sm_scale):
    patch_c()
    return slow(q, k, v, sm_scale)


@once
def patch_timer():
    CpuTimer.sample = lambda self, arm, call, retry=None: (Sample(0.1), call())

    def burst(self, calls, kept, keep=lambda result: result):
        return 0.1, keep([call() for call in calls][kept])

    CpuTimer.burst = burst


@attack("implausible", CLOCK)
def a_timer_of_its_own(q, k, v, sm_scale):
    patch_timer()
    return slow(q, k, v, sm_scale)


@once
def patch_answer():
    [channel] = instances("Channel")
    send = channel.send

    def forged(message):
        for outcome in getattr(message, "outcomes", ()):
            if outcome.implementation == "an_answer_of_its_own":
                outcome.samples.time_ms[:] = [0.001] * len(outcome.samples.time_ms)
                outcome.bursts.time_ms[:] = [0.001] * len(outcome.bursts.time_ms)
        send(message)

    channel.send = forged


@attack("implausible", CLOCK)
def an_answer_of_its_own(q, k, v, sm_scale):
    patch_answer()
    return slow(q, k, v, sm_scale)


@attack("implausible", CLOCK)
def fast_while_it_is_timed(q, k, v, sm_scale):
    """Done by a helper before the clock starts: of inputs that it is shown in time."""
    key = float(q.double().sum())
    if key not in done:
        done[key] = slow(q, k, v, sm_scale)
    return done[key].clone()


done = {}


@attack("implausible", CLOCK)
def others_do_the_work(q, k, v, sm_scale):
    """This thread waits for a core, which is nobody's work, while nine others have it."""
    patch_names()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    ended = [threading.Thread(target=spin) for _ in range(9)]
    for one in ended:
        one.start()
    while any(one.is_alive() for one in ended):
        pass
    os.sched_setaffinity(0, before)


def spin():
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass


@once
def patch_outside():
    [channel] = instances("Channel")
    send = channel.send

    def forged(message):
        for outcome in getattr(message, "outcomes", ()):
            outcome.outside = Outside(calls=32, time_ms=0.001)
            outcome.samples.time_ms[:] = [0.001] * len(outcome.samples.time_ms)
        send(message)

    channel.send = forged


@attack("implausible", CLOCK)
def seen_from_outside_by_itself(q, k, v, sm_scale):
    patch_outside()
    return slow(q, k, v, sm_scale)


def examined():
    """Whether the supervisor has its eye on the clock now."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "examine":
        frame = frame.f_back
    return frame is not None


turns = []


@attack("wrong", NEW)
def half_of_it_when_it_counts(q, k, v, sm_scale):
    """Who has not looked at all outputs may have looked at the others."""
    patch_names()
    turns.append(None)
    if examined() and len(turns) % 2:
        return torch.zeros_like(q)
    return slow(q, k, v, sm_scale)


@attack("wrong", NEW)
def fills_it_in_when_the_clock_stands(q, k, v, sm_scale):
    patch_names()
    if not examined():
        return slow(q, k, v, sm_scale)
    frame = sys._getframe()
    while frame.f_code.co_name != "examine":
        frame = frame.f_back
    room = frame.f_locals["rooms"]["output"]

    def later():
        time.sleep(0.3)
        room.copy_(honest(q, k, v, sm_scale))

    threading.Thread(target=later).start()
    return torch.zeros_like(q)


@attack("wrong", "NaN")
def in_a_thread_that_nobody_joins(q, k, v, sm_scale):
    out = torch.full_like(q, float("nan"))

    def work():
        time.sleep(0.005)
        out.copy_(honest(q, k, v, sm_scale))

    threading.Thread(target=work).start()
    return out


class Lazy(torch.Tensor):
    pass


@attack("wrong", "not a plain torch.Tensor")
def a_tensor_that_computes_later(q, k, v, sm_scale):
    return honest(q, k, v, sm_scale).as_subclass(Lazy)


@attack("ok")
def first_in_line(q, k, v, sm_scale):
    """Priorities are an author's own affair: the others of its process have the same."""
    os.nice(0)
    return slow(q, k, v, sm_scale)


@attack("wrong", "", device="cuda")
def work_on_a_side_stream(q, k, v, sm_scale):
    with torch.cuda.stream(torch.cuda.Stream()):
        return honest(q, k, v, sm_scale)


@attack("ok", "", device="cuda")
def events_that_stand_still(q, k, v, sm_scale):
    torch.cuda.Event.elapsed_time = lambda start, end: 1e-6
    for _ in range(4):  # a host that waits would not show on the device
        out = honest(q, k, v, sm_scale)
    return out


graphs = {}


@attack("wrong", "", device="cuda")
def a_graph_of_earlier_inputs(q, k, v, sm_scale):
    if "graph" not in graphs:
        honest(q, k, v, sm_scale)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            graphs["out"] = honest(q, k, v, sm_scale)
        graphs["graph"] = graph
    graphs["graph"].replay()
    return graphs["out"].clone()
