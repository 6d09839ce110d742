from pathlib import Path

import click

from nsabench import conclusion
from nsabench.cli import _help, _options
from nsabench.cli._measure import show
from nsabench.cli._options import Measuring
from nsabench.cli._trust import least_trust
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.statement import Trust
from nsabench.fleet.merge import merge
from nsabench.signing import load_signer


@_help.command("merge")
@click.argument(
    "shards", nargs=-1, required=True, metavar="SHARD...", type=_options.EXISTING_FOLDER
)
@click.option(
    "--out", required=True, type=_options.FOLDER, metavar="RUN", help="Folder of the merged run."
)
@_options.trusted
@click.option(
    "--require",
    type=click.Choice([Trust.EPHEMERAL.value, Trust.UNPINNED.value, Trust.PINNED.value]),
    help=(
        "Lowest trust level of a shard. Default: pinned with --key, unpinned if the merged run is "
        "signed with a lasting key, and ephemeral otherwise."
    ),
)
@_options.ops_of_the_run
@_options.as_json
def command(
    shards: tuple[Path, ...],
    out: Path,
    public: tuple[Path, ...],
    require: str | None,
    as_json: bool,
) -> int:
    """Join the shards of a plan into a signed run.

    Each shard is verified. One case, which all shards measured, compares their hosts. Verdicts and
    thresholds are derived again. The shards must be of one plan, measured with the same code,
    versions, driver and GPU model.

    Example: nsabench merge results/shard-* --out results/whole
    """
    signer = conclusion.prepare() or load_signer()
    least = least_trust(public, require)
    if require is None and not signer.ephemeral and not least.reaches(Trust.UNPINNED):
        least = Trust.UNPINNED
    finished, signed = merge(shards, out, signer, trusted=trusted_keyids(public), require=least)
    return show(finished, Measuring(as_json=as_json), signed)
