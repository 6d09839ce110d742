"""Controls that answer from memory instead of computing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.controls.capturing import decline_in_a_graph
from nsabench.implementations.controls.honest import empty_output, right
from nsabench.registry import Honest, control

MAX_REMEMBERED = 8  # outputs kept, so that a control does not fill the device
HONEST_CALLS = 4
KEY_ELEMENTS = 8
# Looking an answer up takes some kernels; it pays only where reading the inputs takes longer than
# that on any device.
WORTH_REMEMBERING = 500_000_000  # bytes of K and V
# Inputs come in so many sets, in any order, and it learns until it has seen them all, as a rule in
# six calls. A control may have no more than 20 timed calls: its median must be that of a look-up.
SETS = 3
LEARNING_CALLS = 60  # at most, where there are fewer sets


class _Memory:
    """Outputs by the first keys of their inputs, looked up by the device. The host never waits: the
    timer hides the launches of a call only as long as it does not."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []  # the first keys of the inputs, as they were
        self._outputs: list[Tensor] = []
        self._addresses: set[int] = set()
        self._arrived: Tensor | None = None  # the same on the host, once they have got there
        self._stacked: tuple[Tensor, Tensor] | None = None

    def answer(self, k: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives, or gave for these inputs before."""
        keys = k.view(-1)[:KEY_ELEMENTS]
        if self._stacked is None:
            self._addresses.add(k.data_ptr())
            output = compute()
            # A warm-up calls with one set, whose values may be exchanged for any other's.
            if len(self._addresses) > 1:
                self._seen.append(keys.clone())
                self._outputs.append(output)
            if self._known(keys) >= SETS or len(self._seen) == LEARNING_CALLS:
                self._stacked = torch.stack(self._seen), torch.stack(self._outputs)
            return output
        seen, outputs = self._stacked
        same = (seen == keys).all(1)
        return outputs.index_select(0, same.int().argmax().view(1))[0]

    def _known(self, keys: Tensor) -> int:
        """How many inputs it has seen that differ, as far as the host has heard."""
        if self._arrived is None:  # in the first call, which may wait: the device is not held
            size = (LEARNING_CALLS, KEY_ELEMENTS)
            self._arrived = torch.full(size, torch.nan, dtype=keys.dtype, pin_memory=keys.is_cuda)
        if self._seen:
            self._arrived[len(self._seen) - 1].copy_(keys, non_blocking=True)
        rows = self._arrived.float()
        return len(torch.unique(rows[~rows.isnan().any(1)], dim=0))


_by_address: dict[tuple[object, ...], Tensor] = {}
_by_content: dict[tuple[object, ...], _Memory] = {}
_calls: Counter[tuple[object, ...]] = Counter()
_was_aside = False


def _recall(memory: dict[tuple[object, ...], Tensor], key: tuple[object, ...]) -> Tensor | None:
    if key not in memory and len(memory) >= MAX_REMEMBERED:
        memory.clear()
    return memory.get(key)


@control(caught_by="parity")
def cached_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Returns what it returned before for these addresses, whatever lies there now."""
    key = (honest, *((t.data_ptr(), t.shape, t.dtype) for t in tensors))
    out = _recall(_by_address, key)
    if out is None:
        out = _by_address[key] = right(honest, tensors, options)
    return out


@implementation(
    op="selection_rows",
    name="remembered_by_content",
    role="control",
    devices=("cuda",),
    caught_by="roofline",
)
def remembered_by_content(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Knows inputs it has seen by the first keys. Always right, since they change with the others,
    and too fast to be true: it never reads K and V again.
    """
    decline_in_a_graph(q)
    if k.nbytes + v.nbytes < WORTH_REMEMBERING:
        raise Unsupported(f"under {WORTH_REMEMBERING / 1e6:.0f} MB of K and V it does not pay")
    if _aside_again():
        raise Unsupported("calls at once share one memory: it is tried with one call at a time")
    memory = _by_content.setdefault((q.shape, k.shape, v.shape, q.dtype), _Memory())
    return memory.answer(k, lambda: heads_as_queries(q, k, v, sm_scale))


def _aside_again() -> bool:
    """Whether this call and the one before were both on other streams than the default one. A
    single one of them may be a look at whether it is in order there."""
    global _was_aside
    before, _was_aside = _was_aside, torch.cuda.current_stream() != torch.cuda.default_stream()
    return before and _was_aside


@control(caught_by="parity")
def batch_and_skip(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Works on the first calls, the ones that are usually checked, and skips all later ones."""
    key = (honest, *((t.shape, t.dtype, t.device) for t in tensors), *options.items())
    _calls[key] += 1
    if _calls[key] <= HONEST_CALLS:
        return honest(*tensors, **options)
    return empty_output(honest, tensors, options)
