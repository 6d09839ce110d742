"""The closed vocabularies of a comparison."""

from __future__ import annotations

from nsabench.model.vocabulary import BENIGN, Status, Word


class Difference(Word):
    """How the time of an implementation on a case compares between two runs."""

    FASTER = "faster", "the whole 95 % interval of the ratio lies above the band around 1"
    SLOWER = "slower", "the whole 95 % interval of the ratio lies below the band around 1"
    SAME = "same", "the whole 95 % interval of the ratio lies within the band around 1"
    INCONCLUSIVE = (
        "inconclusive",
        "the interval crosses an end of the band, or a time decides nothing: the timer was off, "
        "the device throttled or shared, or it does not grow with the work",
    )
    INVALID = "invalid", "there is no ratio: it failed in one of the runs, or a run is invalid"


class Change(Word):
    """How a status differs between two runs."""

    BROKE = "broke", "it was ok and is not any more, or it now fails where it only declined"
    MENDED = "mended", "it is ok and was not, or it now declines where it failed"
    OTHER = "other", "one failure became another, or one way of declining another"

    @classmethod
    def between(cls, earlier: str, later: str) -> Change | None:
        """None where the status is the same."""
        if earlier == later:
            return None
        before, after = _badness(earlier), _badness(later)
        return cls.BROKE if after > before else cls.MENDED if after < before else cls.OTHER


def _badness(status: str) -> int:
    return 0 if status == Status.OK else 1 if status in BENIGN else 2
