"""The page of a run of which an archive keeps the tables alone: no plan, journal or logs."""

from __future__ import annotations

from collections import Counter

from nsabench.model.measurement import Ceilings
from nsabench.model.vocabulary import BENIGN, MARGIN, Catch, Role
from nsabench.output.report import embedded, html, payment_chart
from nsabench.output.report.page import SCRIPTS
from nsabench.output.site.runs import SiteRun
from nsabench.output.words import TRUST

UP = "../../"  # from the page to the site


def render(run: SiteRun) -> str:
    """The page. Raises `EnvironmentRefused` where the extra `report` is not installed."""
    caught = Counter(r.caught for r in run.records if r.caught)
    return html.render(
        "archived.html.j2",
        SCRIPTS,
        embedded.of_records(
            run.records,
            Ceilings(),
            margin=MARGIN,
            tolerances={},
            samples=[None] * len(run.records),
        ),
        run=run,
        paid=payment_chart.charts(run.payments, run.records),
        meaning=TRUST[run.trust],
        margin=MARGIN,
        tally=", ".join(f"{caught[word]} {word}" for word in Catch if caught[word]),
        compared=any(r.speedup is not None for r in run.records if r.role is Role.CANDIDATE),
        failed=Counter(
            (r.implementation, r.status, r.diagnosis or r.reason)
            for r in run.records
            if r.role is not Role.CONTROL and r.status not in BENIGN
        ).most_common(),
        cautions=sorted({r.caution for r in run.records if r.caution}),
        downloads=[(name, UP + path) for name, path in run.downloads],
    )
