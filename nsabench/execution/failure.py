"""A failure of an implementation on a case: data with a reason, never a number."""

from __future__ import annotations

from nsabench.model.vocabulary import Status


class Failure(Exception):
    """The status an implementation earned, and why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason

    def alone(self) -> Failure:
        """Without where it came from: frames that hold their tensors as long as it is kept."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)
