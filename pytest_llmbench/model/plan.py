"""A LoadPlan is what a procedure wants done: a load, a workload, how many requests, and the looks at it while
it runs. A pure, hashable value.

The rate of a load may change in stages. They are written as a list of ``(second, rate)`` or ``(second, rate,
name)``: from that second on requests arrive at that rate, or at one that goes evenly from the first of two to
the second, ``(second, (5, 50))``. A last rate of 0 ends the load; without it the last stage goes on until all
requests are sent.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.numbers import number, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import Workload

Entry = tuple[float, float | tuple[float, float], str]
"""An entry of the list: when a stage begins in s, its rate or the rates of its ends in req/s, its name."""

_NAME = re.compile(r"[^\W\d][\w.-]{0,63}")
_FASTEST, _LONGEST_S, _MOST = 1e6, 1e7, 100_000_000
_FORM = "(second, rate), (second, (rate, rate at its end)) or either with a name as third"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of a load in which the rate is constant, or goes evenly from ``rate`` to ``to_rate``."""

    name: str
    at_s: float
    end_s: float | None
    """Its end; None for a last stage that goes on until all requests are sent."""
    rate: float
    to_rate: float

    def __str__(self) -> str:
        rates = " to ".join(dict.fromkeys((trimmed(self.rate), trimmed(self.to_rate))))
        return f"{self.name} {rates} req/s from {trimmed(self.at_s)} s"

    @property
    def requests(self) -> float | None:
        """The requests that it has on average; None where it goes on."""
        return None if self.end_s is None else (self.end_s - self.at_s) * (self.rate + self.to_rate) / 2


def stages_of(entries: Sequence[Any]) -> tuple[Stage, ...]:
    """The stages of a list that :func:`stage_mistakes` finds nothing wrong with."""
    read = [_read(entry, number) for number, entry in enumerate(entries, start=1)]
    ends: list[float | None] = [at_s for at_s, _, _ in read[1:]]
    if read[-1][1] == (0.0, 0.0):
        del read[-1]
    else:
        ends.append(None)
    return tuple(
        Stage(name, at_s, end_s, *rates) for (at_s, rates, name), end_s in zip(read, ends, strict=True)
    )


def requests_of(stages: Sequence[Stage]) -> int | None:
    """The requests of a load with an end: as many as it has on average. None without an end."""
    each = [stage.requests for stage in stages]
    return None if None in each else round(sum(count for count in each if count is not None))


def mean_rate(stages: Sequence[Stage]) -> float:
    """Requests per second over the load; of one without an end that of its last stage."""
    end_s, count = stages[-1].end_s, requests_of(stages)
    return stages[-1].to_rate if end_s is None or count is None else count / end_s


def stage_mistakes(value: Any) -> list[str]:
    """What is wrong with a list of stages, as ends of sentences; empty if it is one."""
    if not isinstance(value, Sequence) or not 1 <= len(value) <= 1000:
        return [f"must be a list of 1 to 1000 stages {_FORM}, got {shown(value)}"]
    found = [
        f"entry {number} is {shown(entry)}: write {_FORM}"
        for number, entry in enumerate(value, start=1)
        if not _is_entry(entry)
    ]
    return found or _of_all([_read(entry, number) for number, entry in enumerate(value, start=1)])


def _of_all(read: Sequence[tuple[float, tuple[float, float], str]]) -> list[str]:
    found = []
    names = [name for _, _, name in read]
    if read[0][0] != 0:
        found.append(f"begins at second {trimmed(read[0][0])}: the first stage begins at 0")
    if any(later[0] <= earlier[0] for earlier, later in pairwise(read)):
        found.append("must have stages whose seconds ascend")
    if len(set(names)) < len(names):
        found.append(f"has a name twice: {', '.join(names)}")
    first, last = read[-1][1]
    if first != last:
        found.append(f"ends with a ramp, which needs an end: add (second, {trimmed(last)}) or (second, 0)")
    if found:
        return found
    if all(rates == (0, 0) for _, rates, _ in read):
        return ["has no rate above 0: nothing would be sent"]
    count = 1 if first else requests_of(stages_of(read))
    if not count or count > _MOST:
        found.append(f"has {count} requests: give 1 to {_MOST:,}")
    return found


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) not in (2, 3):
        return False
    rates = entry[1] if _is_pair(entry[1]) else [entry[1]]
    named = len(entry) == 2 or (isinstance(entry[2], str) and _NAME.fullmatch(entry[2]) is not None)
    return named and _is_number(entry[0], _LONGEST_S) and all(_is_number(rate, _FASTEST) for rate in rates)


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def _is_number(value: Any, most: float) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and math.isfinite(value) and 0 <= value <= most


def _read(entry: Any, number: int) -> tuple[float, tuple[float, float], str]:
    rates = entry[1] if _is_pair(entry[1]) else (entry[1], entry[1])
    name = entry[2] if len(entry) == 3 else f"stage{number}"
    return float(entry[0]), (float(rates[0]), float(rates[1])), name


def ramp(first: float, last: float, seconds: float, hold_s: float) -> list[Entry]:
    """A load whose rate goes evenly from ``first`` to ``last`` req/s within ``seconds`` (stage ``ramp``), and
    stays there for ``hold_s`` (stage ``top``)."""
    return [(0, (first, last), "ramp"), (seconds, last, "top"), (seconds + hold_s, 0, "end")]


def steps(rates: Sequence[float], each_s: float) -> list[Entry]:
    """A load that takes one rate after the other, in req/s, each for ``each_s`` seconds: stages ``step1``,
    ``step2``, …"""
    begun = [(number * each_s, rate, f"step{number + 1}") for number, rate in enumerate(rates)]
    return [*begun, (len(rates) * each_s, 0, "end")]


def spike(rate: float, peak: float, *, before_s: float, for_s: float, after_s: float) -> list[Entry]:
    """A load of ``rate`` req/s that rises to ``peak`` for ``for_s`` seconds and falls back: stages
    ``before``, ``spike`` and ``after``."""
    up, down = before_s, before_s + for_s
    return [(0, rate, "before"), (up, peak, "spike"), (down, rate, "after"), (down + after_s, 0, "end")]


EVERY = 100
"""Number of requests from one look to the next."""
ALPHA = 0.05
"""Largest share of false verdicts: as many as an interval of 95 % at the end has."""
SPENT = ALPHA / 2
"""The part of it that the looks may spend. The rest allows for dependence that short samples do not show."""
JUDGED = "as judged"
_MOST_CHURNED, _FASTEST_CHURN, _LONGEST_CALL_S = 1_000, 100.0, 3_600.0

Quantity = Literal[
    "ttft", "ttft_scheduled", "ttft_any", "ttft_first_event", "tpot", "e2e", "e2e_scheduled", "latency",
    "latency_scheduled", "ok", "good",
]  # fmt: skip
"""A quantity of a request: a latency in ms; ``ok``: it ended well; ``good``: it met all limits of a
goodput."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Adapters (LoRA) that the engine unloads and loads again while load is running, one after the other."""

    adapters: tuple[tuple[str, str], ...]
    """Name and path of each; they take turns."""
    rate: float
    """Adapters that are unloaded and loaded again, per second."""
    timeout_s: float = 60.0
    """The longest wait for the answer to a call, in seconds."""


def churn(adapters: Mapping[str, str], rate: float, timeout_s: float = 60.0) -> Churn:
    """Adapters to unload and load again while load is running, for ``beside=``.

    ``adapters``: the path of each by its name, as the engine's call takes them. ``rate``: how many adapters a
    second, each by two calls. ``timeout_s``: the longest wait for a call. Raises SuiteError with all
    mistakes.
    """
    mistakes = []
    if not isinstance(adapters, Mapping) or not 0 < len(adapters) <= _MOST_CHURNED:
        example = "{'sql': '/adapters/sql'}"
        mistakes.append(f"adapters must be the path of each by its name, {example}, got {shown(adapters)}")
    else:
        for name, path in adapters.items():
            if not (isinstance(name, str) and name and isinstance(path, str) and path):
                mistakes.append(
                    f"adapters has {shown(name)}: {shown(path)}: give a name and a path in quotes"
                )
    for called, value, most in (("rate", rate, _FASTEST_CHURN), ("timeout_s", timeout_s, _LONGEST_CALL_S)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            mistakes.append(f"{called} must be a number above 0, at most {number(most)}, got {shown(value)}")
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="churn")
    return Churn(tuple(adapters.items()), float(rate), float(timeout_s))


@dataclass(frozen=True, slots=True)
class Watched:
    """One objective, with all that is needed to judge it on the requests themselves."""

    objective: Objective
    quantity: Quantity
    percentile: float | None = None
    """The percentile of a latency; ``None`` for its mean, and for shares."""
    least_tokens: int = 0
    below_tokens: int | None = None
    """Upper bound of the input tokens: only requests with ``least_tokens`` or more, and fewer than this,
    count. None: no bound."""
    failures_over_limit: bool = False
    """Whether a request that did not end well counts as slower than the limit, instead of not at all."""
    limits_ms: tuple[tuple[Quantity, float], ...] = ()
    """The limits of a goodput in ms; all of them have to be met."""

    @property
    def is_share(self) -> bool:
        return self.quantity in ("ok", "good")

    @property
    def rarity(self) -> float:
        """The smaller of the two shares that a percentile, or the limit of a share, divides requests into."""
        share = 0.5
        if self.is_share:
            share = self.objective.limit
        elif self.percentile is not None:
            share = self.percentile / 100
        return max(0.0, min(share, 1 - share))


@dataclass(frozen=True, slots=True)
class Looks:
    """A rule for ending a load early: at the first look that decides every objective, one way or the
    other.

    A look is at the first n requests in the order of the sequence, once all of them have ended: the slow ones
    that are still on their way are never missing from it.
    """

    watched: tuple[Watched, ...]
    max_error_share: float
    """Error budget: while more requests than this share have failed, nothing is decided."""
    every: int = EVERY
    alpha: float = SPENT


def judged_name(metric: str) -> str:
    """Name of the metric with the interval on which a limit is judged, where that is not the plain one:
    ``ttft[as judged].p95``, ``ttft[0-256, as judged].p95``."""
    stem, dot, statistic = metric.partition(".") if "[" not in metric else _after_bracket(metric)
    if stem.endswith("]"):
        return f"{stem[:-1]}, {JUDGED}]{dot}{statistic}"
    return f"{stem}[{JUDGED}]{dot}{statistic}"


def _after_bracket(metric: str) -> tuple[str, str, str]:
    """Name, qualifier and statistic of a metric; the qualifier may contain dots."""
    end = metric.rindex("]") + 1
    return metric[:end], metric[end : end + 1], metric[end + 1 :]


ARRIVALS = ("poisson", "uniform", "gamma")
"""The arrival processes that a rate describes, beside those of extras; ``trace`` has its own instants."""
STAGES = "stages"
"""The arrivals of a load whose rate changes: Poisson, or gamma where ``burstiness`` is not 1."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Jobs that arrive by a schedule, whether or not earlier jobs have ended (section 4.2). A job is one
    request or a session whose turns follow by cause (model/request.py).

    ``burstiness`` is the shape k of gamma inter-arrival times (as in vLLM's bench): coefficient of
    variation 1/√k, so 1 is Poisson and smaller is burstier. Only read when ``arrival`` is ``gamma``.
    """

    rate: float
    """Jobs per second; for a trace its mean."""
    arrival: str = "poisson"
    burstiness: float = 1.0
    offsets_ns: tuple[int, ...] = ()
    """Arrival instants from the start, ascending. Only read when ``arrival`` is ``trace``."""
    of_sessions: bool = False
    most_in_flight: int | None = None
    """The cap on requests in flight. A request that arrives at the cap waits until another ends; first come,
    first sent. None: there is no cap."""
    stages: tuple[Stage, ...] = ()
    """How the rate changes; ``rate`` is then its mean. Only read when ``arrival`` is ``stages``."""
    model: ClassVar[Literal["open"]] = "open"
    together: ClassVar[bool] = False
    in_flight: ClassVar[None] = None
    requests_in_flight: ClassVar[None] = None

    @property
    def is_trace(self) -> bool:
        return self.arrival == "trace"

    @property
    def request_rate(self) -> float | None:
        """Requests per second, each due at an instant of its own; None where ends decide: for turns, and
        under a cap."""
        return None if self.of_sessions or self.most_in_flight is not None else self.rate

    def terms(self) -> dict[str, Any]:
        """What decides its arrivals, by name."""
        found = {name: getattr(self, name) for name in ("rate", "arrival", "burstiness", "offsets_ns")}
        if self.stages:
            found |= {"stages": [asdict(stage) for stage in self.stages]}
        return found if self.most_in_flight is None else found | {"most_in_flight": self.most_in_flight}

    @property
    def peak_rate(self) -> float:
        """The greatest rate of any time, jobs per second."""
        return max((max(each.rate, each.to_rate) for each in self.stages), default=self.rate)

    def describe(self) -> str:
        if self.stages:
            return f"open loop, {', '.join(map(str, self.stages))}"
        shape = f", burstiness {trimmed(self.burstiness)}" if self.arrival == "gamma" else ""
        cap = "" if self.most_in_flight is None else f", at most {self.most_in_flight} in flight"
        return _open_words(self.arrival, trimmed(self.rate), of_sessions=self.of_sessions) + shape + cap


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of jobs in flight; each end, success or not, triggers the next at once. A job is one
    request, or a session."""

    concurrency: int
    of_sessions: bool = False
    model: ClassVar[Literal["closed"]] = "closed"
    together: ClassVar[bool] = False
    """Whether all jobs start at one instant, the last byte of each request held back until then."""
    is_trace: ClassVar[bool] = False
    most_in_flight: ClassVar[None] = None
    offsets_ns: ClassVar[tuple[int, ...]] = ()
    stages: ClassVar[tuple[Stage, ...]] = ()
    request_rate: ClassVar[None] = None

    @property
    def in_flight(self) -> int | None:
        """Jobs in flight; None for an open loop."""
        return self.concurrency

    @property
    def requests_in_flight(self) -> int | None:
        """Requests in flight; None also for sessions, whose pauses leave slots without a request."""
        return None if self.of_sessions else self.concurrency

    def terms(self) -> dict[str, Any]:
        """What decides its arrivals, by name."""
        return {"sessions" if self.of_sessions else "concurrency": self.concurrency}

    def describe(self) -> str:
        return _closed_words(str(self.concurrency), of_sessions=self.of_sessions)


@dataclass(frozen=True, slots=True)
class Batch(ClosedLoop):
    """Requests that all leave at one instant, none of which is replaced: as many as are in flight."""

    together: ClassVar[bool] = True

    def terms(self) -> dict[str, Any]:
        """What decides its arrivals, by name."""
        return {"concurrency": self.concurrency, "together": True}

    def describe(self) -> str:
        return f"{self.concurrency} requests at one instant"


Load = OpenLoop | ClosedLoop


def SessionStarts(  # noqa: N802 (it was a class, and is still written as one)
    rate: float, arrival: str = "poisson", burstiness: float = 1.0, offsets_ns: tuple[int, ...] = ()
) -> OpenLoop:
    """An open loop of sessions: ``rate`` starts per second. See :class:`OpenLoop`."""
    return OpenLoop(rate, arrival, burstiness, offsets_ns, of_sessions=True)


def SessionSlots(sessions: int) -> ClosedLoop:  # noqa: N802
    """A closed loop with a fixed number of sessions at once. See :class:`ClosedLoop`."""
    return ClosedLoop(sessions, of_sessions=True)


def _open_words(arrival: str, rate: str, *, of_sessions: bool) -> str:
    if of_sessions:
        return f"open loop of sessions, {arrival} starts at {rate} sessions/s"
    return f"open loop, {arrival} arrivals at {rate} req/s"


def _closed_words(number: str, *, of_sessions: bool) -> str:
    return f"closed loop of sessions, {number} at once" if of_sessions else f"closed loop, {number} in flight"


_LOADS_NAMED = 3


def describe_loads(loads: Sequence[Load]) -> str:
    """Loads in words: a few one by one, many as ``open loop, poisson arrivals at 2 to 24 req/s (12
    loads)``."""
    different = list(dict.fromkeys(loads))
    if len(different) <= _LOADS_NAMED:
        return "; ".join(dict.fromkeys(load.describe() for load in different))
    parts = []
    for of_sessions in (False, True):
        alike = [load for load in different if load.of_sessions is of_sessions]
        by_arrival: dict[str, list[float]] = {}
        for load in alike:
            if isinstance(load, OpenLoop) and load.stages:
                parts.append(load.describe())
            elif isinstance(load, OpenLoop):
                by_arrival.setdefault(load.arrival, []).append(load.rate)
        for arrival, rates in by_arrival.items():
            words = _open_words(arrival, _range(rates), of_sessions=of_sessions)
            parts.append(f"{words}{_how_many(rates)}")
        slots = [load.in_flight for load in alike if load.in_flight is not None]
        if slots:
            parts.append(f"{_closed_words(_range(slots), of_sessions=of_sessions)}{_how_many(slots)}")
    return "; ".join(parts)


def _range(values: Sequence[float]) -> str:
    low, high = (trimmed(float(f"{end:.4g}")) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _how_many(values: Sequence[float]) -> str:
    return f" ({len(values)} loads)" if len(values) > 1 else ""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Time limits of a request, in seconds; every wait has one. A request that exceeds one ends as
    ``timeout``."""

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    """The time from submission to the first byte of the response."""
    between_chunks_s: float = 60.0
    """The time between two reads of one response: it tells a hung server from a slow answer."""
    total_s: float = 600.0
    """The time from submission to the end of the response."""
    drain_s: float = 120.0
    """The time from the last submission of a plan to the end of all responses; what is left is cancelled."""

    def waiting(self, timeout_s: float) -> Deadlines:
        """Deadlines with ``timeout_s`` for the first byte and between chunks, and time enough for the whole
        reply."""
        return replace(
            self,
            first_byte_s=timeout_s,
            between_chunks_s=timeout_s,
            total_s=max(self.total_s, 2 * timeout_s),
            drain_s=max(self.drain_s, 2 * timeout_s),
        )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One stretch of load on the SUT: yielded by a procedure, answered by an Observation."""

    label: str
    """The label for people: progress line, report (``measure``, ``warm-up``, ``probe 2``)."""
    workload: Workload
    load: Load
    requests: int
    """How many requests to send. A closed loop with ``duration_s`` sends at least this number, and at most
    ``max_requests``. For a load of sessions it is the number of their turns; all of them are sent unless a
    session is cut off."""
    seed: int
    """Seed of the workload; the arrival schedule draws from a seed derived from :attr:`schedule_seed`."""
    phase: Phase = Phase.MEASURE
    first: int = 0
    """Index of the first request within the workload's sequence, and within the arrival schedule."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    ignore_eos: bool = False
    duration_s: float | None = None
    """Nominal duration of the load, for levels that are defined by a time; None: none. Open loop:
    ``requests`` are those of the schedule within it. Closed loop: the load goes on until it has passed and
    ``requests`` were sent."""
    max_requests: int | None = None
    """Ceiling of a closed loop with ``duration_s``: no request beyond it is drawn."""
    variant: str = ""
    """SUT variant to send it to; empty for the SUT itself."""
    fresh_state: bool = False
    """Whether to bring the SUT into a state without traces of earlier requests before the load (restart or
    flush)."""
    stop_when_failing: bool = False
    """Whether to end the load early when the SUT has stopped answering (memory pressure, section 7)."""
    most_failures: int | None = None
    """End the load early when more requests than this have failed: the test is then void in any case. Not
    part of the key, like the next three: whoever shares a load has all of it."""
    most_s: float | None = None
    """Seconds after which the load is given up. What was measured until then is void."""
    may_break: bool = False
    """Whether a load that the SUT does not survive is a result: it was sent to find out how much is too
    much."""
    watched: bool = True
    """Whether this load is watched for a SUT that stops answering. False for a share of a load, whose
    coordinator sees all ends, and where it is measured how long the SUT is away."""
    looks: Looks | None = None
    """The rule for ending the load when every objective is decided; ``requests`` and the ceiling are then the
    most. None: no looks."""
    attempt: int = 1
    """Number of the attempt. From 2 on the load before was void for a cause on the generator's own host, and
    this one replaces it. Decides nothing of what is sent, so it is not part of the key."""
    part: str = ""
    """Name of the part of the measurement that ``seed`` belongs to (methodology/measuring/load_plans.py),
    derived from the seed of the session; empty where ``seed`` is that seed itself. Not part of the key: the
    seed is."""
    lengths_seed: int | None = None
    """Seed of the list of lengths that the workload has (workloads/adapted.py), and so of the arrivals:
    loads of one list have one schedule too. None: both are drawn with ``seed``."""

    event: str = ""
    """Shell command that runs while load is running; empty: none. In virtual time it does not run."""
    event_at_s: float = 0.0
    """Seconds from the start of the load to its event."""
    beside: Churn | None = None
    """Adapters that are unloaded and loaded while load is running; None: they stay as they are."""

    @property
    def schedule_seed(self) -> int:
        """The seed that the arrival schedule derives its own from."""
        return self.seed if self.lengths_seed is None else self.lengths_seed

    @property
    def title(self) -> str:
        """The label; with the number of the attempt if the load is measured again."""
        return self.label if self.attempt == 1 else f"{self.label} (attempt {self.attempt})"

    @property
    def ceiling(self) -> int:
        """The most requests that may be sent."""
        return self.requests if self.max_requests is None else max(self.requests, self.max_requests)

    @property
    def most_requests(self) -> int:
        """The most requests that may be sent: the ceiling, where a time decides how many there will be."""
        timed = self.load.requests_in_flight is not None and self.duration_s is not None
        return self.ceiling if timed else self.requests

    def mistakes(self) -> list[str]:
        """Why the plan cannot be run, in words; empty if it can."""
        found = []
        if self.first < 0 or self.requests < 0:
            found.append(f"a plan of {self.requests} requests from number {self.first} on")
        slots, of_sessions = self.load.in_flight, self.load.of_sessions
        if slots is not None and slots < 1:
            found.append(f"{slots} sessions at once" if of_sessions else f"concurrency is {slots}")
            found[-1] += ", least is 1"
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            found.append(f"the duration is {self.duration_s!r} s: give a number above 0, or none")
        if of_sessions and (self.duration_s is not None or self.looks is not None):
            found.append("a load of sessions has a number of turns: no duration, and no early end")
        if self.load.together and (
            self.requests > (slots or 0) or of_sessions or self.duration_s is not None
        ):
            found.append(
                f"a batch of {slots} is so many requests at most, and has no sessions and no duration"
            )
        return found

    @property
    def key(self) -> str:
        """SHA-256 of everything that decides what is sent and when; equal keys mean the same load."""
        content = {
            "workload": {"name": self.workload.name, **self.workload.specification()},
            "load": {"model": self.load.model, **self.load.terms()},
            "requests": self.requests,
            "seed": self.seed,
            "phase": self.phase,
            "first": self.first,
            "deadlines": asdict(self.deadlines),
            "ignore_eos": self.ignore_eos,
            "duration_s": self.duration_s,
            "max_requests": self.max_requests,
            "variant": self.variant,
            "fresh_state": self.fresh_state,
            "stop_when_failing": self.stop_when_failing,
            "looks": None if self.looks is None else asdict(self.looks),
        }
        if self.event:
            content |= {"event": self.event, "event_at_s": self.event_at_s}
        if self.beside is not None:
            content["beside"] = asdict(self.beside)
        if self.lengths_seed is not None:
            content["lengths_seed"] = self.lengths_seed
        if self.load.of_sessions:
            content["unit"] = "sessions"
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_(self, **changes: Any) -> LoadPlan:
        """A copy with some fields changed."""
        return replace(self, **changes)
