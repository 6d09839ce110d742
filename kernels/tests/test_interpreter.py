"""Triton's interpreter prepares the language once a launch, and restores it after each; the type of
a block and its shape it makes once."""

from __future__ import annotations

import pytest
import torch
from nsa_kernels.jit.compat import INTERPRETED, tl, triton
from triton.runtime import interpreter

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="the interpreter is not in use"),
    pytest.mark.skipif(
        not hasattr(interpreter, "_LangPatchScope"), reason="this Triton restores nothing"
    ),
]


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _kernel(out, REPEAT: tl.constexpr):
    at = tl.arange(0, 4)
    x = at.to(tl.float32)
    for _ in range(REPEAT):
        x = _twice(x)
    tl.store(out + tl.program_id(0) * 4 + at, x + tl.max(x))


@triton.jit
def _failing(out):
    tl.store(out, _twice(tl.max(missing)))  # noqa: F821


def launch(repeat: int, programs: int) -> torch.Tensor:
    out = torch.empty(programs, 4)
    _kernel[(programs,)](out, repeat)
    return out


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What Triton's own preparation looks through, a name for each time."""
    seen: list[object] = []
    original = interpreter._patch_builtin

    def noted(package: object, *rest: object) -> None:
        seen.append(package)
        original(package, *rest)

    monkeypatch.setattr(interpreter, "_patch_builtin", noted)
    return seen


def test_calls_within_a_launch_prepare_nothing_more(prepared: list[object]) -> None:
    launch(1, 1)  # the first adds names to the modules of the functions that it calls
    prepared.clear()
    launch(1, 1)
    once = len(prepared)
    assert once > 0, "each launch prepares the language"
    out = launch(3, 5)
    assert len(prepared) == 2 * once
    assert out.tolist() == [[24.0, 32.0, 40.0, 48.0]] * 5


def test_the_language_is_restored_after_a_launch_and_after_one_that_fails() -> None:
    before = {name: getattr(tl, name) for name in ("load", "range", "static_range", "arange")}
    launch(1, 1)
    assert {name: getattr(tl, name) for name in before} == before
    with pytest.raises(interpreter.InterpreterError, match="missing"):
        _failing[(1,)](torch.empty(1))
    assert {name: getattr(tl, name) for name in before} == before
    assert launch(1, 1).tolist() == [[6.0, 8.0, 10.0, 12.0]]


@pytest.mark.parametrize("element", [tl.float16, tl.pointer_type(tl.float32)], ids=str)
@pytest.mark.parametrize("shape", [[4], [2, tl.constexpr(8)], [16, 1]], ids=str)
def test_what_is_remembered_is_what_triton_makes(element: object, shape: list[object]) -> None:
    """The first of a kind, and the ones after."""
    for _ in range(2):
        own, remembered = object.__new__(tl.block_type), tl.block_type(element, shape)
        tl.block_type.__init__.__wrapped__(own, element, shape)
        assert vars(remembered) == vars(own) and remembered == own
        for type_ in (own, element):
            value, again = object.__new__(tl.tensor), tl.tensor(None, type_)
            tl.tensor.__init__.__wrapped__(value, None, type_)
            assert vars(again).keys() == vars(value).keys()
            assert again.type is type_ and again.dtype is value.dtype
            assert [int(n) for n in again.shape] == [int(n) for n in value.shape]
            assert int(again.numel) == int(value.numel)


def test_a_block_that_cannot_be_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.float32, [3])
        with pytest.raises(TypeError, match="0d"):
            tl.block_type(tl.float32, [])
