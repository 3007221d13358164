"""Marker parameters: declared once per test as a dataclass, checked here with every mistake at once.

Each field says through ``metadata["kind"]`` what it accepts, and through ``metadata["doc"]`` what it is; the
docstring of the class is that of the marker. ``build`` turns the raw keywords of a marker into the dataclass,
or raises one SuiteError that lists everything wrong with them. ``methodology/keywords.py`` shows them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import islice
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from pytest_llmbench.errors import SuiteError, as_python, shown
from pytest_llmbench.methodology.given import not_given
from pytest_llmbench.methodology.places import Place, here
from pytest_llmbench.metrics.definitions import is_metric, metric_unit, suggestions
from pytest_llmbench.metrics.input_lengths import LABELS
from pytest_llmbench.model.numbers import number
from pytest_llmbench.model.objective import Objective, Op
from pytest_llmbench.model.plan import ClosedLoop, Load, OpenLoop
from pytest_llmbench.model.request import TurnClass, Workload
from pytest_llmbench.registry import Kind, names
from pytest_llmbench.workloads.catalogue import workload as find_workload
from pytest_llmbench.workloads.profiles import without_output
from pytest_llmbench.workloads.stream import streamed

P = TypeVar("P", bound="TestParameters")

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99_9")
MOST = 100_000_000
"""The largest number of anything that is counted. More requests than that are a typing error, and days of
load."""
LARGEST = 1e9
"""The largest value of any other number: nobody means more than that in seconds, milliseconds, or per
second."""
SMALLEST = 1e-9
MOST_RUNS = 10_000
MOST_ENTRIES = 1_000
"""The most entries of a list in a marker."""
LARGEST_SEED = 2**63 - 1
AUTO = "auto"
AUTO_RUNS = 5
"""The most runs of ``runs="auto"``."""
DEFAULT_CONCURRENCY = 8
"""Concurrency of a test that names neither ``rate`` nor ``concurrency``."""


BY_PLACE = ("positive", "count", "amount", "share", "share_or_file", "count_or_auto")
"""Kinds of numbers, which may differ from place to place."""

OF_BURSTINESS = "shape of gamma arrivals: 1 is Poisson, smaller is burstier."

Check = Callable[[Any], list[str]]
"""Returns the complaints about a value, as ends of sentences that begin with the name of the parameter."""


def parameter(kind: str | Check, default: Any = None, *, doc: str = "", scale: object = None) -> Any:
    """Declare a dataclass field of the given kind, or with a check of its own.

    ``choice`` is one of the texts of the ``Literal`` in its annotation. ``doc`` is what users of the marker
    read; a name that says it all needs none. ``scale`` is the ``ByScale`` of what is taken where the marker
    gives nothing.
    """
    if scale is not None:
        doc += f" Default by scale: {scale}."
    return field(default=default, metadata={"kind": kind, "doc": doc})


def limit(metric: str, kind: str = "positive", default: Any = None, *, doc: str = "") -> Any:
    """Declare a parameter that limits ``metric``: from below where its name begins with ``min_``, else from
    above. ``{}`` in the metric stands for each key of a mapping, else for each of
    :attr:`TestParameters.qualifiers`."""
    return field(default=default, metadata={"kind": kind, "doc": doc, "limits": metric})


@dataclass(frozen=True, kw_only=True)
class TestParameters:
    """What every test takes: the workload, and how strictly the result is judged."""

    __test__ = False
    of_the_draft: ClassVar[bool] = True
    """Whether the test is one of the draft, which has clauses to comply with."""
    repeats: ClassVar[bool] = False
    """Whether the test repeats its measured load ``runs`` times."""
    of_sessions: ClassVar[bool] = False
    """Whether the test sends sessions."""
    fixed_count: ClassVar[bool] = False
    """Whether the number of requests is the load itself, and no scale makes it larger."""
    for_sessions: ClassVar[Sequence[str]] = ()
    """Keywords that apply to sessions alone, of a test that sends sessions where its workload has some, and
    requests otherwise."""
    for_requests: ClassVar[Mapping[str, str]] = {}
    """Keywords of such a test that apply to requests alone → what to give for sessions."""
    any_of_sessions: ClassVar[str] = "a workload of sessions, for example 'session:chat'"
    """What to name for the keywords of sessions."""
    generates: ClassVar[bool] = True
    """Whether the test is about tokens that are generated."""
    takes_adapters: ClassVar[bool] = True
    """Whether the test sends the workload as it is, so that its requests may name adapters."""

    workload: str | Workload = parameter(
        "workload",
        "synthetic-uniform",
        doc="name of a workload, a workload object, or weights by name.",
    )
    adapters: Mapping[str, float] | Sequence[str] | None = parameter(
        "adapters",
        doc="LoRA adapters that requests name as their model: shares by name (the rest goes to the base "
        "model), or a list of names used in turn; figures are given per adapter.",
    )
    seed: int | None = parameter("seed", doc="seed of requests and arrivals; overrides ``--llm-seed``.")
    runs: int | Literal["auto"] | None = parameter(
        "runs",
        doc='repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if it '
        "does not decide the limits.",
    )
    fresh: bool = parameter(
        "flag", False, doc="measure again, even if another test of the session already ran the same load."
    )
    compliance: Literal["conditional", "unconditional"] | None = parameter(
        "choice",
        doc="fail the test unless the run is at least this compliant; only for tests of the draft.",
    )
    slo: Sequence[Objective] = parameter("slo", (), doc="further limits, ``[tpot.p99 <= 50 * ms]``.")
    advisory: Sequence[Objective] = parameter(
        "slo", (), doc="limits that are judged and reported, but never fail the test."
    )
    limits_file: str | None = parameter(
        "name", doc="file with this test's limits, relative to the test file; ``--llm-calibrate`` writes it."
    )
    max_error_share: float = parameter(
        "share", 0.01, doc="error budget; a larger share of failed requests voids the run."
    )
    timeout_s: float | None = parameter(
        "positive",
        doc="longest wait for the first byte of a reply, and between its chunks; overrides "
        "``--llm-timeout``.",
    )

    def contradictions(self) -> list[str]:
        """Mistakes between several parameters, rather than in one of them."""
        return []

    def not_of_the_draft(self) -> list[str]:
        if self.compliance is None or self.of_the_draft:
            return []
        return ["compliance does not apply: this test is not part of the draft"]

    @property
    def has_sessions(self) -> bool:
        """Whether the workload has sessions, and not single requests."""
        return streamed(find_workload(self.workload)).unit == "session"

    def not_of_this_kind(self) -> list[str]:
        """Mistakes: a workload of sessions in a test that sends single requests, where its turns would wait
        for nothing; keywords of sessions with a workload of requests, and the other way round."""
        defaults = {each.name: each.default for each in fields(self)}

        def is_given(name: str) -> bool:
            value, default = getattr(self, name), defaults[name]
            return (tuple(value) if isinstance(default, tuple) else value) != default

        if not self.has_sessions:
            given = filter(is_given, self.for_sessions)
            return [f"{name} applies to sessions: name {self.any_of_sessions}" for name in given]
        if not (self.of_sessions or self.for_sessions):
            return [
                "workload has sessions, which only @llmbench.sessions, capacity, fairness, memory_pressure "
                "and prefix_cache send: name one of single requests"
            ]
        given = filter(is_given, self.for_requests)
        return [f"{name} applies to requests: {self.for_requests[name]}" for name in given]

    def not_without_output(self) -> list[str]:
        """Mistake: a profile that generates nothing in a test about tokens."""
        if not self.generates:
            return []
        profiles = find_workload(self.workload).specification().get("profiles", ())
        return [
            f"workload profile:{code} generates no tokens: measure it with @llmbench.non_generative"
            for code in without_output(profiles)
        ]

    def not_repeated(self) -> list[str]:
        if self.runs == AUTO and not self.is_job:
            return ["runs='auto' is for jobs, closed loops with a number of requests: give a number of runs"]
        if self.runs is None or self.repeats:
            return []
        return ["runs does not apply: this test runs each of its levels once; parametrize it to repeat it"]

    def undecidable(self) -> list[str]:
        """Mistakes: limits that the number of requests cannot decide, whatever they come out at."""
        return []

    @property
    def is_job(self) -> bool:
        """Whether the figures are those of these requests, exact in each run, and not those of a sample."""
        return False

    @property
    def runs_as_needed(self) -> bool:
        """Whether the job is run once, and four times more where that does not decide its limits."""
        return self.runs == AUTO

    @property
    def run_count(self) -> int:
        """The runs that were asked for, at most."""
        return AUTO_RUNS if self.runs_as_needed else int(self.runs or 1)

    @property
    def offsets_ns(self) -> Sequence[int]:
        """Instants at which requests or sessions start in the workload's trace, in nanoseconds; empty without
        a trace."""
        offsets: Sequence[int] = getattr(self.workload, "offsets_ns", ())
        return offsets

    @property
    def qualifiers(self) -> Sequence[str]:
        """The levels or classes for each of which a limit is meant that is given once."""
        return ()

    @property
    def own_objectives(self) -> tuple[Objective, ...]:
        """What the keywords of the marker limit, in their order."""
        found = []
        for each in fields(self):
            metric, given = each.metadata.get("limits"), getattr(self, each.name)
            if not metric or given is None:
                continue
            limits = {metric: given}
            if "{}" in metric:
                by_key = given if isinstance(given, Mapping) else dict.fromkeys(self.qualifiers, given)
                limits = {metric.format(key): limit for key, limit in by_key.items()}
            op: Op = ">=" if each.name.startswith("min_") else "<="
            found += [Objective(name, op, limit, metric_unit(name)) for name, limit in limits.items()]
        return tuple(found)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The limits of the marker as objectives, and those of ``slo``."""
        return (*self.own_objectives, *self.slo)


@dataclass(frozen=True, kw_only=True)
class LoadParameters(TestParameters):
    """The parameters of a test with one load of the author's choice."""

    rate: float | None = parameter(
        "positive", doc="open loop: requests per second; see ``arrival`` (default ``poisson``)."
    )
    arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | None = parameter(
        "arrival",
        doc="open loop: ``poisson`` (default), ``uniform``, ``gamma``, or a process of an extra; "
        "``trace``: the instants of the workload's trace, without ``rate``.",
    )
    burstiness: float | None = parameter("positive", doc=OF_BURSTINESS)
    concurrency: int | None = parameter(
        "count", doc="closed loop: requests in flight (default 8 if ``rate`` is not given)."
    )
    requests: int | None = parameter("count", doc="measured requests.")
    may_be_capped: ClassVar[bool] = False
    """Whether ``concurrency`` beside ``rate`` is a cap on the requests in flight."""

    def contradictions(self) -> list[str]:
        found = []
        if self.rate is not None and self.concurrency is not None and not self.may_be_capped:
            found.append("rate (open loop) and concurrency (closed loop) exclude each other: give one")
        if self.arrival == "trace" and self.rate is None:
            return found + self._trace_mistakes()
        if self.rate is None:
            found += [
                f"{name} needs rate: it describes the arrivals of an open loop"
                for name in ("arrival", "burstiness")
                if getattr(self, name) is not None
            ]
        elif self.arrival == "trace":
            found.append("arrival='trace' takes its instants from the workload: leave out rate")
        else:
            found += arrival_mistakes(self.arrival, self.burstiness)
        return found

    def _trace_mistakes(self) -> list[str]:
        offsets = self.offsets_ns
        if self.concurrency is not None:
            return ["arrival='trace' (open loop) and concurrency (closed loop) exclude each other: give one"]
        if len(offsets) < 2:
            return [f"arrival='trace' needs a workload with arrival instants; {self.workload!r} has none"]
        if self.requests is not None and self.requests > len(offsets):
            return [f"requests is {self.requests}, but the trace has {len(offsets)} arrivals"]
        if self.run_count != 1:
            return ["arrival='trace' is one pass through the trace: leave out runs"]
        return []

    @property
    def most_requests(self) -> int | None:
        """The most requests of a run that the author asked for; None where he named no number."""
        return self.requests

    @property
    def load(self) -> Load:
        if self.arrival == "trace":
            offsets = tuple(self.offsets_ns)
            return OpenLoop(1e9 * len(offsets) / max(offsets[-1], 1), "trace", offsets_ns=offsets)
        if self.rate is None:
            return ClosedLoop(self.concurrency or DEFAULT_CONCURRENCY)
        most = self.concurrency if self.may_be_capped else None
        return OpenLoop(self.rate, *arrival_law(self.arrival, self.burstiness), most_in_flight=most)


def arrival_law(arrival: str | None, burstiness: float | None) -> tuple[str, float]:
    """Arrival process and burstiness of an open loop; by default Poisson."""
    return arrival or "poisson", 1.0 if burstiness is None else burstiness


def arrival_mistakes(arrival: str | None, burstiness: float | None) -> list[str]:
    """Mistakes between ``arrival`` and ``burstiness``."""
    if burstiness is not None and arrival != "gamma":
        return [f"burstiness needs arrival='gamma', not {arrival or 'poisson'!r}"]
    if arrival == "gamma" and burstiness is None:
        return ["arrival='gamma' needs burstiness (1 is Poisson, smaller is burstier)"]
    return []


def build(
    cls: type[P],
    raw: Mapping[str, Any],
    *,
    where: str | None = None,
    test: str = "",
    counted: bool = False,
    place: Callable[[], Place | None] = lambda: None,
) -> P:
    """Make the parameters from a marker's keywords; SuiteError with all mistakes.

    ``test``: its name; ``slo`` may limit what that test measures and nothing else. ``counted``: the load has
    the numbers of the marker, so what these cannot decide is a mistake. ``place``: which number of a mapping
    of places is meant (:func:`~pytest_llmbench.methodology.places.here`).
    """
    given = as_python(dict(raw))
    numbers = [each.name for each in fields(cls) if each.metadata.get("kind") in BY_PLACE]
    raw, mistakes = here(given, numbers.__contains__, place)
    for name, values in given.items() if not mistakes else ():
        if name in numbers and isinstance(values, Mapping):  # also those of other places
            mistakes += [wrong for one in values.values() for wrong in keyword_mistakes(cls, {name: one})]
    mistakes = mistakes or keyword_mistakes(cls, raw)
    if not mistakes:
        made = {name: value for name, value in raw.items() if value is not None}
        if isinstance(made.get("workload"), Mapping):  # so that parameters can be compared and stored
            made["workload"] = find_workload(made["workload"])
        mistakes = _adapted(cls, made)
    if not mistakes:
        built = cls(**made)
        mistakes = [*built.not_of_the_draft(), *built.contradictions(), *built.not_repeated()]
        mistakes += built.not_of_this_kind()
        mistakes += built.not_without_output()
        mistakes += not_given(test, (*built.slo, *built.advisory))
        mistakes += built.undecidable() if counted else []
        if not mistakes:
            return built
    raise SuiteError.from_mistakes(mistakes, where=where)


def _adapted(cls: type[TestParameters], made: dict[str, Any]) -> list[str]:
    """Put the workload with adapters in place of the plain one, if there are any; returns the mistakes."""
    if "adapters" not in made:
        return []
    if not cls.takes_adapters:
        return ["adapters does not apply to this test, whose prompts belong together: measure one model"]
    from pytest_llmbench.workloads.mixture import of_adapters  # few tests have adapters

    base = made.get("workload", next(each.default for each in fields(cls) if each.name == "workload"))
    try:
        made["workload"] = of_adapters(find_workload(base), made["adapters"])
    except SuiteError as error:
        return [f"adapters: {error.what}"]
    return []


def keyword_mistakes(cls: type[Any], raw: Mapping[str, Any]) -> list[str]:
    """Mistakes in keywords, each by itself, whose fields are declared by :func:`parameter`. None means "not
    given": every optional one may be passed through as None."""
    checks = _checks(cls)  # type: ignore[arg-type]  # mypy takes no type[Any] for hashable
    mistakes = [_unknown(name, list(checks)) for name in raw if name not in checks]
    for name, value in raw.items():
        if name in checks and value is not None:
            mistakes += [f"{name} {complaint}" for complaint in checks[name](value)]
    return mistakes


@cache
def _checks(cls: type[Any]) -> Mapping[str, Check]:
    """The name of each parameter with its check."""
    types = get_type_hints(cls)
    kinds = {each.name: each.metadata["kind"] for each in fields(cls) if each.init}
    return {
        name: kind
        if callable(kind)
        else _one_of(_choices(types[name]), kind)
        if kind in _CHOICES
        else _CHECKS[kind]
        for name, kind in kinds.items()
    }


def _choices(annotation: Any) -> tuple[str, ...]:
    """The texts of each ``Literal`` in an annotation."""
    inner = get_args(annotation)
    return inner if get_origin(annotation) is Literal else tuple(c for each in inner for c in _choices(each))


_BUDGET = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[smh]?)")
_BY_WORKLOAD = (
    "lengths are the workload's: from pytest_llmbench import Fixed, SyntheticWorkload, and "
    "workload=SyntheticWorkload('name', Fixed(512), Fixed(128))"
)
_ELSEWHERE = {
    **dict.fromkeys(("input_tokens", "input_len", "input_length", "isl", "prompt_tokens"), _BY_WORKLOAD),
    **dict.fromkeys(("output_tokens", "output_len", "output_length", "osl", "max_tokens"), _BY_WORKLOAD),
    **dict.fromkeys(("model", "endpoint", "url"), "give it on the command line: --llm-model, --llm-endpoint"),
}
"""Keywords of other load generators → where the same is said here."""
_AT_ONCE = ("concurrency", "sessions", "levels_percent")
_A_SECOND = ("rate", "levels_percent")
_IN_ALL = ("prompts", "requests", "total_sessions")
_ALIKE = {
    **dict.fromkeys(("concurrency", "max_concurrency", "users", "num_users"), _AT_ONCE),
    **dict.fromkeys(("rate", "request_rate", "qps", "rps"), _A_SECOND),
    **dict.fromkeys(("requests", "num_prompts", "num_requests", "request_count", "jobs"), _IN_ALL),
    "min_tokens_per_s": ("min_output_tok_s",),
}
"""Keywords of other tests and load generators, with those that a test may have in their place, best first."""


def _unknown(name: str, known: Sequence[str]) -> str:
    same = [each for each in _ALIKE.get(name, ()) if each in known][:1]
    close = same or difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    close = close or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"it takes {', '.join(known)}"
    return f"unknown parameter {shown(name)}; {_ELSEWHERE.get(name, hint)}"


def _number(low: float, high: float, *, whole: bool = False) -> Check:
    """A check for a number from ``low`` to ``high``."""

    def check(value: Any) -> list[str]:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return [f"must be a {'whole ' if whole else ''}number, got {shown(value)}"]
        if low <= value <= high:
            return []
        if (low, high) == (0, 1):
            return [f"must lie between 0 and 1, got {shown(value)}"]
        least = "0 or more" if low == 0 else f"at least {number(low)}"
        if low > 0 and not whole and not value > 0:
            least = "greater than zero"
        return [f"must be {f'at most {int(high):,}' if value > high else least}, got {shown(value)}"]

    return check


_positive, _share = _number(SMALLEST, LARGEST), _number(0, 1)
_count = _number(1, MOST, whole=True)


def _or_auto(check: Check) -> Check:
    def check_all(value: Any) -> list[str]:
        if not isinstance(value, str):
            return check(value)
        wrong = f"must be a whole number, or {AUTO!r} to end when the limits are decided, got {shown(value)}"
        return [] if value == AUTO else [wrong]

    return check_all


def seconds_of(budget: float | str) -> float:
    """The seconds of a budget: a number, or ``90s``, ``5m``, ``1.5h``. ValueError for anything else."""
    if not isinstance(budget, str):
        return float(budget)
    match = _BUDGET.fullmatch(budget.strip())
    if match is None:
        raise ValueError(f"{shown(budget)} is not a time: write for example 5m or 90s")
    return float(match["number"]) * {"s": 1, "m": 60, "h": 3600, "": 1}[match["unit"]]


def _budget(value: Any) -> list[str]:
    if isinstance(value, str):
        try:
            value = seconds_of(value)
        except ValueError as error:
            return [f"must be a time: {error}"]
    return _positive(value)


def _must(be: str, fits: Callable[[Any], object]) -> Check:
    return lambda value: [] if fits(value) else [f"must be {be}, got {shown(value)}"]


_text = _must("a text", lambda value: isinstance(value, str) and value.strip())


def _many(check: Check, least: int = 1) -> Check:
    """A check for a sequence whose entries all pass ``check``, in ascending order."""

    def check_all(value: Any) -> list[str]:
        if not _is_list(value):
            return [f"must be a list of numbers, at most {MOST_ENTRIES:,}, got {shown(value)}"]
        found = [f"entry {complaint}" for entry in value for complaint in check(entry)]
        if not found and len(value) < least:
            found = [f"must have at least {least} entries, got {len(value)}"]
        if not found and list(value) != sorted(set(value)):
            found = [f"must ascend without repetition, got {shown(list(value))}"]
        return found

    return check_all


def _is_list(value: Any) -> bool:
    """Whether it is a sequence short enough to be gone through: ``range(10**12)`` is one too, and nobody
    lives that long."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    return sum(1 for _ in islice(value, MOST_ENTRIES + 1)) <= MOST_ENTRIES


def _mapping(
    check: Check, example: str, fits: Callable[[Any], bool] = lambda _: True, *, alone: bool = False
) -> Check:
    """A check for a mapping whose keys fit and whose values pass ``check``; with ``alone`` also for one value
    for all."""

    def check_all(value: Any) -> list[str]:
        if not isinstance(value, Mapping) or not value:
            wrong = f"must be a mapping, for example {example}, got {shown(value)}"
            return check(value) if alone and not isinstance(value, Mapping) else [wrong]
        found = [f"of {shown(key)}: must be given as {example}" for key in value if not fits(key)]
        return found + [f"of {shown(key)} {what}" for key, each in value.items() for what in check(each)]

    return check_all


def _is_turn(value: Any) -> bool:
    try:
        TurnClass.parse(value)
    except ValueError:
        return False
    return True


def _request_classes(value: Any) -> list[str]:
    if not _is_list(value) or len(value) < 2:
        return [f"must be a list of at least two RequestClass, got {shown(value)}"]
    from pytest_llmbench.workloads.mixture import ClassMix, RequestClass  # fairness alone asks for classes

    other = [entry for entry in value if not isinstance(entry, RequestClass)]
    if other:
        return [f"holds {shown(entry)}, which is not a RequestClass" for entry in other]
    try:
        ClassMix(tuple(value))
    except SuiteError as error:
        return [f"cannot be drawn: {error.what}"]
    return []


_CHOICES: Mapping[str, Kind | None] = {"choice": None, "arrival": "arrivals", "shape": "arrivals"}
"""Kind of a parameter whose values are listed by its annotation → the parts of extras that add to them."""


def _one_of(choices: Sequence[str], kind: str) -> Check:
    def check(value: Any) -> list[str]:
        if isinstance(value, str) and value in choices:
            return []
        if kind == "shape" and not isinstance(value, str):
            from pytest_llmbench.model.plan import stage_mistakes  # few loads have stages

            return stage_mistakes(value)
        further = () if (parts := _CHOICES[kind]) is None else names(parts)
        known = isinstance(value, str) and value in further
        return [] if known else [f"must be one of {', '.join((*choices, *further))}, got {shown(value)}"]

    return check


def _workload(value: Any) -> list[str]:
    try:
        find_workload(value)
    except SuiteError as error:
        what = error.what.removesuffix(f" {shown(value)}")
        return [f"{shown(value)}: {what}" + (f"; {error.remedy}" if error.remedy else "")]
    return []


def _adapters(value: Any) -> list[str]:
    """The complaints about shares by name, or a list of names."""
    shares = isinstance(value, Mapping)
    if not value or not (shares or _is_list(value)):
        return [f"must be {{'sql': 0.6, 'chat': 0.3}} or a list of names, got {shown(value)}"]
    unnamed = [shown(name) for name in value if not isinstance(name, str) or not name]
    found = [f"has the name {name}: give the name that the server lists" for name in unnamed]
    if not shares:
        twice = not found and len(set(value)) < len(value)
        return [f"must be different names, got {shown(value)}"] if twice else found
    for name, each in value.items():
        wrong = _share(each) or ([] if each else ["must be above 0"])
        found += [f"of {shown(name)} {one}" for one in wrong]
    if not found and (total := math.fsum(value.values())) > 1 + 1e-9:
        found = [f"must have shares that add up to at most 1, got {number(total)}"]
    return found


def _slo(value: Any) -> list[str]:
    if not _is_list(value):
        return ["must be a list of objectives, for example [ttft.p99 <= 500 * ms]"]
    found = []
    for entry in value:
        if not isinstance(entry, Objective):
            found.append(f"holds {shown(entry)}, which is not an objective: write it as ttft.p99 <= 500 * ms")
        elif not is_metric(entry.metric):
            hint = ", ".join(suggestions(entry.metric))
            found.append(
                f"limits {entry.metric!r}, which is not a metric"
                + (f"; did you mean {hint}?" if hint else "")
            )
        elif entry.unit != (unit := metric_unit(entry.metric)):
            found.append(f"has {entry} in {entry.unit}: {entry.metric} is in {unit}")
        elif not math.isfinite(entry.limit):
            found.append(f"has {entry}: a limit is a finite number")
        elif (
            entry.metric.partition("[")[0].partition(".")[0] in _NEVER_BELOW_0
            and entry.holds(0.0)
            and entry.holds(1.0 if entry.unit == "ratio" else math.inf)
        ):
            found.append(f"has {entry}, which always holds: leave it out, or give a limit that can fail")
    return found


_NEVER_BELOW_0 = frozenset(
    {
        "ttft", "ttft_any", "ttft_scheduled", "tpot", "itl", "e2e", "e2e_scheduled", "completion_rate",
        "output_token_throughput", "request_throughput", "goodput", "goodput_share", "output_token_goodput",
        "accuracy", "accuracy_of_set",
    }
)  # fmt: skip
"""Metrics of which a limit that holds always is a mistake. Others may fall below 0, or end at another
value."""


def _bucket_limits(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return ["must map buckets to limits, for example {'0-256': {'p95_ms': 300}}"]
    found = []
    for label, limits in value.items():
        if label not in LABELS:
            found.append(f"has no bucket {shown(label)}: the buckets are {', '.join(LABELS)}")
        if not isinstance(limits, Mapping) or not limits:
            found.append(f"of {shown(label)} must map limits to numbers, for example {{'p95_ms': 300}}")
            continue
        for name, limit in limits.items():
            known = [f"{statistic}_ms" for statistic in STATISTICS]
            if name not in known:
                found.append(f"of {shown(label)}: {_unknown(str(name), known)}")
            found += [f"of {shown(label)}: {name} {complaint}" for complaint in _positive(limit)]
    return found


_CHECKS: Mapping[str, Check] = {
    "positive": _positive,
    "count": _count,
    "amount": _number(0, MOST, whole=True),
    "runs": _or_auto(_number(1, MOST_RUNS, whole=True)),
    "budget": _budget,
    "count_or_auto": _or_auto(_count),
    "seed": _number(0, LARGEST_SEED, whole=True),
    "share": _share,
    "share_or_file": lambda value: (_text if isinstance(value, str) else _share)(value),
    "workload": _workload,
    "adapters": _adapters,
    "slo": _slo,
    "bucket_limits": _bucket_limits,
    "flag": _must("True or False", lambda value: isinstance(value, bool)),
    "name": _must("a name in quotes", lambda value: isinstance(value, str) and value),
    "text": _text,
    "percents": _many(_positive),
    "counts": _many(_count),
    "levels": _many(_number(100, LARGEST)),
    "share_by_class": _mapping(_share, "{'short': 0.5}", alone=True),
    "positive_by_class": _mapping(_positive, "{'short': 2.0}", lambda key: type(key) is str, alone=True),
    "positive_by_turn": _mapping(_positive, "{1: 500, '2+': 300}", _is_turn),
    "share_by_turn": _mapping(_share, "{'2+': 0.9}", _is_turn),
    "positive_by_length": _mapping(_positive, "{8192: 1500}", lambda key: type(key) is int),
    "classes": _request_classes,
}
