import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import click

from nsabench import conclusion
from nsabench.cli import _help, _options
from nsabench.cli._measure import measure, show
from nsabench.cli._options import Measuring, asked_again
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.files import refuse_filled
from nsabench.fleet import devices
from nsabench.fleet.devices import Place
from nsabench.fleet.merge import merge
from nsabench.model.plan import WHOLE
from nsabench.signing import load_signer


@_help.command("all")
@click.option(
    "--gpus",
    metavar="0,1|all",
    help="GPUs that measure a shard each at the same time; the shards are merged into one run.",
)
@_options.measuring(*_options.RUN, *_options.PLAN)
def command(asked: Measuring, gpus: str | None) -> int:
    """Check the machine, measure, decide and report.

    Without a MATRIX, all shipped matrices except `quick` are measured on a GPU, `quick` on a CPU.

    Example: nsabench all selection_rows --kernels mine.py
    """
    if gpus is not None:
        code = _measure_on(asked, gpus)
        if code is not None:
            return code
    finished = measure(asked, fit=True)
    return show(finished, asked, conclusion.finish(finished))


def _measure_on(asked: Measuring, given: str) -> int | None:
    """Measure on the GPUs that `given` names, merge, and return the exit code.

    Returns None for a single GPU: this process then measures on it, without shards.
    """
    if asked.resume is not None or asked.shard != WHOLE or asked.device == "cpu":
        raise UsageError(
            "--gpus makes shards, and takes no --resume, --shard or --device cpu",
            "leave them out; the same command with --out continues its shards.",
        )
    if asked.as_json or asked.junit is not None:
        raise UsageError("--gpus takes no --json and no --junit", "leave them out.")
    places = devices.places(given)
    if len(places) == 1:
        os.environ.update(places[0].variables)
        return None
    return measure_shards(replace(asked, device="cuda"), places)


def measure_shards(asked: Measuring, places: list[Place]) -> int:
    signer = conclusion.prepare() or load_signer()
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    out = asked.out or Path("results") / name
    refuse_filled(out)
    shards = out.with_name(f"{out.name}.shards")
    say(f"{len(places)} shards at once, in {shards}")
    try:
        folders = devices.measure(
            asked_again(asked), places, shards, lambda place, line: say(f"[{place}] {line}")
        )
    except KeyboardInterrupt:
        say(f"nsabench: the same command with --out {out} continues its shards.", err=True)
        raise
    finished, signed = merge(folders, out, signer, trusted=trusted_keyids())
    click.echo()
    return show(finished, asked, signed)
