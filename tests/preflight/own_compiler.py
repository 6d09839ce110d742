"""Kernels that their implementation compiles itself: here with ptxas, from PTX."""

import subprocess
import tempfile
from pathlib import Path

import triton

from nsabench import KernelVariant, Unsupported, implementation

PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
PTX = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry copy_KERNEL(.param .u64 where)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    .shared .align 4 .b8 own[2048];
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, %tid.x;
    st.shared.u32 [own], %r1;
    bar.sync 0;
    ld.shared.u32 %r1, [own+4];
    st.global.u32 [%rd1], %r1;
    BROKEN
    ret;
}
"""


def assemble(capability, broken=""):
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "a.ptx"), Path(folder, "a.cubin")
        # Three kernels in one cubin: only the one that is named counts.
        source.write_text(
            PTX.replace("KERNEL", "right").replace("BROKEN", broken)
            + PTX[PTX.index(".visible") :]
            .replace("KERNEL", "other")
            .replace("BROKEN", "")
            .replace("2048", "8192")
            + ".visible .entry copy_bare() { ret; }"
        )
        done = subprocess.run(
            [PTXAS, f"-arch=sm_{capability}", source, "-o", cubin], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr or done.stdout)
        return cubin.read_bytes()


def variants(capability):
    def variant(name, constants, shared, compile_):
        return KernelVariant(name, constants, 100, shared, "ptxas", compile_)

    yield variant("copy_right", "D=64", 0, lambda: assemble(capability))
    yield variant("copy_bare", "D=32", 0, lambda: assemble(capability))
    yield variant("copy_right", "D=128", 98 << 10, lambda: assemble(capability))
    yield variant("copy_right", "D=256", 0, lambda: assemble(capability, "no.such.instruction;"))
    yield variant("copy_right", "D=512", 0, lambda: b"no cubin")


@implementation(op="selection_rows", name="own", compile_ahead=variants)
def own(q, k, v, *, sm_scale):
    raise AssertionError("it is asked for its kernels and not called")


def only_newer(capability):
    if capability < 90:
        raise Unsupported("it needs sm_90")
    return [KernelVariant("copy_right", "", 128, 0, "ptxas", lambda: assemble(capability))]


@implementation(op="selection_rows", name="newer", compile_ahead=only_newer)
def newer(q, k, v, *, sm_scale):
    raise AssertionError


def abort(capability):
    import os

    return [KernelVariant("aborts", "", 128, 0, "own", os.abort)]


@implementation(op="selection_rows", name="aborts", compile_ahead=abort)
def aborts(q, k, v, *, sm_scale):
    raise AssertionError


@implementation(op="selection_ranges", name="elsewhere", compile_ahead=abort)
def elsewhere(q, k, v, ranges, *, sm_scale, selected_len):
    raise AssertionError("its op has no case in the matrix")
