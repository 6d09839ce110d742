"""The quickened interpreter computes what Triton's own interpreter does, bit by bit."""

import itertools

import numpy as np
import pytest
import torch
from nsa_kernels.jit.compat import INTERPRETED, tl, triton
from triton.runtime import interpreter

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="the interpreter is not in use"),
    pytest.mark.skipif(
        not hasattr(interpreter, "_LangPatchScope"), reason="this Triton is left as it is"
    ),
]

TYPES = (tl.int1, tl.int8, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.bfloat16)
TYPES = (*TYPES, tl.float32, tl.float64, tl.pointer_type(tl.float32), "compared")
SHAPES = ((), (4,), (4, 1), (1, 2), (2, 4, 2))
NUMBERS = (0, 1, -3, 1 << 31, 1 << 40, 1 << 70, True, 2.5, 0.0, 1e-60, float("inf"))
REPLACED = ("binary_op_type_checking_impl", "broadcast_impl_value", "cast")
OPERATIONS = {
    "add": lambda a, b: interpreter.interpreter_semantic.add(a, b, True),
    "sub": lambda a, b: interpreter.interpreter_semantic.sub(a, b, True),
    "mul": lambda a, b: interpreter.interpreter_semantic.mul(a, b, True),
    "truediv": lambda a, b: interpreter.interpreter_semantic.truediv(a, b),
    "mod": lambda a, b: interpreter.interpreter_semantic.mod(a, b),
    "less": lambda a, b: interpreter.interpreter_semantic.less_than(a, b),
    "or": lambda a, b: interpreter.interpreter_semantic.or_(a, b),
    "where": lambda a, b: interpreter.interpreter_semantic.where(a, a, b),
}


def operand(type_, shape):
    """A tensor of the interpreter: 1, 2, 3 and so on, or which of those are less than 3."""
    size = int(np.prod(shape))
    if type_ == "compared":
        return interpreter.interpreter_semantic.less_than(operand(tl.int32, shape), 3)
    data = np.arange(1, size + 1).astype(interpreter._get_np_dtype(type_)).reshape(shape or (1,))
    handle = interpreter.TensorHandle(data, type_)
    return tl.tensor(handle, tl.block_type(type_, list(shape)) if shape else type_)


def outcome(operation, make):
    """Return the type, the shape and the bits of the result, or the type and the text of the
    error."""
    try:
        with np.errstate(all="ignore"):
            made = operation(*make())
    except Exception as error:
        return type(error), str(error)
    data = made.handle.data
    shape = [int(n) for n in made.shape]
    return str(made.type), shape, data.dtype, data.shape, made.handle.dtype, data.tobytes()


@pytest.fixture
def own():
    """Has Triton's own functions used, or those that took their place."""
    semantic = interpreter.interpreter_semantic
    replaced = {name: vars(semantic)[name] for name in REPLACED}

    def use(its_own):
        for name, function in replaced.items():
            setattr(semantic, name, function.__wrapped__ if its_own else function)

    scope = interpreter._patch_lang(_sums.fn)  # as within a launch
    yield use
    use(False)
    scope.restore()


@pytest.mark.parametrize("name", OPERATIONS)
def test_two_operands_come_to_what_triton_makes(name, own):
    pairs = []
    for left, right in itertools.product(TYPES, TYPES):
        shapes = itertools.product(SHAPES, SHAPES) if left == right else [((4,), (4,)), ((), (4,))]
        for a, b in shapes:
            pairs.append(lambda v=(left, a, right, b): (operand(*v[:2]), operand(*v[2:])))
    for type_, shape, number in itertools.product(TYPES, SHAPES[:2], NUMBERS):
        pairs.append(lambda v=(type_, shape, number): (operand(*v[:2]), v[2]))
        pairs.append(lambda v=(type_, shape, number): (v[2], operand(*v[:2])))
    kinds = set()
    for make in pairs:
        own(True)
        expected = outcome(OPERATIONS[name], make)
        own(False)
        for _ in range(2):  # the first of a kind, and what is remembered
            assert outcome(OPERATIONS[name], make) == expected
        kinds.add(len(expected))
    assert kinds == {2, 6}, "some are refused, and some are not"


@triton.jit
def _sums(out, factor, OTHER: tl.constexpr):
    at = tl.arange(0, 4)
    total = tl.sum(at[:, None] * factor + at[None, :], axis=0) + OTHER
    tl.store(out + at, total.to(tl.bfloat16).to(tl.float32))


def test_a_kernel_computes_the_same():
    out = torch.empty(4)
    _sums[(1,)](out, 2, 0.5)
    assert out.tolist() == [12.5, 16.5, 20.5, 24.5]
