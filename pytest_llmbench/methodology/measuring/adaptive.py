"""Loads that end when their limits are decided: how many requests that takes, and what the limits are judged
on.

With ``requests="auto"`` the generator looks at the limits after each 100 requests (``stats/looks``)
and ends the load at the first look that decides them all; then, and at the maximum, they are judged on the
interval of that look and on no other, so what ended the load and the verdict cannot differ.
``failures="over_limit"`` has its own intervals too, in which a failed request is slower than any limit.

How many requests it takes at least before a limit can be kept, whatever the requests come out at.

A limit is kept by the end of an interval, and too few requests have no such end. Of independent requests,
the best that there could be, an upper end of P90 takes 36 by order statistics, P95 72, P99 368; a crude one
of P95 takes 40, of P99 91, and of P99.9 921. Of n good requests Clopper and Pearson's lower end is
(α/2)^(1/n).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import shown
from pytest_llmbench.methodology.given import OF_CHURN
from pytest_llmbench.methodology.parameters import AUTO, LoadParameters, parameter
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.metrics.input_lengths import EDGES, LABELS
from pytest_llmbench.metrics.latency import FAMILIES
from pytest_llmbench.metrics.summary import STATISTICS
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import Amount, quantity
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import (
    ALPHA,
    STAGES,
    Churn,
    Load,
    LoadPlan,
    Looks,
    OpenLoop,
    Quantity,
    Watched,
    judged_name,
)
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.crude import crude_samples_required
from pytest_llmbench.stats.failing import look_taker
from pytest_llmbench.stats.percentiles import PERCENTILES, samples_required
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE
from pytest_llmbench.workloads.catalogue import workload as find_workload

if TYPE_CHECKING:
    from pytest_llmbench.model.plan import Stage

GATE_REQUESTS = SAMPLES_REQUIRED["p99"]
"""Default number of requests of a gate: the draft's minimum for P99."""
MOST_REQUESTS = 5_000
"""The most requests of ``requests="auto"`` where the marker names no maximum."""
STEADY_WAVES = 10
"""Fewest requests for each slot of a closed loop whose steady state is asked for."""
OVER_LIMIT = "over_limit"
EACH = "[*]"
"""What a limit on each stage has in its metric: ``ttft["*"].p99``."""
GOODPUT_SHARE = "goodput_share"

_NAME = re.compile(r"(?P<base>\w+)(?:\[(?P<bucket>[^\]]*)\])?(?:\.(?P<statistic>\w+))?")
_QUANTITIES: dict[str, Quantity] = {each: each for each in get_args(Quantity) if each in FAMILIES}
_OF_STAGES = ("completion_rate", "request_throughput", "input_token_throughput", "output_token_throughput")
"""What each stage has beside latencies."""
_OF_DOCUMENTS: dict[str, Quantity] = {"latency": "latency", "latency_scheduled": "latency_scheduled"}
"""Metric → quantity that looks can judge, for requests that generate nothing."""


def _beside(value: object) -> list[str]:
    """What is wrong with what happens beside the load."""
    example = "churn({'sql': '/adapters/sql'}, rate=0.5)"
    return (
        []
        if isinstance(value, Churn)
        else [f"must be {example}, imported from pytest_llmbench, got {shown(value)}"]
    )


@dataclass(frozen=True, kw_only=True)
class AdaptiveParameters(LoadParameters):
    """The parameters of a test with one load that may end when its limits are decided."""

    arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = parameter(  # type: ignore[assignment]  # wider than its base
        "shape",
        doc="open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra; ``trace``: "
        "without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``, ``ramp``, "
        "``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from then on.",
    )
    requests: int | Literal["auto"] | None = parameter(  # type: ignore[assignment]  # wider than its base
        "count_or_auto",
        doc='measured requests (default 1000), or ``"auto"``: until the limits are decided.',
    )
    max_requests: int | None = parameter(
        "count", doc='most requests with ``requests="auto"`` (default 5000).'
    )
    max_seconds: float | None = parameter(
        "positive", doc='longest load in seconds with ``requests="auto"``, without the drain.'
    )
    budget: float | str | None = parameter(
        "budget",
        doc='time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or '
        "requests as its limits and comparisons need; overrides ``--llm-budget``.",
    )
    failures: Literal["left_out", "over_limit"] = parameter(
        "choice",
        "left_out",
        doc='``"over_limit"``: a failed request counts as slower than the limit; otherwise it is left out.',
    )

    beside: Churn | None = parameter(
        _beside,
        doc="adapters that the engine unloads and loads during the load, by its own calls: "
        '``churn({"sql": "/adapters/sql"}, rate=0.5)``.',
    )
    steady: bool = parameter(
        "flag",
        False,
        doc="closed loop: the limits apply to the steady state, without the first wave and the drain; "
        "otherwise they apply to exactly these requests, as a finite job.",
    )

    count_name: ClassVar[str] = "requests"
    """The keyword of the number of requests."""

    def __post_init__(self) -> None:
        """Have a limit on ``[*]`` for each stage."""
        names = [stage.name for stage in self.stages]
        for field_name in ("slo", "advisory") if names else ():
            given: Sequence[Objective] = getattr(self, field_name)
            each = [
                replace(one, metric=one.metric.replace(EACH, f"[{name}]"))
                for one in given
                for name in (names if EACH in one.metric else names[:1])
            ]
            object.__setattr__(self, field_name, tuple(each))

    @property
    def is_auto(self) -> bool:
        return self.requests == AUTO

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a load whose rate changes; else none."""
        if self.arrival is None or isinstance(self.arrival, str):
            return ()
        from pytest_llmbench.model.plan import stages_of  # few loads have stages

        return stages_of(self.arrival)

    @property
    def whole(self) -> int | None:
        """The requests of stages with an end; else None."""
        if not self.stages:
            return None
        from pytest_llmbench.model.plan import requests_of

        return requests_of(self.stages)

    @property
    def load(self) -> Load:
        if not self.stages:
            return super().load
        from pytest_llmbench.model.plan import mean_rate

        return OpenLoop(mean_rate(self.stages), STAGES, self.burstiness or 1.0, stages=self.stages)

    @property
    def is_job(self) -> bool:
        if self.stages:  # no state of the system to sample: the rate is another at each time
            return True
        return self.load.in_flight is not None and not self.is_auto and not self.steady

    @property
    def count(self) -> int | None:
        """The number of requests that was asked for; None for ``auto``."""
        return self.requests if isinstance(self.requests, int) else None

    @property
    def most_requests(self) -> int | None:
        if self.is_auto:
            return self.max_requests or MOST_REQUESTS
        if self.whole is not None:
            return self.whole
        return len(self.offsets_ns) if self.count is None and self.arrival == "trace" else self.count

    @property
    def limits_ms(self) -> tuple[tuple[Quantity, float], ...]:
        """The limits in ms that make a request good, for a test of goodput."""
        return ()

    @property
    def quantities(self) -> Mapping[str, Quantity]:
        """Metric → the latency that a look can judge."""
        return _QUANTITIES if self.generates else _OF_DOCUMENTS

    def contradictions(self) -> list[str]:
        if not self.is_auto:
            found = replace(self, max_requests=None, max_seconds=None)._of_load() + self._uncounted()
            found += self._unsteady()
            given = [name for name in ("max_requests", "max_seconds") if getattr(self, name) is not None]
            return found + [
                f"{name} needs requests='auto': it bounds a load that may end early" for name in given
            ]
        found = replace(self, requests=None)._of_load() + self._unsteady()
        if self.arrival == "trace" or self.stages:
            told = "stages are" if self.stages else "arrival='trace' is"
            found.append(f"requests='auto' needs a load that can continue; {told} one pass")
        if self.run_count > 1:
            found.append("requests='auto' decides on one run: leave out runs")
        if not self.objectives:
            found.append("requests='auto' ends when the limits are decided: give one, for example p95_ms=300")
        return found + [
            f"requests='auto' cannot evaluate {each.metric} while load is running, only percentiles and "
            f"means of {', '.join(self.quantities)}, and shares of requests; give a number of requests"
            for each in self.objectives
            if watched(each, self) is None
        ]

    def undecidable(self) -> list[str]:
        """Mistakes: limits of an open loop that its requests cannot keep, however good they are. In a job all
        is exact."""
        most = self.most_requests
        if self.is_job:
            return []
        told = f"{'max_requests' if self.is_auto else 'requests'}={most}"
        told += f", runs={self.run_count}" if self.run_count > 1 else ""
        found = []
        for each in self.objectives:
            fewest = fewest_requests(each)
            if math.isinf(fewest):
                found.append(f"{each} cannot be decided by any number of requests: limit a share below it")
            elif most is not None and most * self.run_count < fewest:
                lower = highest_decided(each.metric, most * self.run_count)
                needs = f"{each} needs at least {quantity(fewest, 'count')} requests to be decided, {told}"
                found.append(
                    f"{needs}: ask for {quantity(fewest, 'count')} or more"
                    + (f", or for {lower}" if lower else "")
                )
        return found

    def _unsteady(self) -> list[str]:
        """Mistakes in a steady state that is asked for."""
        slots = None if self.arrival == "trace" else self.load.in_flight
        if slots is None:
            needs = "steady needs concurrency: an open loop measures the steady state anyway"
            return [needs] if self.steady else []
        least, most = STEADY_WAVES * slots, self.most_requests or GATE_REQUESTS
        if self.is_job or most >= least:
            return []
        asked, named = ("requests='auto'", "max_requests") if self.is_auto else ("steady", "requests")
        return [f"{asked} needs {STEADY_WAVES} requests for each slot: {named}={least} or more, not {most}"]

    def _uncounted(self) -> list[str]:
        """Mistakes: limits on one class with ``failures="over_limit"``. They are judged on the replies of the
        class, so its failures would be left out silently."""
        if self.failures != OVER_LIMIT:
            return []
        return [
            f"failures='over_limit' cannot count the failures in {each.metric}: limit "
            "completion_rate of the class instead"
            for each in self.objectives
            if "[" in each.metric and watched(each, self) is None
            if (each.metric.partition("[")[0]) in self.quantities
        ]

    def _of_load(self) -> list[str]:
        """Mistakes between the parameters of the load."""
        still = [
            f"{each.metric} needs adapters that come and go: give beside=churn(…)"
            for each in (*self.slo, *self.advisory)
            if self.beside is None and each.metric.partition(".")[0] in OF_CHURN
        ]
        if not self.stages:
            return (
                still
                + LoadParameters.contradictions(self)
                + [
                    f"{each.metric} is by stage, but the load has no stages: give stages in arrival"
                    for each in (*self.slo, *self.advisory)
                    if EACH in each.metric
                ]
            )
        given = [name for name in ("rate", "concurrency") if getattr(self, name) is not None]
        found = still + [
            f"stages in arrival set how many requests arrive when: leave out {name}" for name in given
        ]
        if self.whole is not None and self.count is not None:
            found.append(
                f"the stages end after {self.whole} requests: leave out their end, or {self.count_name}"
            )
        return found + self._of_no_stage()

    def _of_no_stage(self) -> list[str]:
        """Mistakes: limits on a stage that there is not."""
        stated = find_workload(self.workload).specification()
        if stated.get("parts") or stated.get("classes"):
            return []  # these give names too
        names = [stage.name for stage in self.stages]
        found = [(each, _NAME.fullmatch(each.metric)) for each in (*self.slo, *self.advisory)]
        return [
            f"{each.metric} names no stage of the load; the stages are {', '.join(names)}"
            for each, match in found
            if match is not None
            and match["bucket"] not in (None, *names, *LABELS)
            and match["base"] in (*_OF_STAGES, *self.quantities)
        ]


def watched(objective: Objective, parameters: AdaptiveParameters) -> Watched | None:
    """What a look needs of each request to judge the objective; ``None`` where that is not enough."""
    match = _NAME.fullmatch(objective.metric)
    if match is None:
        return None
    base, bucket, statistic = match["base"], match["bucket"], match["statistic"]
    if base == "completion_rate" and bucket is None:
        return Watched(objective, "ok")
    if base == GOODPUT_SHARE and bucket is None and parameters.limits_ms:
        return Watched(objective, "good", limits_ms=parameters.limits_ms)
    quantity = parameters.quantities.get(base)
    if quantity is None or (statistic not in PERCENTILES and statistic != "mean"):
        return None
    span: dict[str, Any] = {}
    if bucket is not None:
        if base != "ttft" or bucket not in LABELS:
            return None
        place = LABELS.index(bucket)
        below = EDGES[place + 1] if place + 1 < len(EDGES) else None
        span = {"least_tokens": EDGES[place], "below_tokens": below}
    over = parameters.failures == OVER_LIMIT
    return Watched(objective, quantity, PERCENTILES.get(statistic), failures_over_limit=over, **span)


def looks_of(parameters: AdaptiveParameters) -> Looks | None:
    if not parameters.is_auto:
        return None
    every = [found for each in parameters.objectives if (found := watched(each, parameters)) is not None]
    return Looks(tuple(every), parameters.max_error_share)


def bounded(parameters: AdaptiveParameters, plan: LoadPlan) -> LoadPlan:
    """The plan for ``requests="auto"``. Its requests are the most there may be: it may end early, and after
    ``max_seconds`` it does."""
    looks, seconds, load = looks_of(parameters), parameters.max_seconds, plan.load
    if seconds is None:
        return plan.with_(looks=looks)
    if isinstance(load, OpenLoop):
        due_ns = schedule_ns(load, plan.first + plan.requests, arrival_seed(plan.schedule_seed))
        before_ns = int(due_ns[plan.first - 1]) if plan.first else 0
        there = int(np.count_nonzero(due_ns[plan.first :] <= before_ns + seconds * 1e9))
        return plan.with_(looks=looks, requests=max(1, there))
    return plan.with_(looks=looks, requests=1, max_requests=plan.requests, duration_s=seconds)


@dataclass(frozen=True)
class AsJudged:
    """The figures on which limits are judged, where these are not the plain metrics."""

    metrics: dict[str, Estimate] = field(default_factory=dict)
    """The metrics under the names of :func:`~pytest_llmbench.model.plan.judged_name`."""
    notes: tuple[Note, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


AS_MEASURED = AsJudged()


def as_judged(parameters: AdaptiveParameters, seen: Sequence[Observation]) -> AsJudged:
    looks = seen[0].plan.looks if seen else None
    if looks is not None:
        return _at_last_look(looks, seen[0])
    whole = (Note.of("without_looks"),) if parameters.is_auto and seen else ()
    if parameters.failures != OVER_LIMIT:
        return AsJudged(notes=whole)
    found = _failures_over_limit(parameters, seen)
    return AsJudged(found, (*whole, *((Note.of("failures_over_limit"),) if found else ())))


def _failures_over_limit(parameters: AdaptiveParameters, seen: Sequence[Observation]) -> dict[str, Estimate]:
    # Imported here, as below: loads whose limits are judged on the plain metrics need none of it.
    from pytest_llmbench.stats.latencies import Ends
    from pytest_llmbench.stats.look_samples import values
    from pytest_llmbench.stats.looks import estimate

    found = {}
    for each in parameters.objectives:
        over = watched(each, parameters)
        if over is not None and not over.is_share:
            every = [run.records for run in seen]
            samples = np.concatenate([values(over, Ends.of_records(run)) for run in every])
            waits = latency.backlog_among(every, [run.submitted_ns for run in every])
            judged = estimate(over, samples, ALPHA / 2, backlog=waits)
            found[judged_name(each.metric)] = judged.estimate
    return found


def _at_last_look(looks: Looks, run: Observation) -> AsJudged:
    taker = look_taker(run.plan, None if run.engine is None else run.engine.max_num_seqs)
    assert taker is not None
    taker.add_all(run.records)
    verdict = taker.close()
    most, sent = run.plan.most_requests, len(run.records)
    metrics = {
        judged_name(each.objective.metric): found
        for each, found in zip(looks.watched, verdict.estimates, strict=True)
    }
    case = "looked.whole"
    if verdict.budget_spent:
        case = "looked.budget_spent"
    elif run.stopped is not None and verdict.decided:
        case = "looked.decided"
    slots = run.plan.load.requests_in_flight
    told = Note.of(
        case,
        decided=verdict.decided,
        sent=sent,
        most=most,
        saved=most - sent,
        look=verdict.looks,
        judged=verdict.n,
        slots=slots,
        level=Amount(verdict.estimates[0].level, "ratio"),
        usual=Amount(1 - ALPHA, "ratio"),
        figures_of=sent - (slots or 0),
    )
    facts: dict[str, Any] = {
        LoadFact.MAX_REQUESTS: most,
        LoadFact.LOOKS: verdict.looks,
        LoadFact.DECIDED: verdict.decided,
        LoadFact.DECIDED_AFTER: verdict.n,
        LoadFact.REQUESTS_SAVED: most - sent if run.stopped is not None else 0,
    }
    return AsJudged(metrics, (told,), facts)


_TAIL = 0.025
_FLOORS, _CEILINGS = ("completion_rate", "goodput_share", "accuracy"), ("schema_violation_rate",)


def fewest_requests(limit: Objective) -> float:
    """The fewest requests with which the limit may be kept; ∞ for a share that no number of them shows, 0
    where their number says nothing."""
    family = limit.metric.partition(".")[0].partition("[")[0]
    if family in _FLOORS and not limit.is_ceiling:
        return _alike(limit.limit)
    if family in _CEILINGS and limit.is_ceiling:
        return _alike(1 - limit.limit)
    row = METRICS.get(family)
    if row is None or row.statistics != STATISTICS or row.by_turn or not limit.is_ceiling:
        return 0
    statistic = limit.metric.rpartition(".")[2]
    if statistic == "mean":
        return FEWEST_EFFECTIVE
    return _of_percentile(statistic) if statistic in PERCENTILES else 0


def highest_decided(metric: str, count: int) -> str | None:
    """The metric with the highest percentile that ``count`` requests may bound; None for what is no
    percentile."""
    stem, _, statistic = metric.rpartition(".")
    if statistic not in PERCENTILES:
        return None
    bounded = [each for each in PERCENTILES if _of_percentile(each) <= count]
    return f"{stem}.{bounded[-1]}" if bounded else None


def _of_percentile(statistic: str) -> int:
    q = PERCENTILES[statistic]
    return min(samples_required(q), crude_samples_required(q))


def _alike(share: float) -> float:
    """The fewest n with (α/2)^(1/n) ≥ ``share``."""
    if share <= 0:
        return 0
    return math.inf if share >= 1 else math.ceil(math.log(_TAIL) / math.log(share) - 1e-9)
