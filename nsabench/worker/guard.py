"""Call foreign code, and turn whatever it raises into a status with a reason."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

import nsabench
from nsabench.failure import DeviceLost, Failure
from nsabench.model.vocabulary import Status
from nsabench.registry import USER_MODULE, Unsupported
from nsabench.worker import sandbox

T = TypeVar("T")

_COMPILER_ERRORS = (
    *("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"),
    *("OutOfResources", "PTXASError"),
)
LINKS = 10  # causes of an error that are read
_OURS = str(Path(nsabench.__file__).parent)
_MOST_REASON = 1000  # characters
_MOST_TRACE = 16_000  # characters


def guarded(call: Callable[[], T], device: str, implementation: str = "") -> T:
    """Raises `Failure`, or `DeviceLost` if the device is lost."""
    try:
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
    except BaseException as error:
        failure = classify(error)
        if device == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as lost:
                reason = f"{failure.reason}; {one_line(lost)}"
                raise DeviceLost(implementation, reason) from lost
        raise failure from error
    return result


def classify(error: BaseException) -> Failure:
    text = f"{type(error).__name__}: {one_line(error)}"
    if isinstance(error, Failure):
        return error
    if isinstance(error, Unsupported):
        return Failure(Status.UNSUPPORTED, one_line(error, _MOST_REASON) or "no reason given")
    trace = traceback_of(error)
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return Failure(Status.OUT_OF_MEMORY, text, trace)
    if any(type(link).__name__ in _COMPILER_ERRORS for link in _list_causes(error)):
        return Failure(Status.COMPILE_ERROR, text + _locate(error, of_the_user=True), trace)
    if isinstance(error, SystemExit):
        return Failure(Status.CRASHED, f"it called sys.exit({error.code!r})", trace)
    if isinstance(error, KeyboardInterrupt):
        return Failure(Status.CRASHED, "it raised KeyboardInterrupt", trace)
    text += _locate(error)
    if isinstance(error, PermissionError) and sandbox.is_entered():
        text += f": {sandbox.DENIED}"
    return Failure(Status.CRASHED, text, trace)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without our own frames."""
    try:
        whole = traceback.TracebackException.from_exception(error)
        link: traceback.TracebackException | None = whole
        while link is not None:
            foreign = [at for at, f in enumerate(link.stack) if not f.filename.startswith(_OURS)]
            del link.stack[: foreign[0] if foreign else len(link.stack)]
            link = link.__cause__ or link.__context__
        text = "".join(whole.format())
    except Exception as inner:  # noqa: BLE001 - a hostile exception
        return f"its traceback cannot be read ({type(inner).__name__})\n"
    if len(text) <= _MOST_TRACE:
        return text
    half = _MOST_TRACE // 2
    return f"{text[:half]}\n[... {len(text) - _MOST_TRACE} characters left out ...]\n{text[-half:]}"


def one_line(error: BaseException, limit: int = 300) -> str:
    try:  # to read it is a call into foreign code
        text = " ".join(str(error).split())
    except Exception as inner:  # noqa: BLE001 - a hostile __str__
        return f"its text cannot be read ({type(inner).__name__})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _locate(error: BaseException, *, of_the_user: bool = False) -> str:
    """Return the innermost line in the user's file, or of all, in the first cause of an error."""
    lines = list(_list_lines(error))
    own = getattr(sys.modules.get(USER_MODULE), "__file__", None)
    innermost = ("", 0) if of_the_user else next(iter(lines), ("", 0))
    path, number = next((line for line in lines if line[0] == own), innermost)
    return f" ({path.rsplit('/', 1)[-1]}:{number})" if path else ""


def _list_lines(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield files and lines of an error: the first cause first, the innermost line first."""
    for link in reversed(_list_causes(error)):
        for frame, number in reversed([*traceback.walk_tb(link.__traceback__)]):
            yield frame.f_code.co_filename, number


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes. A library may raise an error of its own for a compiler's."""
    links: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(links) < LINKS:  # they may form a ring
        links.append(cause)
        cause = cause.__cause__ or cause.__context__
    return links
