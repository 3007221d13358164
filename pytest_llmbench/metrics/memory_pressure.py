"""The effects of memory that runs out: failures that mention it, and preemptions by the engine.

Preemptions as the server reports them per request (section 5.8.4): undefined where it says nothing; the
method is then ``not measurable`` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.ratios import ratio_of_sums, share_estimate
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.stats.proportion import share_of

OUT_OF_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?(?:device[ _-]|gpu[ _-]|host[ _-])?memory|\boom\b", re.IGNORECASE
)
OUT_OF_MEMORY_RULE = "a failed request whose error text says `out of memory` or `OOM`, in any spelling"


def out_of_memory_errors(records: Records) -> int:
    """Number of failed requests whose error text mentions memory that ran out. A connection that was merely
    lost is not one of them (it counts as failed), and neither is what the generator itself gave up."""
    given_up = records.has_outcome(Outcome.TIMEOUT) | records.has_outcome(Outcome.CANCELLED)
    failed = records.failed & ~given_up
    return sum(
        bool(error and OUT_OF_MEMORY.search(error))
        for error, bad in zip(records.error, failed, strict=True)
        if bad
    )


def timeouts(records: Records) -> int:
    """Number of requests that the generator gave up by a deadline of its own; how they would have ended is
    not known."""
    return int(records.has_outcome(Outcome.TIMEOUT).sum())


_SILENT = "the server gives no preemption counts per request"


def preemption_rate(runs: Sequence[Records], *, level: float = 0.95) -> Estimate:
    """Requests preempted at least once / requests with a preemption count, of whatever outcome.

    Where requests without a count remain (they failed before the server could tell), the method says so.
    """
    known = [run.select(run.preemptions != MISSING) for run in runs]
    counted, submitted = sum(map(len, known)), sum(map(len, runs))
    if counted == 0:
        return Estimate.undefined(
            unit="ratio", method=_SILENT, level=level, n=submitted, reason=Reason.NOT_MEASURABLE
        )
    some = "" if counted == submitted else f", over {counted} of {submitted} requests with a count"
    return _share([run.preemptions > 0 for run in known], some, level)


def preemption_recovery_rate(runs: Sequence[Records], *, level: float = 0.95) -> Estimate:
    """Preempted requests that ended ``ok`` / preempted requests, without those that their users were to cut.

    Not measurable if an unsuccessful request lacks its count: servers report at the end of a response, and
    those that never ended would go missing from the denominator only.
    """
    known = [run.select(run.judged & (run.preemptions != MISSING)) for run in runs]
    n = sum(map(len, known))
    if n == 0:
        return Estimate.undefined(unit="ratio", method=_SILENT, level=level, reason=Reason.NOT_MEASURABLE)
    silent = sum(int((run.failed & (run.preemptions == MISSING)).sum()) for run in runs)
    if silent:
        reason = f"{silent} unsuccessful requests have no preemption count"
        return Estimate.undefined(unit="ratio", method=reason, level=level, n=n, reason=Reason.NOT_MEASURABLE)
    preempted = [run.select(run.preemptions > 0) for run in known]
    if not any(map(len, preempted)):
        return Estimate.undefined(unit="ratio", method="no request was preempted", level=level)
    return _share([run.ok for run in preempted], "", level)


def preemption_loss(runs: Sequence[Records], *, seed: int, level: float = 0.95) -> Estimate:
    """Σ discarded tokens / Σ preemptions: mean tokens discarded per preemption."""
    known = [run.select((run.preemptions != MISSING) & (run.preempted_tokens != MISSING)) for run in runs]
    if not any(map(len, known)):
        reason = "the server does not say how many tokens a preemption discards"
        return Estimate.undefined(
            unit="tokens", method=reason, level=level, n=sum(map(len, runs)), reason=Reason.NOT_MEASURABLE
        )
    preempted = [run.select(run.preemptions > 0) for run in known]
    if not any(map(len, preempted)):
        return Estimate.undefined(unit="tokens", method="no request was preempted", level=level)
    tokens = [run.preempted_tokens.astype(np.float64) for run in preempted]
    events = [run.preemptions.astype(np.float64) for run in preempted]
    return ratio_of_sums(tokens, events, unit="tokens", seed=seed, level=level)


def _share(happened: Sequence[npt.NDArray[np.bool_]], some: str, level: float) -> Estimate:
    series = [run.astype(np.float64) for run in happened]
    return share_estimate(share_of(series, level=level), level, "no samples", some)
