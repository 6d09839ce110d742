"""Render jobs that measure the shards of a plan elsewhere, and merge them.

The rendered files belong to the user. A job runs `nsabench all … --shard i/n --resume DIR`, so it
can be started again.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import indent

import yaml

from nsabench.errors import UsageError
from nsabench.files import refuse_filled, whole, writing

INPUT = "/input"  # where pods, and containers of Modal, have the user's files


@dataclass(frozen=True)
class Work:
    """What the shards measure: the arguments of `nsabench all`, and the absolute paths of their
    files."""

    shards: int
    words: Sequence[str]
    files: Sequence[Path] = ()
    ops_file: Path | None = None

    @property
    def folders(self) -> str:
        return " ".join(f"shards/{number}" for number in range(1, self.shards + 1))

    @property
    def merge_words(self) -> list[str]:
        return ["--ops", str(self.ops_file)] if self.ops_file else []

    def moved(self, words: Sequence[str]) -> list[str]:
        places = {str(file): f"{INPUT}/{file.name}" for file in self.files}
        if len(set(places.values())) < len(places):
            raise UsageError("two of the files have the same name", "rename one of them.")
        return [places.get(word, word) for word in words]


def slurm(
    out: Path, work: Work, *, time: str, gres: str, memory: str, options: Sequence[str]
) -> None:
    """Render a job array of shards, a job that merges, and a script that submits them.

    Nodes share the folder `out` and this installation. options: further `sbatch` options.
    """
    values = {
        "NAME": _name(out),
        "SHARDS": work.shards,
        "TIME": time,
        "MEMORY": memory,
        "GRES": f"\n#SBATCH --gres={gres}" if gres else "",
        "OPTIONS": "".join(f"\n#SBATCH {option}" for option in options),
        "NSABENCH": shlex.join([sys.executable, "-m", "nsabench"]),
        "ARGUMENTS": shlex.join(work.words),
        "MERGE": "".join(f" {shlex.quote(word)}" for word in work.merge_words),
        "FOLDERS": work.folders,
    }
    _render(out, values, "shard.sh", "merge.sh", "submit.sh")
    (out / "logs").mkdir()


def kubernetes(out: Path, work: Work, *, image: str, claim: str, gpus: int) -> None:
    """Render an Indexed Job of shards, and a Job that merges.

    claim: a PersistentVolumeClaim that all pods mount. gpus: the number of each pod.
    """
    data = {file.name: file.read_text() for file in work.files}
    values = {
        "NAME": _name(out),
        "SHARDS": work.shards,
        "DATA": indent(yaml.safe_dump(data, default_style="|") if data else "{}", "  ").rstrip(),
        "IMAGE": json.dumps(image),
        "CLAIM": json.dumps(claim),
        "GPUS": f", nvidia.com/gpu: {gpus}" if gpus else "",
        "ARGUMENTS": shlex.join(work.moved(work.words)),
        "MERGE": "".join(f" {shlex.quote(word)}" for word in work.moved(work.merge_words)),
        "FOLDERS": work.folders,
    }
    _render(out, values, "shards.yaml", "merge.yaml")


def modal(out: Path, work: Work, *, gpu: str, combo: str, checkout: Path, index: str) -> None:
    """Render an app that measures each shard on a GPU of Modal, and merges.

    checkout: has the lock of `combo`, which the image is built from. index: a package index besides
    PyPI, or empty.
    """
    values = {
        "NAME": _name(out),
        "SHARDS": work.shards,
        "ARGUMENTS": repr(work.moved(work.words)),
        "MERGE": repr(work.moved(work.merge_words)),
        "FILES": repr({str(file): f"{INPUT}/{file.name}" for file in work.files}),
        "CHECKOUT": repr(str(checkout)),
        "COMBO": repr(combo),
        "INDEX": f"--extra-index-url {index} " if index else "",
        "GPU": repr(gpu),
    }
    _render(out, values, "app.py")


def _name(out: Path) -> str:
    return f"nsabench-{re.sub('[^a-z0-9]+', '-', out.name.lower()).strip('-')}"[:52].strip("-")


def _render(out: Path, values: Mapping[str, object], *names: str) -> None:
    refuse_filled(out)
    with writing(out, "try again"):
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            text = (files("nsabench.fleet") / "templates" / f"{name}.txt").read_text()
            filled = re.sub("@([A-Z]+)@", lambda found: str(values[found[1]]), text)
            whole(out / name, filled.encode())
