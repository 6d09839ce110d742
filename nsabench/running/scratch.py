"""Make the folder that workers write to, and list what is hidden from them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsabench.signing.secrecy import variables
from nsabench.worker.protocol import Sandbox

_ASIDE = "scratch"


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    def __init__(self) -> None:
        super().__init__(prefix="nsabench-scratch-", ignore_cleanup_errors=True)

    def remove(self) -> None:
        # A kernel may have made folders that their owner can neither read nor write, or more in
        # each other than Python can walk. `chmod` would follow a link that replaces this folder.
        commands = [["chmod", "-R", "u+rwx"], ["rm", "-rf"]]
        for command in commands[1:] if Path(self.name).is_symlink() else commands:
            subprocess.run([*command, "--", self.name], check=False, stderr=subprocess.DEVNULL)
        self.cleanup()


class Scratch:
    """A folder for the workers of one executor. The run and the runs beside it are hidden."""

    def __init__(self, run: Path | None = None) -> None:
        self._folder = TemporaryFolder()
        self._begins_as = ""
        self._sandbox = Sandbox(scratch=self.path, hidden=[str(path) for path in _hidden(run)])

    @property
    def path(self) -> str:
        return self._folder.name

    def next_sandbox(self) -> Sandbox:
        begins_as, self._begins_as = self._begins_as, ""
        return self._sandbox.model_copy(update={"begins_as": begins_as})

    def put_aside(self) -> TemporaryFolder:
        """Empty the folder, and return its content. No worker may run meanwhile."""
        aside = TemporaryFolder()
        Path(self.path).rename(Path(aside.name, _ASIDE))
        Path(self.path).mkdir(0o700)
        return aside

    def begin_afresh(self, aside: TemporaryFolder) -> None:
        """Have the next worker begin with a copy at the same path, since caches hold paths."""
        self.put_aside().remove()
        self._begins_as = str(Path(aside.name, _ASIDE))

    def remove(self) -> None:
        self._folder.remove()


def _hidden(run: Path | None) -> Iterator[Path]:
    for value in variables().values():
        if value.startswith("/") and Path(value).is_file():
            yield Path(value)
    if run is not None:
        yield run
        yield from (plan.parent for plan in run.parent.glob("*/plan.json"))
