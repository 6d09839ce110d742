"""Calling foreign code: whatever it raises becomes a status with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from nsabench.execution.failure import DeviceLost, Failure
from nsabench.execution.worker import sandbox
from nsabench.model.vocabulary import Status
from nsabench.registry import USER_MODULE, Unsupported

T = TypeVar("T")

_COMPILER_ERRORS = (
    "CompilationError",
    "CompileTimeAssertionFailure",
    "UnsupportedLanguageConstruct",
)
_RESOURCE_ERRORS = ("OutOfResources", "PTXASError")


LINKS = 10  # of a chain of causes that are looked at


def guarded(call: Callable[[], T], device: str, implementation: str = "") -> T:
    """Run foreign code of `implementation`.

    Raises `Failure`, or `DeviceLost` when the device is lost with it.
    """
    try:
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
    except BaseException as error:
        failure = classify(error)
        if device == "cuda":
            _probe(failure, implementation)
        raise failure from error
    return result


def _probe(failure: Failure, implementation: str) -> None:
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise DeviceLost(implementation, f"{failure.reason}; {one_line(error)}") from error


def classify(error: BaseException) -> Failure:
    """The status that an exception means."""
    name = type(error).__name__
    text = f"{name}: {one_line(error)}"
    if isinstance(error, Failure):
        return error
    if isinstance(error, Unsupported):
        return Failure(Status.UNSUPPORTED, str(error) or "no reason given")
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return Failure(Status.OUT_OF_MEMORY, text)
    if name in _COMPILER_ERRORS or name in _RESOURCE_ERRORS:
        return Failure(Status.COMPILE_ERROR, text)
    if isinstance(error, SystemExit):
        return Failure(Status.CRASHED, f"it called sys.exit({error.code!r})")
    if isinstance(error, KeyboardInterrupt):
        return Failure(Status.CRASHED, "it raised KeyboardInterrupt")
    if isinstance(error, PermissionError) and sandbox.is_entered():
        return Failure(Status.CRASHED, f"{text}{_location(error)}: {sandbox.DENIED}")
    return Failure(Status.CRASHED, text + _location(error))


def one_line(error: BaseException, limit: int = 300) -> str:
    """The text of an error on one line. Reading it is itself a call into foreign code."""
    try:
        text = " ".join(str(error).split())
    except Exception as inner:  # noqa: BLE001 - a hostile __str__
        return f"its text cannot be read ({type(inner).__name__})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _location(error: BaseException) -> str:
    """The innermost line of the user's file, also of an error that this one came from (Triton's
    interpreter raises its own); where there is none, the innermost line."""
    lines = list(_lines(error))
    own = getattr(sys.modules.get(USER_MODULE), "__file__", None)
    path, number = next((line for line in lines if line[0] == own), next(iter(lines), ("", 0)))
    return f" ({path.rsplit('/', 1)[-1]}:{number})" if path else ""


def _lines(error: BaseException) -> Iterator[tuple[str, int]]:
    """Files and lines of an error, from the innermost out, then of what it came from."""
    cause: BaseException | None = error
    for _ in range(LINKS):  # they may form a ring
        if cause is None:
            return
        trace, inward = cause.__traceback__, []
        while trace is not None:
            inward.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        yield from reversed(inward)
        cause = cause.__cause__ or cause.__context__
