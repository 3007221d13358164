"""Estimates, which are numbers with their uncertainty; and the metrics of each independent run, beside those
of all runs together, on which comparisons rest."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

LEVEL = 0.95
"""Confidence level of the intervals of all metrics."""
ITL_METHOD, COUNTED_BY = "itl.method", "tokens.counted_by"
"""Names of what tells how figures were made: how the time between tokens was taken, and who counted them."""


class EstimateKind(StrEnum):
    """What an estimate says, and so what would narrow its interval."""

    SAMPLE = "sample"
    """Where the figure of the system at this load lies, as far as a sample of requests tells."""
    CRUDE = "crude"
    """The same, with an end that is a bound: farther away than the sampling error, and nearer with more
    samples by another law."""
    RUNS = "runs"
    """Where the figure of a job would lie if it were run again, by Student's t over its runs."""
    SAVED_SPREAD = "saved_spread"
    """The same of fewer than three runs, by the spread between earlier runs or sessions."""
    ASSUMED_SPREAD = "assumed_spread"
    """The same with nothing saved, by a spread that is assumed."""
    OBSERVED = "observed"
    """A figure that was counted or seen, such as a maximum. It has no interval by nature."""
    BRACKET = "bracket"
    """Between two tested levels: more samples do not narrow it, levels between them do."""
    BOUND = "bound"
    """A lower bound: how much more it is than the point (or the lower end, where there is no point) is not
    known, and no larger sample would tell."""
    UNDEFINED = "undefined"


class Reason(StrEnum):
    """Why a figure is undefined, or why its interval is open on a side that no larger sample would close."""

    NO_SAMPLES = "no_samples"
    """Nothing, or too little, was measured that it is a figure of."""
    NOT_MEASURABLE = "not_measurable"
    """The server, or this kind of load, does not tell it."""
    NOT_COMPUTABLE = "not_computable"
    """It is a change or a mean, of which a part is undefined or zero."""
    NO_LEVEL = "no_level"
    """No tested level held, or met what was asked for."""
    NOT_REACHED = "not_reached"
    """No tested level, or probe, went as far."""
    RANGE_ENDED = "range_ended"
    """Every tested level held, up to the last of the search's range."""
    BEYOND_GENERATOR = "beyond_generator"
    """Levels above could not be offered by this generator."""
    UNDECIDED = "undecided"
    """A level above was tested, and does not tell."""
    GIVEN_UP = "given_up"
    """Requests that the load generator gave up on are above it, or missing in it."""


OF_RUNS = (EstimateKind.RUNS, EstimateKind.SAVED_SPREAD, EstimateKind.ASSUMED_SPREAD)
"""The kinds of estimates of a job: more runs narrow the interval, more requests do not."""


@dataclass(frozen=True, slots=True)
class SavedSpread:
    """The spread of a figure between earlier runs of the same load, or between sessions."""

    deviation: float
    """Standard deviation of the logarithms."""
    count: int
    """Number of runs or sessions that it is of."""
    of_sessions: bool = False
    made: tuple[tuple[str, str], ...] = ()
    """How the figure was made, by :data:`ITL_METHOD` and :data:`COUNTED_BY`, where it depends on that. The
    spread says nothing of a figure that is made otherwise."""


@dataclass(frozen=True, slots=True, repr=False)
class Estimate:
    """A point with its confidence interval.

    None (in JSON ``null``) for ``lower`` or ``upper`` means that the interval is **open** on that side: the
    sample cannot support a bound there. None for ``point`` means undefined (no samples); such an estimate
    satisfies no limit and is never shown as zero.
    """

    point: float | None
    lower: float | None
    upper: float | None
    level: float
    """Confidence level, from 0 to 1."""
    n: int
    """Number of samples that the estimate rests on."""
    method: str
    """How the interval was computed, or why there is none. This text is for people; no decision depends on
    it."""
    unit: str
    n_required: int | None = None
    """How many samples would close the interval on both sides, if it is open for lack of samples; else
    None."""
    too_high_by: float = 0.0
    """Amount by which the measuring machine may have made point and interval too high, in the estimate's
    unit. Not part of the interval, which is about the sample."""
    too_low_by: float = 0.0
    """Amount by which the measuring machine may have made point and interval too low, in the estimate's
    unit."""
    kind: EstimateKind = EstimateKind.SAMPLE
    runs: int = 1
    """Number of runs; the interval of a job rests on them."""
    reason: Reason | None = None
    """Why it is undefined, or open whatever the sample size; otherwise None."""
    given_up: int = 0
    """Number of requests that the load generator gave up on, and that would have moved it."""

    def __post_init__(self) -> None:
        for name in ("point", "lower", "upper"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"Estimate.{name} is {value}; None stands for undefined and for open")

    def __repr__(self) -> str:
        """``<1.41 ms [0.941, 2.12], n=100>``: what an assertion of a test shows."""
        if self.point is None and self.lower is None and self.upper is None:
            return f"<undefined, n={self.n}>"
        shown = [None if end is None else f"{end:.4g}" for end in (self.point, self.lower, self.upper)]
        return f"<{shown[0]} {self.unit} [{shown[1]}, {shown[2]}], n={self.n}>"

    @classmethod
    def undefined(
        cls, *, unit: str, method: str, level: float = LEVEL, n: int = 0, reason: Reason = Reason.NO_SAMPLES
    ) -> Estimate:
        return cls(None, None, None, level, n, method, unit, kind=EstimateKind.UNDEFINED, reason=reason)

    @classmethod
    def observed(cls, value: float, n: int, method: str, unit: str, *, exact: bool = False) -> Estimate:
        """What was seen or counted. ``exact``: it is also both ends; else it bounds nothing."""
        end = value if exact else None
        return cls(value, end, end, LEVEL, n, method, unit, kind=EstimateKind.OBSERVED)

    def at_least(self, reason: Reason, why: str) -> Estimate:
        """The same as a lower bound. ``why``: what is not known above it, in words."""
        method = f"{self.method}; a lower bound: {why}"
        return replace(
            self, upper=None, n_required=None, kind=EstimateKind.BOUND, reason=reason, method=method
        )

    @property
    def defined(self) -> bool:
        return self.point is not None

    @property
    def closed(self) -> bool:
        """Whether the interval has both ends."""
        return self.lower is not None and self.upper is not None

    @property
    def among_given_up(self) -> bool:
        """Whether the figure lies among requests that were given up on, so that the point is the least that
        it is."""
        return self.kind is EstimateKind.BOUND and self.reason is Reason.GIVEN_UP

    def why_missing(self, metric: str, number: str) -> str:
        """Why ``point``, ``lower`` or ``upper`` of the metric is None, and what would give it."""
        if self.point is None:
            known = "there is no sample" if self.n == 0 else f"it cannot be computed from {self.n} samples"
            return f"{metric}.{number} is None: the metric is undefined, {known}"
        said = f"{metric}.{number} is None: the interval is open, {self.n} samples give it no {number} end"
        if self.n_required is None or self.n_required <= self.n:
            return f"{said} ({self.method})"
        return f"{said}, about {self.n_required} are needed"


class ReadEstimate(Estimate):
    """An estimate as a test reads it: when a missing number is read, it tells the reason.

    The number is None all the same, so that ``is None`` and ``is not None`` mean what they say.
    """

    # Or Any, where a plain estimate has None: a body compares without a check, and a missing number makes
    # its test inconclusive.
    point: float | Any
    lower: float | Any
    upper: float | Any

    __slots__ = ("_tell",)

    @classmethod
    def of(cls, estimate: Estimate, metric: str, told: Callable[[str], None]) -> ReadEstimate:
        """The estimate for reading; ``told`` is called with the reason for a missing number."""

        def tell(number: str) -> None:
            told(estimate.why_missing(metric, number))

        made = cls(**{each.name: getattr(estimate, each.name) for each in fields(Estimate)})
        object.__setattr__(made, "_tell", tell)
        return made

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if value is None and name in ("point", "lower", "upper"):
            # Nobody is told of one that is still being made, nor of one made of it by dataclasses.replace.
            with contextlib.suppress(AttributeError):
                object.__getattribute__(self, "_tell")(name)
        return value


ByRun = dict[str, tuple[float | None, ...]]


def by_run(runs: Sequence[Mapping[str, Estimate]]) -> ByRun:
    """Metric → its point in each run, in their order; None where a run has none, or only tells the least that
    it is. Empty for fewer than two runs: a single one says nothing of the noise between runs."""
    if len(runs) < 2:
        return {}
    names = dict.fromkeys(name for metrics in runs for name in metrics)
    return {name: tuple(_point(metrics.get(name)) for metrics in runs) for name in names}


def _point(estimate: Estimate | None) -> float | None:
    return None if estimate is None or estimate.among_given_up else estimate.point
