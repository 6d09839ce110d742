"""nsabench preflight"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.errors import EnvironmentRefused
from nsabench.output import terminal
from nsabench.preflight import architectures, compiled_launch, report, run, tritons


@click.command("preflight")
@_options.matrices
@click.option(
    "--arch",
    default=",".join(architectures.ARCHITECTURES),
    show_default=True,
    metavar="LIST",
    help="Architectures to compile for.",
)
@click.option(
    "--triton",
    default="",
    metavar="LIST",
    help="Versions to compile with, or `all`; each is installed into the cache, checked by its "
    "hash. Default: the one that is installed.",
)
@_options.kernels
@_options.ops_file
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("results/preflight.parquet"),
    show_default=True,
    metavar="FILE",
    help="Where the table goes.",
)
@click.option("--jobs", type=click.IntRange(1), help="Compilers at once. Default: one a core.")
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest that one compilation may take.",
)
@click.option(
    "--no-cache",
    is_flag=True,
    help="Compile also what Triton has in the cache of an earlier preflight.",
)
@_options.as_json
def command(
    matrices: tuple[str, ...],
    arch: str,
    triton: str,
    kernels: Path | None,
    ops_file: Path | None,
    out: Path,
    jobs: int | None,
    timeout: float,
    no_cache: bool,
    as_json: bool,
) -> int:
    """Compile every candidate's kernels for other GPUs and other Tritons, without a GPU.

    Candidates are called on the cases of the matrices (default: all that ship) as if a GPU of each
    architecture were there; what they launch, with every autotune configuration, is recorded,
    compiled to a cubin, and not run. With --kernels only that file's candidates.

    Exits with 1 when something fails on an architecture that the Triton supports. When it is
    interrupted, the table holds each architecture under a Triton that was complete.

    Example: nsabench preflight --arch sm_89,sm_90 --triton 3.1.0,3.9.0 --kernels mine.py
    """
    order = run.Order(
        architectures=architectures.parse(arch),
        versions=tritons.parse(triton),
        matrices=matrices,
        kernels=kernels,
        ops_file=ops_file,
        timeout_s=timeout,
        jobs=jobs or 0,
        cache=not no_cache,
    )
    with _refusing(out), tempfile.TemporaryFile(dir=_made(out.parent)):
        pass  # known before hours of compiling, not after
    console = terminal.console()
    complete: list[compiled_launch.CompiledLaunch] = []

    def finished(compiled: Sequence[compiled_launch.CompiledLaunch]) -> None:
        complete.extend(compiled)
        progress.finished(compiled)

    with report.Progress(console, lambda line: say(line, err=True)) as progress:
        try:
            compiled = run.run(order, progress.done, finished)
        except BaseException:  # whatever ends it, what is complete is kept
            if complete:
                _write(complete, out)
            raise
    _write(compiled, out)
    failed = sum(c.failed for c in compiled)
    if as_json:
        say(json.dumps([c.model_dump() for c in compiled], indent=1))
    else:
        console.print(report.render(compiled))
        console.print(f"{len(compiled)} launches, {failed} failed; all in {out}")
    return 1 if failed else 0


def _write(compiled: list[compiled_launch.CompiledLaunch], out: Path) -> None:
    with _refusing(out):
        compiled_launch.write(compiled, out)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _refusing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentRefused(
            f"{out} cannot be written: {error.strerror}", "give --out a writable place."
        ) from None
