import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say_json
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.output import terminal
from nsabench.preflight import report, run, targets
from nsabench.preflight.launch import CompiledLaunch


@_help.command("preflight")
@_options.matrices
@click.option(
    "--arch",
    multiple=True,
    default=tuple(targets.ARCHITECTURES),
    show_default=True,
    metavar="LIST",
    help="Architectures to compile for, such as sm_89,sm_90. May be given again.",
)
@click.option(
    "--triton",
    multiple=True,
    metavar="LIST",
    help="Versions to compile with, or `all`, from the cache or installed into it with a checked "
    "hash. May be given again. Default: the installed version.",
)
@_options.kernels
@_options.ops_file
@click.option(
    "--out",
    type=_options.FILE,
    default=Path("results/preflight.parquet"),
    show_default=True,
    help="File of the table.",
)
@click.option(
    "--jobs", type=click.IntRange(1), metavar="N", help="Compilers at once. Default: one per core."
)
@_options.as_json
def command(
    arch: tuple[str, ...], triton: tuple[str, ...], out: Path, as_json: bool, **given: Any
) -> int:
    """Compile for other GPUs and Triton versions.

    No GPU is needed. Candidates are called on the cases of the matrices (default: all that ship) as
    if a GPU of each architecture were there. Their launches, with every autotune configuration, are
    compiled to a cubin, and not run. With --kernels, only candidates of that file are called.

    Exits with 1 if something fails. If a version of Triton does not support an architecture, the
    result is `unsupported`. After an interrupt, the next preflight reuses what is in the cache.

    Example: nsabench preflight --arch sm_89,sm_90 --triton 3.1.0,3.9.0 --kernels mine.py
    """
    listed = targets.parse_architectures(",".join(arch))
    versions = targets.parse_tritons(",".join(triton))
    with _refusing(out):  # fail now, and not after hours of compiling
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    console = terminal.console()

    def show(row: CompiledLaunch) -> None:
        kernel = row.kernel or row.implementation
        status.update(f"compiled {kernel} under Triton {row.triton} for {row.architecture}")

    with console.status("compiling") as status:
        compiled = run.run(show, architectures=listed, versions=versions, **given)
    if not compiled:
        raise UsageError(
            "no candidate has a case in these matrices, so nothing was compiled",
            "name matrices of the candidates' ops; `nsabench plan MATRIX` lists implementations.",
        )
    compiled.sort(key=report.sort_key)
    with _refusing(out):
        report.write(compiled, out)
    failed = sum(c.failed for c in compiled)
    if as_json:
        say_json([c.model_dump() for c in compiled])
    else:
        console.print(report.render(compiled))
        console.print(f"{len(compiled)} launches, {failed} failed; all in {out}")
    return 1 if failed else 0


@contextmanager
def _refusing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentRefused(
            f"{out} cannot be written: {error.strerror}", "give --out a path that can be written."
        ) from None
