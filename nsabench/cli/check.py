import sys
from datetime import datetime
from pathlib import Path

import click

from nsabench.check import TIMEOUT_S, CheckRequest, check_file, refuse_unusable
from nsabench.cli import _help, _options, _watch
from nsabench.cli._options import Measuring
from nsabench.cli._say import say, say_document
from nsabench.errors import NsabenchError
from nsabench.machine.doctor.gpu import choose_device
from nsabench.model.vocabulary import DTYPE_NAMES, Direction, DType
from nsabench.output import check as shown
from nsabench.output import terminal
from nsabench.output.result import NOT_TRIED
from nsabench.output.standing import DECLINED


@_help.command("check")
@click.argument("file", type=_options.PATH, metavar="FILE.py")
@click.option("--op", default="", metavar="NAME", help="Op to check, if the file has several.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="SIZES",
    help="Sizes to try, such as N=64,L=1024. May be given again. Default: those of the op.",
)
@click.option(
    "--dtype",
    type=click.Choice([*map(str, DType), *DTYPE_NAMES]),
    default=DType.FLOAT16.value,
    show_default=True,
    help="Dtype of the inputs.",
)
@click.option(
    "--direction",
    type=click.Choice([*map(str, Direction)]),
    default=Direction.FORWARD.value,
    show_default=True,
    help="Direction that is called and timed.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1, 24 * 60 * 60),
    default=int(TIMEOUT_S),
    show_default=True,
    metavar="SECONDS",
    help="Time for each step of a case: compilation, a call, a comparison.",
)
@_options.measuring(
    _options.as_json,
    click.option("--watch", is_flag=True, help="Check again whenever the file is saved."),
    *(_options.no_sandbox, _options.path_of_op, _options.device, _options.only),
)
def command(
    asked: Measuring,
    file: Path,
    op: str,
    shapes: tuple[str, ...],
    dtype: str,
    direction: str,
    timeout: int,
    watch: bool,
) -> int:
    """Check one kernel for correctness and speed.

    It needs no matrix. A GPU takes seconds, and Triton's interpreter minutes for a slow kernel.
    Baselines are timed in the same rounds as the kernel. No control runs, and nothing is decided or
    signed: `nsabench all` does that.

    Example: nsabench check mine.py --shape N=1024,H=8,D=128,L=512
    """

    def checked() -> int:
        try:
            _options.require_python(file)
            ops_file = _options.load_op(asked.ops_file)
            device = choose_device(asked.device)
            request = CheckRequest(
                file=file.absolute(),
                device=device,
                op=op,
                shapes=shapes,
                dtype=DType(dtype),
                direction=Direction(direction),
                only=asked.only,
                ops_file=ops_file,
                sandboxed=not asked.no_sandbox,
                timeout_s=timeout,
            )
            refuse_unusable(request)
            if not asked.as_json:
                say(shown.header(file, device, datetime.now()))
            return _check(request, asked.as_json)
        except NsabenchError as error:
            if asked.as_json:
                say_document(shown.refusal(error))
            elif watch:  # the next save may correct it
                _watch.await_save()
                say(f"nsabench: {error}\n  remedy: {error.remedy}", err=True)
            else:
                raise
            return error.exit_code

    if watch:
        _watch.repeat(file.absolute(), checked, lambda: say("saved: starting again", err=True))
    return checked()


def _check(request: CheckRequest, as_json: bool) -> int:
    # On a terminal, say whether a kernel is right before it is timed.
    waits = not as_json and sys.stderr.isatty()
    results = check_file(
        request, lambda step: say(shown.describe_step(step), err=True) if waits else None
    )
    # The code 5 says that no kernel supports these cases on this device.
    declined = all(a.record.status in DECLINED for a in results)
    code = 1 if any(map(shown.has_failed, results)) else NOT_TRIED if declined else 0
    if as_json:
        say_document(shown.as_document(results, code))
    else:
        terminal.print_sentences(shown.lines(results), terminal.console())
    return code
