"""A fleet's folder: what is measured, in how many shards and how, and what became of each.

fleet.yaml   what is measured and how nsabench is started, as it was when the fleet was made
input/       the user's files that it names, as they were then
shards/N     the run of shard N
state/N.json where shard N was last begun, and how that ended
logs/        what its jobs print
whole        the merged run
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nsabench import bounds, ops
from nsabench.bounds import limits
from nsabench.errors import UsageError
from nsabench.files import whole, writing
from nsabench.model.version import __version__
from nsabench.planning import resolve
from nsabench.planning.narrow import Narrowed

SPEC = "fleet.yaml"
INPUT = "input"


class Spec(BaseModel):
    """What fleet.yaml says.

    arguments: of `nsabench all`, the same for all shards; files are named as `input/NAME`.
    nsabench: the version that made the fleet. results: the bucket that shards are sent to, empty
    where hosts share the folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    created: datetime
    nsabench: str = __version__
    shards: int = Field(ge=1, le=100_000)
    arguments: tuple[str, ...]
    results: str = ""


class State(BaseModel):
    """Where a shard was begun last, and how that ended. host: as its scheduler calls it; job: as
    its scheduler counts; code: the exit code of nsabench, None while it runs or where it was killed
    with its host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    job: str = ""
    began: datetime
    code: int | None = None


@dataclass(frozen=True)
class FleetFolder:
    path: Path

    @property
    def spec(self) -> Path:
        return self.path / SPEC

    @property
    def whole(self) -> Path:
        return self.path / "whole"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def jobs(self) -> Path:
        """The ids of the jobs that were submitted, a line each."""
        return self.path / "jobs.txt"

    def shard(self, number: int) -> Path:
        return self.path / "shards" / str(number)

    def state_file(self, number: int) -> Path:
        return self.path / "state" / f"{number}.json"

    def read(self) -> Spec:
        """Raises `UsageError` where there is no fleet."""
        if not self.spec.is_file():
            raise UsageError(
                f"{self.path} holds no fleet", "give the folder that `nsabench fleet` made."
            )
        return parse(bounds.read(self.spec, limits.MATRIX), self.spec)

    def state(self, number: int) -> State | None:
        """None where it was not begun yet."""
        path = self.state_file(number)
        if not path.is_file():
            return None
        try:
            return State.model_validate_json(bounds.read(path, limits.MATRIX))
        except ValidationError:
            raise UsageError(f"{path} is not what nsabench wrote there", "remove it.") from None

    def note(self, number: int, state: State) -> None:
        """Write down where a shard is measured, or how that ended."""
        path = self.state_file(number)
        path.parent.mkdir(exist_ok=True)
        whole(path, f"{state.model_dump_json()}\n".encode())

    def copied(self, work: Path) -> FleetFolder:
        """The fleet in a folder of the host's own, where this one cannot be written."""
        folder = FleetFolder(work.absolute())
        with writing(work, "try again"):
            (folder.path / INPUT).mkdir(parents=True, exist_ok=True)
            (folder.path / "shards").mkdir(exist_ok=True)
            whole(folder.spec, bounds.read(self.spec, limits.MATRIX))
            inputs = self.path / INPUT
            for file in inputs.iterdir() if inputs.is_dir() else ():
                if file.is_file():  # a volume of Kubernetes has folders of its own there
                    shutil.copyfile(file, folder.path / INPUT / file.name)
        return folder

    def arguments(self, spec: Spec) -> list[str]:
        """Those of `nsabench all`, with the files where they lie here."""
        inputs = self.path / INPUT
        names = {f"{INPUT}/{path.name}" for path in inputs.iterdir()} if inputs.is_dir() else set()
        return [str(self.path / word) if word in names else word for word in spec.arguments]


def parse(content: bytes, source: object) -> Spec:
    """What a fleet.yaml says. Raises `UsageError` when it is none."""
    try:
        return Spec.model_validate(yaml.safe_load(content))
    except (yaml.YAMLError, ValidationError) as error:
        raise UsageError(
            f"{source}: {' '.join(str(error).split())}", "make the fleet again."
        ) from None


def make(
    path: Path, shards: int, arguments: Sequence[str], files: Sequence[Path], results: str = ""
) -> FleetFolder:
    """A new fleet in a folder of its own.

    files: those that arguments name, which are kept with it: whoever edits one later does not give
    two shards two plans. Raises `UsageError` when the folder is not empty, or a file is not there.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not empty", "give the fleet a folder of its own.")
    names = [file.name for file in files]
    if len(set(names)) != len(names):
        raise UsageError(
            f"two of the files have one name: {', '.join(sorted(names))}", "rename one of them."
        )
    folder = FleetFolder(path.absolute())
    words = {str(file): f"{INPUT}/{file.name}" for file in files}
    spec = Spec(
        created=datetime.now(UTC).replace(microsecond=0),
        shards=shards,
        arguments=tuple(words.get(word, word) for word in arguments),
        results=results,
    )
    with writing(path, "make the fleet again"):
        for needed in (folder.path / INPUT, folder.logs, folder.path / "shards"):
            needed.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, folder.path / INPUT / file.name)
        content = yaml.safe_dump(json.loads(spec.model_dump_json()), sort_keys=False)
        whole(folder.spec, content.encode())
    return folder


def refuse_cut(
    matrices: Sequence[str], narrowed: Narrowed, shards: int, ops_file: Path | None
) -> None:
    """Raises `UsageError` when the plan has not so many parts, and for a bad matrix.

    Implementations are not asked for: who writes jobs may be without torch.
    """
    if ops_file is not None:
        ops.load_file(ops_file.absolute())
    ladders = {
        ops.ladder(case)
        for loaded in resolve.load_matrices(matrices)
        for case in loaded.cases
        if narrowed.wants(case)
    }
    if shards > len(ladders):
        raise UsageError(
            f"{shards} shards are too many: the cases make {len(ladders)} ladders, and those that "
            f"differ only in their length stay together",
            f"take no more than {len(ladders)} shards.",
        )
