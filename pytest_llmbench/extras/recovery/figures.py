"""The time until a limit holds again.

A window of W seconds holds where requests are due in it, and for each limit on a percentile q no more than
1 - q of them are beyond it; a failed request is beyond every limit. The time to recovery of a run ends with
the last window that does not hold: it is from the begin t0 to the latest begin of such a window, 0 where none
from t0 on fails. Windows begin at every instant and end within the load, so a single slow answer long after
counts only where it breaks the percentile of its window. After a queue that empties at T the last such
window begins at T - W(1 - q).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.jobs import job_interval
from pytest_llmbench.metrics.latency import per_request
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.records import IntColumn, Records
from pytest_llmbench.stats.percentiles import PERCENTILES

BoolArray = npt.NDArray[np.bool_]

TIME: Final = MetricDefinition(
    "time_to_recovery",
    "Time to recovery",
    "s",
    "lower",
    "begin of the last window in which the limit does not hold - begin of the stage, or first break",
    "recovery",
)
ASSUMED_FACTOR: Final = 1.5
"""How far the next run is assumed to be from fewer than three: a factor on the time and a window together."""
_SHARE_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of one run, in seconds from the start of its load."""

    begun_s: float | None
    """When the time begins; None where it begins with the first break and there was none."""
    holds_from_s: float
    """When the limit holds again; where it does not, the latest begin of a window."""
    recovered: bool

    @property
    def time_s(self) -> float | None:
        """The time, or the least that it is; None where nothing broke."""
        return None if self.begun_s is None else self.holds_from_s - self.begun_s


def recovery(
    records: Records,
    started_ns: int,
    limits: Sequence[Objective],
    *,
    window_s: float,
    from_s: float | None,
    end_s: float,
) -> Recovery:
    """The recovery of a run. ``from_s``: when the time begins; None: as the limit first breaks. ``end_s``:
    the end of the load. Both in seconds from its start."""
    order = np.argsort(records.scheduled_ns, kind="stable")
    due_ns = records.scheduled_ns[order] - started_ns
    # A failed request is beyond every limit; one that the latency leaves out, as TPOT one token, is not.
    beyond = {
        each: (~records.ok | (per_request(each.metric.partition(".")[0], records) > each.limit))[order]
        for each in limits
    }
    length_ns, from_ns, end_ns = (round(each * 1e9) for each in (window_s, from_s or 0.0, end_s))
    begins_ns, is_broken = _windows(due_ns, beyond, length_ns, from_ns, end_ns)
    begins_s, broken = begins_ns / 1e9, np.flatnonzero(is_broken)
    last_s = float(begins_s[-1])
    if not len(broken):
        return Recovery(from_s, from_s or 0.0, recovered=True)
    begun_s = from_s
    if begun_s is None:
        slow_s = due_ns[np.any([*beyond.values()], axis=0)] / 1e9
        first_s = float(begins_s[broken[0]])
        begun_s = float(next((at for at in slow_s if at >= first_s), first_s))
    holds_from_s = max(begun_s, float(begins_s[broken[-1]]))
    return Recovery(begun_s, holds_from_s, recovered=holds_from_s < last_s)


def _windows(
    due_ns: IntColumn, beyond: dict[Objective, BoolArray], length_ns: int, from_ns: int, end_ns: int
) -> tuple[IntColumn, BoolArray]:
    """The begins of windows from ``from_ns`` to ``end_ns``, ascending, and whether each is broken: where a
    request leaves one, or enters. Between two of these nothing changes, and the later one tells."""
    last_ns = max(from_ns, end_ns - length_ns)
    changes = np.concatenate([[from_ns, last_ns], due_ns, due_ns - length_ns])
    begins_ns = np.unique(changes[(changes >= from_ns) & (changes <= last_ns)])
    first = np.searchsorted(due_ns, begins_ns, side="left")
    over = np.searchsorted(due_ns, begins_ns + length_ns, side="left")
    count = over - first
    broken = count == 0
    for limit, each in beyond.items():
        sums = np.concatenate([[0], np.cumsum(each)])
        share = 1 - PERCENTILES[limit.metric.rpartition(".")[2]] / 100
        broken |= sums[over] - sums[first] > share * count + _SHARE_ROUNDING
    return begins_ns, broken


def time_to_recovery(runs: Sequence[Recovery], window_s: float) -> Estimate:
    """The time of all runs: their geometric mean, and where the next one would lie, both of the time with a
    window, as it may be 0. A lower bound where a run did not recover."""
    known = [each.time_s for each in runs if each.time_s is not None]
    if len(known) < len(runs) or not known:
        why = "a run in which the limit held all the time" if runs else "no run"
        return Estimate.undefined(unit="s", method=why, n=len(known))
    found = job_interval([time + window_s for time in known], ASSUMED_FACTOR)
    point = known[0] if len(known) == 1 else found.point - window_s
    made = Estimate(
        point,
        max(0.0, min(point, found.lower - window_s)),
        found.upper - window_s,
        0.95,
        len(known),
        f"last window of {trimmed(window_s)} s in which the limit does not hold; the next run by "
        f"{found.kind}",
        "s",
        kind=found.kind,
        runs=len(known),
    )
    lost = sum(not each.recovered for each in runs)
    if not lost:
        return made
    least = replace(made, lower=made.lower if len(known) > 1 else point)
    return least.at_least(Reason.NOT_REACHED, f"{lost} of {len(runs)} runs did not recover within the load")
