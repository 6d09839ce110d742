"""Describe mistakes by their id. `mistakes.toml` holds a sentence for each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

FILE = "mistakes.toml"


@dataclass(frozen=True)
class Diagnosis:
    """What a wrong result looks like. id: short and stable, such as `not-causal`."""

    id: str = ""
    mistake: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        return f"{self.mistake}: {self.advice}" if self.advice else self.mistake

    def surrounded(self, before: str = "", after: str = "") -> Diagnosis:
        return replace(self, mistake=before + self.mistake + after)


def mistake(name: str, **values: object) -> Diagnosis:
    sentence, _, advice = read_sentences()[name].partition(": ")
    return Diagnosis(name, sentence.format(**values), advice.format(**values))


@cache
def read_sentences() -> dict[str, str]:
    text = (files(__package__) / FILE).read_text("utf-8")
    return tomllib.loads(text)
