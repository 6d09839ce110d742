"""Shards of several GPU models: a merged run of each model, and a comparison of them.

They are no one run: a case that one model measured says nothing of another. Of each model all
shards of the plan must be there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.evidence.manifest.statement import Trust
from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.files import whole
from nsabench.fleet.merge import Merged, merge
from nsabench.model.journal import Header
from nsabench.output import compare
from nsabench.output.compare import markdown
from nsabench.output.compare.comparison import Comparison
from nsabench.signing import Signer

COMPARISON = "comparison.md"


def merge_each(
    folders: Sequence[Path],
    out: Path,
    signer: Signer,
    *,
    trusted: Iterable[str] = (),
    require: Trust = Trust.EPHEMERAL,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Merged], Comparison]:
    """Merge the shards of each GPU model into `out/MODEL`, and write the comparison beside them.

    The first model, by name, is what the others are held to. Returns the merged runs by their
    folder's name. Raises `UsageError` where there is one model only, or the plans differ, and as
    `merge` does.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty", "give --out another folder.")
    by_model: dict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        by_model[model(folder)].append(folder)
    if len(by_model) == 1:
        raise UsageError(
            f"all of these shards are of {next(iter(by_model))}", "leave --across-gpus away."
        )
    names = {name: re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "none" for name in by_model}
    trusted = frozenset(trusted)
    merged: dict[str, Merged] = {}
    for name in sorted(by_model):
        note(f"{name}: {len(by_model[name])} shards")
        merged[names[name]] = merge(
            by_model[name], out / names[name], signer, trusted=trusted, require=require, note=note
        )
    comparison = compare.compare(compare.read([out / name for name in merged]))
    whole(out / COMPARISON, markdown.render(comparison).encode())
    return merged, comparison


def model(folder: Path) -> str:
    """The GPU model, or the kind of CPU, that a shard says it was measured on; it is not verified
    here. Raises `UsageError` where there is no shard, or one that measured nothing."""
    for _, line in journal.lines(RunFolder.existing(folder).journal):
        if isinstance(line, Header):
            device = line.described.device
            return device.name or device.capability or "CPU"
    raise UsageError(f"{folder} has measured nothing", "give shards that are whole.")
