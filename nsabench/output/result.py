"""Describe a finished run for programs."""

from collections import Counter

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role
from nsabench.output.programs import Candidate, Outcome, RunDocument
from nsabench.output.standing import name_untried
from nsabench.running.run import Finished
from nsabench.verdicts import threshold
from nsabench.verdicts.thresholds_yaml import as_data as thresholds_as_data

NOT_TRIED = 5  # the exit code if no candidate was tried, as pytest's if it finds no test
COMPLETE = (0, 1, NOT_TRIED)  # exit codes of a complete run


def exit_code(run: Finished) -> int:
    """Return 1 if something failed, 5 if no candidate was tried, and 0 otherwise."""
    if run.results.failures:
        return 1
    return NOT_TRIED if name_untried(run.plan, run.results.records) else 0


def as_document(run: Finished, signature: str = "") -> RunDocument:
    """Return the result of a run, with decisions only if `signature`, a sentence, is not empty."""
    records = run.results.records
    decisions = threshold.decide_run(records, run.plan) if signature else []
    return RunDocument(
        exit_code=exit_code(run),
        run_id=run.plan.run_id,
        folder=str(run.folder.path),
        wall_s=run.wall_s,
        failures=run.results.failures,
        controls=Counter(r.caught for r in records if r.caught),
        candidates=[_describe(r) for r in records if r.role is Role.CANDIDATE],
        thresholds=thresholds_as_data(decisions) if decisions else None,
        signature=signature,
    )


def _describe(record: Record) -> Candidate:
    own = Candidate.model_fields.keys() - Outcome.model_fields.keys() - {"case", "shape"}
    values = Outcome.values_of(record) | {name: getattr(record, name) for name in own}
    return Candidate(**values, case=labels.case(record), shape=dict(record.shape))
