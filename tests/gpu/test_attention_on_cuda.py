"""nsa_attention and its alternatives on a CUDA device, compared with the oracle as in a run."""

from random import Random

import pytest
import torch

from nsabench import ops, registry
from nsabench.checks import parity as checks
from nsabench.failure import Failure
from nsabench.model.case import Timing
from nsabench.model.vocabulary import Direction, DType, Role, Status
from tests.checking import a_case, arm_of, desk_of, sets_of

pytestmark = [pytest.mark.gpu, pytest.mark.untimed]

DEVICE = "cuda"
OP = "nsa_attention"
WIDE = {"B": 1, "HQ": 64, "H": 4, "D": 128, "Dv": 128}
MANY = {"B": 2, "HQ": 32, "H": 8, "D": 64, "Dv": 64}
SIZES = {"block": 32, "stride": 16, "block_size": 64, "n_selected": 16, "window": 512}
CASES = (
    (WIDE, 512, "dense", DType.BFLOAT16),
    (WIDE, 4096, "dense", DType.BFLOAT16),
    (WIDE, 2000, "dense", DType.FLOAT16),
    (MANY, 1000, "packed", DType.BFLOAT16),
)


@pytest.fixture(scope="module")
def items():
    return {i.name: i for i in registry.load() if i.op == OP}


@pytest.fixture(autouse=True)
def _memory_of_nobody():
    yield
    torch.cuda.empty_cache()


def case_of(shape, tokens, distribution, dtype, direction):
    fields = {"dtype": dtype, "direction": direction, "distribution": distribution}
    return a_case(OP, {**SIZES, **shape, "T": tokens}, timing=Timing(rotate=2), **fields)


def checked(item, case, sets):
    """Return the errors of a call. Raises `Failure` as a worker would."""
    arm = arm_of(item, ops.computed(case, item.computes), sets, Random(0))
    arm.check()
    errors = desk_of(sets).tally(item.name).errors
    assert errors is not None
    return errors


def assert_honest(errors, case):
    """Assert that rounding explains the errors."""
    resolved = checks.resolution(case)
    assert errors.rel_l2 <= resolved
    assert errors.worst_row <= checks.row_ratio(errors.result) * resolved, errors


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(("shape", "tokens", "distribution", "dtype"), CASES)
def test_the_library_is_right(items, shape, tokens, distribution, dtype, direction):
    case = case_of(shape, tokens, distribution, dtype, direction)
    sets = sets_of(case, DEVICE)
    errors = checked(items["nsa"], case, sets)
    assert_honest(errors, case)
    assert errors.rows_compared == sets.sets[0].tensors["q"][..., 0].numel()
    assert_honest(checked(items["torch_nsa"], case, sets), case)


def test_some_queries_of_a_long_sequence_are_compared(items):
    for direction in Direction:
        case = case_of(WIDE, 16384, "dense", DType.BFLOAT16, direction)
        errors = checked(items["nsa"], case, sets_of(case, DEVICE))
        assert_honest(errors, case)
        assert 100 * 64 < (errors.rows_compared or 0) <= 256 * 64


ALTERNATIVES = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flash_varlen", "flex_attention")
OF_PACKAGES = ("flash_attn", "flash_attn_4")


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("distribution", ["dense", "packed"])
def test_alternatives_are_right_or_say_why_not(items, distribution, direction):
    case = case_of(MANY, 1000, distribution, DType.BFLOAT16, direction)
    dense = ops.computed(case, "causal_attention")
    sets, right = sets_of(case, DEVICE, "causal_attention"), []
    for name in (*ALTERNATIVES, *OF_PACKAGES):
        item = items[f"dense_{name}"]
        assert item.role is Role.ALTERNATIVE
        try:
            assert_honest(checked(item, case, sets), dense)
        except Failure as failure:
            assert failure.status is Status.UNSUPPORTED, f"{name}: {failure.reason}"
            packed = "packed" in failure.reason and distribution == "packed"
            assert packed or name in OF_PACKAGES, f"{name}: {failure.reason}"
        else:
            right.append(name)
    assert "flash_varlen" in right and (distribution == "packed" or "sdpa_flash" in right)
