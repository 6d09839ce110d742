"""nsabench fleet"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from nsabench import conclusion
from nsabench.cli import _options
from nsabench.cli._options import Measuring, asked_again
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.statement import Trust
from nsabench.fleet import folder as folders
from nsabench.fleet import kubernetes, modal, slurm, status, stored, task
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.kubernetes import Kubernetes
from nsabench.fleet.merge import merge
from nsabench.fleet.modal import Modal
from nsabench.fleet.slurm import Engine, Slurm
from nsabench.images import combos
from nsabench.output import terminal
from nsabench.planning import resolve
from nsabench.planning.narrow import Narrowed
from nsabench.planning.shards import ALL
from nsabench.signing import load_signer

FLEET = click.argument(
    "fleet", metavar="FLEET", type=click.Path(path_type=Path, exists=True, file_okay=False)
)


@click.group("fleet")
def command() -> None:
    """One run on many hosts: its jobs are written, submitted, watched and merged.

    FLEET is the folder that `fleet slurm` makes; all hosts share it, or a bucket.

    Example: nsabench fleet slurm selection_rows --shards 8 --out fleets/rows --submit
    """


def _asking(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `all` that a fleet's shards have in common."""
    shards = click.option(
        "--shards",
        type=click.IntRange(1, 10_000),
        required=True,
        metavar="N",
        help="How many parts the plan has, each a task on a GPU of its own.",
    )
    out = click.option(
        "--out",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FLEET",
        help="A new folder for the fleet, which all hosts share.",
    )
    for option in (
        *(_options.tag, _options.no_sandbox, _options.ops_file, _options.kernels),
        *(_options.only, _options.where, _options.margin),
        *(_options.quick, _options.device, out, shards, _options.matrices),
    ):
        command = option(command)
    return command


def _make(out: Path, shards: int, given: dict[str, Any], results: str = "") -> FleetFolder:
    """A fleet that measures what is asked for. Raises `UsageError` before anything is written when
    that cannot be cut in so many parts."""
    asked = Measuring(
        out=None,
        resume=None,
        shard=ALL,
        verbose=False,
        as_json=False,
        junit=None,
        **{**given, "device": "cuda" if given["device"] == "auto" else given["device"]},
    )
    if asked.quick and asked.matrices:
        raise UsageError("--quick names a matrix by itself", "leave the others away.")
    names = list(asked.matrices) or (
        ["quick"] if asked.quick else resolve.default_matrices(asked.device)  # type: ignore[arg-type]
    )
    files = [Path(name) for name in asked.matrices if Path(name).is_file()]
    files += [file for file in (asked.kernels, asked.ops_file) if file is not None]
    folders.refuse_cut(names, Narrowed(asked.where, asked.only), shards, asked.ops_file)
    return folders.make(out, shards, asked_again(asked), files, results)


def _refuse_no_bucket(results: str) -> None:
    if not results.startswith("s3://"):
        raise UsageError(f"{results} is no bucket", "write s3://BUCKET/PREFIX.")


@command.command("slurm")
@_asking
@click.option(
    "--engine",
    type=click.Choice([engine.value for engine in Engine]),
    default=Engine.VENV.value,
    show_default=True,
    help="In what nsabench runs on a node.",
)
@click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="Of the engine: a .sif, NAME:TAG, or the folder of a venv. Default: this venv.",
)
@click.option("--time", default="12:00:00", show_default=True, help="Limit of a task.")
@click.option(
    "--gres",
    default="gpu:1",
    show_default=True,
    help="What a task is given, as Slurm writes it; '' for none.",
)
@click.option("--cpus", type=click.IntRange(1), default=4, show_default=True, help="Of a task.")
@click.option("--memory", default="32G", show_default=True, help="Of a task.")
@click.option(
    "--warn",
    "warned_s",
    type=click.IntRange(1),
    default=slurm.WARNED_S,
    show_default=True,
    metavar="SECONDS",
    help="How long before its limit a task is told to end and to be queued again.",
)
@click.option(
    "--sbatch",
    "options",
    multiple=True,
    metavar="OPTION",
    help="A further option for all jobs, such as --sbatch=--partition=h200. May be given again.",
)
@click.option("--key-file", default="", metavar="FILE", help="The key that signs, on every node.")
@click.option("--passphrase-file", default="", metavar="FILE", help="What opens that key.")
@click.option(
    "--results",
    default="",
    metavar="s3://BUCKET/PREFIX",
    help="Where tasks send their shards, of this fleet alone. Default: nodes share FLEET.",
)
@click.option(
    "--s3-env",
    default="",
    metavar="FILE",
    help="With --results: a file of AWS_* variables, at one path on every node.",
)
@click.option(
    "--work",
    default=slurm.WORK,
    show_default=True,
    metavar="DIR",
    help="With --results: a folder of each node's own, to measure in.",
)
@click.option("--submit", is_flag=True, help="Submit the jobs, too.")
def slurm_(
    matrices: tuple[str, ...],
    shards: int,
    out: Path,
    engine: str,
    results: str,
    submit: bool,
    **given: Any,
) -> int:
    """Write a job array that measures a plan on Slurm, and the job that merges it.

    A task that is requeued, or whose node failed, goes on with its shard: what it has journaled is
    not run again. All nodes must share FLEET; with --results they share nothing but a bucket, and
    `fleet collect` merges what they have sent there.

    Example: nsabench fleet slurm selection_rows --shards 8 --out fleets/rows --submit
    """
    if results:
        _refuse_no_bucket(results)
    own = {name: given.pop(name) for name in ("image", "time", "gres", "cpus", "memory")}
    own |= {n: given.pop(n) for n in ("warned_s", "options", "key_file", "passphrase_file")}
    own |= {name: given.pop(name) for name in ("s3_env", "work")}
    how = Slurm(engine=Engine(engine), **own)
    slurm.refuse(out, how)
    fleet = _make(out, shards, {"matrices": matrices, **given}, results)
    slurm.write(fleet, how)
    say(f"{shards} shards: {fleet.path}")
    if submit:
        _submitted(fleet, ())
    else:
        say(f"submit them with: nsabench fleet submit {fleet.path}")
    return 0


@command.command("kubernetes")
@_asking
@click.option("--image", required=True, metavar="IMAGE", help="In a registry, of a combo.")
@click.option(
    "--results",
    required=True,
    metavar="s3://BUCKET/PREFIX",
    help="Where pods send their shards; of this fleet alone.",
)
@click.option("--gpus", type=click.IntRange(0), default=1, show_default=True, help="Of a pod.")
@click.option("--cpus", type=click.IntRange(1), default=8, show_default=True, help="Of a pod.")
@click.option("--memory", default="32Gi", show_default=True, help="Of a pod.")
@click.option("--key-secret", default="", metavar="NAME", help="Secret with the key that signs.")
@click.option(
    "--s3-secret",
    default="nsabench-s3",
    show_default=True,
    metavar="NAME",
    help="Secret with the AWS_* variables of the bucket.",
)
@click.option("--queue", default="", metavar="NAME", help="LocalQueue of Kueue.")
@click.option("--product", default="", metavar="NAME", help="What nvidia.com/gpu.product must be.")
@click.option("--namespace", default="nsabench", show_default=True, help="Of the job.")
@click.option("--parallel", type=click.IntRange(0), default=0, help="Pods at once. Default: all.")
def kubernetes_(
    matrices: tuple[str, ...], shards: int, out: Path, results: str, **given: Any
) -> int:
    """Write an Indexed Job that measures a plan on Kubernetes, as a base and an overlay.

    Apply the overlay; `fleet collect` fetches what the pods have sent, and merges it.

    Example: nsabench fleet kubernetes selection_rows --shards 8 --out fleets/rows
    --image registry.example/nsabench:torch2.11.0-cu130 --results s3://bench/fleets/rows
    """
    _refuse_no_bucket(results)
    names = ("image", "gpus", "cpus", "memory", "key_secret", "s3_secret", "queue", "product")
    own = {name: given.pop(name) for name in (*names, "namespace", "parallel")}
    fleet = _make(out, shards, {"matrices": matrices, **given}, results)
    kubernetes.write(fleet, Kubernetes(name=kubernetes.name_of(fleet.path.name), **own))
    say(f"{shards} shards: {fleet.path}")
    say(f"begin them with: kubectl apply -k {fleet.path / 'overlay'}")
    say(f"then, when all have ended: nsabench fleet collect {fleet.path}")
    return 0


@command.command("modal")
@_asking
@click.option("--gpu", required=True, metavar="TYPE", help="As Modal calls it, such as H100!.")
@click.option("--combo", required=True, metavar="COMBO", help="Whose lock the image is made of.")
@click.option("--secret", default="", metavar="NAME", help="One with NSABENCH_SIGNING_KEY.")
@click.option("--volume", default="nsabench-results", show_default=True, help="Where shards go.")
def modal_(matrices: tuple[str, ...], shards: int, out: Path, **given: Any) -> int:
    """Write an app that measures a plan on GPUs that Modal rents out.

    Example: nsabench fleet modal selection_rows --shards 4 --out fleet --gpu H100!
    --combo torch2.11.0-cu130
    """
    own = {name: given.pop(name) for name in ("gpu", "combo", "secret", "volume")}
    checkout = combos.checkout()
    index = checkout.combos().get(own["combo"]).index
    fleet = _make(out, shards, {"matrices": matrices, **given})
    modal.write(fleet, Modal(checkout=str(checkout.root), index=index, **own))
    say(f"{shards} shards: {fleet.path}")
    say(f"begin them with: modal run {fleet.path / modal.APP}")
    return 0


@command.command("submit", context_settings={"ignore_unknown_options": True})
@FLEET
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SBATCH OPTION...]")
@click.option(
    "--anew",
    is_flag=True,
    help="Begin shards that stopped again, on any node, instead of going on where they were begun.",
)
def submit(fleet: Path, options: tuple[str, ...], anew: bool) -> int:
    """Submit the shards of a fleet that are not whole, and the merge after them.

    A shard that was begun goes on at its own node, with what it has.

    Example: nsabench fleet submit fleets/rows -- --exclude=node7
    """
    _submitted(FleetFolder(fleet.absolute()), options, anew=anew)
    return 0


def _submitted(fleet: FleetFolder, options: Sequence[str], *, anew: bool = False) -> None:
    jobs = slurm.submit(fleet, options, anew=anew)
    if fleet.read().results:
        say(f"submitted {', '.join(jobs) or 'no shard'}")
        say(f"then, when all have ended: nsabench fleet collect {fleet.path}")
    else:
        *arrays, merging = jobs
        say(f"submitted {', '.join(arrays) or 'no shard'}, and {merging}, which merges")
    say(f"look at it with: nsabench fleet status {fleet.path}")


@command.command("measure")
@FLEET
@click.argument("number", type=click.IntRange(1), required=False, metavar="[SHARD]")
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Measure there, where FLEET cannot be written.",
)
def measure(fleet: Path, number: int | None, work: Path | None) -> int:
    """Measure one shard of a fleet on this host, or go on with it: what its jobs call.

    Exits with 0 when the shard is whole, whether or not something in it failed. Without SHARD it is
    the one after JOB_COMPLETION_INDEX, as Kubernetes counts.

    Example: nsabench fleet measure fleets/rows 3
    """
    folder = FleetFolder(fleet.absolute())
    if number is None:
        number = task.number_of_pod()
    if work is not None:
        folder = folder.copied(work)
    code = stored.measure(folder, number)
    return 0 if code in task.DONE else code


@command.command("status")
@FLEET
@_options.as_json
def status_(fleet: Path, as_json: bool) -> None:
    """Show how far each shard has come.

    Example: nsabench fleet status fleets/rows --json
    """
    folder = FleetFolder(fleet.absolute())
    jobs = folder.jobs.read_text().split() if folder.jobs.is_file() else []
    results = folder.read().results
    sent = stored.stages(results) if results else None
    shards = status.of_fleet(folder, slurm.queue(jobs), sent)
    merged = (folder.whole / MANIFEST).is_file()
    if as_json:
        document = {"shards": [shard.as_json() for shard in shards], "merged": merged}
        say(json.dumps(document, indent=1))
        return
    for shard in shards:
        of = f"{shard.measured}/{shard.cases} cases" if shard.cases else ""
        ended = f"exit {shard.code}" if shard.code is not None else ""
        parts = (f"{shard.shard:4}  {shard.stage:9}", of, shard.host, ended, shard.queued)
        say("  ".join(part for part in parts if part))
    say(f"merged: {folder.whole}" if merged else "not merged yet")


@command.command("collect")
@FLEET
@click.option(
    "--key",
    "public",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.pub",
    help="A public key that you trust: then shards by others are refused.",
)
@_options.ops_of_the_run
def collect(fleet: Path, public: tuple[Path, ...]) -> int:
    """Merge the shards of a fleet into FLEET/whole. A fleet that is merged is left as it is.

    Example: nsabench fleet collect fleets/rows
    """
    folder = FleetFolder(fleet.absolute())
    spec = folder.read()
    if spec.results:
        for number, runs in stored.fetch(folder, spec.results).items():
            say(f"nsabench: shard {number} was measured by {', '.join(runs)}: the first is taken")
    if (folder.whole / MANIFEST).is_file():
        say(f"it was merged before: {folder.whole}")
        return 0
    lacking = [n for n in range(1, spec.shards + 1) if not task.is_signed(folder.shard(n))]
    if lacking:
        named = ", ".join(map(str, lacking[:10])) + (" and more" if len(lacking) > 10 else "")
        raise UsageError(
            f"{len(lacking)} of {spec.shards} shards are not whole: {named}",
            f"see `nsabench fleet status {fleet}`; `nsabench fleet submit {fleet}` goes on.",
        )
    found = merge(
        [folder.shard(number) for number in range(1, spec.shards + 1)],
        folder.whole,
        conclusion.prepare() or load_signer(),
        trusted=trusted_keyids(public),
        require=Trust.PINNED if public else Trust.EPHEMERAL,
        note=lambda text: say(f"nsabench: {text}", err=True),
    )
    if found.finished is not None:
        terminal.print_summary(found.finished, terminal.console())
    say(f"{spec.shards} shards, {found.records} records: {folder.whole}")
    say(found.signed)
    return 1 if found.failed else 0
