"""How an implementation fails on a case, and how it takes the device with it."""

from __future__ import annotations

from nsabench.model.vocabulary import Status


class Failure(Exception):
    """An implementation failed. trace: the traceback of what it raised."""

    def __init__(self, status: Status, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.trace = trace

    def alone(self) -> Failure:
        """Drop the traceback, whose frames hold tensors."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class DeviceLost(Exception):
    """The CUDA context answers every call with an error since `implementation` used the device."""

    def __init__(self, implementation: str, reason: str) -> None:
        super().__init__(reason)
        self.implementation = implementation
