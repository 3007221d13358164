"""The metrics that are compared, and the limits that make some of them decide: ``ttft.p99`` may be 5 %
worse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.compare.regression import better_of, compared, compared_by_session
from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.metrics.definitions import metric_unit
from pytest_llmbench.model.judgement import MOST_SESSIONS, Comparison, Finding
from pytest_llmbench.model.sentences import Note

SHOWN_MARGIN = 0.05
"""The margin of metrics that nobody set a limit for: they are shown, and decide nothing."""
_SHOWN_STATISTICS = ("p50", "p99")
_NOT_SHOWN = ("ttft_any", "ttft_first_event", "ttft_scheduled", "e2e_scheduled")
_LIMIT = re.compile(r"(?P<metric>.+):(?P<number>[^:%]*+)(?P<unit>%?)")
_EXAMPLE = "write for example ttft.p99:5%"

ByRun = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The sessions in which a regression has to show before it decides."""

    shown: int
    of: int
    """The sessions, the present one among them."""

    @classmethod
    def of_option(cls, given: str) -> Confirmation:
        """Parse ``2/3``. SuiteError for anything else."""
        first, _, last = given.partition("/")
        if first.isdecimal() and last.isdecimal():
            found = cls(int(first), int(last))
            if 1 <= found.shown <= found.of <= MOST_SESSIONS:
                return found
        raise SuiteError(
            f"--llm-compare-confirm {shown(given)} is no number of sessions",
            remedy=f"write 2/3 for two of the last three; of at most {MOST_SESSIONS}",
        )


@dataclass(frozen=True, slots=True)
class RegressionLimit:
    """A metric that may get worse by a share of the baseline, and no more."""

    metric: str
    margin: float
    origin: str
    """The origin of the limit: a marker, or an option as it was written."""
    everywhere: bool = True
    """Whether it also holds for tests without that metric, which then decide nothing; an option is for those
    that have it."""


def limits_of_option(given: Sequence[str], option: str = "--llm-compare-fail") -> tuple[RegressionLimit, ...]:
    """Parse limits such as ``ttft.p99:5%``, several in a list or with commas between. SuiteError with every
    mistake."""
    texts = [text.strip() for part in given for text in part.split(",")]
    found, mistakes = [], []
    for text in texts:
        match = _LIMIT.fullmatch(text)
        wrong = (
            _wrong(match["metric"], match["number"], match["unit"])
            if match
            else [f"needs a limit: {_EXAMPLE}"]
        )
        mistakes += [f"{option} {shown(text)} {what}" for what in wrong]
        if match and not wrong:
            found.append(
                RegressionLimit(match["metric"], float(match["number"]) / 100.0, f"{option}={text}", False)
            )
    if mistakes:
        raise SuiteError.from_mistakes(mistakes)
    return tuple(found)


def _wrong(metric: str, number: str, unit: str) -> list[str]:
    found = metric_mistakes(metric)
    try:
        value = float(number)
    except ValueError:
        return [*found, f"has {number!r} for a limit: {_EXAMPLE}"]
    if not unit:
        found.append(f"lacks a unit: a limit is a share of the baseline, {metric}:{number}%")
    elif not (math.isfinite(value) and 0 <= value < 100):
        found.append(f"must lie from 0 % to below 100 %, got {number}%")
    return found


def metric_mistakes(metric: object) -> list[str]:
    """Why a metric cannot be guarded against a regression, in words; empty if it can."""
    if not isinstance(metric, str) or not metric:
        return [f"needs the name of a metric, such as 'ttft.p99', got {shown(metric)}"]
    try:
        better = better_of(metric)
    except SuiteError as error:
        return [f"{error.what}; {error.remedy}"]
    return [] if better else [f"{metric}: neither more nor less of it is better, so it cannot get worse"]


def margin_mistakes(margin: object) -> list[str]:
    if isinstance(margin, bool) or not isinstance(margin, int | float) or margin != margin:
        return [f"must be a share, such as 0.05 for 5 %, got {shown(margin)}"]
    if not 0 <= margin < 1:
        return [f"must be a share from 0 to below 1 (0.05 is 5 %), got {shown(margin)}"]
    return []


def comparisons(
    baseline: ByRun,
    candidate: ByRun,
    limits: Iterable[RegressionLimit] = (),
    *,
    names: tuple[str, str] = ("baseline", "candidate"),
    paired: bool,
    sessions: Sequence[ByRun] = (),
    level: float = 0.95,
    unlike: Callable[[str], str | None] = lambda _: None,
) -> tuple[Comparison, ...]:
    """Compare two arms, given by run, in every metric with a limit and in every metric that is shown.

    Only a metric with a limit is gated. ``sessions``: all earlier ones, the baseline among them; a metric
    that three of them have is compared by session. ``unlike``: why the values of a metric are not those of
    one definition, None where they are.

    A metric with a limit that an arm lacks is compared with an arm that is undefined in every run.
    """
    strictest: dict[str, float] = {}
    for limit in (limit for limit in limits if limit.everywhere or limit.metric in candidate):
        strictest[limit.metric] = min(limit.margin, strictest.get(limit.metric, math.inf))
    shown = [name for name in candidate if name in baseline and name not in strictest and _is_shown(name)]
    found = []
    for name, margin in {**strictest, **dict.fromkeys(shown, SHOWN_MARGIN)}.items():
        better = better_of(name)
        if better is None:
            continue
        before, now = _values(name, baseline, candidate), _values(name, candidate, baseline)
        about: Any = {"margin": margin, "names": names, "gated": name in strictest, "level": level}
        what = name, metric_unit(name), better
        why = unlike(name)
        earlier = [] if why else [own.get(name, ()) for own in sessions]
        by_session = compared_by_session(*what, earlier, now, same_runs=paired, **about)
        pairs = paired and len(before) == len(now)  # all sessions together need not have as many runs
        found.append(by_session or compared(*what, before, now, paired=pairs, unlike=why, **about))
    return tuple(found)


def nothing_decides(
    limits: Sequence[RegressionLimit], found: Sequence[Comparison] = (), why: Note | None = None
) -> tuple[Finding, ...]:
    """The warning that limits were given of which none decides about a test; none where one does, or none
    were given. ``why``: default: it has no such metric."""
    if not limits or any(each.gated for each in found):
        return ()
    metrics = tuple(dict.fromkeys(limit.metric for limit in limits))
    given = tuple(dict.fromkeys(limit.origin for limit in limits))
    return (Finding.of("nothing_compared", why=why, lacking=metrics if why is None else None, limits=given),)


def _values(name: str, arm: ByRun, other: ByRun) -> Sequence[float | None]:
    if name in arm:
        return arm[name]
    runs = max((len(values) for values in (arm or other).values()), default=0)
    return (None,) * runs


def _is_shown(name: str) -> bool:
    """Whether a metric is shown without a limit.

    Shown are metrics of the test as a whole: the middle and the tail of latencies, and every figure of its
    own.
    """
    family, _, statistic = name.partition(".")
    if "[" in name or family in _NOT_SHOWN:
        return False
    try:
        return better_of(name) is not None and (not statistic or statistic in _SHOWN_STATISTICS)
    except SuiteError:  # a metric that a hook or an older version named
        return False
