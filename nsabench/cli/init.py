import keyword
from pathlib import Path

import click

from nsabench import ops
from nsabench.cli import _help, _options
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.files import write_text
from nsabench.output import templates


@_help.command("init")
@click.argument("op")
@click.argument("file", type=_options.PythonFile(), metavar="FILE.py")
@click.option("--cuda", is_flag=True, help="CUDA C++ compiled by NVRTC instead of Triton.")
@_options.loaded_ops
def command(op: str, file: Path, cuda: bool, ops_file: Path | None) -> None:
    """Write a first kernel and a matrix for an op.

    FILE.py contains a right kernel for OP, in Triton unless --cuda is given, and the shapes of its
    arguments. For an op of your own, FILE.py calls the op's oracle. The matrix is in FILE.yaml.

    Example: nsabench init selection_rows mine.py
    """
    name = file.stem
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot name an implementation", "give a file such as mine.py.")
    kernel = templates.first_kernel(ops.get(op), name, str(ops_file or ""), cuda=cuda)
    texts = {file: kernel, file.with_suffix(".yaml"): templates.first_matrix(ops.get(op), name)}
    for path in texts:
        if path.exists():
            raise UsageError(f"{path} is there already", "give another name, or remove it.")
    for path, text in texts.items():
        say(write_text(path, text))
    say(f"next: nsabench check {file}" + (f" --ops {ops_file}" if ops_file else ""))
