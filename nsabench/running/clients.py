"""Ask a worker, which imports kernels, to measure, and the checker, which imports none, to judge.

The workers of an executor share a scratch: a folder that they may write to.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from nsabench.channel import Refused, Step
from nsabench.checker.protocol import Checked, Conclude, Concluded, Prepare, Prepared
from nsabench.delivery import Delivery
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.job import Death
from nsabench.model.measurement import Ceilings, Judged, Message
from nsabench.model.plan import Device, ImplementationInfo, Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import Status
from nsabench.running.process import MAX_STEPS, CheckerLost, Printed, WarmProcess, WorkerLost
from nsabench.running.process_tree import Program, list_descendants, make_environment
from nsabench.signing.secrecy import variables
from nsabench.verdicts.attempts import BEFORE_ANY
from nsabench.worker import protocol

START_LIMIT_S = 120.0  # time to import everything, or to measure ceilings
MOST_PROBES = 64  # the most probes of a case that a worker may report while it compiles
DIAGNOSIS_LIMIT_S = 60.0  # for each implementation; a search ends after two seconds of CPU time
CHECKER_REPLY: TypeAdapter[Any] = TypeAdapter(
    Annotated[Step | Prepared | Checked | Concluded | Refused, Field(discriminator="kind")]
)
_ASIDE = "scratch"

M = TypeVar("M", bound=Message)
Note = Callable[[str], None]  # shows a line to the user


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    def __init__(self) -> None:
        super().__init__(prefix="nsabench-scratch-", ignore_cleanup_errors=True)

    def remove(self) -> None:
        # A kernel may have made folders that their owner cannot read, or nested them deeper than
        # Python can walk. `chmod` would follow a link that replaces this folder.
        commands = [["chmod", "-R", "u+rwx"], ["rm", "-rf"]]
        for command in commands[1:] if Path(self.name).is_symlink() else commands:
            subprocess.run([*command, "--", self.name], check=False, stderr=subprocess.DEVNULL)
        self.cleanup()


class Scratch:
    """A folder for workers. Their sandbox hides the run, the runs beside it and files of keys."""

    def __init__(self, run: Path | None = None) -> None:
        self._folder = TemporaryFolder()
        self._begins_as = ""
        self._sandbox = protocol.Sandbox(
            scratch=self.path, hidden=[str(path) for path in _hidden(run)]
        )

    @property
    def path(self) -> str:
        return self._folder.name

    def next_sandbox(self) -> protocol.Sandbox:
        begins_as, self._begins_as = self._begins_as, ""
        return self._sandbox.model_copy(update={"begins_as": begins_as})

    def put_aside(self) -> TemporaryFolder:
        """Move the content to a new folder, and return the folder. No worker may run meanwhile."""
        aside = TemporaryFolder()
        Path(self.path).rename(Path(aside.name, _ASIDE))
        Path(self.path).mkdir(0o700)
        return aside

    def begin_afresh(self, aside: TemporaryFolder) -> None:
        """Let the next worker copy `aside` into the scratch, whose path is in the caches."""
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


@dataclass
class Listener:
    on_step: Callable[[Step], None]

    def __call__(self, reply: Message) -> Message | None:
        if isinstance(reply, Step):
            self.on_step(reply)
        elif isinstance(reply, protocol.LostDevice):
            raise WorkerLost(
                Death(status=Status.CRASHED, reason=reply.reason, suspect=reply.implementation)
            )
        return None


@dataclass
class WorkerClient:
    """Asks a worker: a process that is started for the first request, and again after its loss."""

    device: Device
    kernels: Path | None = None
    _: KW_ONLY
    sources: Mapping[str, str] | None = None  # the sources to import, refused if changed
    ops_file: Path | None = None
    run_folder: Path | None = None
    sandboxed: bool = True
    is_clean: bool = False  # whether the worker imports no candidate
    is_forked: bool = True  # False if the worker only describes: a template imports too much
    mailbox: int | None = None  # the descriptor of the memory for outputs
    on_step: Callable[[Step], None] = lambda step: None

    def __post_init__(self) -> None:
        self._process = WarmProcess(self._make_program)
        self._scratch: Scratch | None = None
        self._scratch_is_lent = False

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        run: Path,
        sources: Iterable[str] | None = None,
        mailbox: int | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> WorkerClient:
        """Return the client of a worker that imports these sources of a plan, all by default."""
        imported = dict(plan.sources)
        if sources is not None:
            imported = {source: plan.sources[source] for source in sources}
        kernels = Path(plan.kernels) if plan.kernels else None
        if kernels is not None:
            # The digest tells the kernels from the file of the op, which may have the same name.
            own = Source.from_digest(kernels, plan.kernels_sha256)
            kernels = kernels if own in imported else None
        return cls(
            plan.device,
            kernels,
            sources=imported,
            ops_file=Path(plan.ops) if plan.ops else None,
            run_folder=run,
            sandboxed=plan.sandboxed,
            is_clean=imported.keys() <= plan.clean_sources.keys() < plan.sources.keys(),
            mailbox=mailbox,
            on_step=on_step,
        )

    def _make_program(self) -> Program:
        options = ["--device", self.device]
        if self.kernels is not None:
            options += ["--kernels", str(self.kernels)]
        if self.ops_file is not None:
            options += ["--ops", str(self.ops_file)]
        if self.sources is not None:
            options += ["--sources", json.dumps(self.sources)]
        if self.sandboxed:
            options += ["--sandbox", self.scratch.next_sandbox().model_dump_json()]
        env, forked = make_environment(self.device), self.is_forked
        return Program("nsabench.worker", options, env, mailbox=self.mailbox, is_forked=forked)

    def discover(self) -> list[ImplementationInfo]:
        """Return all implementations. Raises `UsageError` if they cannot be imported."""
        try:
            found = self._ask(protocol.Discover(), protocol.Discovered, START_LIMIT_S)
            return found.implementations
        except WorkerLost as lost:
            raise UsageError(
                f"{self.kernels or 'the implementations'} could not be imported: {lost.reason}",
                "import it in a separate Python to see why.",
            ) from lost

    def describe(self) -> Described:
        return self._ask_device(protocol.Describe(), Described, "described")

    def measure_ceilings(self) -> Ceilings:
        request, expected = protocol.MeasureCeilings(), protocol.MeasuredCeilings
        return self._ask_device(request, expected, "calibrated").ceilings

    def _ask_device(self, request: Message, expected: type[M], done: str) -> M:
        try:
            return self._ask(request, expected, START_LIMIT_S)
        except WorkerLost as lost:
            raise EnvironmentRefused(
                f"the device could not be {done}: {lost.reason}", "run `nsabench doctor`."
            ) from lost

    def compile(
        self, case: Case, implementation: str, limit_s: float, *, probes: bool
    ) -> protocol.Compiled:
        """Call an implementation to fill compiler caches. Raises `WorkerLost`."""
        request = protocol.Compile(case=case, implementation=implementation, probes=probes)
        return self._ask(request, protocol.Compiled, limit_s, 2 + MOST_PROBES * probes)

    def measure(
        self, request: protocol.Measure, max_steps: int, listen: Listener
    ) -> protocol.Measured:
        """Measure a case. Raises `WorkerLost` or `WorkerRefused`."""
        limit_s = request.case.timeout_s
        return self._process.ask(request, protocol.Measured, limit_s, max_steps, listen)

    def _ask(
        self, request: Message, expected: type[M], limit_s: float, max_steps: int = MAX_STEPS
    ) -> M:
        return self._process.ask(request, expected, limit_s, max_steps, Listener(self.on_step))

    def sibling(self) -> WorkerClient:
        """Return the client of another worker that writes to the same scratch."""
        made = replace(self)
        made.borrow(self.scratch)
        return made

    @property
    def scratch(self) -> Scratch:
        if self._scratch is None:
            self._scratch = Scratch(self.run_folder)
        return self._scratch

    def borrow(self, scratch: Scratch) -> None:
        self.close()
        self._scratch, self._scratch_is_lent = scratch, True

    @property
    def log(self) -> Printed:
        return self._process.log

    def count_children(self) -> int:
        process = self._process.process
        return 0 if process is None else len(list_descendants(process.pid))

    def kill(self) -> None:
        self._process.kill()

    def retire(self) -> None:
        self._process.retire()

    def close(self) -> None:
        self.retire()
        if self._scratch is not None and not self._scratch_is_lent:
            self._scratch.remove()
        self._scratch = None


class CheckerClient:
    """Starts the checker for the first request. Every request may raise `CheckerLost`."""

    def __init__(self, device: Device, ops_file: Path | None, ops_sha256: str = "") -> None:
        self.mailbox = os.memfd_create("nsabench-outputs")  # the checker reads outputs from it
        self._close_mailbox = weakref.finalize(self, os.close, self.mailbox)
        options = ["--device", device]
        if ops_file is not None:
            options += ["--ops", str(ops_file)]
            if ops_sha256:
                options += ["--ops-sha256", ops_sha256]
        environment = make_environment(device)
        program = Program("nsabench.checker", options, environment, CHECKER_REPLY, self.mailbox)
        self._process = WarmProcess(lambda: program)
        self._limit_s = 0.0

    def prepare(self, case: Case, computes: list[str], seeds: list[int], probes: bool) -> Prepared:
        self._limit_s = case.timeout_s
        request = Prepare(case=case, computes=computes, seeds=seeds, probes=probes)
        return self._ask(request, Prepared, (1 + len(computes)) * case.timeout_s, BEFORE_ANY)

    def check(self, delivery: Delivery) -> Checked:
        return self._ask(delivery, Checked, self._limit_s, "delivery", delivery.implementation)

    def conclude(self, diagnosed: list[str]) -> dict[str, Judged]:
        limit_s = (1 + len(diagnosed)) * DIAGNOSIS_LIMIT_S
        return self._ask(Conclude(diagnosed=diagnosed), Concluded, limit_s, "diagnosis").judged

    def _ask(
        self, request: Message, expected: type[M], limit_s: float, phase: str, suspect: str = ""
    ) -> M:
        try:
            return self._process.ask(request, expected, limit_s)
        except WorkerLost as lost:
            reason = f"the checker was lost: {lost.reason}"
            update = {"reason": reason, "phase": phase, "suspect": suspect}
            raise CheckerLost(lost.death.model_copy(update=update)) from lost

    def close(self) -> None:
        self._process.retire()
        self._close_mailbox()
