"""The looks of a plan: told of requests as they end, they say when nothing is left to be decided, without
being wrong more often than one look would be.

Who looks again and again at an interval and stops at the first that excludes the limit is wrong far more
often than its level says (Armitage, McPherson and Rowe 1969, JRSS A 132). Lan and DeMets (1983, Biometrika
70) spread the error over the looks: by the time a share t of the largest sample is there, α(t) of it may be
spent. Here α(t) = 4 - 4 Φ(z / √t), z the upper α/4 point of the normal law: O'Brien and Fleming's type,
which spends little while little is known, of the limit and of the dependence.

The boundary z_k makes P(|Z_k| ≥ z_k, beyond no earlier boundary) = α(t_k) - α(t_{k-1}), where Z_k √t_k is the
Brownian motion that sums over requests behave like: counts beyond a limit, and totals. The integral is done
step by step, as Armitage, McPherson and Rowe did. Intervals of level 2 Φ(z_k) - 1 then hold at all looks
together (repeated confidence intervals, Jennison and Turnbull 1989, JRSS B 51), so the first one that
excludes the limit decides. Of dependent requests t is still the share of requests: what each is worth
cancels.

The interval of a watched objective is that of reports, at the level of the look. Most looks decide nothing,
and load is running while they are taken: a quick interval, at an effective size by batch means, says first
whether the careful one is worth its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.plan import Load, Looks, Watched
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.backlog import NO_RISE, Backlog, Rise, backlog
from pytest_llmbench.stats.batching import as_lasting, offered_rate, slot_queue
from pytest_llmbench.stats.crude import CRUDELY, Crude, far_ends, mean_ends
from pytest_llmbench.stats.dependence import exceedances
from pytest_llmbench.stats.first_come import BY_LOAD, known_queue
from pytest_llmbench.stats.latencies import Ends
from pytest_llmbench.stats.look_samples import values, waited
from pytest_llmbench.stats.percentiles import (
    PERCENTILES,
    ordered_interval,
    ordered_percentile_interval,
    percentile,
    percentile_worth,
    samples_required,
    series_memory,
)
from pytest_llmbench.stats.ratios import exact_share_interval, share_within
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, as_runs
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, intervals_chosen, spread

BATCHES = 10
"""Number of batches of equal length whose means show dependence that reaches further than autocorrelations
tell."""
MOST_LOOKS = 100
LEAST_TAIL = 1e-10
"""The smallest tail of a boundary; one with a smaller tail counts as none, as no sample reaches it."""
_EARLY = 1.3
_NODES = 256
_BISECTIONS = 50


class PlannedLook(NamedTuple):
    n: int
    """Number of requests looked at."""
    tail: float
    """Error on each side: the level of the interval is 1 - 2 tail."""


def spent(share: float, alpha: float) -> float:
    """α(t): the error, both sides together, that may have been spent at ``share`` of the largest sample."""
    if share >= 1:
        return alpha
    from scipy.special import ndtr, ndtri

    return float(4 * ndtr(ndtri(alpha / 4) / math.sqrt(share))) if share > 0 else 0.0


def spent_sooner(share: float, alpha: float) -> float:
    """α t²: spends more at early looks (Kim and DeMets 1987, Biometrika 74), for looks at a few runs. Where
    Student's t has few degrees of freedom, O'Brien and Fleming's would decide nothing before half of them."""
    return alpha * min(1.0, share) ** 2


@lru_cache(maxsize=64)
def planned_looks(
    most: int,
    every: int,
    alpha: float,
    *,
    closing: int | None = None,
    spending: Callable[[float, float], float] = spent,
) -> tuple[PlannedLook, ...]:
    """Looks after each ``every`` of at most ``most`` requests, the last at ``most``; 100 of them at most, so
    a very long load is looked at less often. ``closing``: the load ended there; what error is left is spent.
    ``spending``: the error that may have been spent at a share of the largest sample.
    """
    step = max(every, math.ceil(most / MOST_LOOKS))
    last = most if closing is None else closing
    sizes = [*range(step, last, step), last]
    shares = [n / most for n in sizes]
    allowed = [spending(share, alpha) for share in shares[:-1]] + [alpha]
    found = zip(sizes, _tails(shares, allowed), strict=True)
    return tuple(PlannedLook(n, tail) for n, tail in found if tail >= LEAST_TAIL)


def early_tail(tail: float) -> float:
    """The tail of a look that may end a load: its boundary is a third farther out.

    The spending is right for errors that are normal. A short prefix of a busy queue is now and then a quiet
    one, and nothing in it says so.
    """
    from scipy.special import ndtr, ndtri

    return max(LEAST_TAIL, float(ndtr(_EARLY * ndtri(tail))))


def _tails(shares: Sequence[float], allowed: Sequence[float]) -> list[float]:
    """The upper tail Φ(-z_k) of each boundary."""
    from scipy.special import ndtr

    at, weights = _quadrature()
    nodes, mass, before, used = np.zeros(1), np.ones(1), 0.0, 0.0
    tails = []
    for share, total in zip(shares, allowed, strict=True):
        spread = math.sqrt(share - before)
        low, high = 0.0, 40.0 * math.sqrt(share)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            beyond = float(mass @ (ndtr((nodes - middle) / spread) + ndtr((-middle - nodes) / spread)))
            low, high = (middle, high) if beyond > total - used else (low, middle)
        bound = (low + high) / 2
        fresh = at * bound
        density = np.exp(-0.5 * ((fresh[:, None] - nodes[None, :]) / spread) ** 2) @ mass
        mass = density * weights * bound / (spread * math.sqrt(2 * math.pi))
        nodes, before, used = fresh, share, total
        tails.append(float(ndtr(-bound / math.sqrt(share))))
    return tails


@cache
def _quadrature() -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes and weights; cached, since computing them takes as long as all looks do."""
    return np.polynomial.legendre.leggauss(_NODES)


def batch_size(series: FloatArray, tail: float) -> float:
    """The effective number of independent values of ``series`` at this ``tail``, by batch means.

    n / τ (z / t)², τ from the means of ten batches (Schmeiser 1982, Operations Research 30), and z / t the
    price of Student's t with nine degrees of freedom for not knowing τ better.
    """
    n, variance = len(series), float(np.var(series))
    length = n // BATCHES
    if length < 1 or variance == 0.0:
        return float(n)
    from scipy.special import ndtri, stdtrit

    means = series[n - BATCHES * length :].reshape(BATCHES, length).mean(axis=1)
    inflation = length * float(np.var(means, ddof=1)) / variance
    price = (float(ndtri(tail)) / float(stdtrit(BATCHES - 1, tail))) ** 2
    return max(1.0, n * price / inflation) if inflation > price else float(n)


FEWEST_RARE = 10.0
"""Fewest effective requests, on the rarer side of a percentile or a share, with which an early look decides:
with fewer it cannot be known how they come in clusters. 200 effective requests for P95, 1000 for P99."""

Size = Callable[[FloatArray, float], float]


class Judged(NamedTuple):
    estimate: Estimate
    worth: float
    """Effective number of requests."""


def estimate(
    watched: Watched,
    values: FloatArray,
    tail: float,
    size: Size | None = None,
    *,
    backlog: Backlog | None = None,
) -> Judged:
    """The estimate with its interval of level 1 - 2 ``tail``, from the values in the order of the sequence
    (NaN: no sample).

    ``size``: of how many independent values a series is worth, for a quick interval; default: the methods of
    reports. ``backlog``: of all values, in ms.
    """
    there = ~np.isnan(values)
    own = waited(watched, backlog)
    if own is not None:
        own = own.only(there)
    # Whatever the session has chosen: the measuring process and the report must come to one verdict.
    with intervals_chosen("analytic"):
        return _estimate(watched, values[there], own, tail, size)


def _estimate(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, size: Size | None
) -> Judged:
    unit = watched.objective.unit
    if not len(values):
        return Judged(Estimate.undefined(unit=unit, method="no samples", level=1 - 2 * tail), 0.0)
    if watched.is_share:
        return _share(watched, values, backlog, tail, size)
    if watched.percentile is None:
        return _mean(watched, values, backlog, tail, size)
    return _percentile(watched, values, backlog, tail, watched.percentile, size)


def is_decided(watched: Watched, found: Estimate) -> bool:
    """Whether the limit is decided by the rule of the gate: the whole interval lies on one side of it."""
    return watched.objective.decided(found.lower, found.upper) is not None


def may_be_decided(watched: Watched, values: FloatArray, tail: float) -> bool:
    """Whether independent requests would decide the limit; dependent ones tell less. Cheap, and mostly
    enough."""
    values = values[~np.isnan(values)]
    if not len(values):
        return False
    n, limit = len(values), watched.objective.limit
    if watched.is_share:
        good = int(np.count_nonzero(values <= 1.0))
        lower, upper = exact_share_interval(good, n, tail=tail)
        return not lower <= limit <= upper
    if watched.percentile is None:
        return True
    from scipy.special import bdtr, bdtrc

    below, share = int(np.count_nonzero(values <= limit)), watched.percentile / 100
    return bool(bdtr(below, n, share) <= tail or bdtrc(below - 1, n, share) <= tail)


def is_enough(watched: Watched, judged: Judged) -> bool:
    """Whether the effective sample is large enough for an early look."""
    return judged.worth * watched.rarity >= FEWEST_RARE


def _percentile(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, q: float, size: Size | None
) -> Judged:
    finite, top = _finite(values, watched.objective.limit)
    ordered, level = np.sort(finite), 1 - 2 * tail
    how, kind = "", EstimateKind.SAMPLE
    if size is None:
        lags = series_memory(finite)
        of = percentile_worth(finite, q, lags=lags)
        rise = _rise(finite, backlog, tail)
        worth, (lower, upper) = of.samples, ordered_interval(ordered, q, of, level=level, rise=rise)
        # What failed or was given up on is in no law of a queue, and beyond no bound by a moment.
        cut = bool(np.isinf(values).any())
        queue = None if cut else known_queue(finite, backlog)
        known = None if queue is None else queue.upper(q, level)
        if known is not None:
            upper, how = known, f", {BY_LOAD}"
        if lower is None or upper is None:
            runs = as_runs(finite)
            crude = Crude.of(runs, spread(runs, lags=lags), level, rise)
            far = far_ends(crude, runs, ordered, q, of, lags=lags, level=level, rise=rise)
            lower = far.lower if lower is None else lower
            upper = far.upper if upper is None and not cut else upper
            how, kind = f"{how}{CRUDELY}", EstimateKind.CRUDE
        needed = of.required(samples_required(q, level), len(values), level)
    else:
        worth = size(exceedances(finite, q)[0], tail)
        lower, upper = ordered_percentile_interval(ordered, q, level=level, effective_n=worth)
        needed = math.ceil(samples_required(q, level) * len(values) / worth)
    point: float | None = percentile(ordered, q)
    failed = int(np.count_nonzero(np.isinf(values)))
    method = f"order statistics at effective n={math.floor(worth)}{how}"
    if failed:
        method += f", {failed} failed requests over the limit"
        # Of those it is known that they are over it, and no more: the lower end may say so, a point may not.
        point = None if point is None or point > top else point
        upper = None if upper is None or upper > top else upper
    required = needed if lower is None or upper is None else None
    found = _ordered(watched, point, lower, upper, tail, len(values), method, required)
    return Judged(replace(found, kind=kind), worth)


def _finite(values: FloatArray, limit: float) -> tuple[FloatArray, float]:
    """The values with failed requests just above the limit and all others, and the largest of the others."""
    failed = np.isinf(values)
    top = float(np.max(values[~failed], initial=0.0))
    return np.where(failed, np.nextafter(max(limit, top), np.inf), values), top


def _mean(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, size: Size | None
) -> Judged:
    if np.isinf(values).any():
        method = "a mean with failed requests over the limit is undefined"
        undefined = Estimate.undefined(
            unit=watched.objective.unit,
            method=method,
            level=1 - 2 * tail,
            n=len(values),
            reason=Reason.NOT_COMPUTABLE,
        )
        return Judged(undefined, 0.0)
    mean, kind = float(np.mean(values)), EstimateKind.SAMPLE
    if size is None:
        worth, interval, runs = 1.0, OPEN, as_runs(values)
        of = spread(runs, lags=series_memory(runs))
        if of is not None:
            rise = _rise(values, backlog, tail)
            worth, (interval, crude) = of.worth, mean_ends(runs, of, level=1 - 2 * tail, rise=rise)
            kind = EstimateKind.CRUDE if crude else kind
    else:
        from scipy.special import ndtri

        worth, interval = size(values, tail), OPEN
        if worth >= FEWEST_EFFECTIVE:
            half = -float(ndtri(tail)) * float(np.std(values)) / math.sqrt(max(worth - 1, 1.0))
            interval = Interval(mean - half, mean + half)
    method = f"mean at effective n={math.floor(worth)}"
    found = _ordered(watched, mean, *interval, tail, len(values), method)
    return Judged(replace(found, kind=kind), worth)


def _rise(values: FloatArray, backlog: Backlog | None, tail: float) -> Rise:
    return NO_RISE if backlog is None else backlog.rise(values, 1 - 2 * tail)


def _share(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, size: Size | None
) -> Judged:
    good, n = int(np.count_nonzero(values <= 1.0)), len(values)
    finite, _ = _finite(values, 1.0)
    lower: float | None
    upper: float | None
    kind = EstimateKind.SAMPLE
    if size is None:
        found = share_within(finite, level=1 - 2 * tail, backlog=backlog)
        worth, (lower, upper) = (1.0, OPEN) if found is None else (found.worth, found.interval)
        kind = EstimateKind.CRUDE if found is not None and found.crude else kind
    else:
        worth = size(exceedances(finite, 100.0 * good / n)[0], tail)
        lower, upper = exact_share_interval(good, n, tail=tail, effective_n=worth)
    method = f"Clopper-Pearson interval at effective n={math.floor(worth)}"
    judged = _ordered(watched, good / n, lower, upper, tail, n, method)
    return Judged(replace(judged, kind=kind), worth)


def _ordered(
    watched: Watched,
    point: float | None,
    lower: float | None,
    upper: float | None,
    tail: float,
    n: int,
    method: str,
    required: int | None = None,
) -> Estimate:
    """The estimate, with point and ends in order: they come from different order statistics."""
    if point is not None:
        lower = None if lower is None else min(lower, point)
        upper = None if upper is None else max(upper, point)
    return Estimate(point, lower, upper, 1 - 2 * tail, n, method, watched.objective.unit, required)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the look that ended the load, or of the last one."""

    n: int
    """How many of the first requests were looked at."""
    looks: int
    """Number of looks taken, this one included."""
    decided: bool
    budget_spent: bool
    """Whether more requests have failed than may fail of the most there can be: the run is void, whatever
    follows."""
    estimates: tuple[Estimate, ...]
    """The estimate of each watched objective, at the level of this look."""


class LookTaker:
    """Takes each planned look at the first n requests as soon as all of them have ended. What comes before
    ``first`` is looked at by none.

    What it answers depends on these requests alone and not on when it heard of them, so the same records give
    the same verdict again when the load is over.
    """

    def __init__(
        self, looks: Looks, *, first: int, most: int, load: Load | None = None, slots: int | None = None
    ) -> None:
        """``load``: how the requests were sent. ``slots``: the most that the engine has at work; None where
        it does not say."""
        self._looks = looks
        self._first, self._most = first, most
        self._load, self._slots = load, slots
        self._planned = planned_looks(most, looks.every, looks.alpha) if most else ()
        self._values = [np.full(most, np.nan) for _ in looks.watched]
        self._here = np.zeros(most, dtype=bool)
        self._ends = Ends.none_of(most)
        self._prefix = 0
        """How many of the first requests have all ended."""
        self._added = self._taken = 0
        self._rows: list[RequestRecord] = []
        self.verdict: Verdict | None = None
        """The verdict of the first look that ended the load; None before that."""

    def add(self, row: RequestRecord) -> Verdict | None:
        """Note a request that has ended; returns the verdict, once there is one."""
        if row.index < self._first:
            return self.verdict
        self._rows.append(row)
        due = self._planned[self._taken].n if self._taken < len(self._planned) else self._most
        if self.verdict is not None or self._added + len(self._rows) < due:
            return self.verdict
        rows, self._rows = self._rows, []
        return self.note(Ends.of_rows(rows))

    def add_all(self, records: Records) -> Verdict | None:
        return self.note(Ends.of_records(records.select(records.index >= self._first)))

    def close(self) -> Verdict:
        """End the looks with the load; returns the verdict there was, or that of a last look at all that
        ended in a row."""
        if self._rows:
            rows, self._rows = self._rows, []
            self.note(Ends.of_rows(rows))
        if self.verdict is not None:
            return self.verdict
        n = self._prefix
        tail = self._looks.alpha / 2
        if n:
            tail = planned_looks(self._most, self._looks.every, self._looks.alpha, closing=n)[-1].tail
        estimates = self._estimates(n, tail)
        decided = all(map(is_decided, self._looks.watched, estimates))
        return Verdict(n, self._taken + 1, decided, self._budget_is_spent(n), estimates)

    def note(self, ends: Ends) -> Verdict | None:
        places = ends.index - self._first
        for column, watched in zip(self._values, self._looks.watched, strict=True):
            column[places] = values(watched, ends)
        self._here[places] = True
        self._ends.note(places, ends)
        self._added += len(places)
        rest = self._here[self._prefix :]
        self._prefix += len(rest) if rest.all() else int(np.argmin(rest))
        while self.verdict is None and self._taken < len(self._planned):
            look = self._planned[self._taken]
            # The one at the very end ends nothing early: it is taken by close().
            if look.n > self._prefix or look.n >= self._most:
                break
            self._taken += 1
            self.verdict = self._look(look._replace(tail=early_tail(look.tail)))
        return self.verdict

    def _look(self, look: PlannedLook) -> Verdict | None:
        if self._budget_is_spent(look.n):
            return Verdict(look.n, self._taken, False, True, self._estimates(look.n, look.tail))
        if self._failed(look.n) > self._looks.max_error_share * np.count_nonzero(self._ends.judged[: look.n]):
            return None
        watched = self._looks.watched
        samples: list[FloatArray] = [column[: look.n] for column in self._values]
        if not all(may_be_decided(w, s, look.tail) for w, s in zip(watched, samples, strict=True)):
            return None
        # Batch means cost little, and mostly they say that nothing is decided.
        quick = (estimate(w, s, look.tail, batch_size) for w, s in zip(watched, samples, strict=True))
        if not all(
            is_enough(w, j) and is_decided(w, j.estimate) for w, j in zip(watched, quick, strict=True)
        ):
            return None
        waits, judged = self._backlog(look.n), []
        for each, sample in zip(watched, samples, strict=True):
            judged.append(estimate(each, sample, look.tail, backlog=waits))
            if not (is_enough(each, judged[-1]) and is_decided(each, judged[-1].estimate)):
                return None
        lasting = self._as_lasting(look.n, judged)
        decided = all(map(is_decided, watched, lasting))
        return Verdict(look.n, self._taken, True, False, lasting) if decided else None

    def _estimates(self, n: int, tail: float) -> tuple[Estimate, ...]:
        waits, of = self._backlog(n), zip(self._looks.watched, self._values, strict=True)
        return self._as_lasting(n, [estimate(each, column[:n], tail, backlog=waits) for each, column in of])

    def _as_lasting(self, n: int, judged: Sequence[Judged]) -> tuple[Estimate, ...]:
        """The estimates with the ends that the report takes too."""
        run = self._ends.first(n)
        rate = None if self._load is None else offered_rate(self._load, run.scheduled_ns)
        if rate is None:
            return tuple(each.estimate for each in judged)
        usual, own = {}, {}
        for watched, column, each in zip(self._looks.watched, self._values, judged, strict=True):
            name, seen = watched.objective.metric, column[:n][np.isfinite(column[:n])]
            own[name], stem = each.estimate, name.rpartition(".")[0]
            for label, q in PERCENTILES.items() if len(seen) else ():
                usual[f"{stem}.{label}"] = replace(each.estimate, point=percentile(seen, q))
        limits_ms = next((each.limits_ms for each in self._looks.watched if each.limits_ms), ())
        found = as_lasting(usual | own, [(run, self._slots)], rate, limits_ms)
        return tuple(found[each.objective.metric] for each in self._looks.watched)

    def _backlog(self, n: int) -> Backlog:
        """The backlog of the first n requests. What is sent later was not under way when they were sent."""
        run = self._ends.first(n)
        return backlog([slot_queue(run)], [run.submitted_ns])

    def _budget_is_spent(self, n: int) -> bool:
        return self._failed(n) > self._looks.max_error_share * self._most

    def _failed(self, n: int) -> int:
        return int(np.count_nonzero(self._ends.judged[:n] & ~self._ends.ok[:n]))

    def reason(self, verdict: Verdict) -> str:
        """Why the load ended early, in words."""
        saved = f"after {verdict.n} of at most {self._most} requests"
        if verdict.budget_spent:
            return f"the error budget is spent {saved}"
        return f"every limit is decided {saved}"
