"""Triton's interpreter prepares the language once a launch, and restores it after each."""

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
