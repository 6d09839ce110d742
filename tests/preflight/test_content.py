"""The hash of what a launch is compiled from changes with everything that changes the code."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.compiler", reason="Triton is not here, or older than 3.0")

import triton.language as tl
from triton.runtime.jit import JITFunction

from nsabench.preflight import content as contents
from nsabench.preflight import pretend, record
from nsabench.preflight.architectures import ARCHITECTURES
from nsabench.preflight.content import content
from nsabench.preflight.record import Call, Pointer

# Under the interpreter, which other tests ask for, `triton.jit` makes something else of a function.
KERNELS = """
import triton.language as tl
from triton.runtime.jit import JITFunction

LEAST = 3

@JITFunction
def scaled(x):
    return x * 2.0

def decorated(function):
    return JITFunction(function, debug=None)

@decorated
def kernel(x_ptr, n, fs, least: tl.constexpr = LEAST):
    tl.store(x_ptr, fs[0](tl.load(x_ptr)))
"""


@pytest.fixture(autouse=True)
def asked_anew() -> Any:
    contents._compiler.cache_clear()
    yield
    contents._compiler.cache_clear()


def loaded(folder: Path, old: str = "", new: str = "") -> ModuleType:
    """The kernels with a change, each time from another file, since Python remembers sources."""
    assert old in KERNELS
    path = folder / f"own_{len(list(folder.iterdir()))}.py"
    path.write_text(KERNELS.replace(old, new) if old else KERNELS)
    spec = importlib.util.spec_from_file_location("own", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hashed(module: ModuleType, fs: Any = None, **keywords: Any) -> str:
    """Of a launch that hands `scaled` to the kernel in a tuple, or `fs` in its place."""
    handed = (module.scaled,) if fs is None else fs
    arguments = (Pointer(torch.empty(16)), 16, handed)
    return content(Call(module.kernel, arguments, keywords), ARCHITECTURES["sm_90"])


def test_the_same_is_the_same(tmp_path: Path) -> None:
    """Numbers that code is not specialised on are no part of it."""
    first = hashed(loaded(tmp_path))
    assert len(first) == 64 and first == hashed(loaded(tmp_path))
    module = loaded(tmp_path)
    call = Call(module.kernel, (Pointer(torch.empty(8)), 32, (module.scaled,)), {})
    assert content(call, ARCHITECTURES["sm_90"]) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2.0", "x * 3.0"),  # of a function that is handed over in a tuple
        ("LEAST = 3", "LEAST = 4"),  # a default, whose name in the source stays
        ("debug=None", "debug=True"),
        ("debug=None", "noinline=True"),
        ("debug=None", "do_not_specialize=['n']"),
        ("debug=None", "do_not_specialize_on_alignment=['n']"),
        ("debug=None", "version=2"),
    ],
)
def test_a_change_of_the_file_that_changes_the_code(tmp_path: Path, old: str, new: str) -> None:
    setting = new.partition("=")[0]
    if old == "debug=None" and setting not in inspect.signature(JITFunction.__init__).parameters:
        pytest.skip(f"this Triton has no {setting}")
    assert len({"", hashed(loaded(tmp_path)), hashed(loaded(tmp_path, old, new))}) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((tl.constexpr(16),), (tl.constexpr(32),)),
        (tl.constexpr(16), tl.constexpr(32)),
        (((tl.constexpr(16), 5), 7), ((tl.constexpr(32), 5), 7)),
        ((tl.constexpr(1),), (tl.constexpr("1"),)),
        ((tl.float16,), (tl.float32,)),
        (("left",), ("right",)),
    ],
)
def test_a_constant_that_a_launch_is_handed(tmp_path: Path, one: Any, other: Any) -> None:
    module = loaded(tmp_path)
    assert len({"", hashed(module, one), hashed(module, other)}) == 3
    assert hashed(module, one) == hashed(module, one)


def test_a_tensor_that_is_copied_in_boxes(tmp_path: Path) -> None:
    """What is compiled follows from what a copy takes and from the dtype, and not from where the
    tensor is or how long."""
    tensor_descriptor = pytest.importorskip("triton.tools.tensor_descriptor")
    module = loaded(tmp_path)

    def of(x: torch.Tensor, *box: int) -> str:
        described = tensor_descriptor.TensorDescriptor.from_tensor(x, list(box))
        held = record._pointers(described)
        assert isinstance(held.base, Pointer)  # no memory is kept
        arguments = (held, 16, (module.scaled,))
        return content(Call(module.kernel, arguments, {}), ARCHITECTURES["sm_90"])

    half, wide = torch.empty(64, 128, dtype=torch.float16), torch.empty(64, 128)
    assert len({"", of(half, 64, 64), of(half, 32, 64), of(wide, 64, 64)}) == 4
    assert of(half, 64, 64) == of(torch.empty(96, 128, dtype=torch.float16)[32:], 64, 64)


def test_what_is_of_no_known_kind_has_no_hash(tmp_path: Path) -> None:
    module = loaded(tmp_path)
    assert hashed(module, (object(),)) == ""
    assert hashed(module, (tl.constexpr({"a": 1}),)) == ""
    assert hashed(module, ir_override=object()) == ""
    assert hashed(module, num_warps=4) not in ("", hashed(module, num_warps=8))


@pytest.mark.parametrize("name", ["DISABLE_LLVM_OPT", "TRITON_DEFAULT_FP_FUSION", "LLVM_ANYTHING"])
def test_a_variable_that_changes_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The first is not named like the others: Triton's own list has it."""
    module = loaded(tmp_path)
    monkeypatch.delenv(name, raising=False)
    without = hashed(module)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    contents._compiler.cache_clear()
    assert hashed(module) == without
    monkeypatch.setenv(name, "1")
    contents._compiler.cache_clear()
    assert hashed(module) != without


def test_the_files_of_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's own hash of them, of which a Triton may have none."""
    module = loaded(tmp_path)
    owners = [one for one in contents._KEY_OWNERS if hasattr(one, "triton_key")]
    found = {"", hashed(module)}
    for changed in ("another", None):
        for owner in owners:
            if changed is None:
                monkeypatch.delattr(owner, "triton_key")
            else:
                monkeypatch.setattr(owner, "triton_key", lambda: "another")
        contents._compiler.cache_clear()
        found.add(hashed(module))
    assert len(found) == 4


@pytest.mark.parametrize("changed", [pretend, record])
def test_our_own_modules_that_say_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: ModuleType
) -> None:
    module = loaded(tmp_path)
    first = hashed(module)
    source = inspect.getsource
    monkeypatch.setattr(
        inspect, "getsource", lambda one: source(one) + ("# more" if one is changed else "")
    )
    contents._compiler.cache_clear()
    assert hashed(module) not in ("", first)
