"""How an implementation fails on a case, and how it takes the device with it."""

from __future__ import annotations

from nsabench.model.vocabulary import Status


class Failure(Exception):
    """The status an implementation earned, and why. trace: the traceback of what it raised."""

    def __init__(self, status: Status, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.trace = trace

    def alone(self) -> Failure:
        """Without where it came from: frames that hold their tensors as long as it is kept."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class DeviceLost(Exception):
    """The CUDA context answers every call with an error: this process is of no more use.

    implementation: who used the device when it was lost.
    """

    def __init__(self, implementation: str, reason: str) -> None:
        super().__init__(reason)
        self.implementation = implementation
