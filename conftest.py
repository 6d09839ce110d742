"""Choose which tests `./just test` runs, and skip those that need more than this machine has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

pytest_plugins = ["pytester"]  # for tests/test_packages.py
ROOT = Path(__file__).parent
# Only `./just test-all` runs the tests in these folders and files, and runs them first and in this
# order, since they take longest.
FULL = (
    "tests/images/test_container.py",
    "tests/attacks",
    "tests/docs/test_blocks.py",
    "tests/docs/test_manual.py",
    "kernels/tests/integrations",
    "kernels/tests/test_compile.py",
    "kernels/tests/test_layer.py",
    "kernels/tests/test_oracles.py",
    "kernels/tests/test_promises.py",
    "kernels/tests/test_readme.py",
    "tests/fleet/test_devices.py",
    "tests/fleet/test_slurm.py",
    "tests/evidence/archive/test_s3.py",
    "tests/evidence/archive/test_writers.py",
    "tests/implementations/controls/test_every_op.py",
    "tests/implementations/controls/test_recalled.py",
    "tests/implementations/controls/test_shipped_matrix.py",
    "tests/implementations/test_triton_baselines.py",
    "tests/preflight/test_variants.py",
    "tests/test_wheels.py",
    "tests/versions/test_end_to_end.py",
)
LACKING = pytest.StashKey[str]()
SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")


def has_programs(*names: str) -> bool:
    """Return whether all programs are installed, in PATH or in a folder of programs for root."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"))
    return all(shutil.which(name, path=path) for name in names)


def has_browser() -> bool:
    names = ("chromium", "chromium-browser", "chrome")
    return has_programs("chromedriver") and any(has_programs(name) for name in names)


@dataclass(frozen=True)
class Need:
    """What some tests need: the tests below `paths`, and the tests with the fixture."""

    what: str
    is_met: Callable[[], bool]
    paths: tuple[str, ...] = ()
    fixture: str = ""

    def concerns(self, item: pytest.Item) -> bool:
        return find_path(item.path, self.paths) is not None or self.fixture in fixtures(item)


NEEDS = (
    Need("a CUDA device", torch.cuda.is_available, ("tests/gpu", "kernels/tests/gpu")),
    Need(
        "a container daemon and a base image, which .ci/run provides",
        lambda: bool(os.environ.get("NSABENCH_TEST_BASE")),
        ("tests/images/test_container.py",),
    ),
    Need(
        "Slurm and root",
        lambda: has_programs(*SLURM) and os.getuid() == 0,
        ("tests/fleet/test_slurm.py",),
    ),
    Need(
        "Chromium and chromedriver",
        lambda: has_browser() or "CI" in os.environ,  # in CI, the tests fail without a browser
        fixture="browser",
    ),
)


@cache
def find_path(path: Path, names: tuple[str, ...]) -> int | None:
    """Return the position of the first name that is the path or a folder that contains it."""
    places = {path, *path.parents}
    return next((n for n, name in enumerate(names) if ROOT / name in places), None)


def fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without a selected test, since their imports take seconds in each process."""
    if config.option.markexpr == "not full" and find_path(collection_path, FULL) is not None:
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = [need for need in NEEDS if not need.is_met()]
    positions = {item: find_path(item.path, FULL) for item in items}
    items.sort(key=lambda item: len(FULL) if (at := positions[item]) is None else at)
    for item in items:
        if positions[item] is not None or "browser" in fixtures(item):
            item.add_marker("full")
        for need in lacking:
            if need.concerns(item):
                item.stash[LACKING] = need.what


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip all in this hook, so that the summary has one line for each thing that is lacking."""
    if what := item.stash.get(LACKING, ""):
        pytest.skip(f"needs {what}")
