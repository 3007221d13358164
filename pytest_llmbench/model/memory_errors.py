"""Failures that speak of memory that ran out, and those that say nothing of it since we gave up ourselves."""

from __future__ import annotations

import re

from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.records import Records

OUT_OF_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?(?:device[ _-]|gpu[ _-]|host[ _-])?memory|\boom\b", re.IGNORECASE
)
OUT_OF_MEMORY_RULE = "a failed request whose error text says `out of memory` or `OOM`, in any spelling"


def out_of_memory_errors(records: Records) -> int:
    """Failed requests whose error text speaks of memory that ran out; what is only a lost connection from
    outside is not seen here (it counts as failed), and what the generator itself gave up never is one."""
    given_up = records.has_outcome(Outcome.TIMEOUT) | records.has_outcome(Outcome.CANCELLED)
    failed = records.failed & ~given_up
    return sum(
        bool(error and OUT_OF_MEMORY.search(error))
        for error, bad in zip(records.error, failed, strict=True)
        if bad
    )


def timeouts(records: Records) -> int:
    """Requests that the generator gave up by a deadline of its own: it does not know how they would end."""
    return int(records.has_outcome(Outcome.TIMEOUT).sum())
