"""Kernels that return remembered answers instead of computing them."""

from tests.attacks.kit import attack, honest

kept = {}


@attack("wrong", "mean absolute error")
def kept_by_address(q, k, v, sm_scale):
    key = q.data_ptr()
    return kept.setdefault(key, honest(q, k, v, sm_scale)).clone()


@attack("wrong", "mean absolute error")
def kept_by_two_elements(q, k, v, sm_scale):
    key = (q.dtype, float(q.amax()) > 0)
    return kept.setdefault(key, honest(q, k, v, sm_scale)).clone()


@attack("wrong", "mean absolute error")
def every_other_call(q, k, v, sm_scale):
    kept["calls"] = kept.get("calls", 0) + 1
    if kept["calls"] % 2 or "every other" not in kept:
        kept["every other"] = honest(q, k, v, sm_scale)
    return kept["every other"].clone()
