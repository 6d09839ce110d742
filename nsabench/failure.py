"""Exceptions for an implementation that fails on a case, or that makes the device unusable."""

from __future__ import annotations

from nsabench.model.vocabulary import Status


class Failure(Exception):
    """An implementation failed. `trace` is the traceback of what it raised."""

    def __init__(self, status: Status, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.trace = trace

    def alone(self) -> Failure:
        """Drop the traceback and the causes, whose frames refer to tensors."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class DeviceLost(Exception):
    """`implementation` broke the CUDA context: every later use of the device fails."""

    def __init__(self, implementation: str, reason: str) -> None:
        super().__init__(reason)
        self.implementation = implementation
