"""The sections of the full report (appendix C.2) and the levels of a test as rows of text, for every page
format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pytest_llmbench.model import numbers
from pytest_llmbench.model.facts import LoadFact, WorkloadFact
from pytest_llmbench.model.numbers import Entry, counted
from pytest_llmbench.reports.comparisons import metric_label, statistic_label
from pytest_llmbench.reports.document import ReportView, TestView, fact_text

SECTIONS = (
    "System Identification",
    "Test Configuration",
    "Results",
    "Detailed Results",
    "Methodology Compliance",
    "Reproduction Information",
)
_LATENCY = ("p50", "p90", "p95", "p99", "p99_9", "mean")
Pairs = list[tuple[str, str]]


class Rows(NamedTuple):
    """A table without a title."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def identification(view: ReportView) -> Pairs:
    return [
        ("Model", view.model),
        ("Hardware", view.hardware),
        ("Software", view.software),
        ("SUT boundary", view.boundary),
        ("Endpoint", str(view.report["sut"]["endpoint"])),
        ("API", str(view.report["sut"]["api"] or "not declared")),
    ]


def configuration(test: TestView) -> Pairs:
    """Workload, load and execution parameters as pairs; empty if nothing was sent."""
    workload, load, warmup = test.entry["workload"], test.entry["load"], test.entry["warmup"]
    if workload is None or load is None:
        return []
    kind = "reference workload" if workload["standard"] else "custom workload"
    variants = dict.fromkeys(stretch.get("variant") for stretch in test.entry.get("stretches") or ())
    objectives = test.fact(LoadFact.SLO)
    found = [
        ("Workload", f"{workload['name']} ({kind}), seed {workload['seed']}"),
        ("Load", test.load_text),
        ("Requests", str(test.entry["counts"].get("submitted", load["requests"]))),
        ("Measured for", numbers.duration(load["duration_s"])),
        ("Levels", str(len(test.levels)) if test.levels else ""),
        (
            "SUT variants",
            ", ".join(variant or "the SUT itself" for variant in variants) if any(variants) else "",
        ),
        ("Latency objectives", "" if objectives is None else fact_text(objectives)),
        ("Warm-up", numbers.NOT_MEASURED if warmup is None else warmup["description"]),
        ("Sharing", "; ".join(test.sharing)),
        ("Void loads", "; ".join(test.void_loads)),
    ]
    return [(name, text) for name, text in found if text]


def headline_rows(tests: Iterable[TestView]) -> Rows:
    """The main figures of each test."""
    rows = _each_once(
        (test, (metric_label(name), test.claim(name)))
        for test in tests
        if test.valid
        for name in test.headlines
    )
    return Rows(("Test", "Metric", "Value and interval"), rows)


def _each_once(rows: Iterable[tuple[TestView, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """The rows with the names of their tests, without those that a test of the same loads has too."""
    first: dict[tuple[str, ...], tuple[str, ...]] = {}
    for test, cells in rows:
        first.setdefault((test.measured_by, *cells), (test.name, *cells))
    return [*first.values()]


def latency_rows(tests: Iterable[TestView]) -> Rows:
    """The latencies of each test as a whole. Its levels, classes and configurations are in its own tables."""
    rows = _each_once(
        (
            test,
            (
                metric_label(family),
                # A dash for what the test does not have: it is not missing.
                *("–" if test.metric(name) is None else test.claim(name) for name in names),
            ),
        )
        for test in tests
        if test.valid
        for family in test.families()
        if "[" not in family
        for names in [[f"{family}.{key}" for key in _LATENCY]]
    )
    return Rows(("Test", "Metric", *map(statistic_label, _LATENCY)), rows)


def throughput_rows(tests: Iterable[TestView]) -> Rows:
    rows = _each_once(
        (test, (metric_label(name), test.claim(name)))
        for test in tests
        if test.valid
        for name, metric in test.entry["metrics"].items()
        if metric["unit"] in ("tok/s", "req/s") and "[" not in name
    )
    return Rows(("Test", "Metric", "Value and interval"), rows)


def success_rows(tests: Iterable[TestView]) -> Rows:
    return Rows(("Test", "Requests"), [(test.name, test.completion) for test in tests])


def performed(view: ReportView) -> Pairs:
    tests = dict.fromkeys(test.kind for test in view.tests if test.measured)
    return [
        ("Draft", str(view.report["generator"].get("draft", ""))),
        ("Tests performed", "; ".join(sorted(tests)) or "none"),
    ]


def deviations(test: TestView) -> list[tuple[str, list[str]]]:
    """Unmet requirements in groups with a heading, those that prevent the next class first; each with what
    was found and what would meet it."""
    better, first = test.next_class or ("", [])
    rest = [each for each in test.unmet("blocks", "downgrades") if each not in first]
    groups = []
    for heading, found in (
        (f"To be {better}, {counted(len(first), 'requirement')} more must be met:", first),
        (f"Also unmet, {counted(len(rest), 'requirement')}:", rest),
    ):
        meant = [f" → {each['statement']}" if each.get("statement") else "" for each in found]
        texts = [f"{each['id']}: {each['reason']}{to}" for each, to in zip(found, meant, strict=True)]
        groups += [(heading, texts)] if texts else []
    return groups


def limitations(test: TestView) -> list[str]:
    """What the run could not show: findings that are not ok, stretches cut short, what was not measurable."""
    texts = [finding["message"] for finding in test.noteworthy_findings]
    for stretch in test.entry.get("stretches") or ():
        texts += [
            f"{stretch['label']}: {why}" for key in ("interrupted", "stopped") if (why := stretch.get(key))
        ]
        gap = (stretch.get("engine") or {}).get("gap")
        texts += [f"engine readings of {stretch['label']}: {gap}"] if gap else []
    texts += [
        f"{metric_label(name)}: {numbers.undefined(metric)}"
        for name, metric in test.entry["metrics"].items()
        if metric["point"] is None
    ]
    return list(dict.fromkeys(texts))


def harness(view: ReportView) -> Pairs:
    generator, environment = view.report["generator"], view.report["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    settings = ", ".join(
        f"{key}={fact_text(value)}" for key, value in environment.get("settings", {}).items()
    )
    return [
        ("Test harness", f"{generator['name']} {generator['version']}"),
        (
            "Command",
            " ".join(environment.get("command", [])).replace("__main__.py", "pytest", 1) or "not recorded",
        ),
        ("Settings", settings or "defaults"),
        ("Started", str(view.report["started"])),
        ("Python", f"{environment['implementation']} {environment['python']}"),
        ("Platform", f"{environment['platform']}, {environment['cpu_count'] or '?'} CPUs"),
        ("Packages", packages or "not recorded"),
    ]


def data(test: TestView) -> Pairs:
    workload = test.entry["workload"]
    name = test.fact(WorkloadFact.PROMPTS)
    return [
        ("Seed", numbers.NOT_MEASURED if workload is None else str(workload["seed"])),
        *([("Prompts", f"{name}; --llm-prompts={name} sends them again")] if name else []),
        ("Sequence SHA-256", str((workload or {}).get("sequence_sha256") or "not recorded")),
        ("Records", str(test.entry["records_file"] or "not kept")),
    ]


def stretch_rows(test: TestView) -> Rows:
    """A row for each stretch of load; columns that no stretch has are left out."""
    stretches = test.entry.get("stretches") or ()
    columns = ["Stretch", "Load", "Requests", "Started", "Duration", "Plan"]
    rows = [
        [
            s["label"],
            s["load"],
            str((s.get("counts") or {}).get("submitted", s["requests"])),
            s["started"],
            numbers.duration(s["duration_s"]),
            s["key"][:12],
        ]
        for s in stretches
    ]
    optional = {
        "Variant": [s.get("variant") or "" for s in stretches],
        "Ended early": [s.get("interrupted") or s.get("stopped") or "" for s in stretches],
        "Measured by": [s.get("shared_from") or "" for s in stretches],
    }
    for title, cells in optional.items():
        if any(cells):
            columns.append(title)
            rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    return Rows(columns, rows)


def engine_rows(test: TestView) -> Rows:
    """The serving engine's own metrics, stretch by stretch."""
    stretches = [s for s in test.entry.get("stretches") or () if s.get("engine") is not None]
    rows = [(s["label"], s["load"], _engine(s["engine"]), s["engine"]["source"]) for s in stretches]
    return Rows(("Stretch", "Load", "Readings", "Source"), rows)


def _engine(engine: Entry) -> str:
    """The engine's metrics in a line: ``running mean 31.2, max 40; preemptions +3``."""
    parts = [
        f"{name.replace('_', ' ')} mean {_gauge(name, gauge['mean'])}, max {_gauge(name, gauge['max'])}"
        for name, gauge in engine["gauges"].items()
        if gauge["n"]
    ]
    parts += [
        f"{name.replace('_', ' ')} +{numbers.number(grown)}"
        for name, grown in engine["growth"].items()
        if grown is not None
    ]
    return "; ".join(parts + ([engine["gap"]] if engine.get("gap") else []))


def _gauge(name: str, value: float) -> str:
    return numbers.percentage(value) if name == "kv_use" else numbers.number(value)


_FIGURES = (
    ("Achieved", "output_token_throughput"),
    ("TTFT P50", "ttft.p50"),
    ("TTFT P99", "ttft.p99"),
    ("TPOT P50", "tpot.p50"),
    ("TPOT P99", "tpot.p99"),
)


def level_table(levels: Sequence[Entry]) -> Rows:
    """A table with a row per level. Columns that are empty for all levels are left out."""
    columns = ["Level", "Offered", *(title for title, _ in _FIGURES), "Completion", "Queue", "Saturated"]
    rows = [[*_always(level)] for level in levels]
    if all(level["label"] == offered(level) for level in levels):  # the label is the load
        columns[:2] = ["Offered"]
        rows = [[row[0], *row[2:]] for row in rows]
    if any(level.get("passed") is not None for level in levels):
        columns.append("Criteria")
        for row, level in zip(rows, levels, strict=True):
            row.append(_yes_no(level.get("passed"), ("met", "not met", "none"), level.get("fail_reasons")))
    if any(level.get("shared_from") for level in levels):
        columns.append("Measured by")
        for row, level in zip(rows, levels, strict=True):
            row.append(level.get("shared_from") or "this test")
    return Rows(columns, rows)


def _always(level: Entry) -> list[str]:
    ratio = level.get("completion_ratio")
    text = numbers.NOT_MEASURED if ratio is None else numbers.percentage(ratio)
    errors = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in level.get("errors", {}).items())
    return [
        level_name(level),
        offered(level),
        *(
            numbers.NOT_MEASURED if metric is None else numbers.tagged(numbers.point(metric), name, metric)
            for name, metric in [(name, level["metrics"].get(name)) for _, name in _FIGURES]
        ),
        f"{text}; {errors}" if errors else text,
        _yes_no(level.get("queue_growing"), ("growing", "stable", "not known")),
        _yes_no(level.get("saturated"), ("yes", "no", "not known"), level.get("saturation_reasons")),
    ]


def level_name(level: Entry) -> str:
    """The name of a level, ``80% (reported)``, with variant and request class where there is one."""
    parts = [level["label"]]
    parts += [f"variant {level['variant']}"] if level.get("variant") else []
    parts += [f"class {level['class_label']}"] if level.get("class_label") else []
    role = level.get("role")
    return ", ".join(parts) + (f" ({role})" if role and role not in level["label"] else "")


def offered(level: Entry) -> str:
    """The offered load, ``20 req/s`` or ``64 in flight``; with the share of the capacity if the level is
    defined by it."""
    if level.get("concurrency") is not None:
        text = f"{level['concurrency']} in flight"
    elif level.get("offered_rps") is not None:
        text = f"{numbers.number(level['offered_rps'])} req/s"
    else:
        text = "not known"
    share = level.get("percent_of_capacity")
    told = share is None or numbers.percent_label(share) in level["label"]
    return text if told else f"{text}, {numbers.number(share)} %"


def load_text(level: Entry) -> str:
    """The load of a level in words: ``open loop, 20 req/s``."""
    return f"{level['load_model']} loop, {offered(level)}"


def _yes_no(value: Any, words: tuple[str, str, str], reasons: Iterable[str] | None = None) -> str:
    """The word for true, false or unknown; reasons are added to the bad one."""
    word = words[2] if value is None else words[0] if value else words[1]
    listed = "; ".join(reasons or ())
    return f"{word}: {listed}" if listed else word
