"""What is collected between cases, and what collections pass over."""

from __future__ import annotations

import subprocess
import sys

KEPT = """
import gc, sys, weakref
from types import SimpleNamespace
from nsabench.execution.worker.state import forget_earlier_cases

class Node: pass

def kept():
    node = Node()
    node.itself = node
    return node

forget_earlier_cases()
before = gc.get_freeze_count()
library = [kept() for _ in range(1000)]
forget_earlier_cases()
print(gc.get_freeze_count() - before >= 1000)

# What torch.compile keeps is let go of by its `reset`, a case later.
compiled = kept()
left = weakref.ref(compiled)
frames = SimpleNamespace(FRAME_COUNTER=0)
sys.modules["torch._dynamo.convert_frame"] = frames
forget_earlier_cases()
resets = []
def reset():
    global compiled
    compiled = None
    resets.append(1)
sys.modules["torch._dynamo"] = SimpleNamespace(reset=reset)
frames.FRAME_COUNTER = 1
forget_earlier_cases()
print(left() is None)
before = gc.get_freeze_count()
forget_earlier_cases()
print(len(resets) == 2, gc.get_freeze_count() >= before)
"""


def test_what_stays_is_passed_over_and_what_was_compiled_is_let_go_of() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == ["True"] * 4
