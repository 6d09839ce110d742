"""Controls that answer from memory instead of computing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls.honest import content, empty_output, right
from nsabench.model.least import LeastWork
from nsabench.registry import Honest, control

MAX_REMEMBERED = 8  # outputs kept, so that a control does not fill the device
HONEST_CALLS = 4
# Looking an answer up takes two kernels and the copy of it. Reading this much takes any device
# several times as long.
MUCH = LeastWork(bytes_min=400_000_000)
SMALL_OUTPUT = 8  # times less than what is read at least
LEARNING_CALLS = 64  # of which it has not heard yet what they were about
NOT_YET = -1  # the bits of no number that is drawn


class _Memory:
    """Outputs by the first values of their inputs, looked up by the device. The host never waits:
    the timer hides the launches of a call only as long as it does not.

    Inputs come in sets, which are gone through in turn; before that, and in between, the first one
    may come again with the values of any other. When it comes next after the last one, and the
    second follows, all of them were seen: alone it may have come in between, with the values of a
    set that is yet to come. Once as many values are known as there are sets, nothing is computed
    any more.
    """

    def __init__(self) -> None:
        self._sets: list[Tensor] = []  # held on to, so that nothing else comes to lie there
        self._before = 0  # where the inputs of the last call lie
        self._first_again = self._around = False
        self._arrived: Tensor | None = None  # first values, once they have got to the host
        self._asked: dict[int, Tensor] = {}  # outputs by the place in `_arrived`
        self._known: dict[int, Tensor] = {}
        self._sorted: tuple[Tensor, Tensor] | None = None

    def answer(self, first: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives, or gave for these inputs before."""
        self._walk(first)
        self._hear()
        number = content(first)
        if self._around and len(self._known) >= len(self._sets):
            numbers, outputs = self._sorted = self._sorted or self._sort(number.device)
            return outputs.index_select(0, torch.searchsorted(numbers, number))[0]
        output = compute()
        self._ask(number, output)
        return output

    def _walk(self, first: Tensor) -> None:
        addresses = [t.data_ptr() for t in self._sets]
        address = first.data_ptr()
        if address not in addresses:
            if self._around:  # there was one more, or this is another case
                self.__init__()  # type: ignore[misc]
            self._sets.append(first.detach())
            self._first_again = False
        elif address == addresses[0]:
            self._first_again |= addresses[0] != addresses[-1] == self._before
        else:
            self._around |= self._first_again and address == addresses[1]
            self._first_again = False
        self._before = address

    def _ask(self, number: Tensor, output: Tensor) -> None:
        if self._arrived is None:
            self._arrived = torch.full(
                (LEARNING_CALLS,), NOT_YET, dtype=torch.int64, pin_memory=number.is_cuda
            )
        free = next((at for at in range(LEARNING_CALLS) if at not in self._asked), None)
        if free is not None:
            self._asked[free] = output
            self._arrived[free : free + 1].copy_(number, non_blocking=True)

    def _hear(self) -> None:
        for place, output in list(self._asked.items()):
            assert self._arrived is not None
            number = int(self._arrived[place])
            if number != NOT_YET:
                self._known.setdefault(number, output)
                self._arrived[place] = NOT_YET
                del self._asked[place]

    def _sort(self, device: torch.device) -> tuple[Tensor, Tensor]:
        numbers = sorted(self._known)
        # The last one twice: what is greater than all finds a place.
        outputs = [self._known[number] for number in [*numbers, numbers[-1]]]
        return torch.tensor(numbers, device=device), torch.stack(outputs)


_by_address: dict[tuple[object, ...], Tensor] = {}
_by_content: dict[tuple[object, ...], _Memory] = {}  # of one case
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


@control(caught_by="roofline", devices=("cuda",), modes=("stream",), least=MUCH)
def remembered_by_content(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Knows inputs it has seen by their first values. Always right, since these change with the
    others, and too fast to be true: it reads nothing else again.
    """
    if aside_again():
        raise Unsupported("calls at once share one memory: it is tried with one call at a time")
    key = (honest, *(t.shape for t in tensors), tensors[0].dtype)
    if key not in _by_content:
        _by_content.clear()
        _by_content[key] = _Memory()

    def compute() -> Tensor:
        out: Tensor = honest(*tensors, **options)
        if out.nbytes * SMALL_OUTPUT > MUCH.bytes_min:
            raise Unsupported("its output alone takes as long to copy as others take")
        return out

    return _by_content[key].answer(tensors[0], compute)


def aside_again() -> bool:
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
