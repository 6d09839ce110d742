"""Makes Triton's interpreter twice as fast: it prepares the language once a launch, and each type
once.

It replaces hundreds of functions of ``triton.language`` by ones of numpy before a launch. It does
that again at every call of every function that a kernel calls, such as ``tl.max``. Within a launch
the second time changes nothing.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import triton.language as tl


class _Launch:
    """Modules that one launch has prepared, and how to restore them at its end."""

    def __init__(self, prepare: Any) -> None:
        self._prepare = prepare
        self._prepared: set[str] = set()
        self._seen: set[Any] = set()
        self._outermost: Any = None

    def __call__(self, fn: Any) -> Any:
        """Stands for ``_patch_lang``; what it returns is asked to ``restore`` by a launch only."""
        if fn in self._seen:
            return self
        self._seen.add(fn)
        # The modules that Triton's own function looks for in the globals of a kernel.
        needed = {m.__name__ for m in fn.__globals__.values() if m is tl or m is tl.core}
        if not needed or not needed <= self._prepared:
            scope = self._prepare(fn)
            self._prepared |= needed
            if self._outermost is None:
                self._outermost = scope
        return self

    def restore(self) -> None:
        self._prepared.clear()
        self._seen.clear()
        scope, self._outermost = self._outermost, None
        scope.restore()


def prepare_once_a_launch() -> None:
    """Prepare each module once a launch, if this Triton restores the language after a launch.

    Older Tritons leave the language changed.
    """
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope") or isinstance(interpreter._patch_lang, _Launch):
        return
    interpreter._patch_lang = _Launch(interpreter._patch_lang)


def remember_shapes() -> None:
    """Make Triton build each type and shape of blocks once in this process.

    Each value of a kernel is a tensor, whose type and shape Triton makes anew, with several objects
    for each dimension. Nothing that is kept is ever altered.
    """
    core = tl.core
    if hasattr(core.tensor.__init__, "__wrapped__"):
        return
    of_a_block, of_a_tensor = core.block_type.__init__, core.tensor.__init__
    blocks: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, dict[str, Any]] = {}

    @wraps(of_a_block)
    def block(self: Any, element_ty: Any, shape: Any) -> None:
        lengths = tuple([getattr(length, "value", length) for length in shape])
        key = (element_ty.name, lengths)
        if key not in blocks:
            of_a_block(self, element_ty, shape)
            blocks[key] = {n: v for n, v in vars(self).items() if n != "element_ty"}
        else:
            self.element_ty = element_ty
            vars(self).update(blocks[key])

    @wraps(of_a_tensor)
    def tensor(self: Any, handle: Any, type: Any) -> None:
        known = shapes.get(type.name)
        if known is None:
            of_a_tensor(self, handle, type)
            shapes[type.name] = {"shape": self.shape, "numel": self.numel}
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known["shape"], known["numel"]

    core.block_type.__init__, core.tensor.__init__ = block, tensor
