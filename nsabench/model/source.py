"""Where an implementation comes from: an installed distribution, or a user's file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_DIGITS = 12


class Source(str):
    """A distribution by its name, or a file as `NAME@DIGEST`. It is a text in JSON and YAML."""

    __slots__ = ()

    @classmethod
    def of_file(cls, file: Path, content: bytes) -> Source:
        """Return the source of a user's file with this content."""
        return cls.of_digest(file, hashlib.sha256(content).hexdigest())

    @classmethod
    def of_digest(cls, file: Path, sha256: str) -> Source:
        return cls(f"{file.name}@{sha256[:_DIGITS]}")

    @property
    def is_file(self) -> bool:
        """Whether it is a user's file; the name of a distribution has no `@`."""
        return "@" in self

    @property
    def name(self) -> str:
        """Of the distribution, or of the file without its folders."""
        return self.rpartition("@")[0] if self.is_file else str(self)

    @property
    def digest(self) -> str:
        """The first digits of the sha256 of a file; empty of a distribution."""
        return self.rpartition("@")[2] if self.is_file else ""

    def is_of(self, file: Path | None) -> bool:
        """Whether it is that file, with whatever content."""
        return file is not None and self.is_file and self.name == file.name

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )
