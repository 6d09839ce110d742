"""Finds machine code that reads a uniform register (UR0 to UR62) which nothing wrote.

ptxas 12.8 (Tritons 3.4 to 3.7) miscompiles some `wgmma` kernels: if operands of different layouts
share a base, one address is never written. A read is reported if some path leads to it without a
write. A write under a predicate counts as a write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

_LABEL = re.compile(r"^(\.L_x_\d+):")
_LINE = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:@(!?U?P[T\d]+)\s+)?(\S+)\s*(.*?)\s*;")
_REGISTER = re.compile(r"(g?desc\[)?\bUR(\d+)\b")
_TARGET = re.compile(r"\.L_x_\d+")
# Opcodes whose first operand is a uniform register that they write.
_WRITES_UNIFORM = ("U", "S2UR", "R2UR", "CS2UR", "VOTE", "REDUX")
_WRITES_TWO = (".64", "UIMAD.WIDE")
_ZERO = 63  # URZ, which is always zero


@dataclass(frozen=True)
class Instruction:
    """One instruction. address: hexadecimal, as the disassembler prints it."""

    address: str
    opcode: str
    predicated: bool
    target: str
    writes: frozenset[int]
    reads: frozenset[int]


@dataclass(frozen=True)
class Unwritten:
    """An instruction that reads uniform registers which may never have been written."""

    address: str
    opcode: str
    registers: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(f"UR{n}" for n in self.registers)
        return f"{self.opcode} at 0x{self.address} reads {names}"


def unwritten(listing: str) -> list[Unwritten]:
    """Return reads without a write in a listing of `nvdisasm -c` for sm_90."""
    code, labels = _parse_listing(listing)
    before = _find_written(code, labels)
    found = []
    for instruction, written in zip(code, before, strict=True):
        if written is not None and (missing := instruction.reads - written):
            found.append(Unwritten(instruction.address, instruction.opcode, tuple(sorted(missing))))
    return found


def _parse_listing(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := _LINE.match(line):
            address, predicate, opcode, operands = found.groups()
            code.append(_make_instruction(address, predicate is not None, opcode, operands))
    return code, labels


def _make_instruction(address: str, predicated: bool, opcode: str, operands: str) -> Instruction:
    given = [operand.strip() for operand in operands.split(",")]
    while opcode.startswith("R2UR") and re.match(r"U?P[T\d]", given[0]):
        del given[0]  # it may write a predicate first
    target = _TARGET.search(operands)
    conditional = predicated or (opcode.startswith("BRA") and "P" in operands.split(".L_x_")[0])
    return Instruction(
        address,
        opcode,
        conditional,
        target[0] if target and opcode.startswith("BRA") else "",
        frozenset(_list_writes(opcode, given[0])),
        frozenset(chain.from_iterable(_list_reads(opcode, given))) - {_ZERO},
    )


def _list_writes(opcode: str, first: str) -> range:
    register = re.match(r"UR(\d+)\b", first)
    if register is None or not opcode.startswith(_WRITES_UNIFORM):
        return range(0)
    number = int(register[1])
    wide = any(part in opcode for part in _WRITES_TWO)
    return range(number, number + (4 if ".128" in opcode else 2 if wide else 1))


def _list_reads(opcode: str, operands: list[str]) -> Iterator[range]:
    for place, operand in enumerate(operands):
        if place == 0 and len(_list_writes(opcode, operand)):
            continue
        for kind, name in _REGISTER.findall(operand):
            number = int(name)
            if kind == "gdesc[":
                # wgmma: two registers for each operand in shared memory.
                both = operands[1].startswith("gdesc")
                yield range(number if both else number + 2, number + 4)
            else:
                pair = kind == "desc[" or opcode.startswith(("UIADD3.64", "UMOV.64"))
                yield range(number, number + (2 if pair else 1))


def _find_written(code: list[Instruction], labels: dict[str, int]) -> list[frozenset[int] | None]:
    """Return what is written on all paths to each instruction; None without a path."""
    before: list[frozenset[int] | None] = [None] * len(code)
    if code:
        before[0] = frozenset()
    waiting = [0] if code else []
    while waiting:
        at = waiting.pop()
        after = (before[at] or frozenset()) | code[at].writes
        for following in _list_following(at, code, labels):
            earlier = before[following]
            joined = after if earlier is None else earlier & after
            if joined != earlier:
                before[following] = joined
                waiting.append(following)
    return before


def _list_following(at: int, code: list[Instruction], labels: dict[str, int]) -> Iterator[int]:
    instruction = code[at]
    if instruction.target:
        yield labels[instruction.target]
    ends = instruction.opcode.startswith(("BRA", "EXIT")) and not instruction.predicated
    if not ends and at + 1 < len(code):
        yield at + 1
