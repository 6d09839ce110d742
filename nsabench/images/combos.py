"""What docker/combos.yaml says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

import nsabench
from nsabench.bounds.yaml import LOADER
from nsabench.errors import UsageError
from nsabench.planning.yaml_document import nearest

REPOSITORY = "nsabench"


class Combo(BaseModel):
    """One set of versions. `cuda` and `driver` are None where the torch is for the CPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    torch: str
    triton: str
    numpy: str
    cuda: str | None = None
    driver: int | None = None
    architectures: list[str] = []
    kernels: bool = True  # whether nsa_kernels is installed; --kernels FILE.py works without it
    packages: list[str] = []  # public libraries that implementations call, pinned
    index: str = ""  # where its torch comes from beside PyPI
    retired: str = ""  # why it is not built any more; its lock stays, for whoever needs it


class Bases(BaseModel):
    """devel: by the major version of CUDA."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runtime: str
    devel: dict[str, str]

    def devel_of(self, name: str, combo: Combo) -> str:
        """The base that has the compiler of the combo's CUDA. Raises `UsageError` without one."""
        major = (combo.cuda or "").partition(".")[0]
        if major not in self.devel:
            raise UsageError(
                f"no CUDA devel base is known for the combo {name} (CUDA {combo.cuda or 'none'})",
                f"choose a combo with CUDA {' or '.join(self.devel)}, or give --devel-base.",
            )
        return self.devel[major]


class Combos(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bases: Bases
    combos: dict[str, Combo]

    def get(self, name: str) -> Combo:
        """Raises `UsageError` when there is none of that name."""
        if name not in self.combos:
            raise UsageError(
                f"there is no combo {name!r} in combos.yaml", nearest(name, list(self.combos))
            )
        return self.combos[name]


@dataclass(frozen=True)
class Checkout:
    """The sources that images are made of."""

    root: Path

    @property
    def docker(self) -> Path:
        return self.root / "docker"

    def lock(self, combo: str) -> Path:
        return self.docker / "locks" / f"{combo}.txt"

    def combos(self) -> Combos:
        """Raises `UsageError` when the file is not as it must be."""
        path = self.docker / "combos.yaml"
        try:
            return Combos.model_validate(yaml.load(path.read_bytes(), Loader=LOADER))
        except (yaml.YAMLError, ValidationError) as error:
            raise UsageError(f"{path}: {' '.join(str(error).split())}", "mend the file.") from None


def checkout() -> Checkout:
    """The checkout that this nsabench runs from. Raises `UsageError` when it is none."""
    root = Path(nsabench.__file__).resolve().parents[1]
    if not (root / "docker" / "combos.yaml").is_file():
        raise UsageError(
            "images are made from a checkout of nsabench, and this one is installed",
            "clone the repository, and run `./just image COMBO` in it.",
        )
    return Checkout(root)


def tag(combo: str) -> str:
    return f"{REPOSITORY}:{combo}"
