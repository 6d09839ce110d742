"""Attacks with false clocks, and with work that is done while no clock runs."""

import os
import threading
import time

import torch

from tests.attacks.kit import attack, honest, slow

true_ns = time.perf_counter_ns
SHARE = 20  # how many times slower the false clock runs


def lying_ns():
    return true_ns() // SHARE


@attack("ok")
def the_clock_of_python(q, k, v, sm_scale):
    time.perf_counter_ns = lying_ns
    time.perf_counter = lambda: lying_ns() * 1e-9
    return slow(q, k, v, sm_scale)


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
    """Priority is common to a process, so the baseline has the same."""
    os.nice(0)
    return slow(q, k, v, sm_scale)


@attack("wrong", "", device="cuda")
def work_on_a_side_stream(q, k, v, sm_scale):
    with torch.cuda.stream(torch.cuda.Stream()):
        return honest(q, k, v, sm_scale)


@attack("ok", "", device="cuda")
def events_that_stand_still(q, k, v, sm_scale):
    torch.cuda.Event.elapsed_time = lambda start, end: 1e-6
    for _ in range(4):  # more device work: the device's time does not show that a host waits
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
