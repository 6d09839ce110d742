"""Fixtures of all tests. Without a GPU, Triton kernels run in the interpreter."""

import gc
import os
import signal

import pytest
import torch

from nsabench.running import process_tree
from nsabench.worker.timing import timer
from tests import forked, origin
from tests.shared_runs import failed_run as failed_run
from tests.shared_runs import finished_run as finished_run

if not torch.cuda.is_available():
    # Triton reads this when it is first imported, which can be while tests are collected.
    os.environ.setdefault("TRITON_INTERPRET", "1")


# A shell without job control starts background jobs that ignore SIGINT, and their children ignore
# it as well. Some tests interrupt a command by SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    origin.quicken_interpreter()
    freeze()


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    freeze()


def freeze():
    """Exclude all existing objects from garbage collection.

    A worker often collects garbage. With torch's objects, each collection would take longer than
    most calls.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _forked_templates():
    """Fork templates of workers from a process that has imported torch, and flush few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "last_level_bytes", forked.caches_bytes)
        patch.setattr(process_tree, "start_template", forked.template)
        yield


@pytest.fixture
def one_thread():
    """Let torch use one thread: for tiny tensors, more threads only compete for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
