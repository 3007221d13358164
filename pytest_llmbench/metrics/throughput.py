"""Rates over a window of time, the completion rate, and goodput.

What happened by the clock inside the window (start, end] counts, whenever its request was submitted (AMB-16);
only requests that ended ``ok`` contribute (AMB-37). A rate is undefined when one of them lacks its count:
a total with a part missing is no total.

Intervals: of a whole open loop the rate is Σ amounts / Σ seconds over its requests, each with the time until
the next one was sent (renewal reward): what was sent was served, so that arrivals, lengths and the duration
of the last replies are all that varies. Any other window is cut into equal slices and the rate is Σ counts /
Σ seconds over them. In slices of a whole load its beginning and its drain would look like slow noise. Both
are ratios of sums of dependent samples.

Goodput is how many requests meet all limits at once, and at which rate. A request is good when it ended
``ok`` and kept each of its limits; one that failed, or whose latency was not observed, is not. The share of
good requests is the SLO attainment rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.chunking import chunk_owners, chunk_weights
from pytest_llmbench.metrics.latency import backlog_among
from pytest_llmbench.metrics.ratios import ratio_estimate, share_estimate
from pytest_llmbench.model.estimate import LEVEL, Estimate, Reason
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Quantity
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.model.reply_checks import VALID, VIOLATIONS
from pytest_llmbench.stats import ratios
from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.latencies import Ends
from pytest_llmbench.stats.look_samples import scores, waited_of_scores
from pytest_llmbench.stats.ratios import Ratio, ratio_of, share_of
from pytest_llmbench.stats.runs import FloatArray

SLICES = 400
"""Number of slices over all windows together."""
FEWEST_BY_REQUESTS = 10
"""Fewest requests of a run that a rate is computed over."""
SCHEMA_VIOLATIONS = "schema_violation_rate"
_NONE_CHECKED = "no reply was held against a schema"


@dataclass(frozen=True)
class Window:
    """A stretch of time in one run. ``records``: all requests of the run, inside the window or not."""

    records: Records
    start_ns: int
    end_ns: int
    is_whole_open_loop: bool = False
    """Whether it is all of an open loop, from the start of the schedule to the end of the drain."""

    @classmethod
    def of_load(cls, seen: Observation, records: Records | None = None) -> Window:
        """The whole load. ``records``: some of its requests, by default all."""
        kept = seen.records if records is None else records
        return cls(kept, seen.started_ns, seen.ended_ns, seen.plan.load.request_rate is not None)

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @cached_property
    def in_finest_slices(self) -> Sliced | None:
        """The output tokens of the window in :data:`SLICES`. Cached: needed several times, and costly for a
        long run."""
        return _sliced(_output_tokens, self, SLICES)


@dataclass(frozen=True)
class _Counts:
    """Events to be counted: an instant and an amount each; ``requests`` of them took part."""

    at_ns: IntColumn
    amounts: FloatArray | None
    """The amount of each event; None: 1 each."""
    requests: int


@dataclass(frozen=True)
class Sliced:
    amounts: FloatArray
    """The amount in each slice of the window."""
    requests: int
    whole: bool
    """Whether all amounts that were added up are 1."""


_Counted = Callable[[Records], _Counts | None]
"""Finds the events to be counted; ``None``: a request has no count."""
_AmountsOf = Callable[[Records], npt.NDArray[np.float64] | IntColumn]
"""What each request counts for if it ended well."""
_Slicing = Callable[[Window, int], Sliced | None]
"""Counts in so many slices of a window; ``None``: a request has no count."""


def rates(seen: Sequence[Observation], *, seed: int) -> dict[str, Estimate]:
    """The scalar metrics of whole runs, from the start of the schedule to the end of the drain.

    Four; the schema violations where replies were held against schemas; the cuts where users cut requests;
    the accuracy where questions were asked.
    """
    windows = [Window.of_load(run) for run in seen]
    amounts = {
        "output_token_throughput": output_token_throughput(windows, seed=seed),
        "input_token_throughput": input_token_throughput(windows, seed=seed),
        "request_throughput": request_throughput(windows, seed=seed),
    }
    gone = sum(int(run.records.given_up.sum()) for run in seen)
    if gone:
        told = f"; without {gone} requests that were given up on"
        amounts = {
            name: replace(each, method=each.method + told, given_up=gone) for name, each in amounts.items()
        }
    return amounts | {
        "completion_rate": completion_rate([run.records for run in seen]),
        **schema_violations([run.records for run in seen]),
        **planned_cuts([run.records for run in seen]),
        **_accuracy([run.records for run in seen]),
    }


def output_token_throughput(windows: Sequence[Window], *, seed: int) -> Estimate:
    """Output tokens that arrived in the window / its duration, tok/s (section 5.2.3). Reasoning included.

    The tokens of a request arrive with its chunks, in proportion to the tokens of each chunk, or evenly over
    the chunks where these are not known.
    """
    return _rate(_tokens_sliced, lambda records: records.output_tokens, windows, "tok/s", seed)


def output_tokens_per_slice(window: Window, slices: int) -> FloatArray | None:
    """Output tokens that arrived in each of equal slices of the window; None where a count is missing."""
    if window.duration_s <= 0:
        return None
    sliced = _tokens_sliced(window, slices)
    return None if sliced is None else sliced.amounts


def _tokens_sliced(window: Window, slices: int) -> Sliced | None:
    """The output tokens in so many slices, each made of several of the finest ones: sums of whole numbers are
    exact."""
    if SLICES % slices == 0:
        finest = window.in_finest_slices
        if finest is None or slices == SLICES:
            return finest
        if finest.whole:
            return replace(finest, amounts=finest.amounts.reshape(slices, -1).sum(axis=1))
    return _sliced(_output_tokens, window, slices)


def input_tokens(window: Window) -> float | None:
    """Number of input tokens of the requests whose first content came in the window; None where a count is
    missing."""
    sliced = _sliced(_input_tokens, window, 1)
    return None if sliced is None else float(sliced.amounts.sum())


def completions(window: Window) -> int:
    """Number of successful requests that ended in the window."""
    return int(_per_slice(_completions(window.records), window, 1).sum())


def input_token_throughput(windows: Sequence[Window], *, seed: int) -> Estimate:
    """Input tokens of requests whose first content came in the window / its duration, tok/s.

    A request that generates nothing has no content: its input counts where it ended. Tokens that a prefix
    cache answered are included. Of requests that users were to cut none counts, though the server may have
    read them: its own count of a prompt comes with the end of a reply, which one that was cut does not have.
    """
    return _rate(
        partial(_sliced, _input_tokens), lambda records: records.input_tokens, windows, "tok/s", seed
    )


def request_throughput(windows: Sequence[Window], *, seed: int) -> Estimate:
    """Requests completed in the window / its duration, req/s (section 5.2.4.1)."""
    return _rate(
        partial(_sliced, _completions), lambda records: np.ones(len(records)), windows, "req/s", seed
    )


def completion_rate(runs: Sequence[Records]) -> Estimate:
    """Requests that ended ``ok`` / all submitted ones (AMB-46) but those that their users were to cut.

    Failures come in bursts, so the interval stands at the effective sample size of the ok/not ok series.
    """
    series = [run.ok[run.judged].astype(np.float64) for run in runs]
    return share_estimate(share_of(series), "no requests")


def schema_violations(runs: Sequence[Records]) -> dict[str, Estimate]:
    """``schema_violation_rate``: replies that break their schema / ``ok`` replies that were asked for one.

    ``schema_violation_rate[REASON]``: the same of each reason that occurred. A reply has one reason, so they
    add up. Empty where no reply was held against a schema. The sense of an answer is not judged.
    """
    checks = [[check for check in run.schema_check if check is not None] for run in runs]
    if not any(checks):
        return {}
    seen = {check for run in checks for check in run}
    found = {SCHEMA_VIOLATIONS: _violating(checks, seen - {VALID})}
    return found | {
        f"{SCHEMA_VIOLATIONS}[{reason}]": _violating(checks, {reason})
        for reason in VIOLATIONS
        if reason in seen
    }


def planned_cuts(runs: Sequence[Records]) -> dict[str, Estimate]:
    """Shares of the requests that their users were to cut; empty where there are none.

    ``cut_share``: requests to be cut / all requests, which the plan says. ``cut_begun_share``: those of them
    with visible content before the user went / requests to be cut.
    """
    begun = [(run.first_content_ns != MISSING)[~run.judged].astype(np.float64) for run in runs]
    planned, of = sum(map(len, begun)), sum(map(len, runs))
    if not planned:
        return {}
    share = planned / of
    return {
        "cut_share": Estimate(share, share, share, LEVEL, of, "as planned", "ratio"),
        "cut_begun_share": share_estimate(share_of(begun), "no requests to be cut"),
    }


def _accuracy(runs: Sequence[Records]) -> dict[str, Estimate]:
    if all(told is None for run in runs for told in run.answer_check):
        return {}
    from pytest_llmbench.metrics.ratios import accuracy  # few loads ask questions

    return accuracy(runs)


def _violating(checks: Sequence[Sequence[str]], reasons: set[str]) -> Estimate:
    series = [np.array([check in reasons for check in run], dtype=np.float64) for run in checks]
    return share_estimate(share_of(series), _NONE_CHECKED)


def _output_tokens(records: Records) -> _Counts | None:
    """The arrivals of output tokens; ``None``: a request has no count."""
    if (records.output_tokens[records.ok] == MISSING).any():
        return None
    per_request = np.diff(records.chunk_offsets)
    if (  # every request ended well and each of its chunks is one token: nothing has to be weighted
        records.ok.all()
        and (per_request > 0).all()
        and np.array_equal(per_request, records.output_tokens)
        and (records.chunk_tokens == 1).all()
    ):
        return _Counts(records.chunk_ns, None, len(records))
    owner = chunk_owners(records)
    weights = chunk_weights(records)
    totals = np.bincount(owner, weights=weights, minlength=len(records))
    tokens = np.where(records.ok, records.output_tokens, 0).astype(np.float64)
    per_weight = np.divide(tokens, totals, out=np.zeros(len(records)), where=totals > 0)
    # A request without chunks of any weight has its tokens at the end.
    lump = records.ok & (totals == 0)
    return _Counts(
        at_ns=np.concatenate((records.chunk_ns, _completed_ns(records)[lump])),
        amounts=np.concatenate((weights * per_weight[owner], tokens[lump])),
        requests=int(records.ok.sum()),
    )


def _input_tokens(records: Records) -> _Counts | None:
    tokens = records.input_tokens[records.ok]
    if (tokens == MISSING).any():
        return None
    begun_ns = np.where(records.first_content_ns != MISSING, records.first_content_ns, _completed_ns(records))
    return _Counts(begun_ns[records.ok], tokens.astype(np.float64), len(tokens))


def _completions(records: Records) -> _Counts:
    at_ns = _completed_ns(records)[records.ok]
    return _Counts(at_ns, None, len(at_ns))


def _completed_ns(records: Records) -> IntColumn:
    return np.where(records.finished_ns != MISSING, records.finished_ns, records.last_content_ns)


def _rate(
    slicing: _Slicing,
    amounts_of: _AmountsOf,
    windows: Sequence[Window],
    unit: str,
    seed: int,
) -> Estimate:
    duration_s = sum(window.duration_s for window in windows)
    if duration_s <= 0 or not any(len(window.records) for window in windows):
        return Estimate.undefined(unit=unit, method="no requests in the window")
    width_s = duration_s / SLICES
    sliced = [slicing(window, max(1, round(window.duration_s / width_s))) for window in windows]
    known = [each for each in sliced if each is not None]
    if len(known) < len(sliced):
        method, why = "a successful request has no token count", Reason.NOT_MEASURABLE
        requests = sum(int(window.records.ok.sum()) for window in windows)
        return Estimate.undefined(unit=unit, method=method, n=requests, reason=why)
    requests = sum(each.requests for each in known)
    if all(window.is_whole_open_loop for window in windows):
        found = _by_requests(amounts_of, windows, seed)
        if found is not None:
            what = "amounts / seconds between sends over requests"
            return ratio_estimate(found, requests, requests, what, unit=unit)
    tops = [each.amounts for each in known]
    bottoms = [
        np.full(len(top), window.duration_s / len(top)) for top, window in zip(tops, windows, strict=True)
    ]
    slices, found = sum(map(len, tops)), ratio_of(tops, bottoms, seed=seed)
    what = f"count / duration over {slices} time slices"
    return ratio_estimate(found, slices, requests, what, unit=unit, most=float(requests))


def _by_requests(amounts_of: _AmountsOf, windows: Sequence[Window], seed: int) -> Ratio | None:
    """The rate of whole open loops over their requests; None where too few ended well.

    What a load lasts beyond the time between its sends is shared among them. It is as long as the slowest of
    the last replies, which is known to about the standard deviation of a latency.
    """
    tops, bottoms, drains_s2 = [], [], 0.0
    for window in windows:
        at = np.flatnonzero(window.records.ok & (window.records.submitted_ns != MISSING))
        if len(at) < FEWEST_BY_REQUESTS:
            return None
        sent_ns = window.records.submitted_ns[at]
        between = np.diff(sent_ns) / 1e9
        between = np.append(between, between.mean()) * (1 - 1 / len(at))
        rest_s = (window.duration_s - float(between.sum())) / len(at)
        if rest_s <= 0:
            return None
        tops.append(amounts_of(window.records)[at].astype(np.float64))
        bottoms.append(between + rest_s)
        drains_s2 += float(np.var((_completed_ns(window.records)[at] - sent_ns) / 1e9))
    found = ratio_of(tops, bottoms, seed=seed)
    if found.of is None:
        return None
    drain = found.point * math.sqrt(drains_s2) / sum(float(seconds.sum()) for seconds in bottoms)
    return found._replace(of=found.of._replace(error=math.hypot(found.of.error, drain)))


def _sliced(counted: _Counted, window: Window, slices: int) -> Sliced | None:
    """What is counted, in slices of the window; a long run is read a block at a time."""
    amounts, requests, whole = np.zeros(slices), 0, True
    for block in window.records.blocks():
        counts = counted(block)
        if counts is None:
            return None
        amounts += _per_slice(counts, window, slices)
        requests += counts.requests
        whole = whole and counts.amounts is None
    return Sliced(amounts, requests, whole)


def _per_slice(count: _Counts, window: Window, slices: int) -> FloatArray:
    """The amount in each slice; an instant on the border of two belongs to the one that it ends."""
    span = window.end_ns - window.start_ns
    places = (count.at_ns - window.start_ns) * slices
    places -= 1
    places //= span
    amounts: IntColumn | FloatArray | None = count.amounts
    if amounts is None:  # tokens of a reply follow one another, so most lie in the slice of the one before
        is_last = np.ones(len(places), dtype=bool)
        np.not_equal(places[1:], places[:-1], out=is_last[:-1])
        lasts = np.flatnonzero(is_last)
        places, amounts = places[lasts], np.diff(lasts, prepend=-1)
    inside = (places >= 0) & (places < slices)
    counted = np.bincount(places[inside], weights=amounts[inside], minlength=slices)
    return np.asarray(counted, dtype=np.float64)


WHOLE_RUNS = frozenset({"disabled", "cold", "warm"})
"""Roles of the runs that count from their first request on: the states of a prefix cache, as it is the first
requests that an empty one misses."""
RAMP_UP_SHARE = 0.1
"""The share of a level's duration that is ramp-up; the rest is the window."""


def load_end_ns(seen: Observation) -> int:
    """End of the load: its nominal end, or the last submission if that came first or there is no nominal
    end."""
    end_ns = seen.load_ended_ns
    if end_ns is None and seen.plan.duration_s is not None and seen.plan.load.request_rate is not None:
        end_ns = seen.started_ns + round(seen.plan.duration_s * 1e9)
    if end_ns is None or seen.stopped is not None or seen.interrupted is not None:
        sent = seen.records.submitted_ns[seen.records.submitted_ns != MISSING]
        end_ns = int(sent.max()) if len(sent) else seen.ended_ns
    return end_ns


def window_of(seen: Observation) -> Window:
    """The window of a run: the duration of the load, or of the sending where it has none, without its first
    tenth.

    Tokens and completions count by their arrival inside it, whatever comes in the drain does not.
    """
    end_ns = load_end_ns(seen)
    duration_ns = max(end_ns - seen.started_ns, 0)
    return Window(seen.records, seen.started_ns + round(RAMP_UP_SHARE * duration_ns), end_ns)


def level_window(seen: Observation, role: str = "") -> Window:
    """The window of a level. For a closed loop of sessions, the time while every slot has one, without its
    first tenth. A run of :data:`WHOLE_RUNS` has no ramp-up: it is all of its requests."""
    load = seen.plan.load
    if load.of_sessions and load.in_flight is not None:
        # Until the first session end that no other followed: as many ends are left as there are slots.
        number, inverse = np.unique(seen.records.session, return_inverse=True)
        end_ns = seen.ended_ns
        if len(number) >= load.in_flight:
            ended_ns = np.full(len(number), MISSING)
            np.maximum.at(ended_ns, inverse, seen.records.finished_ns)
            end_ns = int(np.sort(ended_ns)[len(number) - load.in_flight])
        start_ns = seen.started_ns + round(RAMP_UP_SHARE * max(end_ns - seen.started_ns, 0))
        window = Window(seen.records, start_ns, end_ns)
    else:
        window = window_of(seen)
    # A sample has to come after the start of its window, and the first may leave in the very nanosecond.
    return replace(window, start_ns=seen.started_ns - 1) if role in WHOLE_RUNS else window


def submitted_inside(window: Window) -> Records:
    """The latency samples: requests submitted inside the window, drained to their end."""
    at_ns = window.records.submitted_ns
    return window.records.select((at_ns != MISSING) & (at_ns > window.start_ns) & (at_ns <= window.end_ns))


Limits = Sequence[tuple[Quantity, float]]


def good(records: Records, limits_ms: Limits) -> BoolColumn:
    """For each request, whether it meets every limit."""
    return np.asarray(scores(limits_ms, Ends.of_records(records)) <= 1.0)


def goodput_share(runs: Sequence[Records], limits_ms: Limits) -> Estimate:
    """Good requests / all requests but those that their users were to cut. Clopper and Pearson's interval at
    the effective number of requests.

    How much requests depend on each other is read from how close they came to their limits, so that a run
    without a single miss is not taken for so many independent successes.
    """
    judged = [run.select(run.judged) for run in runs]
    every = [scores(limits_ms, Ends.of_records(records)) for records in judged if len(records)]
    waited = waited_of_scores(limits_ms, backlog_among(runs, [records.submitted_ns for records in judged]))
    return share_within(every, "no requests", waited=waited)


def share_within(every: Sequence[FloatArray], without: str, *, waited: Backlog | None = None) -> Estimate:
    """The share of scores, one vector per run, that are at most 1; see :func:`goodput_share`. ``without``:
    what is missing if there are no scores. ``waited``: the wait for a slot, in the unit of the scores."""
    n = sum(map(len, every))
    if n == 0:
        return Estimate.undefined(unit="ratio", method=without)
    top = max(1.0, *(float(np.max(run[np.isfinite(run)], initial=0.0)) for run in every))
    finite = [np.where(np.isfinite(run), run, 2.0 * top) for run in every]
    found = ratios.share_within(finite, backlog=waited)
    return share_estimate(found, without)


_UNITS = {"goodput_share": "ratio", "goodput": "req/s", "output_token_goodput": "tok/s"}


def uncounted(runs: Sequence[Records], limits_ms: Limits) -> bool:
    """Whether TPOT is limited, and of a run no successful reply has a count of its tokens: who is good is not
    known then."""
    limited = any(quantity == "tpot" for quantity, _ in limits_ms)
    return limited and any(run.ok.any() and (run.output_tokens[run.ok] == MISSING).all() for run in runs)


def unknown(unit: str) -> Estimate:
    """What is good by a TPOT that is not known."""
    why = "a limit on TPOT, and of a run no count of output tokens that can be"
    return Estimate.undefined(unit=unit, method=why, reason=Reason.NOT_MEASURABLE)


def goodput(seen: Sequence[Observation], limits_ms: Limits, *, seed: int) -> dict[str, Estimate]:
    """``goodput_share``, ``goodput`` (good requests per second), ``output_token_goodput`` (their tokens)."""
    runs = [run.records for run in seen]
    if uncounted(runs, limits_ms):
        return {name: unknown(unit) for name, unit in _UNITS.items()}
    windows = [Window.of_load(run, run.records.select(good(run.records, limits_ms))) for run in seen]
    requests = request_throughput(windows, seed=seed)
    tokens = output_token_throughput(windows, seed=seed)
    return {
        "goodput_share": goodput_share(runs, limits_ms),
        "goodput": replace(requests, method=f"{requests.method}, good requests"),
        "output_token_goodput": replace(tokens, method=f"{tokens.method}, good requests"),
    }
