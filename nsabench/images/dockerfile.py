"""Reads docker/Dockerfile, so that what else builds an image builds it from the same text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from nsabench.errors import UsageError


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str

    def words(self) -> list[str]:
        return shlex.split(self.text)

    def pairs(self, values: Mapping[str, str]) -> dict[str, str]:
        """NAME=VALUE of ENV and LABEL, with `${NAME}` of `values` filled in."""
        filled = re.sub(r"\$\{(\w+)\}", lambda m: values.get(m[1], m[0]), self.text)
        return dict(word.split("=", 1) for word in shlex.split(filled))


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: tuple[Instruction, ...]


def stages(text: str) -> list[Stage]:
    """The stages in their order, with what comes before the first left out.

    Raises `UsageError` for a stage without a name, which nothing could refer to.
    """
    found: list[tuple[str, str, list[Instruction]]] = []
    for instruction in _instructions(text):
        if instruction.word == "FROM":
            base, as_, name = [*instruction.words(), "", ""][:3]
            if as_ != "AS":
                raise UsageError(f"the stage FROM {base} has no name", "give it one with AS.")
            found.append((name, base, []))
        elif found:
            found[-1][2].append(instruction)
    return [Stage(name, base, tuple(of)) for name, base, of in found]


def _instructions(text: str) -> list[Instruction]:
    # A comment may stand between the lines of an instruction.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n", "", "\n".join(lines))
    return [
        Instruction(word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in whole.splitlines() if line.strip())
    ]
