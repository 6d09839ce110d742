"""The CUDA C++ kernels without a GPU: they compile, and refuse what they do not support."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from nsa_kernels import cuda

pytest.importorskip("cuda.core")

ARCHITECTURES = (80, 120, *(pytest.param(x, marks=pytest.mark.full) for x in (86, 89, 90, 100)))
SMALLEST_SHARED = 99 * 1024
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
OPS = ("selection_rows", "selection_ranges")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NSA_KERNELS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def widest(op):
    return max(cuda.variants(op), key=lambda v: (v.d, v.dv, v.spans))


def usage(cubin, tmp_path):
    """Return registers, bytes of stack and of static shared memory of a cubin's only kernel."""
    file = tmp_path / "kernel.cubin"
    file.write_bytes(cubin)
    said = subprocess.run(
        [CUOBJDUMP, "-res-usage", file], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", said)
    assert found, said
    registers, stack, shared = map(int, found.groups())
    return registers, stack, shared


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("op", OPS)
def test_it_compiles_for_every_gpu_without_one(op, capability, tmp_path):
    variant = widest(op)
    registers, stack, shared = usage(cuda.cubin(variant, capability), tmp_path)
    assert registers <= 255 and stack == 0, "nothing is spilled"
    assert variant.shared_bytes + shared <= SMALLEST_SHARED


@pytest.mark.parametrize("op", OPS)
def test_every_variant_is_told_apart_by_its_constants(op):
    found = list(cuda.variants(op))
    assert len({tuple(v.constants.items()) for v in found}) == len(found)
    assert {(v.d, v.dv) for v in found} == {(d, dv) for d in (64, 128) for dv in (64, 128)}


def test_cubins_are_kept_on_disk_by_source_and_architecture(tmp_path, monkeypatch):
    from nsa_kernels.cuda import nvrtc

    monkeypatch.setenv("NSA_KERNELS_CACHE", str(tmp_path))
    variant = min(cuda.variants("selection_rows"), key=lambda v: v.d + v.dv)

    def kept():
        return {p for p in tmp_path.rglob("*") if p.is_file()}

    first = cuda.cubin(variant, 90)
    one = kept()
    assert len(one) == 1 and cuda.cubin(variant, 90) == first and kept() == one
    # The file on disk is used.
    code = one.copy().pop()
    code.write_bytes(b"\x7fELF, changed")
    assert cuda.cubin(variant, 90) == b"\x7fELF, changed"
    cuda.cubin(variant, 89)
    assert len(kept()) == 2
    changed = nvrtc.source("rows") + "// changed\n"
    monkeypatch.setattr(nvrtc, "source", lambda kernel: changed)
    cuda.cubin(variant, 90)
    assert len(kept()) == 3


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NSA_KERNELS_CACHE", str(tmp_path / "file"))
    variant = min(cuda.variants("selection_rows"), key=lambda v: v.d + v.dv)
    assert cuda.cubin(variant, 90).startswith(b"\x7fELF")


def test_a_source_that_does_not_compile_says_where(monkeypatch):
    from cuda.core._utils.cuda_utils import NVRTCError
    from nsa_kernels.cuda import nvrtc

    monkeypatch.setattr(nvrtc, "source", lambda kernel: '#line 7 "rows.cu"\nint x = y;\n')
    with pytest.raises(NVRTCError, match=r"rows.cu\(7\).*\"y\" is undefined"):
        cuda.cubin(widest("selection_rows"), 90)


@pytest.mark.parametrize(
    ("capability", "why"), [(75, "need sm_80 or newer"), (99, "does not compile for sm_99")]
)
def test_gpus_it_cannot_serve(capability, why):
    with pytest.raises(cuda.Unsupported, match=why):
        cuda.cubin(widest("selection_rows"), capability)


WITHOUT = """
import sys
from nsa_kernels import cuda

def say():
    try:
        cuda.cubin(next(cuda.variants("selection_rows")), 90)
    except cuda.Unsupported as error:
        print(error)

def absent():
    raise RuntimeError("Failure finding libnvrtc.so")

sys.modules["cuda.core"] = None
say()
del sys.modules["cuda.core"]
from cuda.bindings import nvrtc
nvrtc.nvrtcVersion = absent
say()
"""


def test_without_a_compiler_it_is_unsupported():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    core, library = done.stdout.splitlines()
    assert "cuda.core cannot be imported" in core and "Failure finding libnvrtc.so" in library
    assert all("install nsa-kernels[cuda]" in said for said in (core, library))


def rows(d=64, dv=64, dtype=torch.float16):
    return [torch.zeros(shape, dtype=dtype) for shape in ((2, 4, d), (2, 30, d), (2, 30, dv))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what happens without a GPU")
def test_what_rows_refuses():
    q, k, v = rows()
    shifted = torch.zeros(2 * 30 * 64 + 1, dtype=torch.float16)[1:].view(2, 30, 64)
    wide = torch.zeros(2, 4, 68, dtype=torch.float16)
    for given, error, message in (
        (rows(dtype=torch.float32), cuda.Unsupported, r"not torch\.float32"),
        (rows(d=32), cuda.Unsupported, "not D=32, Dv=64"),
        ((q, k, shifted), cuda.Unsupported, r"v with strides .* at 2 bytes"),
        ((wide[..., :64], k, v), cuda.Unsupported, "q with strides"),
        ((q, k[:1], v), ValueError, "expected q"),
        ((q, k, v), ValueError, "needs CUDA tensors"),
        ((q, k.mT.contiguous().mT, v), ValueError, "needs CUDA tensors"),  # k is copied first
    ):
        with pytest.raises(error, match=message):
            cuda.selection_rows(*given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what happens without a GPU")
def test_what_ranges_refuses():
    q = torch.zeros(1, 1, 1, 4, 64, dtype=torch.float16)
    k = torch.zeros(1, 1, 30, 64, dtype=torch.float16)
    spans = torch.zeros(1, 1, 1, 129, 2, dtype=torch.int32)
    with pytest.raises(cuda.Unsupported, match=r"128 .*129"):
        cuda.selection_ranges(q, k, k, spans)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what happens without a GPU")
def test_plans_of_another_shape_and_gradients_are_refused():
    q, k, v = rows()
    plan = cuda.plan_rows(q, k, v)
    longer = [torch.zeros(2, 700, 64, dtype=torch.float16) for _ in "kv"]
    with pytest.raises(ValueError, match="rows of 700 keys"):
        cuda.selection_rows(q, *longer, plan=plan)
    with pytest.raises(ValueError, match="has no backward"):
        cuda.selection_rows(q.clone().requires_grad_(), k, v)
    q, k = torch.zeros(1, 1, 1, 4, 64).half(), torch.zeros(1, 1, 30, 64).half()
    few, many = (torch.zeros(1, 1, 1, n, 2, dtype=torch.int32) for n in (5, 40))
    with pytest.raises(ValueError, match=r"32 .*40;"):
        cuda.selection_ranges(q, k, k, many, plan=cuda.plan_ranges(q, k, k, few))
    with pytest.raises(ValueError, match="has no backward"):
        cuda.selection_ranges(q.requires_grad_(), k, k, few)
