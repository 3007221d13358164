"""A report in the formats of CI systems: plain files and JUnit properties, made without tokens and without a
network.

- **benchmark-action/github-action-benchmark**, a file for each direction. ``tool: customSmallerIsBetter`` or
  ``customBiggerIsBetter``: an array of ``name``, ``unit``, ``value`` and, as text, ``range`` and ``extra``
  (README and ``src/extract.ts`` of that repository). The action fails on an empty array, so a workflow names
  only the file that its tests fill.
- **Bencher Metric Format**: JSON with a value and the ends of its interval (bencher.dev, reference, "Bencher
  Metric Format (BMF)").
- **GitLab's metrics report**: OpenMetrics text, shown in a merge request beside the values of the target
  branch. ``artifacts: reports: metrics:`` (docs.gitlab.com, "Metrics reports"). GitLab compares values **as
  text**, so those that were measured are rounded to three significant digits. The form is that of OpenMetrics
  1.0: no blank line, the samples of a family together, ``# EOF`` at the end.
- **Common Test Report Format**: one JSON shape for the tests of any framework, of version 0.1.0:
  ``schema/ctrf.schema.json`` and ``docs/specification/`` of ctrf-io/ctrf. What the format has no field for is
  in ``extra``.
- **Annotations of GitHub Actions**: workflow commands, which a runner reads from the output of a step. The
  form and the escapes are those of ``@actions/core`` (actions/toolkit, ``packages/core/src/command.ts``). Of
  a step ten errors, ten warnings and ten notices are shown (actions/toolkit, ``docs/problem-matchers.md``).

JUnit properties of a test are few keys, for dashboards that read nothing else. Values are texts, as JUnit has
it; those that are numbers read as numbers, in the units of ``report.json``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from pytest_llmbench.metrics.definitions import METRICS, Direction
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports import comparisons
from pytest_llmbench.reports.comparisons import metric_name
from pytest_llmbench.reports.document import ReportView, TestView
from pytest_llmbench.reports.first_screen import FirstScreen
from pytest_llmbench.reports.markdown import clipped


@dataclass(frozen=True)
class Figure:
    """A measured number; undefined ones are not among them."""

    nodeid: str
    metric: str
    unit: str
    value: float
    lower: float | None
    upper: float | None
    """Upper end of its interval, as the one above is the lower; None if it is open."""
    limits: Mapping[str, float]
    """Operator (``<=``) → the strictest limit that the test was held to."""
    better: Direction


def figures(report: Entry) -> list[Figure]:
    """The figures of each test whose numbers are judged, each once: metrics with a limit, those of a
    comparison that decides, and those that the test is about.

    A percentile that the report does not state, for want of samples, is left out as what is undefined is."""
    return [figure for test in ReportView(report).tests if test.valid for figure in _figures_of(test)]


def _figures_of(test: TestView) -> Iterator[Figure]:
    held = {str(one["metric"]): one for one in test.objectives}
    gated = [str(one["metric"]) for one in test.comparisons if one.get("gated")]
    for name in dict.fromkeys([*held, *gated, *test.headlines]):
        found = test.metric(name) or held.get(name)
        value = None if found is None else _finite(found["point"])
        if found is None or value is None or (name not in held and test.unsupported(name)):
            continue
        limits: dict[str, float] = {}
        for one in test.objectives:
            if one["metric"] == name:
                op, limit = str(one["op"]), float(one["limit"])
                strictest = min if op.startswith("<") else max
                limits[op] = strictest(limit, limits.get(op, limit))
        known = METRICS.get(metric_name(name).base)
        floor = any(op.startswith(">") for op in limits)
        yield Figure(
            nodeid=test.nodeid,
            metric=name,
            unit=str(found["unit"]),
            value=value,
            lower=_finite(found["lower"]),
            upper=_finite(found["upper"]),
            limits=limits,
            better=known.better if known is not None else "higher" if floor else "lower",
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def smaller_is_better(report: Entry) -> str:
    """The figures that should be low: latencies, failures, overheads."""
    return _benchmarks(report, "lower")


def bigger_is_better(report: Entry) -> str:
    """The figures that should be high: throughput, capacity, shares that succeed."""
    return _benchmarks(report, "higher")


def _benchmarks(report: Entry, better: Direction) -> str:
    found = []
    for figure in figures(report):
        if figure.better != better:
            continue
        made: dict[str, str | float] = {
            "name": f"{figure.nodeid} {figure.metric}",
            "unit": figure.unit,
            "value": figure.value,
        }
        lower, upper = _number(figure.lower), _number(figure.upper)
        if lower is not None or upper is not None:
            closed = lower is not None and upper is not None
            made["range"] = f"{lower} to {upper}" if closed else f"< {upper}" if upper else f"> {lower}"
        if figure.limits:
            limits = ", ".join(f"{op} {_number(limit)}" for op, limit in figure.limits.items())
            made["extra"] = f"limit {limits}"
        found.append(made)
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_LONGEST_BENCHMARK = 1024
_LONGEST_MEASURE = 64
"""Longest name of a measure, in characters; Bencher refuses longer ones."""


def bencher(report: Entry) -> str:
    """The figures for Bencher: ``{test: {"ttft.p99 (ms)": {"value", "lower_value", "upper_value"}}}``,
    without open ends.

    A measure has no unit of its own in this format, so its name has it. Of names that are the same once they
    are cut the first counts.
    """
    found: dict[str, dict[str, Any]] = {}
    for figure in figures(report):
        measures = found.setdefault(figure.nodeid[:_LONGEST_BENCHMARK] or "test", {})
        name = f"{figure.metric} ({figure.unit})"[:_LONGEST_MEASURE]
        ends = _known(lower_value=figure.lower, upper_value=figure.upper)
        measures.setdefault(name, {"value": figure.value, **ends})
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_FAMILIES = {
    "llmbench_value": "What was measured.",
    "llmbench_lower": "Lower end of the confidence interval.",
    "llmbench_upper": "Upper end of the confidence interval.",
    "llmbench_limit": "The limit that the test holds the metric to.",
}


def gitlab_metrics(report: Entry) -> str:
    """The figures for GitLab: four families of gauges with labels ``metric``, ``test`` and ``unit``, for
    limits also ``op``.

    What is undefined, and an end of an interval that is open, has no sample.
    """
    found = figures(report)
    lines = []
    for family, text in _FAMILIES.items():
        lines += [f"# TYPE {family} gauge", f"# HELP {family} {text}"]
        for figure in found:
            labels = {"metric": figure.metric, "test": figure.nodeid, "unit": figure.unit}
            samples: list[tuple[dict[str, str], float]]
            if family == "llmbench_limit":
                samples = [({"op": op}, float(limit)) for op, limit in figure.limits.items()]
            else:
                value = getattr(figure, family.removeprefix("llmbench_"))
                samples = [] if value is None else [({}, float(f"{value:.3g}"))]
            lines += [f"{family}{_labels(labels | more)} {sample!r}" for more, sample in samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
    return "{" + ",".join(f'{name}="{text.translate(escapes)}"' for name, text in labels.items()) + "}"


_SPECIFICATION = "0.1.0"
_STATUSES: Mapping[str, str] = {"PASS": "passed", "FAIL": "failed", "ERROR": "failed", "SKIPPED": "skipped",
    "XFAIL": "skipped", "XPASS": "passed", "INCONCLUSIVE": "other", "INVALID": "other"}  # fmt: skip
"""Headline (``rawStatus``) → status of the format. Neither undecided nor void is a failure of the system."""
_COUNTED = ("passed", "failed", "skipped", "pending", "other")


def ctrf(report: Entry) -> str:
    """The report in this format. A test that was run again is there once, with its earlier attempts in
    ``retryAttempts``."""
    view = ReportView(report)
    by_test = {nodeid: list(found) for nodeid, found in groupby(figures(report), lambda one: one.nodeid)}
    causes = {card.number: card.cause for card in FirstScreen(view).cards}
    tests = [
        _test(test, causes.get(number), by_test.get(test.nodeid, ()))
        for number, test in enumerate(view.tests)
    ]
    generator = report["generator"]
    document = {
        "reportFormat": "CTRF",
        "specVersion": _SPECIFICATION,
        "generatedBy": f"{generator['name']} {generator['version']}",
        "results": {
            "tool": {"name": generator["name"], "version": generator["version"]},
            "summary": _summary(view, tests),
            "tests": tests,
            "environment": {
                "reportName": "LLM serving benchmarks",
                "appName": view.model,
                "extra": {
                    "endpoint": report["sut"]["endpoint"],
                    "software": view.software,
                    "hardware": view.hardware,
                },
            },
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _test(test: TestView, cause: str | None, found: Sequence[Figure]) -> dict[str, Any]:
    """The entry of one test. ``cause``: why its last attempt did not pass; None if it did."""
    file, _, rest = test.nodeid.partition("::")
    status = _STATUSES[test.headline]
    told: dict[str, Any] = {
        "name": rest or file or "test",
        "status": status,
        "duration": _milliseconds(test.entry) or 0,
        "rawStatus": test.headline,
        "filePath": file,
        "suite": [file, *rest.split("::")[:-1]],
        "tags": [str(test.entry["test"])],
    }
    if status != "passed" and cause is not None:
        told["message"] = cause
    earlier = test.entry.get("earlier_attempts")
    if earlier:
        told["retries"] = len(earlier)
        told["flaky"] = status == "passed"
        told["retryAttempts"] = [
            {
                "attempt": number,
                "status": _STATUSES[one["status"]],
                **_known(duration=_milliseconds(one), message=one["reason"]),
            }
            for number, one in enumerate(earlier, start=1)
        ]
    # Where durationKnown is false, the duration of 0 means nothing: the format demands one.
    extra = {
        "nodeid": test.nodeid,
        "outcome": test.entry["outcome"],
        "validity": test.entry["validity"]["verdict"],
        "compliance": test.compliance_text if test.measured else None,
        "durationKnown": _milliseconds(test.entry) is not None,
        "figures": [
            {
                "metric": figure.metric,
                "unit": figure.unit,
                "value": figure.value,
                **_known(lower=figure.lower, upper=figure.upper),
                "limits": [{"op": op, "limit": limit} for op, limit in figure.limits.items()],
            }
            for figure in found
        ],
    }
    return told | {"extra": extra}


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _summary(view: ReportView, tests: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The summary. Its end is the start plus what the tests took, as a report knows no other."""
    counts = Counter(str(test["status"]) for test in tests)
    start = round(datetime.fromisoformat(str(view.report["started"])).timestamp() * 1000)
    taken = sum(_milliseconds(attempt) or 0 for test in view.tests for attempt in test.every_attempt)
    return {
        "tests": len(tests),
        **{status: counts[status] for status in _COUNTED},
        "flaky": sum(bool(test.get("flaky")) for test in tests),
        "start": start,
        "stop": start + taken,
    }


def _milliseconds(attempt: Entry) -> int | None:
    seconds = attempt.get("duration_s")
    return None if seconds is None else round(seconds * 1000)


MOST_ANNOTATIONS = 10
_LONGEST = 500


def workflow_commands(report: Entry) -> list[str]:
    """The annotations ``::error file=…,line=…,title=…::…`` of tests that did not pass, the worst first, at
    most ten; then as many ``::notice`` of advisory limits that are not kept.

    The file is as pytest names it, seen from its root directory; without a line where none is known.
    """
    view = ReportView(report)
    cards = FirstScreen(view).cards
    notices = [
        f"::notice {_place(test)},title=advisory::{_data(clipped(text, _LONGEST))}"
        for test in view.tests
        for text in test.advisory_not_kept
    ]
    commands = []
    for card in cards[:MOST_ANNOTATIONS]:
        test = card.test
        kind = "warning" if test.entry["outcome"] in ("passed", "xpassed") else "error"
        title = _property(f"{test.headline} {clipped(test.name, 200)}")
        told = ""
        if card.deciding is not None:
            distance = f" ({card.deciding.distance})" if card.deciding.distance else ""
            told = f"{card.deciding.limit}: {card.deciding.measured}{distance}"
        lines = [clipped(text, _LONGEST) for text in (told, card.cause) if text]
        commands.append(f"::{kind} {_place(test)},title={title}::" + _data("\n".join(lines)))
    return [*commands, *notices[:MOST_ANNOTATIONS]]


def annotations_text(report: Entry) -> str:
    """The annotations as a file: ``cat`` it in a step to have them shown."""
    return "".join(f"{line}\n" for line in workflow_commands(report))


def _place(test: TestView) -> str:
    line = test.entry.get("line")
    return f"file={_property(test.nodeid.partition('::')[0])}" + ("" if line is None else f",line={line}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def properties(entry: Entry) -> list[tuple[str, str]]:
    """The properties of a test: the three verdicts; for each metric with a limit ``value``, ``lower``,
    ``upper``, ``unit``, ``op``, ``limit`` and ``n``; the comparisons that decide, whose changes are
    shares.

    What is undefined, and an end of an interval that is open, has no property.
    """
    test = TestView(entry)
    simulated = " (simulated)" if test.simulated else ""
    found: dict[str, str | None] = {
        "llmbench.verdict": str(entry["gate"]["verdict"]),
        "llmbench.validity": str(entry["validity"]["verdict"]),
        "llmbench.compliance": str(entry["compliance"]["verdict"]) + simulated,
    }
    if simulated:
        found["llmbench.simulated"] = "nothing was sent: virtual time"
    for objective in test.objectives:
        _add_limit(found, objective)
    for comparison in test.comparisons:
        if comparison.get("gated"):
            _add_comparison(found, comparison, test.comparisons)
    return [(name, text) for name, text in found.items() if text is not None]


def _add_limit(found: dict[str, str | None], objective: Entry) -> None:
    key = f"llmbench.{objective['metric']}"
    # Two limits on one metric, a floor and a ceiling: the second is numbered.
    earlier = sum(name.startswith(f"{key}.limit") for name in found)
    number = str(earlier + 1) if earlier else ""
    found |= {
        f"{key}.value": _number(objective["point"]),
        f"{key}.lower": _number(objective["lower"]),
        f"{key}.upper": _number(objective["upper"]),
        f"{key}.unit": str(objective["unit"]),
        f"{key}.op{number}": str(objective["op"]),
        f"{key}.limit{number}": _number(objective["limit"]),
        f"{key}.n": str(objective.get("n", 0)),
    }


def _add_comparison(found: dict[str, str | None], comparison: Entry, others: Sequence[Entry]) -> None:
    key = f"llmbench.{comparison['metric']}.regression"
    if comparisons.system_of(comparison, others):
        key += f".{comparison['candidate_name']}"
    change, sign = comparison["change"], 1 if comparison["better"] == "lower" else -1
    detectable = comparison["mde"]
    found |= {
        key: comparisons.verdict_text(comparison),
        f"{key}.change": _number(change["point"]),
        f"{key}.change.lower": _number(change["lower"]),
        f"{key}.change.upper": _number(change["upper"]),
        f"{key}.allowed": _number(sign * comparison["margin"]),
        f"{key}.detectable": None if detectable is None else _number(sign * detectable),
    }


def _number(value: float | None) -> str | None:
    """A number with six significant digits, with an exponent only where nobody writes digits; None if
    undefined."""
    if value is None or not math.isfinite(value):
        return None
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
