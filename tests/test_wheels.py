"""The wheels of nsabench and nsa-kernels hold every file, and work without the checkout."""

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("nsabench", "matrices", "kernels", "pyproject.toml", "README.md", "LICENSE")
SMOKE = """
import importlib, pkgutil, sys
import torch
import nsa_kernels, nsabench
from nsa_kernels.selection.cuda import nvrtc

here = sys.prefix
for package in (nsa_kernels, nsabench):
    assert package.__file__.startswith(here), package.__file__
for module in pkgutil.walk_packages(nsa_kernels.__path__, "nsa_kernels."):
    importlib.import_module(module.name)
assert all(nvrtc.source(kernel) for kernel in ("rows", "ranges"))
q, k, v = torch.randn(2, 2, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
out, lse = nsa_kernels.selection_rows(q, k, v)
want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-4)
layer = nsa_kernels.NSAttention(8, 2, 1, 16, block=8, stride=4, block_size=16, n_selected=3)
layer(torch.randn(1, 9, 8)).sum().backward()
print("works")
"""


def python(*arguments, of=sys.executable, where):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [of, *map(str, arguments)],
        cwd=where,
        env={**env, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build both wheels from a copy of the sources, because building writes beside them."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheels")
    skip = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=skip)
        else:
            shutil.copy(source, copy / name)
    for folder in (copy, copy / "kernels"):
        # The build requirements of pyproject.toml are installed here, so nothing is downloaded.
        python("-m", "build", "--wheel", "--no-isolation", "--outdir", out, folder, where=copy)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


@pytest.mark.parametrize(
    ("wheel", "folder", "package"),
    [
        ("nsabench", "nsabench", "nsabench"),
        ("nsabench", "matrices", "nsabench_matrices"),
        ("nsa_kernels", "kernels/nsa_kernels", "nsa_kernels"),
    ],
)
def test_every_file_of_a_package_is_in_its_wheel(wheels, wheel, folder, package):
    packed = set(zipfile.ZipFile(wheels[wheel]).namelist())
    files = [
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    ]
    assert len(files) > 3
    assert sorted(f for f in files if f"{package}/{f}" not in packed) == []


@pytest.mark.parametrize("wheel", ["nsabench", "nsa_kernels"])
def test_a_wheel_holds_the_licence(wheels, wheel):
    assert any(
        name.endswith(".dist-info/licenses/LICENSE")
        for name in zipfile.ZipFile(wheels[wheel]).namelist()
    )


def test_both_work_where_there_is_no_checkout(wheels, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python(
        *("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels.values()),
        of=bin_ / "python",
        where=tmp_path,
    )
    # Dependencies come from this environment through a .pth file. Its editable installs do not,
    # since Python reads their .pth files only in its own site-packages.
    found = (importlib.util.find_spec(name) for name in ("torch", "click", "triton"))
    folders = {str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin}
    (site,) = (tmp_path / "venv").rglob("site-packages")
    (site / "needed.pth").write_text("\n".join(sorted(folders)))
    said = python("-c", SMOKE, of=bin_ / "python", where=tmp_path)
    assert said.endswith("works\n")
    planned = python("plan", "quick", of=bin_ / "nsabench", where=tmp_path)
    assert "(from nsa-kernels)" in planned
    command = ("init", "selection_rows", "mine.py")
    python(*command, of=bin_ / "nsabench", where=tmp_path)
    checked = python(
        "check", "mine.py", "--op", "selection_rows", of=bin_ / "nsabench", where=tmp_path
    )
    assert "RIGHT" in checked
