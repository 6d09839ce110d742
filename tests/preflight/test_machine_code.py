"""Registers that machine code reads and never writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nsabench.preflight import targets
from tests.preflight.machine_code import unwritten
from tests.preflight.test_preflight import preflight

triton = pytest.importorskip("triton")
NARROW = Path(__file__).parent / "narrow_values.py"
ODD = Path(__file__).parent / "odd_addresses.py"
LOOP = """
.text.kernel:
        /*0000*/                   UMOV UR4, URZ ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/                   ULDC.64 UR8, c[0x0][0x210] ;
.L_x_1:
        /*0030*/                   UIADD3 UR4, UR4, 0x40, URZ ;
        /*0040*/                   REDUX.SUM UR6, R2 ;
        /*0050*/                   IMAD.U32 R3, RZ, RZ, UR6 ;
        /*0060*/              @P1 BRA `(.L_x_1) ;
.L_x_0:
        /*0070*/                   {LAST} ;
        /*0080*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ("UIADD3 UR5, UR4, 0x1, URZ", []),
        ("UIADD3 UR5, UR8, 0x1, URZ", ["UIADD3 at 0x0070 reads UR8"]),
        ("LDG.E R0, desc[UR8][R2.64]", ["LDG.E at 0x0070 reads UR8, UR9"]),
        ("UIADD3.64 UR12, UR4, 0x2, URZ", ["UIADD3.64 at 0x0070 reads UR5"]),
        ("HGMMA R56, R24, gdesc[UR2].tnspB, R56", ["HGMMA at 0x0070 reads UR5"]),
        ("HGMMA R56, gdesc[UR4], RZ, !UPT", ["HGMMA at 0x0070 reads UR5, UR6, UR7"]),
    ],
)
def test_a_read_that_no_write_precedes_is_found(last: str, found: list[str]) -> None:
    assert [str(read) for read in unwritten(LOOP.replace("{LAST}", last))] == found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(targets.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def unwritten_in(cache: Path) -> list[str]:
    """Return what the compiled kernels read of uniform registers that nothing wrote."""
    disassembler = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    found, cubins = [], list(cache.rglob("*.cubin"))
    assert cubins
    for cubin in cubins:
        listing = subprocess.check_output([disassembler, "-c", cubin], text=True)
        if "HGMMA" in listing:
            found += [str(read) for read in unwritten(listing)]
    return found


def test_a_kernel_that_ptxas_miscompiled_is_found(tmp_path: Path, cache: Path) -> None:
    """The library does not launch this kernel: see the next test."""
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    if "release 12.8" not in subprocess.check_output([tools / "ptxas", "--version"], text=True):
        pytest.skip("this Triton carries another ptxas than the one that makes it wrong")
    matrix = (
        "op: sliding_window\naxes: {dtype: [bfloat16, float16]}\n"
        "include:\n- {B: 2, T: 64, HQ: 4, H: 1, D: [64, 128], window: 16}\n"
    )
    preflight(tmp_path, matrix, "sm_90", "--kernels", NARROW)
    assert any("reads UR" in read for read in unwritten_in(cache))


def test_windows_and_blocks_at_odd_addresses_are_right(tmp_path: Path, cache: Path) -> None:
    """Values are half and a quarter as wide as keys."""
    matrix = (
        "op: sliding_window\naxes: {dtype: bfloat16}\n"
        "include:\n- {B: 2, T: 64, HQ: 4, H: 1, D: [64, 128], window: 16}\n---\n"
        "op: selection_blocks\naxes: {dtype: bfloat16}\n"
        "include:\n- {B: 1, T: 2048, HQ: 4, H: 1, D: 64, S: 4}\n"
    )
    code, rows, text = preflight(tmp_path, matrix, "sm_90", "--kernels", ODD)
    assert code == 0 and {row["status"] for row in rows} == {"ok"}, text
    kernels = {(row["implementation"], row["kernel"]) for row in rows}
    for part in (2, 4):
        assert (f"window_{part}", "band_forward_kernel") in kernels
        assert (f"blocks_{part}", "forward_kernel") in kernels
    assert unwritten_in(cache) == []
