"""Errors a user can do something about: one sentence, a remedy, and an exit code."""


class NsabenchError(Exception):
    """An expected error. `str()` is one sentence; `remedy` says what to do about it.

    folder: of the run that it ended, and that can be resumed.
    """

    exit_code = 1

    def __init__(self, sentence: str, remedy: str = "") -> None:
        super().__init__(sentence)
        self.remedy = remedy
        self.folder = ""


class Interrupted(KeyboardInterrupt):
    """A run was interrupted. folder: where it lies; command: what goes on with it."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.command = "all"


class UsageError(NsabenchError):
    """A bad option, matrix or implementation, found before any case ran."""

    exit_code = 2


class EnvironmentRefused(NsabenchError):
    """This machine cannot do what was asked of it."""

    exit_code = 3


class VerificationFailed(NsabenchError):
    """A run folder is not what it claims to be."""

    exit_code = 4


class BegunElsewhere(VerificationFailed):
    """A run was begun on another machine, or on another device of this one, and goes on there."""

    exit_code = 5
