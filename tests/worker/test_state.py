"""Which objects are collected between cases, and which objects a collection skips."""

import subprocess
import sys

import pytest

BEGIN = """
import gc, sys, types, weakref
import torch
torch.cuda.synchronize = lambda: None  # there is none
from nsabench.worker.guard import forget_earlier_cases, give_back

class Node: pass

def kept():
    node = Node()
    node.itself = node
    return node

forget_earlier_cases()
"""
LIBRARY = """
before = gc.get_freeze_count()
library = [kept() for _ in range(1000)]
sys.modules["library"] = types.ModuleType("library")
give_back("cuda")
forget_earlier_cases()
print(gc.get_freeze_count() - before > 900)
"""
# A kernel may keep an object, such as its last failure, that holds inputs of an earlier case.
DROPPED = """
last = kept()
left = weakref.ref(last)
give_back("cuda")
forget_earlier_cases()
print(left() is not None)
last = None
give_back("cuda")
print(left() is None)
"""
COMPILED = """
def doubled(x):
    return x * 2

compiled = torch.compile(doubled, backend="eager", dynamic=False)
compiled(torch.ones(3))
[guarded, *_] = [weakref.ref(o) for o in gc.get_objects() if type(o).__name__ == "GraphModule"]
compiled = None
gc.freeze()
forget_earlier_cases()
print(guarded() is None)
"""


@pytest.mark.parametrize("then", [LIBRARY, DROPPED, COMPILED], ids=["library", "dropped", "torch"])
def test_what_stays_is_passed_over_and_what_is_dropped_is_found(then):
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + then],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    said = done.stdout.split()
    assert said and set(said) == {"True"}
