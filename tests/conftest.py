"""Before any test module: a machine without a GPU runs Triton kernels through the interpreter."""

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
    # Triton decides when it is first imported, which some test module does while it is collected.
    os.environ.setdefault("TRITON_INTERPRET", "1")


# A shell without job control has what it starts in the background ignore interrupts, and so would
# every command that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    origin.quicken_interpreter()
    freeze()


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    freeze()


def freeze():
    """Exclude all imported modules from garbage collection, as a worker does.

    Each implementation that is measured ends with a collection, which took longer than most calls.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _forked_templates():
    """Templates of workers come from a process that has imported torch already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "last_level_bytes", forked.caches_bytes)
        patch.setattr(process_tree, "start_template", forked.template)
        yield


@pytest.fixture
def one_thread():
    """For tiny tensors: several threads only fight over the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
