"""Makes Triton's interpreter faster, for tests.

Before each operation Triton checks the types and shapes of two operands in dozens of steps. Most
operands have one plain type and need at most a broadcast, which is done here in one step. Triton's
own functions do the rest.

Before a launch Triton also replaces hundreds of functions of ``triton.language`` by functions of
numpy. It does so again at every call of every function that a kernel calls, such as ``tl.max``.
Within a launch only the first time changes anything, so here it is done once.
"""

from functools import wraps
from typing import Any

import triton.language as tl

_PLAIN = frozenset({"int1", "int32", "int64", "fp16", "bf16", "fp32", "fp64"})
_LIMITS = {"int32": 1 << 31, "int64": 1 << 63, "fp32": 1 << 63}
_OFFSETS = frozenset({"int32", "int64"})
_MOST_KEPT = 1 << 10  # constants
_LARGEST_KEPT = 1 << 12  # elements of a constant


def quicken():
    """Change the interpreter of this process.

    For an older Triton, which leaves the language changed, only types and shapes are remembered.
    """
    from triton.runtime import interpreter

    _prepare_once_a_launch(interpreter)
    _remember_shapes()
    _remember_types(interpreter)
    semantic = getattr(interpreter, "interpreter_semantic", None)
    if (
        semantic is None
        or not hasattr(interpreter, "_LangPatchScope")
        or not hasattr(tl.block_type(tl.int32, [1]).shape, "values")
        or hasattr(semantic.cast, "__wrapped__")
    ):
        return
    _call_builtins_directly(interpreter, semantic)
    _skip_unread_checks(semantic)
    _prepare_operands(interpreter, semantic)


def _remember_types(interpreter):
    """Keep the table of types, which Triton makes anew for each operand."""
    own = interpreter._get_np_dtype
    if hasattr(own, "__wrapped__"):
        return
    known = {}

    @wraps(own)
    def numpy_dtype(dtype):
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(element, tl.pointer_type):
            return own(dtype)
        found = known.get(element.name)
        if found is None:
            found = known[element.name] = own(element)
        return found

    interpreter._get_np_dtype = numpy_dtype


def _call_builtins_directly(interpreter, semantic):
    """Call the builtins of the language through one function instead of two."""
    own = interpreter._patch_attr
    of_a_builtin = tl.core.builtin(lambda: None).__code__

    @wraps(own)
    def patch(obj, name, member, builder, scope):
        if getattr(member, "__code__", None) is not of_a_builtin:
            own(obj, name, member, builder, scope)
            return
        function = member.__wrapped__

        def call(*args, **kwargs):
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        scope.set_attr(obj, name, call)

    interpreter._patch_attr = patch


def _skip_unread_checks(semantic):
    """Check integers for overflow only in debug mode: otherwise Triton ignores the result."""
    look = semantic.binary_op_sanitize_overflow_impl

    @wraps(look)
    def look_if_read(lhs, rhs, binary_op):
        if semantic.builder.options.debug:
            look(lhs, rhs, binary_op)

    semantic.binary_op_sanitize_overflow_impl = look_if_read


def _prepare_operands(interpreter, semantic):
    import numpy as np

    handle_of = interpreter.TensorHandle
    tensor, block_type = tl.core.tensor, tl.core.block_type
    own_check = semantic.binary_op_type_checking_impl
    own_broadcast = semantic.broadcast_impl_value
    own_cast = semantic.cast
    shapes = {}
    kept = {}

    @wraps(own_check)
    def check(lhs, rhs, *rules, **named):
        # The first two rules allow pointers. Divisions pass more rules, and so do operations
        # without arithmetic.
        if len(rules) <= 2 and not named:
            if type(lhs) is tensor:
                name = lhs.dtype.name
                if type(rhs) is tensor:
                    if name == rhs.dtype.name and name in _PLAIN:
                        return broadcast(lhs, rhs)
                    if rules and rules[0] and rhs.dtype.name in _OFFSETS and lhs.dtype.is_ptr():
                        return broadcast(lhs, rhs)
                elif _becomes(rhs, name):
                    return lhs, constant(rhs, lhs)
            elif type(rhs) is tensor and _becomes(lhs, rhs.dtype.name):
                return constant(lhs, rhs), rhs
        return own_check(lhs, rhs, *rules, **named)

    def constant(number, beside):
        """Return the number in the type and shape of a tensor. Some small results are kept; nothing
        writes to their data."""
        of = beside.type
        is_block = type(of) is block_type
        shape = tuple(of.shape.values) if is_block else ()
        key = (number, type(number), beside.dtype.name, shape)
        found = kept.get(key)
        if found is None:
            found = semantic.scalar_constant(number, beside.dtype)
            if is_block:
                found = fill(found, of.shape)
            # Both zeros are equal as keys, and NaN does not even equal itself.
            is_one_key = type(number) is int or (number == number and number != 0)
            if is_one_key and len(kept) < _MOST_KEPT and found.handle.data.size <= _LARGEST_KEPT:
                found.handle.data.flags.writeable = False
                kept[key] = found
        return found

    @wraps(own_broadcast)
    def broadcast(lhs, rhs):
        left, right = lhs.type, rhs.type
        if type(left) is not block_type:
            return (fill(lhs, right.shape), rhs) if type(right) is block_type else (lhs, rhs)
        if type(right) is not block_type:
            return lhs, fill(rhs, left.shape)
        of_left, of_right = left.shape.values, right.shape.values
        if of_left == of_right:
            return lhs, rhs
        if len(of_left) != len(of_right):
            return own_broadcast(lhs, rhs)
        shape = shapes.get((*of_left, *of_right))
        if shape is None:
            lhs, rhs = own_broadcast(lhs, rhs)
            shapes[(*of_left, *of_right)] = lhs.type.shape.values
            return lhs, rhs
        return spread(lhs, shape), spread(rhs, shape)

    def spread(value, shape):
        if value.type.shape.values == shape:
            return value
        handle = value.handle
        handle = handle_of(np.broadcast_to(handle.data, shape), handle.dtype.scalar)
        return tensor(handle, block_type(value.dtype, shape))

    def fill(value, shape):
        # The handle of a comparison has the type of its operands, not the type of its tensor.
        handle = value.handle
        data = np.empty(shape.values, interpreter._get_np_dtype(handle.dtype))
        data[...] = handle.data
        return tensor(handle_of(data, handle.dtype.scalar), block_type(value.dtype, shape))

    @wraps(own_cast)
    def cast(input, dst_ty, fp_downcast_rounding=None):
        if input.dtype is dst_ty.scalar:
            return input
        return own_cast(input, dst_ty, fp_downcast_rounding)

    semantic.binary_op_type_checking_impl = check
    semantic.broadcast_impl_value = broadcast
    semantic.cast = cast


def _becomes(number, name):
    """Return whether a Python number takes the tensor type of this name, and fits into it."""
    if type(number) is int and name in _LIMITS:
        return -_LIMITS[name] <= number < _LIMITS[name]
    return name == "fp32" and type(number) is float


class _Launch:
    """Modules that one launch has prepared, and how to restore them at its end."""

    def __init__(self, prepare):
        self._prepare = prepare
        self._prepared: set[str] = set()
        self._seen: set[Any] = set()
        self._outermost: Any = None

    def __call__(self, fn):
        """Replaces ``_patch_lang``. Only a launch calls ``restore`` of the result."""
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

    def restore(self):
        self._prepared.clear()
        self._seen.clear()
        scope, self._outermost = self._outermost, None
        scope.restore()


def _prepare_once_a_launch(interpreter):
    """Prepare each module once a launch, if this Triton restores the language after a launch.

    Older Tritons leave the language changed.
    """
    if not hasattr(interpreter, "_LangPatchScope") or isinstance(interpreter._patch_lang, _Launch):
        return
    interpreter._patch_lang = _Launch(interpreter._patch_lang)


def _remember_shapes():
    """Make Triton build each type and shape of blocks once in this process.

    Each value of a kernel is a tensor, whose type and shape Triton makes anew, with several objects
    for each dimension. Nothing that is kept is ever altered.
    """
    core = tl.core
    if hasattr(core.tensor.__init__, "__wrapped__"):
        return
    of_a_block, of_a_tensor = core.block_type.__init__, core.tensor.__init__
    blocks = {}
    shapes = {}

    @wraps(of_a_block)
    def block(self, element_ty, shape):
        lengths = tuple([getattr(length, "value", length) for length in shape])
        key = (element_ty.name, lengths)
        if key not in blocks:
            of_a_block(self, element_ty, shape)
            blocks[key] = {n: v for n, v in vars(self).items() if n != "element_ty"}
        else:
            self.element_ty = element_ty
            vars(self).update(blocks[key])

    @wraps(of_a_tensor)
    def tensor(self, handle, type):
        known = shapes.get(type.name)
        if known is None:
            of_a_tensor(self, handle, type)
            shapes[type.name] = {"shape": self.shape, "numel": self.numel}
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known["shape"], known["numel"]

    core.block_type.__init__, core.tensor.__init__ = block, tensor
