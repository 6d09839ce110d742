"""The limits of GPUs by their data sheets. Tensor rates are without sparsity.

Sources are NVIDIA's data sheets and architecture whitepapers. The whitepapers are GA102 (RTX 3090,
A10), A100, Ada (RTX 4090, L4, L40S), H100 (H100, H200), RTX Blackwell (RTX 5090) and Blackwell
(B200). The size of L2 of the H200 and the B200 is what the device reports.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from nsabench.errors import UsageError


@dataclass(frozen=True)
class Sheet:
    """One GPU. memory_gb_s: 1e9 bytes/s. float16, bfloat16: TFLOP/s with the faster accumulator."""

    name: str
    memory_gib: int
    memory_gb_s: float
    l2_mib: int
    float16: float
    bfloat16: float
    sms: int
    sm_boost_mhz: int


SHEETS = (
    Sheet("RTX 3090", 24, 936.2, 6, 142.0, 71.0, 82, 1695),
    Sheet("RTX 4090", 24, 1008.0, 72, 330.3, 165.2, 128, 2520),
    Sheet("RTX 5090", 32, 1792.0, 96, 419.0, 209.5, 170, 2407),
    Sheet("A10", 24, 600.2, 6, 125.0, 125.0, 72, 1695),
    Sheet("A100 40GB", 40, 1555.0, 40, 312.0, 312.0, 108, 1410),
    Sheet("A100 80GB", 80, 2039.0, 40, 312.0, 312.0, 108, 1410),
    Sheet("L4", 24, 300.1, 48, 121.0, 121.0, 58, 2040),
    Sheet("L40S", 48, 864.0, 96, 362.1, 362.1, 142, 2520),
    Sheet("H100 PCIe", 80, 2039.0, 50, 756.0, 756.0, 114, 1755),
    Sheet("H100 SXM", 80, 3352.0, 50, 989.4, 989.4, 132, 1980),
    Sheet("H200", 141, 4800.0, 60, 989.4, 989.4, 132, 1980),
    Sheet("B200", 180, 8000.0, 126, 2250.0, 2250.0, 148, 1965),
)


def find(gpu: str) -> Sheet:
    """Return the sheet for a GPU as drivers name it. Raises `UsageError` if none or several fit."""
    fitting = _find_fitting(gpu)
    if len(fitting) == 1:
        return fitting[0]
    names = [sheet.name for sheet in fitting or SHEETS]
    if fitting:
        raise UsageError(f"{gpu!r} fits several devices", f"name one: {', '.join(names)}.")
    near = difflib.get_close_matches(gpu, names, 1)
    raise UsageError(
        f"no data sheet fits {gpu!r}",
        f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}.",
    )


def find_unique(gpu: str) -> Sheet | None:
    fitting = _find_fitting(gpu)
    return fitting[0] if len(fitting) == 1 else None


def _find_fitting(gpu: str) -> list[Sheet]:
    words = set(_words(gpu))
    exact = [s for s in SHEETS if set(_words(s.name)) <= words]
    # "A100-SXM4-80GB" contains all words of one sheet's name. "H100" is a part of two names.
    return exact or [s for s in SHEETS if words and words <= set(_words(s.name))]


_SPELLINGS = {"sxm5": "sxm", "sxm4": "sxm", "hbm3": "sxm", "rtx4090": "4090", "rtx5090": "5090"}


def _words(name: str) -> list[str]:
    ignored = {"nvidia", "geforce", "tesla", "gpu"}
    words = re.findall(r"[a-z0-9]+", name.lower())
    return [_SPELLINGS.get(word, word) for word in words if word not in ignored]
