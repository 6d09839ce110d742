"""The combos of docker/combos.yaml, and the checkout that images are built from."""

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

import nsabench
from nsabench.errors import UsageError
from nsabench.machine.environment.provenance import read_commit
from nsabench.planning.yaml_document import nearest


class Combo(BaseModel):
    """Pinned versions. Without CUDA, `cuda` and `driver` (its oldest major version) are None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    torch: str
    triton: str
    numpy: str
    cuda: str | None = None
    driver: int | None = None
    architectures: list[str] = []
    packages: list[str] = []  # public libraries that implementations call, pinned
    index: str = ""  # the index of its torch, if that is not PyPI


class Combos(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    base: str
    combos: dict[str, Combo]

    def get(self, name: str) -> Combo:
        if name not in self.combos:
            raise UsageError(f"combos.yaml has no combo {name!r}", nearest(name, list(self.combos)))
        return self.combos[name]


@dataclass(frozen=True)
class Checkout:
    root: Path

    @property
    def docker(self) -> Path:
        return self.root / "docker"

    def lock(self, combo: str) -> Path:
        return self.docker / "locks" / f"{combo}.txt"

    def combos(self) -> Combos:
        path = self.docker / "combos.yaml"
        try:
            return Combos.model_validate(yaml.safe_load(path.read_bytes()))
        except (yaml.YAMLError, ValidationError) as error:
            what = " ".join(str(error).split())
            raise UsageError(f"{path}: {what}", "correct the file.") from None

    def revision(self) -> str:
        """Return the commit, with `-dirty` if files have changed; `unknown` without git."""
        try:
            return read_commit(self.root)
        except OSError:
            return "unknown"


def checkout() -> Checkout:
    """Return the checkout that this nsabench runs from. Raises `UsageError` without one."""
    root = Path(nsabench.__file__).resolve().parents[1]
    if not (root / "docker" / "combos.yaml").is_file():
        raise UsageError(
            "images are built from a checkout of nsabench, but this nsabench is an installed one",
            "clone the repository, and run `./just image COMBO` in it.",
        )
    return Checkout(root)


def tag(combo: str) -> str:
    return f"nsabench:{combo}"
