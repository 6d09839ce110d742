"""nsabench images"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

import click

from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.images import apptainer as apptainers
from nsabench.images import build as building
from nsabench.images import combos as known
from nsabench.images import launch as launching
from nsabench.images import lock as locking
from nsabench.images import matrix as matrices_in_images
from nsabench.images import provenance as provenances
from nsabench.images import sbom
from nsabench.images import venv as venvs
from nsabench.images import verify as verifying
from nsabench.images import wheelhouse as wheels
from nsabench.output import terminal
from nsabench.output.compare import tables

COMBO = click.argument("combo")
LINKS = click.option(
    "--find-links",
    "links",
    default="",
    metavar="DIR",
    help="Look for wheels here too, and not on the combo's own index.",
)
RESULTS = click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    help="Folder that holds the runs; it must be yours to write.",
)
WHEELHOUSE = click.option(
    "--wheelhouse",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Take the packages from this folder, not from an index.",
)
GPUS = click.option(
    "--gpus",
    default="auto",
    show_default=True,
    metavar="all|none|0,1",
    help="auto: all of them, and none for a combo without CUDA.",
)
USER = click.option(
    "--user", default="", metavar="UID:GID", help="Who owns the results. Default: you."
)
MEMORY = click.option(
    "--memory", default="16g", show_default=True, help="Most host memory, as Docker writes it."
)
TIME_LIMIT = click.option(
    "--time-limit",
    type=click.FloatRange(1),
    default=6 * 3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop a run that takes longer; it can be resumed.",
)


@click.group("images")
def command() -> None:
    """Build and run pinned images: one a combo of torch, Triton and CUDA.

    Example: nsabench images run torch2.5.1-cu124 -- all matrices/selection_rows.yaml
    """


@command.command("list")
@_options.as_json
def list_(as_json: bool) -> None:
    """The combos, which of them have a lock, and why some are retired.

    Example: nsabench images list --json
    """
    checkout = known.checkout()
    combos = checkout.combos().combos
    if as_json:
        rows = {
            name: {**combo.model_dump(), "locked": checkout.lock(name).is_file()}
            for name, combo in combos.items()
        }
        say(json.dumps(rows, indent=1))
        return
    for name, combo in combos.items():
        cuda = f"CUDA {combo.cuda}  driver >= {combo.driver}" if combo.cuda else "CPU"
        locked = "locked" if checkout.lock(name).is_file() else "no lock"
        say(
            f"{name:20} torch {combo.torch:11} triton {combo.triton:6} {cuda:25} {locked:8} "
            f"{' '.join(combo.architectures)}"
        )
        if combo.retired:
            say(f"{'':20} retired: {combo.retired}")


@command.command("lock")
@click.argument("combos", nargs=-1, metavar="[COMBO]...")
@click.option(
    "--exclude-newer",
    default=date.today().isoformat(),
    metavar="DATE",
    help="Take no package that appeared later. Default: today.",
)
@LINKS
def lock(combos: tuple[str, ...], exclude_newer: str, links: str) -> None:
    """Resolve combos (default: all) and write docker/locks/COMBO.txt with every hash.

    To be done again when the dependencies in pyproject.toml change. `flash-attn` is the lock of its
    sdist.

    Example: nsabench images lock torch2.5.1-cu124 --exclude-newer 2026-11-15
    """
    checkout = known.checkout()
    pinned = checkout.combos()
    for name in combos or [*pinned.combos, locking.FLASH_ATTN]:
        if name == locking.FLASH_ATTN:
            path = locking.lock_flash_attn(checkout, exclude_newer)
        else:
            path = locking.lock(checkout, name, pinned.get(name), exclude_newer, links)
        say(f"{path}: {len(list(locking.pinned(path)))} packages")


@command.command("wheelhouse")
@COMBO
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the wheels go. Default: wheelhouse/COMBO.",
)
@LINKS
def wheelhouse(combo: str, folder: Path | None, links: str) -> None:
    """Fetch every wheel of a combo, to build its image without a network.

    Example: nsabench images wheelhouse torch2.5.1-cu124
    """
    checkout = known.checkout()
    pinned = checkout.combos().get(combo)
    filled = wheels.fill(checkout, combo, pinned, folder or Path("wheelhouse") / combo, links)
    size = sum(wheel.stat().st_size for wheel in filled.glob("*.whl"))
    say(f"{filled}: {len(list(filled.glob('*.whl')))} wheels, {size / 2**30:.2f} GiB")


@command.command("build")
@COMBO
@click.option("--base", default="", help="Base image. Default: the one pinned in combos.yaml.")
@WHEELHOUSE
@click.option("--flash-attn", is_flag=True, help="Add flash-attn, compiled from its sdist.")
@click.option("--max-jobs", default=4, show_default=True, help="Compilers at once for flash-attn.")
@click.option("--flash-attn-archs", default="80;90", show_default=True)
@click.option(
    "--flash-attn-head-dims",
    default="",
    help="Compile the kernels of these alone, such as '64 128'. Default: all six.",
)
@click.option(
    "--devel-base",
    default="",
    help="CUDA devel image that compiles flash-attn; its CUDA has the combo's major version. "
    "Default: the one pinned in combos.yaml for that.",
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("images"),
    show_default=True,
    help="Folder for the bill of materials and the provenance of the image.",
)
@click.option("--verbose", is_flag=True, help="Show what the daemon says.")
def build(
    combo: str,
    base: str,
    wheelhouse: Path | None,
    flash_attn: bool,
    max_jobs: int,
    flash_attn_archs: str,
    flash_attn_head_dims: str,
    devel_base: str,
    evidence: Path,
    verbose: bool,
) -> None:
    """Build the image of a combo; its provenance is signed with your key, or one made for it.

    Example: nsabench images build cpu --base nsabench/offline-base:bookworm
    """
    began = time.monotonic()
    identifier = building.build(
        known.checkout(),
        combo,
        base=base,
        wheelhouse=wheelhouse,
        flash_attn=building.FlashAttn(devel_base, max_jobs, flash_attn_archs, flash_attn_head_dims)
        if flash_attn
        else None,
        say=say if verbose else lambda line: None,
        evidence=evidence,
    )
    say(f"{known.tag(combo)} {identifier} in {time.monotonic() - began:.0f} s")


@command.command("venv")
@COMBO
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where it goes; empty or new. Default: venvs/COMBO.",
)
@WHEELHOUSE
def venv(combo: str, folder: Path | None, wheelhouse: Path | None) -> None:
    """Make the virtual environment of a combo, for hosts without containers.

    uv installs what the image holds, from the same lock and hashes. `environment.json` of its runs
    names the combo and says that it was a venv.

    Example: nsabench images venv torch2.5.1-cu124
    """
    target = folder or Path("venvs") / combo
    began = time.monotonic()
    program = venvs.make(known.checkout(), combo, target, wheelhouse=wheelhouse, say=say)
    say(f"{program} in {time.monotonic() - began:.0f} s")


@command.command("apptainer")
@COMBO
@click.option("--base", default="", help="Base image. Default: the one pinned in combos.yaml.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where it goes; empty or new. Default: apptainer/COMBO.",
)
@WHEELHOUSE
def apptainer(combo: str, base: str, folder: Path | None, wheelhouse: Path | None) -> None:
    """Write an Apptainer definition of a combo, made from the Dockerfile, and what it copies.

    Example: nsabench images apptainer torch2.5.1-cu124
    """
    target = folder or Path("apptainer") / combo
    definition = apptainers.write(known.checkout(), combo, target, base=base, wheelhouse=wheelhouse)
    say(f"cd {definition.parent} && apptainer build {combo}.sif {definition.name}")


@command.command("verify")
@COMBO
@click.option(
    "--venv",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Look at this virtual environment, and not at the image.",
)
@click.option(
    "--provenance",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Hold the image against this file. Default: images/COMBO.provenance.json, if it is there.",
)
@_options.as_json
def verify(combo: str, folder: Path | None, provenance: Path | None, as_json: bool) -> int:
    """Check what is installed against the lock, the labels and the provenance.

    The image is started without a network. Every file is held against the hash that it was
    installed with. Exits with 4 when something differs.

    Example: nsabench images verify torch2.5.1-cu124
    """
    checkout = known.checkout()
    if folder is not None:
        checks = verifying.venv(checkout, combo, folder)
    else:
        usual = provenances.place(Path("images"), combo)
        given = provenance or (usual if usual.is_file() else None)
        checks = verifying.image(checkout, combo, given)
    if as_json:
        say(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        for check in checks:
            say(f"{'ok' if check.holds else 'FAILED':6} {check.name:12} {check.detail}")
    return 0 if all(check.holds for check in checks) else 4


@command.command("sbom")
@COMBO
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="COMBO.cdx.json"
)
def bill(combo: str, out: Path | None) -> None:
    """Write the CycloneDX bill of materials of a combo.

    Example: nsabench images sbom torch2.5.1-cu124
    """
    checkout = known.checkout()
    checkout.combos().get(combo)
    lock = wheels.existing_lock(checkout, combo)
    say(sbom.write(checkout, [lock], out or Path(f"{combo}.cdx.json")))


@command.command("run", context_settings={"ignore_unknown_options": True})
@COMBO
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@RESULTS
@GPUS
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="A file shown to the run, read-only, as /input/NAME. May be given again.",
)
@USER
@MEMORY
@TIME_LIMIT
def run(
    combo: str,
    arguments: tuple[str, ...],
    results: Path,
    gpus: str,
    inputs: tuple[Path, ...],
    user: str,
    memory: str,
    time_limit: float,
) -> int:
    """Run nsabench in the image of a combo; without ARGUMENTS, `nsabench all`.

    The container has no network, no capabilities, a read-only root, and the caller's uid. Its
    working folder is /, so `results` there is the folder that --results names here.

    Example: nsabench images run cpu --results runs -- all --quick --out results/first
    """
    launch = launching.Launch(
        combo=combo,
        arguments=arguments,
        results=results,
        gpus=_gpus(gpus, combo),
        inputs=inputs,
        user=user,
        memory=memory,
        time_limit_s=time_limit,
    )
    return launching.run(launch, click.echo)


@command.command("matrix")
@click.option("--combos", required=True, metavar="LIST", help="Combos, separated by commas.")
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX...")
@RESULTS
@GPUS
@USER
@MEMORY
@TIME_LIMIT
def matrix(
    combos: str,
    matrices: tuple[str, ...],
    results: Path,
    gpus: str,
    user: str,
    memory: str,
    time_limit: float,
) -> int:
    """Run the same matrices in several images, one after another, and compare.

    Example: nsabench images matrix --combos torch2.5.1-cu124,torch2.11.0-cu130 selection_rows
    """
    names = [name.strip() for name in combos.split(",") if name.strip()]
    pinned = known.checkout().combos()
    for name in names:
        pinned.get(name)

    def launch(combo: str, arguments: Sequence[str], inputs: Sequence[Path]) -> launching.Launch:
        return launching.Launch(
            combo=combo,
            arguments=arguments,
            results=results,
            gpus=_gpus(gpus, combo),
            inputs=inputs,
            user=user,
            memory=memory,
            time_limit_s=time_limit,
        )

    outcomes = matrices_in_images.run_all(names, matrices, launch, click.echo)
    for outcome in outcomes:
        unfinished = "" if outcome.finished else ", not finished"
        say(f"{outcome.combo}: exit {outcome.exit_code}{unfinished}")
    comparison = matrices_in_images.compared(outcomes)
    if comparison is not None:
        terminal.console().print(tables.render(comparison))
    return max((result.exit_code for result in outcomes), default=0)


def _gpus(requested: str, combo: str) -> str:
    if requested != "auto":
        return requested
    return "all" if known.checkout().combos().get(combo).cuda else "none"
