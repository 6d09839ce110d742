"""How implementations reach the bench: `@implementation`, entry points, and a user's file.

Only worker processes call `load`: the files it imports are foreign code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from nsabench.errors import UsageError
from nsabench.model.vocabulary import Direction, Role, Runs

ENTRY_POINT_GROUP = "nsabench.implementations"
USER_MODULE = "nsabench_user_kernels"
PUT_BACK = "put it back as and where it was, or start a new run."

F = TypeVar("F", bound=Callable[..., Any])


class Unsupported(Exception):
    """Raised by an implementation for a case it does not do; the text says why."""


@dataclass(frozen=True)
class KernelVariant:
    """A kernel that an implementation compiles itself (CUDA C++ through NVRTC, say), specialised.

    constants: what tells this variant from the kernel's others, such as "D=128 HEADS=8".
    threads: threads a block. shared_bytes: dynamic shared memory a launch asks for, a block.
    compiler: its name and version. compile: returns the cubin, and raises the compiler's error.
    """

    kernel: str
    constants: str
    threads: int
    shared_bytes: int
    compiler: str
    compile: Callable[[], bytes]


@dataclass(frozen=True)
class Implementation:
    """A callable that fulfils an op, with what its author declared about it."""

    op: str
    name: str
    role: Role
    devices: tuple[Runs, ...]
    caught_by: str
    source: str
    call: Callable[..., Any]
    config: Callable[..., object] | None = None
    compile_ahead: Callable[[int], Iterable[KernelVariant]] | None = None
    wraps: str = ""
    distributions: tuple[str, ...] = ()
    directions: tuple[Direction, ...] = ()


_collected: list[Implementation] = []
_source = "interactive"


def implementation(
    *,
    op: str,
    name: str,
    role: str = "candidate",
    devices: Sequence[str] = ("cuda", "interpreter"),
    caught_by: str = "",
    wraps: str = "",
    config: Callable[..., object] | None = None,
    compile_ahead: Callable[[int], Iterable[KernelVariant]] | None = None,
    distributions: Sequence[str] = (),
    directions: Sequence[str] = (),
) -> Callable[[F], F]:
    """Register the decorated function as an implementation of `op`.

    devices: where it runs: any of `cuda`, `cpu` (timed there), `interpreter` (a Triton kernel: on a
      machine without a GPU its parity is checked and its time is not taken).
    caught_by: for a control, the check that must catch it.
    wraps: for a control, the baseline that it would be without its trick; measured beside it.
    config: called as the implementation is; what it returns (the chosen tiles, say) is recorded.
    compile_ahead: for kernels that are not Triton's. Called with a compute capability (89) on a
      machine that may have no GPU, gives every variant that the implementation launches there;
      raises `Unsupported` where it launches none, or where its compiler is not installed.
    distributions: the only ones on which it is the op's function, where it is not on all.
    directions: the only ones that it is for (`forward`, `backward`), where it is not for both.
    Raises `UsageError` for an unknown role, device or direction.
    """

    def register(call: F) -> F:
        try:
            known_role = Role(role)
            known_devices = tuple(Runs(device) for device in devices)
            known_directions = tuple(Direction(direction) for direction in directions)
        except ValueError as error:
            raise UsageError(
                f"implementation {name!r}: {error}",
                f"role is one of {', '.join(Role)}; devices are among {', '.join(Runs)}; "
                f"directions are among {', '.join(Direction)}.",
            ) from None
        if known_role is Role.CONTROL and not caught_by:
            raise UsageError(
                f"control {name!r} does not say which check must catch it",
                'give it caught_by="parity" (or another check).',
            )
        _collected.append(
            Implementation(
                op,
                name,
                known_role,
                known_devices,
                caught_by,
                _source,
                call,
                config,
                compile_ahead,
                wraps,
                tuple(distributions),
                known_directions,
            )
        )
        return call

    return register


@contextmanager
def _collecting_from(source: str) -> Iterator[None]:
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def sources(kernels: Path | None = None) -> dict[str, str]:
    """Where implementations come from, each with the sha256 of its files. Imports none of them.

    A distribution's are those of the packages that its entry points name; the user's file is alone.
    """
    found = {
        origin: _digest_packages({point.module.partition(".")[0] for point in points})
        for origin, points in _by_origin().items()
    }
    if kernels is not None:
        content = _read(kernels)
        found[_source_of(kernels, content)] = hashlib.sha256(content).hexdigest()
    return found


def distributions() -> dict[str, str]:
    """The version of every distribution that brings implementations."""
    return {
        origin: points[0].dist.version if points[0].dist else ""
        for origin, points in _by_origin().items()
    }


def load(
    kernels: Path | None = None, expected: Mapping[str, str] | None = None
) -> list[Implementation]:
    """Import the installed implementations and those of the user's file; return them all.

    expected: the sources to import, each with the sha256 it must have; None: all, as they are.
    Raises `UsageError` when a source is not as expected or cannot be imported, or an implementation
    names an unknown op, has the wrong signature, or takes a name that another one has.
    """
    content = b""
    if kernels is not None:
        content = _read(kernels) if expected is None else _read(kernels, PUT_BACK)
    if expected is not None:
        _compare(sources(kernels), expected, kernels)
    for origin, points in _by_origin().items():
        if expected is None or origin in expected:
            for point in points:
                with _collecting_from(origin):
                    _import(point.load, f"entry point {point.name!r} of {origin}")
    if kernels is not None:
        source = _source_of(kernels, content)
        # Like a module, a file is executed once a process.
        if not any(item.source == source for item in _collected):
            with _collecting_from(source):
                _import(lambda: _exec(kernels, content), str(kernels))
            if not any(item.source == source for item in _collected):
                raise UsageError(
                    f"{kernels} registers no implementation",
                    'decorate a function with @nsabench.implementation(op=..., name="mine").',
                )
    _validate(_collected)
    return list(_collected)


def _compare(found: Mapping[str, str], expected: Mapping[str, str], kernels: Path | None) -> None:
    for source, digest in expected.items():
        if found.get(source) != digest:
            # The user's file goes by its path; a distribution by its name.
            mine = kernels is not None and source.startswith(f"{kernels.name}@")
            raise UsageError(
                f"{kernels if mine else source} is not what it was when the run began",
                PUT_BACK,
            )


def _by_origin() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.value):
        found[point.dist.name if point.dist else point.value].append(point)
    return found


def _source_of(kernels: Path, content: bytes) -> str:
    return f"{kernels.name}@{hashlib.sha256(content).hexdigest()[:12]}"


def _digest_packages(packages: set[str]) -> str:
    """The sha256 over names and contents of all files of top-level packages, without importing."""
    total = hashlib.sha256()
    for package in sorted(packages):
        for name, file in sorted(_files(package)):
            total.update(f"{package}/{name}\0".encode() + hashlib.sha256(_read(file)).digest())
    return total.hexdigest()


def _files(package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return  # importing it will say so
    if not spec.submodule_search_locations and spec.origin:
        yield package, Path(spec.origin)
    for root in map(Path, spec.submodule_search_locations or ()):
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield str(file.relative_to(root)), file


def _read(path: Path, remedy: str = "give --kernels a file.") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy) from None


def _exec(path: Path, content: bytes) -> None:
    """Execute the bytes that were hashed, whatever the file may hold by now."""
    module = ModuleType(USER_MODULE)
    module.__file__ = str(path)
    sys.modules[USER_MODULE] = module
    exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)


def _import(load_it: Callable[[], Any], what: str) -> None:
    try:
        load_it()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        where = _last_line_of(error)
        remedy = "fix the import, or run it with `python FILE.py` to see the whole traceback."
        if isinstance(error, ModuleNotFoundError):
            # What lies beside a kernels file is not looked for: no hash of a run would cover it.
            remedy = "install that module as a package, or write what it has into the file."
        raise UsageError(
            f"{what} cannot be imported: {type(error).__name__}: {error}{where}", remedy
        ) from error


def _last_line_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    return f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""


def _validate(found: Sequence[Implementation]) -> None:
    from nsabench import ops

    seen: dict[tuple[str, str], Implementation] = {}
    for item in found:
        if not isinstance(item.name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", item.name):
            raise UsageError(
                f"{item.name!r} ({item.source}) is no name for an implementation",
                "use up to 64 letters, digits, '_', '-' and '.'.",
            )
        if not item.devices:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}) runs on no device",
                f"devices are among {', '.join(Runs)}.",
            )
        _validate_control(item)
        op = ops.to_measure(item.op, f"implementation {item.name!r} ({item.source})")
        unknown = [d for d in item.distributions if d not in op.distributions]
        if unknown:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}): {op.name} has no distribution "
                f"{unknown[0]!r}",
                f"its distributions are {', '.join(op.distributions)}.",
            )
        twin = seen.setdefault((item.op, item.name), item)
        if twin is not item:
            raise UsageError(
                f"two implementations of {item.op} are named {item.name!r}: "
                f"one from {twin.source}, one from {item.source}",
                "rename one of them.",
            )
        try:
            signature, options = _signature(item.call), dict.fromkeys(op.options)
            signature.bind(*op.arguments, **options)
            signature.bind(*op.arguments, *op.optional, **options)
        except TypeError as error:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}) cannot be called as "
                f"{op.call_form(item.name)}: {error}",
                "give the function that signature.",
            ) from None
    for item in found:
        wrapped = seen.get((item.op, item.wraps))
        if item.wraps and (wrapped is None or wrapped.role is not Role.BASELINE):
            raise UsageError(
                f"control {item.name!r} ({item.source}) wraps {item.wraps!r}, which is no baseline "
                f"of {item.op}",
                "name the baseline that it is without its trick, or leave `wraps` away.",
            )


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except ValueError:  # a builtin does not tell: its first call will
        return inspect.signature(lambda *args, **options: None)


def _validate_control(item: Implementation) -> None:
    from nsabench.assessment.checks import all_checks

    is_control = item.role is Role.CONTROL
    if is_control and item.caught_by not in all_checks():
        raise UsageError(
            f"control {item.name!r} ({item.source}) is to be caught by {item.caught_by!r}, which "
            f"is no check",
            f"the checks are {', '.join(sorted(all_checks()))}.",
        )
    if not is_control and (item.caught_by or item.wraps):
        raise UsageError(
            f"implementation {item.name!r} ({item.source}) is a {item.role} and yet says what it "
            f"is caught by or wraps",
            'only a control does: leave that away, or give it role="control".',
        )
