"""The source of an implementation: an installed distribution, or a user's file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_DIGITS = 12


class Source(str):
    """The name of a distribution, or `NAME@DIGEST` of a file."""

    __slots__ = ()

    @classmethod
    def from_file(cls, file: Path, content: bytes) -> Source:
        return cls.from_digest(file, hashlib.sha256(content).hexdigest())

    @classmethod
    def from_digest(cls, file: Path, sha256: str) -> Source:
        return cls(f"{file.name}@{sha256[:_DIGITS]}")

    @property
    def is_file(self) -> bool:
        return "@" in self

    @property
    def name(self) -> str:
        return self.rpartition("@")[0] if self.is_file else str(self)

    @property
    def digest(self) -> str:
        """The first digits of the sha256 of a file; empty for a distribution."""
        return self.rpartition("@")[2] if self.is_file else ""

    def is_of(self, file: Path | None) -> bool:
        return file is not None and self.is_file and self.name == file.name

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )
