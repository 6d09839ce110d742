"""The mistakes that are known of each op."""

from __future__ import annotations

import math

from nsabench.checker.diagnosis import banded, chosen, nsa
from nsabench.checker.diagnosis.evidence import Known, OtherInputs
from nsabench.ops import Inputs

KNOWN = banded.KNOWN | chosen.KNOWN | nsa.KNOWN
NOTHING = Known()


def mistake_scale(inputs: Inputs, dim_v: int) -> OtherInputs:
    if "sm_scale" not in inputs.options or "q" not in inputs.tensors:
        return
    right, dim = inputs.options["sm_scale"], inputs.tensors["q"].shape[-1]
    twice = ""
    if math.isclose(right**2, 1 / dim, rel_tol=1e-6):
        twice = ", the square of the right one, which is then applied twice"
    wrong = {
        "1, that is, none": 1.0,
        f"1/D = 1/{dim}{twice}": 1 / dim,
        f"1/sqrt(Dv) = {dim_v**-0.5:.4g}": dim_v**-0.5,
        "the right one without the factor log2(e) that exp2 needs": right / math.log2(math.e),
        "the right one times log2(e), which exp does not need": right * math.log2(math.e),
        "the square of the right one, applied twice": right**2,
    }
    for text, scale in wrong.items():
        if not math.isclose(scale, right, rel_tol=1e-6):
            yield f"uses as softmax scale {text}", inputs.replaced(sm_scale=scale)
