"""Refuse altered runs, and files inside signed runs, before a command reads or writes."""

from pathlib import Path

from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.evidence.manifest import refuse_altered, signed_around
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.statement import Trust
from nsabench.running.folder import RunFolder


def admit(run: Path, *, tables: bool = True) -> None:
    """Refuse a run that was altered or contains a link, and say if it is unsigned.

    tables: also check that the tables follow from the log, for a command that reads them.
    """
    RunFolder.existing(run).refuse_links()
    if refuse_altered(run, tables=tables) is Trust.UNSIGNED:
        say_unsigned(run)


def least_trust(public: tuple[Path, ...], required: str | None = None) -> Trust:
    """Return the lowest trust level that passes. public: files of keys that the user trusts.

    Raises `UsageError` for `pinned` without any key.
    """
    if required == Trust.PINNED and not trusted_keyids(public):
        raise UsageError("--require pinned needs a key that you trust", "name it with --key.")
    return Trust(required or (Trust.PINNED if public else Trust.EPHEMERAL))


def say_unsigned(run: Path) -> None:
    # Programs may read what a command prints on standard output.
    say(f"nsabench: {run} is unsigned: nothing shows that it was not altered", err=True)


def refuse_inside(option: str, path: Path | None, run: Path | None = None) -> None:
    """Raise `UsageError` for a file inside `run` or inside a signed run."""
    if path is None:
        return
    in_run = run is not None and run.resolve() in path.resolve().parents
    if in_run or signed_around(path) is not None:
        raise UsageError(
            f"{option} {path} is in the folder of a run, whose files are signed".lstrip(),
            "name a file in another folder.",
        )
