"""Resume a run, and decide, report and sign a finished one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from nsabench.errors import BegunElsewhere, EnvironmentRefused, UsageError, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, refuse_altered, seal, verify
from nsabench.evidence.manifest.keys import refuse_revoked, revocations
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.plan import Plan
from nsabench.output import report as pages
from nsabench.running import run
from nsabench.running.folder import RunFolder
from nsabench.running.loop import View
from nsabench.running.run import Finished
from nsabench.signing import Signer, named_signer
from nsabench.signing.signer import RUN_KEY
from nsabench.verdicts import thresholds_yaml
from nsabench.verdicts.tables import write_tables


def prepare() -> Signer | None:
    """Return the key that the user names, if any. Raises `UsageError` if it is revoked."""
    signer = named_signer()
    if signer is not None:
        try:
            refuse_revoked(signer.keyid, datetime.now(UTC), revocations())
        except VerificationFailed as revoked:
            raise UsageError(
                f"no run can be signed with this key: {revoked}", "name another key."
            ) from None
    return signer


def reopen(
    path: Path,
    view: View,
    *,
    plan: Plan | None = None,
    signer: Signer | None = None,
    fit: bool = False,
) -> Finished:
    """Continue an interrupted run. A signed run is left as it is.

    If `plan` is given, the run must have this plan. Then a run that was not begun is started, and a
    run that was begun on another machine is moved away and started again.
    """
    if plan is not None and not (path / MANIFEST).exists() and not run.is_begun(path):
        return run.start(plan, path, view, signer=signer, fit=fit)
    folder = RunFolder.existing(path)
    trust = refuse_altered(path, tables=False)
    before = Plan.read(folder.plan)
    if plan is not None and (differences := plan.differences(before)):
        raise UsageError(
            f"{path} holds a run of another plan: {', '.join(differences)} differ",
            "give another folder, or only --resume to continue that run.",
        )
    if trust is not Trust.UNSIGNED:
        return run.read(path)
    try:
        return run.resume(path, view, signer=signer, fit=fit)
    except BegunElsewhere:
        if plan is None:
            raise
    aside = path.rename(path.with_name(f"{path.name}.{before.run_id}"))
    view.note(f"{path} was begun on another machine: it is moved to {aside} and begun anew")
    return run.start(plan, path, view, signer=signer, fit=fit)


def finish(finished: Finished) -> str:
    """Write thresholds and reports, sign the run, and return a sentence about the signature."""
    path = finished.folder.path
    with finished.folder.resumable(), finished.folder.writing():
        if (path / MANIFEST).exists():
            return "it was signed before, and nothing was changed"
        assert finished.signer is not None
        sentence = conclude(finished, finished.signer)
    if finished.signer.ephemeral:
        (path / RUN_KEY).unlink(missing_ok=True)
    return sentence


def derive(facts: pages.Facts, folder: Path) -> list[Path]:
    """Write the tables and thresholds of a run into a folder, and return their paths."""
    path = RunFolder(folder).thresholds
    thresholds_yaml.write(facts.decisions, path, facts.payments)
    return [*write_tables(facts.results, facts.plan.run_id, folder), path]


def conclude(finished: Finished, signer: Signer) -> str:
    """Write thresholds and reports of a run, sign it, and return a sentence about the signature."""
    facts = pages.Facts.read(finished.folder.path, finished.results, finished.signer)
    thresholds_yaml.write(facts.decisions, finished.folder.thresholds, facts.payments)
    lacking = report(facts)
    signed = _sign(finished.folder, signer, finished.log_end)
    return f"{signed}\n{lacking}" if lacking else signed


def _sign(folder: RunFolder, signer: Signer, log_end: str = "") -> str:
    """Sign a run, then verify it, since a kernel may have written into its folder.

    `log_end` is the digest of the last line that this process wrote to the log; empty for a merge.
    """
    predicate = seal(folder.path, signer).predicate
    try:
        found = verify(folder.path, tables=bool(log_end))
        found.raise_if_broken()
        if log_end and (found.logged is None or found.logged.origin.end != log_end):
            raise VerificationFailed(
                f"{folder.log} is not what was written there: something changed it during the run",
                "start a new run without kernels that you do not trust.",
            )
    except VerificationFailed:
        (folder.path / MANIFEST).unlink()
        raise
    if not signer.ephemeral:
        return f"signed with the key {signer.keyid[:12]}"
    if any(shard.trust is Trust.UNPINNED for shard in predicate.shards):
        return (
            "signed with an ephemeral key, but its shards with a lasting one: set "
            "NSABENCH_SIGNING_KEY_FILE and merge again into another folder"
        )
    return "signed with an ephemeral key"


def report(facts: pages.Facts) -> str:
    """Write the reports of a run. Return a sentence if report.html could not be written."""
    path = facts.folder.path
    pages.write_markdown(facts, path)
    try:
        pages.write_html(facts, path)
    except EnvironmentRefused as refused:
        return f"{refused}: {refused.remedy}"
    return ""
