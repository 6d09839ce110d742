"""A point in time that a file states."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator


def _moment(stated: datetime) -> datetime:
    # Without a zone it is UTC. At the ends of the calendar another zone's time is no time at all.
    moment = stated if stated.tzinfo is not None else stated.replace(tzinfo=UTC)
    if not 1970 < moment.year < 9000:
        raise ValueError("the year is none of a run")
    return moment


Moment = Annotated[datetime, AfterValidator(_moment)]
