import click
from click.shell_completion import get_completion_class

from nsabench.cli import _help


@_help.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    Example: nsabench completion bash > ~/.local/share/bash-completion/completions/nsabench
    """
    completion = get_completion_class(shell)
    assert completion is not None
    program = context.find_root().command
    click.echo(completion(program, {}, "nsabench", "_NSABENCH_COMPLETE").source())
