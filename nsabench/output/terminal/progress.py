import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from nsabench import labels
from nsabench.channel import Step
from nsabench.model.description import Described
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import BENIGN, Role
from nsabench.output.document import FAILED
from nsabench.text import shown
from nsabench.verdicts.attempts import CaseState

BAR = 16  # characters


class _Console(Console):
    """A console that ignores escapes, markup and emoji codes in the texts that it prints."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(shown(text, lines=True), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Texts with a style do not go through `render_str`.
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text, lines=True), style, control)


def console(*, stderr: bool = False) -> Console:
    """Return a console. Without a terminal it has 160 columns, or as many as `COLUMNS` says."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else 160
    return _Console(stderr=stderr, width=width, soft_wrap=False, markup=False, emoji=False)


class Progress:
    """Prints a line for each case, and shows on a terminal what runs now.

    The worker reports no step while it times, so nothing is redrawn inside a timed region.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        is_drawn = console.is_terminal and not os.environ.get("CI") and "NO_COLOR" not in os.environ
        self._live = Live(console=console, auto_refresh=False) if is_drawn else None
        self._roles: dict[tuple[str, str], Role] = {}
        self._began = time.monotonic()
        self._ran = self._number = self._total = 0
        self._case = ""

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None:
        software, device = described.software, described.device
        self.note(
            f"run {plan.run_id}: {len(plan.cases)} cases on {device.name or plan.device}, "
            f"torch {software.torch}, triton {software.triton}"
        )
        rates = ", ".join(f"{k} {v:.3g} TFLOP/s" for k, v in ceilings.tflop_s.items())
        self.note(f"measured ceilings: copy {ceilings.copy_gb_s or 0:.4g} GB/s, {rates}")
        self._roles = {(i.op, i.name): i.role for i in plan.implementations}
        self._began = time.monotonic()

    def case_started(self, planned: PlannedCase, number: int, total: int) -> None:
        self._number, self._total = number, total
        self._case = labels.case_with_op(planned.case)
        self._draw("")

    def step(self, step: Step) -> None:
        self._draw(f"{step.phase} {step.implementation}".strip())

    def case_finished(self, planned: PlannedCase, state: CaseState) -> None:
        self._ran += 1
        op = planned.case.op
        # Controls are judged at the end.
        judged = [
            o for o in state.observations if self._roles[op, o.implementation] is not Role.CONTROL
        ]
        counts = Counter(o.status for o in judged)
        parts = [f"{n} {status}" for status, n in sorted(counts.items())]
        controls = len(state.observations) - len(judged)
        parts += [f"controls: {controls}"] if controls else []
        case = labels.case_with_op(planned.case)
        number = f"[{self._number}/{self._total}]"
        failed = any(o.status not in BENIGN for o in judged)
        line = f"{number} {case}: {', '.join(parts)} ({state.wall_s:.1f} s)"
        self.note(line, FAILED if failed else "")

    def note(self, text: str, style: str = "") -> None:
        self.console.print(text, highlight=False, style=style)

    def _draw(self, doing: str) -> None:
        if self._live:
            done = max(self._number - 1, 0)
            filled = BAR * done // max(self._total, 1)
            bar = "━" * filled + "─" * (BAR - filled)
            parts = [f"{bar} {done} of {self._total}", self._estimate_time_left()]
            line = f"{', '.join(filter(None, parts))}  {self._case}  {doing}"
            text = Text(line, "cyan", no_wrap=True)
            # A terminal may wrap after a character in its last column.
            text.truncate(self.console.width - 1, overflow="ellipsis")
            self._live.update(text, refresh=True)

    def _estimate_time_left(self) -> str:
        if not self._ran:
            return ""
        left = self._total - self._number + 1
        seconds = (time.monotonic() - self._began) / self._ran * left
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"
