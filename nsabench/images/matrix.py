"""Runs the same matrices in several images, one after another, and compares the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import NsabenchError
from nsabench.images.launch import INPUT, RESULTS, Launch, run


@dataclass(frozen=True)
class ComboResult:
    """A combo's run: its folder and the exit code of the container."""

    combo: str
    folder: Path
    exit_code: int

    @property
    def finished(self) -> bool:
        # With any other exit code, the files may be those of an earlier run.
        return self.exit_code in (0, 1) and (self.folder / "records.parquet").is_file()


def run_all(
    combos: Sequence[str],
    matrices: Sequence[str],
    launch: Callable[[str, Sequence[str], Sequence[Path]], Launch],
    say: Callable[[str], None],
) -> list[ComboResult]:
    """Run each combo; one that fails does not end the others.

    launch: makes the settings from a combo, the arguments of nsabench and the input files.
    """
    shown = [Path(name) for name in matrices if Path(name).is_file()]
    given = [f"{INPUT}/{Path(n).name}" if Path(n).is_file() else n for n in matrices]
    combo_results = []
    for combo in combos:
        say(f"== {combo}")
        settings = launch(combo, ["all", *given, "--out", f"{RESULTS}/{combo}"], shown)
        try:
            code = run(settings, say)
        except NsabenchError as error:
            say(f"{error}; {error.remedy}")
            code = error.exit_code
        folder = settings.results / combo
        combo_results.append(ComboResult(combo, folder, code))
    return combo_results
