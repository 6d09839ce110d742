"""A failure of an implementation on a case: data with a reason, never a number."""

from nsabench.words import Status


class Failure(Exception):
    """The status an implementation earned, and why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
