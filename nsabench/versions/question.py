"""What is measured under every version, and how one version is: by a whole nsabench of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.manifest.seal import MANIFEST
from nsabench.execution.folder import RunFolder
from nsabench.files import whole
from nsabench.signing import secrecy
from nsabench.versions.tritons import Triton

FILE = "question.json"
GOOD = (0, 1)  # exit codes of a run that is complete

Show = Callable[[str, str], None]


@dataclass(frozen=True)
class Measured:
    """A version, the folder of its run, and with which code that ended; None: it was there."""

    triton: Triton
    folder: Path
    exit_code: int | None

    @property
    def finished(self) -> bool:
        """Any other code, and what lies there is part of a run, or none."""
        return self.exit_code in (None, *GOOD)


@dataclass(frozen=True)
class Question:
    """arguments: of `nsabench all`, the same for all versions. folder: below it each has its run.

    A version that is measured already is not measured again, and one that was begun goes on.
    """

    arguments: tuple[str, ...]
    folder: Path

    def keep(self) -> None:
        """Put it beside the runs. Raises `UsageError` where the folder is another question's."""
        if self._file.is_file():
            if read(self.folder).arguments != self.arguments:
                raise UsageError(
                    f"{self.folder} holds runs that were asked for otherwise",
                    f"give --out another folder; {self._file} says what those were asked for.",
                )
            return
        if self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder} is not empty", "give --out another folder.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            whole(self._file, json.dumps({"arguments": self.arguments}).encode() + b"\n")
        except OSError as error:
            raise EnvironmentRefused(
                f"{self.folder} cannot be written: {error.strerror}",
                "give --out a writable folder.",
            ) from None

    @property
    def _file(self) -> Path:
        return self.folder / FILE

    def answer(self, triton: Triton, show: Show) -> Measured:
        """Measure under one version. show: is told the version and each line that it prints.

        An interrupt is handed on, so that what is measured stays and the next call goes on.
        """
        own = self.folder / triton.name
        if is_finished(own):
            return Measured(triton, own, None)
        begun = (own / "journal.jsonl").is_file()
        words = ["--resume", str(own)] if begun else [*self.arguments, "--out", str(own)]
        process = subprocess.Popen(
            [sys.executable, "-m", "nsabench", "all", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(triton),
            start_new_session=True,  # an interrupt of the terminal is handed on once, and by us
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                show(triton.version, line.rstrip("\n"))
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        return Measured(triton, own, code)


def read(folder: Path) -> Question:
    """The question that the runs in a folder answer. Raises `UsageError` where it holds none."""
    try:
        content = json.loads((folder / FILE).read_bytes())
        arguments = content["arguments"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{folder} does not say what its runs were asked for",
            "name runs that `nsabench versions` made, where they lie.",
        ) from None
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        raise UsageError(
            f"{folder / FILE} holds no words of a command line", "take the file as it was made."
        )
    return Question(tuple(arguments), folder)


def is_finished(folder: Path) -> bool:
    """Whether a run was measured, decided and sealed there."""
    path = RunFolder(folder)
    return path.records.is_file() and (folder / MANIFEST).is_file()


def environment(triton: Triton) -> dict[str, str]:
    """Of a process that finds this Triton before the installed one."""
    variables = {**os.environ, **secrecy.variables()}
    if triton.folder is not None:
        path = [str(triton.folder), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return variables


def answer_all(question: Question, tritons: Sequence[Triton], show: Show) -> list[Measured]:
    """One after the other; one that fails does not keep the next from being measured."""
    question.keep()
    return [question.answer(triton, show) for triton in tritons]
