import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_columns, say_json
from nsabench.images import build as building
from nsabench.images import combos as known
from nsabench.images import launch as launching
from nsabench.images import lock as locking

COMBO = click.argument("combo")


@_help.group("images")
def command() -> None:
    """Build and run images with pinned versions.

    There is an image for each combo of torch, Triton and CUDA.

    Example: nsabench images run torch2.5.1-cu124 -- all matrices/selection_rows.yaml
    """


@command.command("list")
@_options.as_json
def list_(as_json: bool) -> None:
    """List the combos of versions.

    Example: nsabench images list --json
    """
    checkout = known.checkout()
    combos = checkout.combos().combos
    has_lock = {name: checkout.lock(name).is_file() for name in combos}
    if as_json:
        say_json({name: {**c.model_dump(), "locked": has_lock[name]} for name, c in combos.items()})
        return
    rows: list[Sequence[object]] = [
        ("combo", "torch", "Triton", "CUDA", "driver", "lock", "architectures")
    ]
    for name, c in combos.items():
        lock = "yes" if has_lock[name] else "no"
        rows.append((name, c.torch, c.triton, c.cuda, c.driver, lock, c.architectures))
    say_columns(rows)


@command.command("lock")
@click.argument("combos", nargs=-1, metavar="[COMBO]...")
@click.option(
    "--exclude-newer",
    default=date.today().isoformat(),
    metavar="DATE",
    help="Date after which packages are ignored. Default: today.",
)
@click.option(
    "--find-links",
    "links",
    default="",
    metavar="DIR",
    help="Folder of wheels to use instead of the combo's own index.",
)
def lock(combos: tuple[str, ...], exclude_newer: str, links: str) -> None:
    """Lock the packages of combos.

    Writes docker/locks/COMBO.txt with every hash, by default for all combos. Lock again when the
    dependencies in pyproject.toml change.

    Example: nsabench images lock torch2.5.1-cu124 --exclude-newer 2026-11-15
    """
    checkout = known.checkout()
    for name in combos or checkout.combos().combos:
        path = locking.write(checkout, name, exclude_newer, links)
        say(f"{path}: {len(list(locking.pinned(path)))} packages")


@command.command("build")
@COMBO
@click.option(
    "--base", default="", metavar="IMAGE", help="Base image. Default: the one in combos.yaml."
)
@click.option(
    "--wheelhouse",
    type=_options.EXISTING_FOLDER,
    metavar="DIR",
    help="Folder of wheels to install, instead of an index.",
)
@click.option("--verbose", is_flag=True, help="Show what the Docker daemon prints.")
def build(combo: str, base: str, wheelhouse: Path | None, verbose: bool) -> None:
    """Build the image of a combo.

    Example: nsabench images build cpu --base nsabench/offline-base:bookworm
    """
    began = time.monotonic()
    identifier = building.build(
        known.checkout(),
        combo,
        base=base,
        wheelhouse=wheelhouse,
        say=say if verbose else lambda line: None,
    )
    say(f"{known.tag(combo)} {identifier} in {time.monotonic() - began:.0f} s")


@command.command("run", context_settings={"ignore_unknown_options": True})
@COMBO
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--results",
    type=_options.FOLDER,
    default=Path("results"),
    show_default=True,
    metavar="DIR",
    help="Folder for the runs. You must be its owner.",
)
@click.option(
    "--gpus",
    default="auto",
    show_default=True,
    metavar="all|none|0,1",
    help="GPUs of the container. auto: all, or none for a combo without CUDA.",
)
@click.option("--user", default="", metavar="UID:GID", help="Owner of the results. Default: you.")
@click.option(
    "--memory",
    default="16g",
    show_default=True,
    metavar="SIZE",
    help="Limit of host memory, as in Docker.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="File that the run can read as /input/NAME. May be given again.",
)
def run(combo: str, gpus: str, **given: Any) -> int:
    """Run nsabench in the image of a combo.

    Without ARGUMENTS, it runs `nsabench all`. The container has no network, no capabilities, a
    read-only root, and your uid. Its folder `results` is the one that --results names.

    Example: nsabench images run cpu --results runs -- all quick --out results/first
    """
    if gpus == "auto":
        gpus = "all" if known.checkout().combos().get(combo).cuda else "none"
    return launching.run(launching.Launch(combo=combo, gpus=gpus, **given), click.echo)
