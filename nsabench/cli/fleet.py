from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from nsabench import ops
from nsabench.cli import _help, _options
from nsabench.cli._options import Measuring, asked_again
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.fleet import jobs
from nsabench.fleet.jobs import ShardedRun
from nsabench.images import combos
from nsabench.planning import resolve
from nsabench.planning.narrow import Narrowed


@_help.group("fleet")
def command() -> None:
    """Write jobs that measure on many GPUs.

    Example: nsabench fleet slurm selection_rows --shards 8 --out fleets/rows
    """


_job = _options.measuring(
    click.option(
        "--out",
        "folder",
        required=True,
        type=_options.FOLDER,
        metavar="FLEET",
        help="New folder for the job files.",
    ),
    click.option(
        "--shards",
        type=click.IntRange(2, 10_000),
        required=True,
        metavar="N",
        help="Number of shards, each measured on a GPU of its own.",
    ),
    *_options.PLAN,
)


def _work(asked: Measuring, shards: int) -> ShardedRun:
    if asked.device == "auto":  # this host may have no GPU
        asked = replace(asked, device="cuda")
    asked = _options.absolute(asked)
    if asked.ops_file is not None:
        ops.load_file(asked.ops_file)
    default = resolve.default_matrices("cpu" if asked.device == "cpu" else "cuda")
    loaded = resolve.load_matrices(asked.matrices or default)
    wants = Narrowed(asked.where, asked.only).wants
    series = {ops.series_key(case) for m in loaded for case in m.cases if wants(case)}
    if shards > len(series):
        raise UsageError(
            f"{shards} shards are too many: the cases form {len(series)} length series (cases that "
            f"differ only in length), and a series is not split",
            f"take no more than {len(series)} shards.",
        )
    files = [Path(name) for name in asked.matrices if Path(name).is_file()]
    files += [file for file in (asked.kernels, asked.ops_file) if file is not None]
    return ShardedRun(shards, asked_again(asked), files, asked.ops_file)


@command.command("slurm")
@_job
@click.option(
    "--time", default="12:00:00", show_default=True, metavar="TIME", help="Time limit of a task."
)
@click.option(
    "--gres", default="gpu:1", show_default=True, metavar="GRES", help="GPU of a task; '' for none."
)
@click.option(
    "--memory", default="32G", show_default=True, metavar="SIZE", help="Memory of a task."
)
@click.option(
    "--sbatch",
    "options",
    multiple=True,
    metavar="OPTION",
    help="Further option of sbatch, such as --sbatch=--partition=h200. May be given again.",
)
def slurm(asked: Measuring, shards: int, folder: Path, **limits: Any) -> None:
    """Write jobs for Slurm.

    A job array measures the shards, and one more job merges them. All nodes share FLEET and this
    installation. A requeued task continues its shard.

    Example: nsabench fleet slurm selection_rows --shards 8 --out fleets/rows
    """
    jobs.slurm(folder, _work(asked, shards), **limits)
    say(f"submit the jobs with: bash {folder / 'submit.sh'}")


@command.command("kubernetes")
@_job
@click.option("--image", required=True, metavar="IMAGE", help="Image of nsabench in a registry.")
@click.option(
    "--claim",
    default="nsabench",
    show_default=True,
    metavar="NAME",
    help="PersistentVolumeClaim that all pods mount, for the results.",
)
@click.option(
    "--pod-gpus",
    "gpus",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of GPUs of a pod.",
)
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="KEY",
    help="Taint of nodes that pods may run on, such as nvidia.com/gpu. May be given again.",
)
@click.option("--runtime-class", default="", metavar="NAME", help="RuntimeClass, such as nvidia.")
@click.option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Secret for the registry of the image. May be given again.",
)
@click.option(
    "--ttl-s",
    type=click.IntRange(0),
    metavar="SECONDS",
    help="Time after which the cluster deletes a finished Job. Results stay.",
)
@click.option(
    "--name", default="", metavar="NAME", help="Name of the Jobs. Default: a unique name."
)
def kubernetes(asked: Measuring, shards: int, folder: Path, name: str, **pods: Any) -> None:
    """Write Jobs for Kubernetes.

    An Indexed Job measures the shards, and another Job merges them.

    Example: nsabench fleet kubernetes decode --shards 8 --out fleets/decode --image me/nsabench:1
    """
    jobs.kubernetes(folder, _work(asked, shards), jobs.Pods(**pods), name=name)
    say(f"measure with: kubectl apply -f {folder / 'shards.yaml'}")
    say(f"then merge with: kubectl apply -f {folder / 'merge.yaml'}")


@command.command("modal")
@_job
@click.option("--gpu", required=True, metavar="TYPE", help="GPU, such as `H100!`, for Modal.")
@click.option("--combo", required=True, metavar="COMBO", help="Set of versions in combos.yaml.")
def modal(asked: Measuring, shards: int, folder: Path, gpu: str, combo: str) -> None:
    """Write an app that measures on GPUs of Modal.

    The app also merges the shards.

    Example: nsabench fleet modal decode --shards 4 --out fleets/decode --gpu H100! --combo COMBO
    """
    checkout = combos.checkout()
    index = checkout.combos().get(combo).index
    work = _work(asked, shards)
    jobs.modal(folder, work, gpu=gpu, combo=combo, checkout=checkout.root, index=index)
    say(f"measure and merge with: modal run {folder / 'app.py'}")
