"""The target flash-attn: what the Dockerfile says, and the sdist cut down to some head dims."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nsabench.images import combos, context, dockerfile
from nsabench.implementations.packages import flash_attn

DOCKER = combos.checkout().docker
STAGES = {stage.name: stage for stage in dockerfile.stages((DOCKER / "Dockerfile").read_text())}


def of(stage: str, word: str) -> list[str]:
    return [i.text for i in STAGES[stage].instructions if i.word == word]


def test_the_wheel_is_compiled_from_the_locked_sdist() -> None:
    runs = of("flash-attn-wheel", "RUN")
    for run in runs:
        subprocess.run(["sh", "-n", "-c", run], check=True)
    (fetched,) = [run for run in runs if "pip download" in run]
    assert "--require-hashes" in fetched and "--no-binary flash-attn" in fetched
    assert fetched.index("-r /build/flash-attn.txt") < fetched.index("head_dims.py /source")
    (compiled,) = [run for run in runs if "pip wheel" in run]
    assert compiled.endswith("/source") and "FLASH_ATTENTION_FORCE_BUILD=TRUE" in compiled
    assert runs.index(fetched) < runs.index(compiled)


def test_every_argument_of_a_build_is_one_of_the_stage() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    named = {argument.partition("=")[0] for argument in of("flash-attn-wheel", "ARG")}
    assert named == {"INDEX", "MAX_JOBS", "FLASH_ATTN_ARCHS", "FLASH_ATTN_HEAD_DIMS"}
    used = set(re.findall(r"\$\{(\w+)", " ".join(of("flash-attn-wheel", "RUN"))))
    assert used == named
    assert STAGES["flash-attn-wheel"].base == "${DEVEL_BASE}"
    default = re.search(r"^ARG DEVEL_BASE=(\S+)$", text, re.MULTILINE)
    assert default and default[1] in combos.checkout().combos().bases.devel.values()


def test_what_the_stage_copies_is_packed() -> None:
    for copied in of("flash-attn-wheel", "COPY"):
        for part in copied.split()[:-1]:
            made = part in ("docker/lock.txt", "docker/flash-attn.txt")
            assert made or (part in context.SCRIPTS and (DOCKER.parent / part).is_file()), part


@pytest.fixture(scope="module")
def head_dims() -> ModuleType:
    spec = importlib.util.spec_from_file_location("head_dims", DOCKER / "head_dims.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sdist(tmp_path: Path, head_dims: ModuleType) -> Path:
    """Its two files, as far as they are looked at."""
    names = [
        f"flash_{kind}_hdim{n}_bf16_sm80.cu" for n in head_dims.KNOWN for kind in ("fwd", "bwd")
    ]
    entries = "".join(f'    "csrc/flash_attn/src/{name}",\n' for name in names)
    (tmp_path / "setup.py").write_text(f'sources = [\n    "csrc/api.cpp",\n{entries}]\n')
    header = tmp_path / "csrc/flash_attn/src/static_switch.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        "#pragma once\n#define OTHER(X) [&] { return X; }()\n"
        "#define HEADDIM_SWITCH(HEADDIM, ...) \\\n  [&] { \\\n    if (HEADDIM <= 32) { \\\n"
        "    } \\\n  }()\n"
    )
    return tmp_path


def test_the_kernels_of_other_head_dims_are_left_out(sdist: Path, head_dims: ModuleType) -> None:
    assert head_dims.narrow(sdist, [64, 128]) == 4
    left = re.findall(r"hdim(\d+)", (sdist / "setup.py").read_text())
    assert left == ["64", "64", "128", "128"]
    assert "csrc/api.cpp" in (sdist / "setup.py").read_text()
    assert "OTHER" in (sdist / "csrc/flash_attn/src/static_switch.h").read_text()


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_a_head_dim_without_a_kernel_is_refused(sdist: Path, head_dims: ModuleType) -> None:
    """One of 32 has buffers for tiles of 32, into which a kernel of 64 would not fit."""
    head_dims.narrow(sdist, [64, 128, 192])
    program = sdist / "picks.cpp"
    program.write_text(
        '#include "csrc/flash_attn/src/static_switch.h"\n#include <iostream>\n'
        "int main() {\n  for (int d : {32, 33, 64, 96, 97, 128, 160, 161, 192, 256}) {\n"
        "    try { HEADDIM_SWITCH(d, [&] { std::cout << kHeadDim << ' '; }); }\n"
        '    catch (const std::runtime_error&) { std::cout << "none "; }\n  }\n}\n'
    )
    subprocess.run(["g++", "-std=c++17", program, "-o", sdist / "picks"], check=True)
    said = subprocess.run([sdist / "picks"], capture_output=True, text=True, check=True).stdout
    # Beyond 128 buffers are in steps of 64.
    assert said.split() == ["none", "64", "64", "none", "128", "128", "192", "192", "192", "none"]


def test_what_it_says_is_what_the_adapter_looks_for(head_dims: ModuleType) -> None:
    assert head_dims.BUILT == flash_attn.BUILT


@pytest.mark.parametrize("dims", [["48"], []])
def test_other_head_dims_and_other_files_are_refused(sdist: Path, dims: list[str]) -> None:
    script = [sys.executable, DOCKER / "head_dims.py"]
    assert subprocess.run([*script, sdist, *dims], capture_output=True).returncode == 1
    (sdist / "setup.py").write_text("")
    done = subprocess.run([*script, sdist, "64"], capture_output=True, text=True)
    assert done.returncode == 1 and "not a flash-attn whose kernels are known here" in done.stderr
