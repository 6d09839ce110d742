"""What runs were found to say when they were verified, for whoever verifies the same bytes again.

Who merges shards has just verified them, and the merged run holds their plans and journals to the
byte. What is the same by its sha256 says the same, and is neither parsed nor checked line by line a
second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsabench.evidence.manifest.journaled import Journaled
from nsabench.model.plan import Plan


@dataclass(frozen=True)
class Known:
    """Runs that were verified. Each plan and each journal names the sha256 of what was read."""

    runs: Sequence[tuple[Plan, Journaled]] = ()

    def plans(self) -> dict[str, Plan]:
        """By the sha256 of plan.json."""
        return {plan.sha256: plan for plan, _ in self.runs}

    def journals(self, merged: Plan) -> dict[str, Journaled]:
        """By the sha256 of journal.jsonl, each as a piece of the journal of the merged run: of the
        runs that its plan names, under the plans that it names. One that nobody vouches for is read
        again."""
        return {
            journaled.origin.sha256: journaled.as_piece(plan.run_id)
            for plan, journaled in self.runs
            if journaled.origin is not None and merged.openings.get(plan.run_id) == plan.sha256
        }


NOTHING = Known()
