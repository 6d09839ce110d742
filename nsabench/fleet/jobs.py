"""Render jobs that measure the shards of a plan on other hosts, and merge the shards.

Users may edit the rendered files. A job that measures runs `nsabench all … --shard i/n --resume
DIR`, so it can be started again.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import jinja2
import yaml

from nsabench.errors import UsageError, VerificationFailed
from nsabench.files import refuse_filled, whole, writing
from nsabench.output.result import COMPLETE

_NAME = r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?"  # the name of a Job; Kubernetes appends to it
# Exit codes, except 0, after which a retry would end in the same way.
_FINAL = sorted({*COMPLETE, UsageError.exit_code, VerificationFailed.exit_code} - {0})
INPUT = "/input"  # the folder of the user's files in pods and in containers of Modal


@dataclass(frozen=True)
class ShardedRun:
    """Arguments of `nsabench all` for the shards, and absolute paths of the files in them."""

    shards: int
    words: Sequence[str]
    files: Sequence[Path] = ()
    ops_file: Path | None = None

    @property
    def ops_words(self) -> list[str]:
        return ["--ops", str(self.ops_file)] if self.ops_file else []

    @property
    def merge_words(self) -> list[str]:
        folders = [f"shards/{number}" for number in range(1, self.shards + 1)]
        return ["merge", *folders, "--out", "whole", *self.ops_words]

    def move_files(self, words: Sequence[str]) -> list[str]:
        """Replace the paths of files in `words` by their paths in `INPUT`."""
        places = {str(file): f"{INPUT}/{file.name}" for file in self.files}
        if len(set(places.values())) < len(places):
            raise UsageError("two of the files have the same name", "rename one of them.")
        return [places.get(word, word) for word in words]


def slurm(
    out: Path, work: ShardedRun, *, time: str, gres: str, memory: str, options: Sequence[str]
) -> None:
    """Render a job array of shards, a job that merges, and a script that submits them."""
    nsabench = [sys.executable, "-P", "-m", "nsabench"]
    values = {
        "time": time,
        "memory": memory,
        "gres": gres,
        "options": options,
        "measure": [*nsabench, "all", *work.words],
        "merge": [*nsabench, *work.merge_words],
    }
    _render(out, work, values, "shard.sh", "merge.sh", "submit.sh")
    (out / "logs").mkdir()


@dataclass(frozen=True)
class Pods:
    """The pods of a cluster. ttl_s: seconds after which an ended Job is deleted."""

    image: str
    claim: str  # a PersistentVolumeClaim that all pods mount
    gpus: int = 1
    tolerations: Sequence[str] = ()  # keys of taints that the pods tolerate
    runtime_class: str = ""
    pull_secrets: Sequence[str] = ()
    ttl_s: int | None = None

    @property
    def fields(self) -> dict[str, object]:
        fields = {
            "tolerations": [{"key": key, "operator": "Exists"} for key in self.tolerations],
            "runtimeClassName": self.runtime_class,
            "imagePullSecrets": [{"name": name} for name in self.pull_secrets],
        }
        return {name: value for name, value in fields.items() if value}


def kubernetes(out: Path, work: ShardedRun, pods: Pods, *, name: str = "") -> None:
    """Render an Indexed Job of shards, and a Job that merges."""
    data = {file.name: file.read_text() for file in work.files}
    values = {
        "data": yaml.safe_dump(data, default_style="|").rstrip() if data else "{}",
        "image": pods.image,
        "claim": pods.claim,
        "gpus": pods.gpus,
        "final": _FINAL,
        "ttl_s": pods.ttl_s,
        "pod": pods.fields,
        "measure": ["nsabench", "all", *work.move_files(work.words)],
        "merge": ["nsabench", *work.move_files(work.merge_words)],
    }
    if name and not re.fullmatch(_NAME, name):
        raise UsageError(
            f"--name {name!r} cannot be the name of a Job",
            "use at most 50 lower-case letters, digits and dashes.",
        )
    # By default the name is unique, since a Job that exists cannot be changed.
    values["name"] = name or f"{_name_jobs(out)}-{token_hex(3)}"
    _render(out, work, values, "shards.yaml", "merge.yaml")


def modal(out: Path, work: ShardedRun, *, gpu: str, combo: str, checkout: Path, index: str) -> None:
    """Render an app that measures each shard on a GPU of Modal, and merges the shards.

    checkout: the folder that contains the lock of `combo`. index: a package index besides PyPI.
    """
    values = {
        "words": work.move_files(work.words),
        "ops_words": work.move_files(work.ops_words),
        "files": {str(file): f"{INPUT}/{file.name}" for file in work.files},
        "checkout": str(checkout),
        "combo": combo,
        "index": index,
        "gpu": gpu,
        "complete": COMPLETE,
    }
    _render(out, work, values, "app.py")


def _name_jobs(out: Path) -> str:
    """Return a name that Kubernetes and Modal accept, even if they append to it."""
    return f"nsabench-{re.sub('[^a-z0-9]+', '-', out.name.lower()).strip('-')}"[:45].strip("-")


def _render(out: Path, work: ShardedRun, values: Mapping[str, object], *names: str) -> None:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("nsabench.fleet"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"join_words": shlex.join, "repr": repr}
    values = {"name": _name_jobs(out), **values}
    refuse_filled(out)
    with writing(out, "try again"):
        out.mkdir(parents=True, exist_ok=True)
        for file in names:
            text = templates.get_template(f"{file}.j2").render(values, work=work)
            whole(out / file, text.encode())
