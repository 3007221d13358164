"""The minimum report, appendix C.1 of the draft: one per tested system.

Order and wording of the lines are the draft's. The configuration and the latency figures are those of one
test, so that they belong together: the first valid TTFT test, else the level that another test reports. The
two throughputs come from throughput tests: without constraint, and constrained to a P99 TTFT of 500 ms. The
numbers of an invalid run are not reported; the notes say so.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_llmbench.model import numbers
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.facts import GuardrailFact, LoadFact, SUTFact, WorkloadFact
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.comparisons import metric_label
from pytest_llmbench.reports.document import ReportView, TestView, fact_text, words
from pytest_llmbench.reports.summaries import level_name, load_text

FIRST_LINE = "=== LLM Benchmark Report (Minimum) ==="
LAST_LINE = "=== End Report ==="

LATENCIES = (
    ("TTFT P50", "ttft.p50"),
    ("TTFT P99", "ttft.p99"),
    ("TPOT P50", "tpot.p50"),
    ("TPOT P99", "tpot.p99"),
)
CONSTRAINT_MS = 500
_DEVIATIONS = ("host_limits", "raised_error_budget", "given_up", "declared_otherwise")
"""Warnings that no clause mentions, and that are about how the test was run."""
_PREFERRED = ("ttft", "throughput", "capacity")
"""Tests whose latencies stand for the system, in order of preference; after these any test that has some."""


class _Source(NamedTuple):
    """A test, or one of its levels, whose figures are reported."""

    test: TestView
    level: Entry | None = None

    def value(self, name: str) -> str:
        metric = self.test.metric(name) if self.level is None else self.level["metrics"].get(name)
        if metric is None or metric["point"] is None:
            return numbers.NOT_MEASURED
        if self.level is None:
            return self.test.claim(name)
        return numbers.tagged(numbers.estimate(metric), name, metric)


def minimum_report(report: Entry) -> str:
    """The text of ``minimum.txt``, ending with a line break."""
    view = ReportView(report)
    source = _latency_source(view)
    unconstrained, constrained = _throughput_test(view, None), _throughput_test(view, CONSTRAINT_MS)
    lines = [FIRST_LINE, "", "System Identification:"]
    lines += [
        f"- Model: {view.model}",
        f"- Hardware: {view.hardware}",
        f"- Software: {view.software}",
        f"- SUT Boundary: {view.boundary}",
    ]
    lines += ["", "Test Configuration:", *_configuration(source)]
    absent = numbers.NOT_MEASURED
    lines += ["", "Key Results:"]
    lines += [f"- {label}: {absent if source is None else source.value(name)}" for label, name in LATENCIES]
    lines += [
        f"- Max Throughput: {_throughput(unconstrained, 'max_output_token_throughput')}",
        f"- Throughput at P99 TTFT < {CONSTRAINT_MS}ms: "
        f"{_throughput(constrained, 'constrained_output_token_throughput')}",
    ]
    named: dict[str, list[str]] = {}
    for test in view.tests:
        for finding in test.warnings:
            if finding["check"] not in _DEVIATIONS:
                named.setdefault(finding["message"], []).append(test.name)
    warnings = [f"  - {', '.join(dict.fromkeys(tests))}: {text}" for text, tests in named.items()]
    guardrails = [f"{side} filter {fact_text(view.fact(key))}" for side, key in GuardrailFact.FILTERS.items()]
    systems = view.fact(GuardrailFact.SYSTEMS)
    guardrails += [] if systems is None else [f"systems: {fact_text(systems)}"]
    lines += [
        "",
        "Notes:",
        *_deviations(view),
        *_failures(view),
        *(["- Warnings:", *warnings] if warnings else []),
        f"- Guardrails: {', '.join(guardrails)}",
    ]
    lines += _provenance(source, constrained)
    # No name with a line break in it may pass for a line of the report.
    return "\n".join(line.replace("\n", " ") for line in [*lines, "", LAST_LINE]) + "\n"


def _latency_source(view: ReportView) -> _Source | None:
    valid = [test for test in view.tests if test.valid and test.measured]
    order = {name: place for place, name in enumerate(_PREFERRED)}
    for test in sorted(valid, key=lambda test: order.get(test.entry["test"], len(order))):
        if test.metric("ttft.p50") is not None:
            return _Source(test)
        level = test.reported_level
        if level is not None and "ttft.p50" in level["metrics"]:
            return _Source(test, level)
    return _Source(valid[0]) if valid else None


def _configuration(source: _Source | None) -> list[str]:
    absent = numbers.NOT_MEASURED
    load = None if source is None else source.test.entry["load"]
    workload = None if source is None else source.test.entry["workload"]
    name = absent if workload is None else workload["name"]
    if source is None or load is None:
        model, requests, seconds = absent, absent, absent
    elif (level := source.level or source.test.reported_level) is not None:
        model, requests = load_text(level), str(level["n_submitted"])
        seconds = f"{numbers.number(level['duration_s'])} seconds"
    else:
        model, requests = source.test.load_text, str(source.test.entry["counts"].get("submitted"))
        seconds = f"{numbers.number(load['duration_s'])} seconds"
    return [
        f"- Workload: {name}",
        f"- Load Model: {model}",
        f"- Request Count: {requests}",
        f"- Test Duration: {seconds}",
    ]


def _throughput_test(view: ReportView, ttft_p99_ms: float | None) -> TestView | None:
    """The first valid throughput test with exactly this constraint on P99 TTFT."""
    name = "max_output_token_throughput" if ttft_p99_ms is None else "constrained_output_token_throughput"
    for test in view.tests:
        metric = test.metric(name)
        asked = _constraints(test).get("ttft_p99_ms")
        fits = ttft_p99_ms is None or asked == ttft_p99_ms
        if (
            test.entry["test"] == "throughput"
            and test.valid
            and fits
            and metric
            and metric["point"] is not None
        ):
            return test
    return None


def _constraints(test: TestView) -> Entry:
    value = test.fact(LoadFact.SLO)
    return value if isinstance(value, dict) else {}


def _throughput(test: TestView | None, name: str) -> str:
    metric = None if test is None else test.metric(name)
    if test is None or metric is None:
        return numbers.NOT_MEASURED
    # The figure of the template is one: whether limits on latency keep it is said with it.
    kept = name.startswith("max_") and any(limit is not None for limit in _constraints(test).values())
    return numbers.estimate(metric) + (", within the limits on latency" if kept else "")


def _provenance(source: _Source | None, constrained: TestView | None) -> list[str]:
    """Notes on what a reader could not know: figures of another test than TTFT, and a second constraint."""
    lines = []
    if source is not None and source.test.entry["test"] != "ttft":
        level = source.level or source.test.reported_level
        at = f", at {level_name(level)}" if level is not None else ""
        lines.append(f"- Latencies: from the test {words(str(source.test.entry['test']))}{at}")
    others = {} if constrained is None else dict(_constraints(constrained))
    others = {name: limit for name, limit in others.items() if name != "ttft_p99_ms" and limit is not None}
    if others:
        listed = ", ".join(f"{name} = {limit}" for name, limit in others.items())
        lines.append(f"- Throughput at P99 TTFT < {CONSTRAINT_MS}ms: also constrained to {listed}")
    return lines


def _deviations(view: ReportView) -> list[str]:
    """Everything in which the tests fall short of the unconditional class, with the names of the tests."""
    notes = [text for text in (view.incomplete, view.simulated) if text is not None]
    notes += [
        f"{test.name} is void and its numbers are not reported: {finding['message']}"
        if test.measured
        else f"{test.name} was not measured: {test.entry.get('error')}"
        for test in view.tests
        if not test.valid
        for finding in test.noteworthy_findings[:1]
    ]
    named: dict[str, list[str]] = {}
    for test in view.tests:
        texts = [
            f"changed workload: {fact_text(change)}" for change in test.fact(WorkloadFact.DEVIATIONS) or ()
        ]
        if test.fact(SUTFact.HARDWARE_DISCLOSED) is False:
            texts.append("hardware undisclosed (AMB-27)")
        bounds = [
            f"{metric_label(name)} is {numbers.estimate(metric)}: the search ended with its range"
            for name, metric in test.entry["metrics"].items()
            if metric.get("reason") == Reason.RANGE_ENDED
        ]
        unmet = [
            f"{each['id']}{'' if each.get('effect') == 'blocks' else ', advised'}: "
            f"{each.get('statement') or ''} ({each['reason']})"
            for each in test.unmet("blocks", "downgrades")
        ]
        for text in (
            *bounds[:1],
            *texts,
            *(finding["message"] for finding in test.warnings if finding["check"] in _DEVIATIONS),
            *unmet,
        ):
            named.setdefault(text, []).append(test.name)
    notes += [f"{', '.join(dict.fromkeys(tests))}: {text}" for text, tests in named.items()]
    if not notes:
        audited = any(test.requirements for test in view.tests)
        return [f"- Deviations: {'none' if audited else 'not audited'}"]
    return ["- Deviations:", *(f"  - {' '.join(note.split())}" for note in notes)]


def _failures(view: ReportView) -> list[str]:
    """Notes on the requests that did not end well, and on the waits that were asked for."""
    lines = [
        f"  - {test.name}: {test.completion}"
        for test in view.tests
        if test.measured and test.completed[0] < test.completed[1]
    ]
    waits: dict[str, list[str]] = {}
    for test in view.tests:
        wait = (test.entry.get("parameters") or {}).get("timeout_s")
        wait = view.report["environment"].get("settings", {}).get("timeout") if wait is None else wait
        if wait is not None and test.measured:
            waits.setdefault(f"{wait} s for the first byte and between chunks", []).append(test.name)
    told = [f"- Deadlines: {wait} ({', '.join(names)})" for wait, names in waits.items()]
    return [*(["- Failures:", *lines] if lines else ["- Failures: none"]), *told]
