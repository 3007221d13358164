"""The one JSON shape of ``report.json``: pydantic models, version 1.3.

``python -m pytest_llmbench.store.schema`` prints the JSON Schema (Draft 2020-12) that is published as
``docs/report.schema.json``. Vocabulary and key names are a contract with every reader of a report; a change
that removes or renames anything raises the major version, an addition the minor one.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.model.judgement import (
    Comparison,
    ComplianceVerdict,
    GateVerdict,
    Overload,
    Status,
    ValidityVerdict,
)
from pytest_llmbench.model.objective import Op
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.result import VoidLoad, WarmupReport
from pytest_llmbench.redaction import without_credentials

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_utc(wall_ns: int) -> str:
    """An instant in nanoseconds since the Unix epoch as ISO 8601 in UTC with milliseconds,
    ``2026-01-20T09:30:00.125Z``.

    Rounds down, in integers: a float of seconds has no room for nanoseconds.
    """
    instant = _EPOCH + timedelta(microseconds=wall_ns // 1_000_000 * 1000)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Instant = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


class Shape(BaseModel):
    """Base of every object in the report: nothing unknown, nothing infinite, nothing changed later.

    A field may be a dataclass of ``model/``, which takes on this configuration when it is read from a file.
    One with a field of any JSON value has a model of its own: half a surrogate pair, which a server may have
    sent, survives in ``JsonValue`` and costs the report in ``Any``. Of one whose defaults are no measurements
    a file leaves out nothing (:func:`_whole`).

    A validator is built when it is first used: no session waits for it before its first request. Attribute
    docstrings are read where the schema is published (``store/schema.py``).
    """

    model_config = ConfigDict(
        defer_build=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def plain(self) -> dict[str, Any]:
        """The object in plain JSON types, as pytest-xdist workers send it and renderers take it."""
        return self.model_dump(mode="json")


def _whole(kind: type[Any], since: str = "") -> BeforeValidator:
    """A check that a file has the fields of a dataclass: a count that is missing is not 0. ``since``: the
    first of those that later versions added."""
    names = [each.name for each in fields(kind)]
    needed = names[: names.index(since)] if since else names

    def check(given: Any) -> Any:
        missing = [name for name in needed if isinstance(given, Mapping) and name not in given]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing")
        return given

    return BeforeValidator(check)


WholeSelfCheck = Annotated[SelfCheck, _whole(SelfCheck, since="voluntary_switches")]
WholeWarmup = Annotated[WarmupReport, _whole(WarmupReport)]


DRAFT = "draft-gaikwad-llm-benchmarking-methodology-00"


class FactEntry(Shape):
    """One declared, detected or measured fact."""

    value: JsonValue
    origin: Origin
    source: str = ""
    """Where exactly the value is from: a file, a URL, a header."""


class Generator(Shape):
    """The program that wrote the report."""

    name: str = "pytest-llmbench"
    version: str
    draft: str = DRAFT


class Environment(Shape):
    """The host on which the load generator ran."""

    python: str
    implementation: str
    platform: str
    machine: str
    cpu_count: int | None
    packages: dict[str, str] = Field(default={})
    """Installed version of each package that takes part in the measurement."""
    command: list[str] = Field(default=[])
    """The program, with the options of this plugin and the paths: options of others may hold secrets."""
    root: str = "."
    """The folder at which node ids begin, from the one in which the session was started."""
    settings: dict[str, JsonValue] = Field(default={})
    """The options in force, without secrets."""


class Sut(Shape):
    """The system under test."""

    endpoint: str
    """The endpoint without credentials."""
    model: str | None
    api: str | None
    facts: dict[str, FactEntry] = Field(default={})

    @field_validator("endpoint")
    @classmethod
    def _without_credentials(cls, endpoint: str) -> str:
        return without_credentials(endpoint)


class UnfinishedTest(Shape):
    """A test that had begun and has no result."""

    nodeid: str
    records_files: list[str] = Field(default=[])
    """Paths of the records measured so far, relative to the report."""


class IncompleteEntry(Shape):
    """A session that did not come to its end: what its report lacks."""

    why: str
    unfinished: list[UnfinishedTest] = Field(default=[])
    not_begun: list[str] = Field(default=[])
    """Node ids of the load tests that were still to come; with pytest-xdist of all tests."""
    damaged_lines: int = 0
    """Number of unreadable lines in the journal from which the report was recovered."""


class OutputLengths(Shape):
    """Output lengths of the measured requests that ended well, with how often each occurred."""

    tokens: list[int] = Field(default=[])
    """The output lengths in tokens, ascending."""
    requests: list[int] = Field(default=[])


class GaugeEntry(Shape):
    """A gauge of the serving engine while load was sent. ``null``: no sample fell into that time."""

    mean: float | None
    max: float | None
    n: int
    """Number of samples."""


class EngineEntry(Shape):
    """The serving engine's own metrics during a stretch."""

    source: str
    """The URL of the page without credentials, or ``the embedded engine's model``."""
    gauges: dict[str, GaugeEntry] = Field(default={})
    """The gauges that the engine serves: ``running``, ``waiting`` (requests), ``kv_use`` (0 to 1)."""
    growth: dict[str, float | None] = Field(default={})
    """Counter → by how much it grew; ``null`` where it fell or was read on one side only."""
    max_num_seqs: int | None = None
    """The largest batch that the engine forms; ``null`` where it does not say."""
    gap: str | None = None
    """Why something is missing; ``null`` if nothing is."""


class StretchEntry(Shape):
    """One measured stretch of load."""

    label: str
    load: str
    """The load in words."""
    key: str
    """SHA-256 of everything that decides what is sent and when."""
    seed: int
    requests: int
    """Planned number of requests; in a closed loop with a duration the least. ``counts.submitted`` were
    sent."""
    started: Instant
    duration_s: float
    counts: dict[str, int]
    sequence_sha256: str
    in_flight_at_start: int
    in_flight_at_end: int
    interrupted: str | None
    selfcheck: WholeSelfCheck
    variant: str = ""
    """SUT variant on which the stretch ran; empty for the SUT itself."""
    load_duration_s: float | None = None
    """Nominal duration of the load, without the drain; ``null`` where the plan has none."""
    shared_from: str | None = None
    """Node id of the test that ran the stretch, if this test only used it."""
    stopped: str | None = None
    """Why its own rule ended the load early, in which case what was measured counts; ``null`` if none did."""
    engine: EngineEntry | None = None


class LevelEntry(Shape):
    """One load level or one configuration of a test that has several, in the order in which they ran."""

    label: str
    load_model: Literal["open", "closed"]
    duration_s: float
    """Duration of the offered load, ramp-up included, drain not included."""
    window_s: float
    """The part of the duration that counts."""
    n_submitted: int
    n_ok: int
    n_failed: int
    completion_ratio: float | None
    metrics: dict[str, Estimate]
    """The metrics of the level, under plain names."""
    offered_rps: float | None = None
    concurrency: int | None = None
    percent_of_capacity: float | None = None
    variant: str = ""
    class_label: str = ""
    """The request class that ran alone; empty for all classes."""
    in_flight_means: list[float | None] = Field(default=[])
    """Mean requests in flight, or the server's waiting gauge, in each of five equal segments of the
    window."""
    queue_source: str = ""
    queue_growing: bool | None = None
    throughput_slices: list[float | None] = Field(default=[])
    """Output tokens per second in each of ten equal slices of the window."""
    steady: bool | None = None
    saturated: bool | None = None
    """Whether the level is saturated by any rule of section 5.2.3.1."""
    overloaded: bool | None = None
    """Whether the level is overloaded by the rules about work alone: the queue grows, or completions fall
    short of the arrivals."""
    saturation_reasons: list[str] = Field(default=[])
    passed: bool | None = None
    """Whether the level met the criteria of the test; ``null`` where there are none."""
    fail_reasons: list[str] = Field(default=[])
    errors: dict[str, int] = Field(default={})
    role: str = ""
    """The role of the level in its test: ``probe``, ``reported``, ``baseline``, ``mix``, ``cold``,
    ``warm`` …"""
    stretch: int | None = None
    """Index into ``stretches`` of the test; ``null`` if that stretch is not kept."""
    shared_from: str | None = None
    """Node id of the test that ran the level, if this test only used it."""


SCHEMA_VERSION: Final = "1.6"

TestOutcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


class NoteEntry(Shape):
    """What a finding or a note says, as data."""

    id: str
    """The id of its sentence; ``as_told`` for a text that came as text."""
    parameters: dict[str, JsonValue] = Field(default={})
    """What fills it; an amount is its ``value`` and ``unit``, a note its ``id`` and ``parameters``."""


class FindingEntry(Shape):
    """The result of one validity check."""

    check: str
    """Stable name of the check, for example ``send_lag``."""
    ok: bool
    voids: bool
    """What a result that is not ok does: true makes the run invalid, false is a warning."""
    message: str
    """The sentence: what was seen, against which limit, and what to do if it is not ok."""
    note: NoteEntry | None = None
    """What the sentence says, as data; ``null`` in reports before 1.6."""
    value: float | None = None
    limit: float | None = None
    unit: str = ""


class ValidityEntry(Shape):
    verdict: ValidityVerdict
    findings: list[FindingEntry]


class RequirementEntry(Shape):
    """The status of one entry of the requirements catalogue for this test."""

    id: str
    level: str
    """MUST, SHOULD, MAY or PROCEDURE."""
    status: Status
    reason: str
    evidence: dict[str, JsonValue]
    """The values that were examined."""
    effect: str = "none"
    """Effect on the verdict if the entry is not met: ``blocks``, ``downgrades`` or ``none``."""
    statement: str = ""


class NextClassEntry(Shape):
    """The next better compliance class, and what is missing for it."""

    class_: ComplianceVerdict = Field(alias="class")
    clauses: list[str]
    """Ids of the unmet requirements that prevent it."""


class ComplianceEntry(Shape):
    verdict: ComplianceVerdict
    """The verdict by policy ``strict``: a violated constraint that defines the test blocks too."""
    verdict_literal: ComplianceVerdict
    """The verdict by policy ``literal``: only capitalised keywords count."""
    draft: str
    requirements: list[RequirementEntry]
    next_class: NextClassEntry | None = None
    """``null`` if there is none better, and if the run was not audited."""
    simulated: bool = False
    """Whether nothing was sent, because the embedded engine ran in virtual time."""


class ObjectiveEntry(Shape):
    """One limit, judged on the whole interval of its metric."""

    metric: str
    op: Op
    limit: float
    unit: str
    point: float | None
    lower: float | None
    upper: float | None
    verdict: GateVerdict
    n: int = 0
    reason: str = ""
    requests_needed: int | None = None
    """How many further requests would decide an inconclusive objective; ``null`` where that cannot be
    said."""
    growth: float | None = None
    """How many times as many samples that is."""
    advice: str | None = None
    """The marker's keyword, or the option, that gets them: ``requests=2400``."""
    too_high_by: float = 0.0
    """Amount by which the measuring machine may have made its numbers too high; the verdict counts it."""
    too_low_by: float = 0.0
    """Amount by which the measuring machine may have made its numbers too low; the verdict counts it."""


class GateEntry(Shape):
    verdict: GateVerdict
    """``inconclusive`` also for a run that was void or never measured: such a run passes nothing."""
    objectives: list[ObjectiveEntry]
    advisory: list[ObjectiveEntry] = Field(default=[])
    """Limits that are judged in the same way, and decide nothing."""


class LoadEntry(Shape):
    """The load of the first measured stretch; the description is that of all of them."""

    model: Literal["open", "closed"]
    description: str
    rate_rps: float | None = None
    arrival: str | None = None
    burstiness: float | None = None
    concurrency: int | None = None
    session_rate: float | None = None
    """Sessions started per second, in an open loop of sessions."""
    sessions: int | None = None
    """Sessions at once, in a closed loop of sessions."""
    requests: int
    """Planned requests over all measured stretches."""
    duration_s: float
    """Sum over all measured stretches, each from the start of its schedule to the end of its last
    response."""
    ignore_eos: bool = False


class PartEntry(Shape):
    """A part of the measurement, whose requests have a seed of their own."""

    name: str
    seed: int
    """The first 4 bytes of SHA-256 of ``SEED/NAME``, as a number."""
    first: int
    """Index of the first request that was sent."""
    requests: int


class WorkloadEntry(Shape):
    """The requests of all measured stretches."""

    name: str
    standard: bool
    """True only for the reference workloads, generated exactly as the draft says."""
    seed: int
    """Seed of the session or the marker."""
    parts: tuple[PartEntry, ...] = ()
    """The parts that were drawn, each with a seed of its own; empty in reports of versions with one
    sequence."""
    n_requests: int
    specification: dict[str, JsonValue]
    sequence_sha256: str
    """Digest of the planned requests in the format of appendix A.1.4."""


class TableEntry(Shape):
    title: str
    columns: list[str]
    rows: list[list[str]]


class SeriesEntry(Shape):
    x: list[float]
    y: list[float]


class BandEntry(Shape):
    """A confidence band of the series with the same name."""

    x: list[float]
    lower: list[float]
    upper: list[float]


class PlotEntry(Shape):
    """The data of a plot, not its drawing."""

    title: str
    x_label: str
    y_label: str
    series: dict[str, SeriesEntry]
    marks: dict[str, float]
    """Named positions on the x axis, for example limits."""
    step: bool = False
    x_log: bool = False
    y_log: bool = False
    bands: dict[str, BandEntry] = Field(default={})
    rows: list[str] = Field(default=[])
    """Names of horizontal rows, the first on top. In a plot with rows every two points of a series are the
    ends of a bar, and y is the number of its row, from 0."""


class SpentEntry(Shape):
    """What a test has sent: its own loads, including warm-ups, void ones and those of other arms."""

    requests: int
    input_tokens: int
    """Input tokens, by the server's count if it reports one, else as requested."""
    output_tokens: int
    """Output tokens. A lost reply counts with its ``max_tokens``."""
    cost: float | None = None
    """Cost at the prices of the SUT file; null where it has none, and for several systems."""
    currency: str | None = None


class ConfigurationItem(Shape):
    item: str
    text: str


class EarlierAttempt(Shape):
    """An attempt at a test that another plugin ran again: nothing else in the report rests on it."""

    status: Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "ERROR", "SKIPPED", "XFAIL", "XPASS"]
    reason: str | None = None
    """Why it did not pass, in one line."""
    records_file: str | None = None
    duration_s: float | None = None
    spent: SpentEntry | None = None


class TestEntry(Shape):
    """One test: what was asked, what was measured, and the three judgements."""

    __test__: ClassVar[bool] = False  # pytest must not take it for a test class

    nodeid: str
    test: str
    """One of the ten tests: ``ttft``, ``throughput``, …"""
    section: str
    """Section of the draft."""
    title: str = ""
    outcome: TestOutcome
    """The outcome that pytest reports."""
    validity: ValidityEntry
    compliance: ComplianceEntry
    gate: GateEntry
    metrics: dict[str, Estimate]
    load: LoadEntry | None
    workload: WorkloadEntry | None
    warmup: WholeWarmup | None
    selfcheck: WholeSelfCheck | None
    """Over several stretches the worst of each lag and share, the sum of each count."""
    counts: dict[str, int]
    """``submitted`` and the number of each outcome, zero included, in the measured phase."""
    tables: dict[str, TableEntry]
    plots: dict[str, PlotEntry]
    records_file: str | None
    """Path of the records, relative to the report; ``null`` without any."""
    configuration: list[ConfigurationItem] = Field(default=[])
    """The eight items of the configuration summary (section 5.1)."""
    stretches: list[StretchEntry] = Field(default=[])
    facts: dict[str, FactEntry] = Field(default={})
    notes: list[str] = Field(default=[])
    note_data: list[NoteEntry] = Field(default=[])
    """What each of ``notes`` says, as data, in the same order; empty in reports before 1.6."""
    error: str | None = None
    """Why the test errored or failed; ``null`` if it did not."""
    shared: bool = False
    """Whether the measured run is used by other tests of this session, too."""
    duration_s: float | None = None
    """Wall time of the test."""
    attempts: int = 1
    """How often the test was run: another plugin may run it again. The entry is of the last attempt."""
    earlier_attempts: list[EarlierAttempt] = Field(default=[])
    """The attempts before that, in order."""
    levels: list[LevelEntry] = Field(default=[])
    """Every load level or configuration, in the order in which they ran."""
    by_run: dict[str, list[float | None]] = Field(default={})
    """Metric → its value in each independent run; ``null`` where a run has none. Empty for a single run."""
    comparisons: list[Comparison] = Field(default=[])
    """The comparisons with a baseline, or with another system."""
    parameters: dict[str, JsonValue] = Field(default={})
    """The marker's parameters; values that are not JSON are objects with their ``$type``."""
    identity: dict[str, JsonValue] = Field(default={})
    """The fields that have to agree before two results are compared, and those that are only shown."""
    output_lengths: OutputLengths | None = None
    latency_parts_ms: dict[str, list[float | None]] | None = None
    """Mean parts of the latency in each run, in ms: ``queue``, ``prefill`` (``null`` where the engine does
    not tell it) and ``decode``, and the whole as ``ttft`` (to the first output of any kind) and ``e2e``.
    Empty: the engine tells none; ``null``: not kept."""
    loads_file: str | None = None
    """Path, relative to the report, of the file that ``pytest-llmbench recompute`` needs with the records."""
    void_loads: list[VoidLoad] = Field(default=[])
    """Loads that this machine spoiled, and that therefore do not count."""
    overload: Overload | None = None
    """How much more was offered than served; ``null`` where that is not known of the load."""
    line: int | None = None
    """The line, from 1, at which the test begins in the file of its node id; null where it is not known."""
    spent: SpentEntry | None = None
    """null in virtual time, and if nothing was measured."""
    profile_files: list[str] = Field(default=[])
    """Paths of what the engine's profiler wrote after the test, relative to the report."""


class Report(Shape):
    """The content of ``report.json``."""

    schema_version: Literal["1.6"] = SCHEMA_VERSION
    generator: Generator
    started: Instant
    environment: Environment
    sut: Sut
    tests: list[TestEntry]
    incomplete: IncompleteEntry | None = None
    """``null``: the session came to its end."""


PUBLISHED: Final = {
    Comparison: "ComparisonEntry",
    Estimate: "Metric",
    Overload: "OverloadEntry",
    SelfCheck: "SelfCheckEntry",
    VoidLoad: "VoidLoadEntry",
    WarmupReport: "WarmupEntry",
}
"""Dataclass → its name in the published schema."""


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a report, Draft 2020-12."""
    schema = Report.model_json_schema(mode="serialization")
    for shape in _shapes(Report):
        own = schema if shape is Report else schema["$defs"][shape.__name__]
        for name, text in _attribute_docstrings(shape).items():
            own["properties"][name] = dict(sorted({**own["properties"][name], "description": text}.items()))
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pytest-llmbench report {SCHEMA_VERSION}",
    }
    return head | {key: value for key, value in _as_published(schema).items() if key not in head}


def _as_published(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the names of :data:`PUBLISHED`."""
    text = json.dumps(schema)
    for noun, name in PUBLISHED.items():
        text = text.replace(f'"#/$defs/{noun.__name__}"', f'"#/$defs/{name}"')
    renamed: dict[str, Any] = json.loads(text)
    kept = renamed["$defs"]
    for noun, name in PUBLISHED.items():
        own = kept.pop(noun.__name__)
        kept[name] = own | {"title": name, "required": list(own["properties"])}  # a report has all of them
    return renamed | {"$defs": dict(sorted(kept.items()))}


def _shapes(shape: type[Any]) -> set[type[Any]]:
    """The model, and the models and dataclasses that its fields consist of, however deep."""
    found, waiting = {shape}, [shape]
    while waiting:
        types: list[Any] = [*get_type_hints(waiting.pop()).values()]
        while types:
            one = types.pop()
            types += get_args(one)
            if isinstance(one, type) and (is_dataclass(one) or issubclass(one, Shape)) and one not in found:
                found.add(one)
                waiting.append(one)
    return found


def _attribute_docstrings(shape: type[Any]) -> dict[str, str]:
    """Name of a field in the file → its docstring, for the fields of a model or dataclass."""
    (body,) = (
        node.body for node in ast.parse(inspect.getsource(shape)).body if isinstance(node, ast.ClassDef)
    )
    aliases = {name: field.alias for name, field in getattr(shape, "model_fields", {}).items()}
    found = {}
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                found[aliases.get(name) or name] = inspect.cleandoc(text)
    return found


def json_schema_text() -> str:
    """``docs/report.schema.json``, byte for byte."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(json_schema_text(), end="")
