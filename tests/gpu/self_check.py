"""One implementation under two names, for `--kernels`: no verdict may tell them apart."""

from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa


def _register(name, role):
    @implementation(op="selection_rows", name=name, role=role, devices=("cuda", "cpu"))
    def call(q, k, v, *, sm_scale):
        return gqa(q, k, v, sm_scale)


_register("self_baseline", "baseline")
_register("self_candidate", "candidate")
