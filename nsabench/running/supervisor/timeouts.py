"""Limit the time of a request. `WorkerProcess` kills a worker that exceeds it."""

from __future__ import annotations

from nsabench.worker.protocol import Step

START_TIMEOUT_S = 180.0  # importing torch and creating a CUDA context on a slow disk
MAX_STEPS = 1000
MAX_ALLOWANCE = 64.0
# The mean: a few steps concern all implementations of a case, and the others one.
ALLOWANCE_EACH = 2.0


class Deadline:
    """Limits each step of a request, the number of steps and the sum of their times."""

    def __init__(self, limit_s: float, max_steps: int = MAX_STEPS) -> None:
        """limit_s: of a step with allowance 1. The first step may take longer."""
        # The limit of the current step, and what is left of it.
        self.step_s = self.left_s = max(START_TIMEOUT_S, limit_s)
        self._limit_s = limit_s
        self._max_steps = self._steps_left = max_steps
        self._allowance_left = ALLOWANCE_EACH * max_steps

    def renew(self, step: Step) -> str:
        """Begin the time of a step. Return what the worker did wrong, or an empty string."""
        self._steps_left -= 1
        if self._steps_left < 0:
            return f"reported more than {self._max_steps} steps"
        if step.phase != "start":
            self._allowance_left -= step.allowance
            if not self._allowance_left >= 0:
                return "asked for more time than its work can take"
            self.step_s = self._limit_s * min(step.allowance, MAX_ALLOWANCE)
        self.left_s = self.step_s
        return ""
