"""Guard the process against foreign code: what it raises, what it changes, what it leaves.

An exception becomes a status with a reason. Changed settings are set back. Memory is given back.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

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
LINKS = 10  # the most causes of an error that are read
_OURS = str(Path(nsabench.__file__).parent)
_MOST_REASON = 1000  # characters
_MOST_TRACE = 16_000  # characters


def guarded(call: Callable[[], T], device: str, implementation: str = "") -> T:
    """Make a call and wait for the device. Raises `Failure`, or `DeviceLost`."""
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
    # A library may turn the error of a compiler into one of its own.
    if any(type(link).__name__ in _COMPILER_ERRORS for link in _list_causes(error, explicit=True)):
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
    """Return the traceback of an error and of its causes, without nsabench's outer frames."""
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
    try:  # `str` may call foreign code
        text = " ".join(str(error).split())
    except Exception as inner:  # noqa: BLE001 - a hostile __str__
        return f"its text cannot be read ({type(inner).__name__})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _locate(error: BaseException, *, of_the_user: bool = False) -> str:
    """Return an error's line: the innermost in the user's file or else, by default, in any file."""
    lines = list(_list_lines(error))
    own = getattr(sys.modules.get(USER_MODULE), "__file__", None)
    innermost = ("", 0) if of_the_user else next(iter(lines), ("", 0))
    path, number = next((line for line in lines if line[0] == own), innermost)
    return f" ({path.rsplit('/', 1)[-1]}:{number})" if path else ""


def _list_lines(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield file and line of each frame, the first cause and the innermost frame first."""
    for link in reversed(_list_causes(error)):
        for frame, number in reversed([*traceback.walk_tb(link.__traceback__)]):
            yield frame.f_code.co_filename, number


def _list_causes(error: BaseException, *, explicit: bool = False) -> list[BaseException]:
    """Return an error and its causes; if `explicit`, only those that a `raise ... from` names."""
    links: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(links) < LINKS:  # causes may form a cycle
        links.append(cause)
        cause = cause.__cause__ or (None if explicit else cause.__context__)
    return links


_CDLL = ctypes.CDLL  # bound before foreign code is imported
# Values of CUlimit. If a kernel sets most of the L2 aside, later kernels have less of it.
_LIMITS = {"L2 set aside": 6, "bytes fetched into L2": 5}
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream


def _read_limit(which: int) -> int:
    """Return a limit of the CUDA driver in bytes. Raises RuntimeError."""
    bytes_ = ctypes.c_size_t()
    _refuse_code("cuCtxGetLimit", _driver().cuCtxGetLimit(ctypes.byref(bytes_), which))
    return bytes_.value


def _set_limit(which: int, bytes_: int) -> None:
    _refuse_code("cuCtxSetLimit", _driver().cuCtxSetLimit(which, ctypes.c_size_t(bytes_)))


@cache
def own_stream() -> torch.cuda.Stream:
    """Return a stream that torch gives to no candidate. Torch shares out 32 streams of its own."""
    torch.cuda.synchronize()  # makes torch create its context
    handle = ctypes.c_void_p()
    _refuse_code("cuStreamCreate", _driver().cuStreamCreate(ctypes.byref(handle), NON_BLOCKING))
    return torch.cuda.ExternalStream(handle.value)


@cache
def _driver() -> ctypes.CDLL:
    return _CDLL("libcuda.so.1")


def _refuse_code(function: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{function} gave {code}")


Settings = dict[str, Any]
Access = tuple[Callable[[], Any], Callable[[Any], object]]  # how to read and write a setting
UNREADABLE = "unreadable"


def _access(owner: object, name: str) -> Access:
    return partial(getattr, owner, name), partial(setattr, owner, name)


# Bound before foreign code is imported.
_backends, _cuda = torch.backends, torch.cuda
_OF_TORCH: dict[str, Access] = {
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic_algorithms": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    **{
        name: (getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"))
        for name in ("num_threads", "default_dtype", "float32_matmul_precision")
    },
    **{
        f"cudnn.{name}": _access(_backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    **{
        f"matmul.{name}": _access(_backends.cuda.matmul, name)
        for name in (f"allow_{dtype}_reduced_precision_reduction" for dtype in ("fp16", "bf16"))
    },
    **{
        f"sdp.{name}": (
            getattr(_backends.cuda, f"{name}_sdp_enabled"),
            getattr(_backends.cuda, f"enable_{name}_sdp"),
        )
        for name in ("flash", "mem_efficient", "math", "cudnn")
        if hasattr(_backends.cuda, f"enable_{name}_sdp")  # cudnn since torch 2.5
    },
}


def _popped(length: Callable[[], int], pop: Callable[[], object], before: int) -> None:
    while length() > before:
        pop()


ENVIRONMENT = "environment"
# The dictionary inside `os.environ`. Reading `os.environ` itself takes ten times as long.
_environment: dict[Any, Any] = vars(os.environ)["_data"]
_least, _one = 5e-324, 1.0  # as variables, since Python would precompute constants


def _flushes_denormals() -> bool:
    return _least * _one == 0.0


def _set_environment(before: dict[Any, Any]) -> None:
    for name in _environment.keys() - before.keys():
        os.unsetenv(name)
    for name, value in before.items():
        os.putenv(name, value)
    _environment.clear()
    _environment.update(before)


def _timers() -> tuple[int, ...]:
    return tuple(timer for timer in _TIMERS if _getitimer(timer)[0])


def _stop_timers(going: tuple[int, ...]) -> None:
    for timer in _TIMERS:
        if timer not in going:
            _setitimer(timer, 0)


_collect, _freeze, _unfreeze = gc.collect, gc.freeze, gc.unfreeze
_empty_cache = torch.cuda.empty_cache
_getitimer, _setitimer = signal.getitimer, signal.setitimer
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_functions, _dispatches = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
# If one of these stays set, it alters or slows the calls of other implementations.
_HOOKS: dict[str, Access] = {
    **{
        name: (
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
        )
        for name, device in (("autocast", "cuda"), ("autocast on the CPU", "cpu"))
    },
    "modes of torch functions": (
        _functions,
        partial(_popped, _functions, torch._C._pop_torch_function_stack),
    ),
    "modes of torch dispatch": (
        _dispatches,
        partial(_popped, _dispatches, partial(torch._C._pop_torch_dispatch_stack, None)),
    ),
    "timers": (_timers, _stop_timers),
    "trace function": (sys.gettrace, sys.settrace),
    "profile function": (sys.getprofile, sys.setprofile),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "flushing of denormals": (_flushes_denormals, torch.set_flush_denormal),
}
# These are harmless once they are set back: a library may change them for itself.
HARMLESS: dict[str, Access] = {
    ENVIRONMENT: (partial(dict, _environment), _set_environment),
    "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "threshold of garbage collection": (gc.get_threshold, lambda most: gc.set_threshold(*most)),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
}
_OF_TORCH |= _HOOKS | HARMLESS
if hasattr(torch._C, "_get_sdp_priority_order"):  # torch 2.6
    _OF_TORCH["sdp.order"] = torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order
_OF_CUDA: dict[str, Access] = {
    "current_device": (_cuda.current_device, _cuda.set_device),
    "current_stream": (_cuda.current_stream, _cuda.set_stream),
    **{
        name: (partial(_read_limit, which), partial(_set_limit, which))
        for name, which in _LIMITS.items()
    },
}


@cache
def _let_torch_order_attention() -> None:
    """Have torch put the backends of SDPA in its order for this GPU, as the first SDPA would.

    Before that, torch reports an order that it does not use.
    """
    if "sdp.order" in _OF_TORCH:
        tiny = torch.empty(1, 1, 8, 64, dtype=torch.float16, device="cuda")
        torch._fused_sdp_choice(tiny, tiny, tiny)


def settings() -> Settings:
    if torch.cuda.is_initialized():
        _let_torch_order_attention()
    readable = _OF_TORCH | (_OF_CUDA if torch.cuda.is_initialized() else {})
    return {name: _read(read) for name, (read, _) in readable.items()}


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    # torch 2.9 raises it if TF32 was set in two ways. Other causes: no device, or a MIG slice.
    except RuntimeError:
        return UNREADABLE


def restore(before: Settings) -> dict[str, str]:
    """Set back all changed settings. Return a description of each change, by setting."""
    changes, now = {}, settings()
    for name, value in before.items():
        if now[name] != value:
            changes[name] = _describe_change(name, value, now[name])
            if value != UNREADABLE:
                with suppress(RuntimeError):  # as in `_read`
                    (_OF_TORCH | _OF_CUDA)[name][1](value)
    return changes


def _describe_change(name: str, before: Any, now: Any) -> str:
    if name == ENVIRONMENT:  # a value may be a secret
        changed = {os.fsdecode(variable) for variable, _ in before.items() ^ now.items()}
        return f"{name} ({', '.join(sorted(changed)[:5])})"
    return f"{name} from {before} to {now}"


def forget_earlier_cases() -> None:
    """Free what tracebacks of earlier cases hold, and reset torch.compile."""
    # torch compiles a function for a few shapes (8, by default), and silently runs it uncompiled
    # for later shapes, which takes far longer.
    frames = sys.modules.get("torch._dynamo.convert_frame")
    # `reset` imports for seconds, so it is called only if something was compiled.
    if frames is not None and frames.FRAME_COUNTER:
        sys.modules["torch._dynamo"].reset()
        collect_all()
    else:
        _collect_garbage()


def give_back(device: str) -> None:
    """Free the device's cached memory for other workers. The next request reports any error."""
    if device == "cuda":
        with suppress(Failure, DeviceLost):
            for step in (_collect_garbage, _collect_dropped, _empty_cache):
                guarded(step, device)


_modules_frozen = 0
_idle_bytes: int | None = None  # device memory that stays allocated after the first case


def _collect_garbage() -> None:
    # The objects of modules are frozen, since collecting those of torch takes 0.2 s.
    if len(sys.modules) == _modules_frozen:
        _collect()
    else:
        collect_all()


def _collect_dropped() -> None:
    # An object that was frozen in an earlier case may hold memory.
    global _idle_bytes
    if _idle_bytes is None:
        _idle_bytes = torch.cuda.memory_allocated()
    elif torch.cuda.memory_allocated() > _idle_bytes:
        collect_all()


def collect_all() -> None:
    global _modules_frozen
    _unfreeze()
    _collect()
    _freeze()
    _modules_frozen = len(sys.modules)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Switch the garbage collector off: if it frees a CUDA graph, another graph's capture fails."""
    _collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
