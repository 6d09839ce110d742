from nsabench.cli import _help, _options
from nsabench.cli._measure import measure, show
from nsabench.cli._options import Measuring


@_help.command("run")
@_options.measuring(*_options.RUN, *_options.PLAN)
def command(asked: Measuring) -> int:
    """Measure, but decide and sign nothing.

    The machine is not checked first, and no report is written.

    Example: nsabench run quick --device cpu
    """
    return show(measure(asked, fit=False), asked)
