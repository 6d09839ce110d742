"""Errors that a user can act on: one sentence, a remedy, and an exit code."""


class NsabenchError(Exception):
    """An expected error. `str()` is one sentence; `remedy` says what to do."""

    exit_code = 1

    def __init__(self, sentence: str, remedy: str = "") -> None:
        super().__init__(sentence)
        self.remedy = remedy
        self.folder = ""  # the run that the error ended, if that run can be resumed


class Interrupted(KeyboardInterrupt):
    """A run was interrupted. `nsabench COMMAND --resume FOLDER` continues it."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.command = "all"


class UsageError(NsabenchError):
    """An option, a matrix or an implementation cannot be used."""

    exit_code = 2


class EnvironmentRefused(NsabenchError):
    """This machine cannot do what was asked."""

    exit_code = 3


class VerificationFailed(NsabenchError):
    """A run folder is not what it claims to be."""

    exit_code = 4


class BegunElsewhere(EnvironmentRefused):
    """A run must be resumed on the machine and device on which it was begun."""
