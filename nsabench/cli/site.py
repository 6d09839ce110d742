from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say
from nsabench.cli._trust import least_trust
from nsabench.evidence.manifest.keys import trusted_keyids


@_help.command("site")
@click.argument("places", nargs=-1, required=True, metavar="ARCHIVE...")
@click.option(
    "--out",
    type=_options.FOLDER,
    default=Path("site"),
    show_default=True,
    metavar="DIR",
    help="New folder for the site.",
)
@_options.trusted
@_options.ops_of_the_run
def command(places: tuple[str, ...], out: Path, public: tuple[Path, ...]) -> None:
    """Write a static site about archived runs.

    The site has decisions, leaderboards, a page for each run, and downloads. It needs no server and
    no network. The runs are verified first.

    Example: nsabench site docs/results/archive --out site
    """
    # The site needs an extra, and its libraries would slow down --help.
    from nsabench.output import site

    say(site.write(places, out, trusted_keyids(public), least_trust(public)))
