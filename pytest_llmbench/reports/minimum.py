"""The minimum report, appendix C.1 of the draft (METHODOLOGY §15): one per tested system.

Order and wording of the lines are the draft's. The configuration and the latency figures are those of one
test, so that they belong together: the first valid TTFT test, else the first valid test. The numbers of an
invalid run are not reported; the notes say so.
"""

from __future__ import annotations

from pytest_llmbench.reports import numbers
from pytest_llmbench.reports.document import Entry, ReportView, TestView, fact_text

FIRST_LINE = "=== LLM Benchmark Report (Minimum) ==="
LAST_LINE = "=== End Report ==="

KEY_RESULTS = (
    ("TTFT P50", "ttft.p50"),
    ("TTFT P99", "ttft.p99"),
    ("TPOT P50", "tpot.p50"),
    ("TPOT P99", "tpot.p99"),
    ("Max Throughput", None),
    ("Throughput at P99 TTFT < 500ms", None),
)
"""Line and metric; None: no test of this version searches for it."""


def minimum_report(report: Entry) -> str:
    """The text of ``minimum.txt``, with a line break at its end."""
    view = ReportView(report)
    test = _primary(view)
    lines = [FIRST_LINE, "", "System Identification:"]
    lines += [
        f"- Model: {view.model}",
        f"- Hardware: {view.hardware}",
        f"- Software: {view.software}",
        f"- SUT Boundary: {view.boundary}",
    ]
    lines += ["", "Test Configuration:", *_configuration(test)]
    lines += ["", "Key Results:", *(_result(test, label, metric) for label, metric in KEY_RESULTS)]
    lines += ["", "Notes:", *_deviations(view), f"- Guardrails: {_guardrails(view)}"]
    return "\n".join([*lines, "", LAST_LINE]) + "\n"


def _primary(view: ReportView) -> TestView | None:
    valid = [test for test in view.tests if test.valid and test.measured]
    return next((test for test in valid if test.entry["test"] == "ttft"), valid[0] if valid else None)


def _configuration(test: TestView | None) -> list[str]:
    load = None if test is None else test.entry["load"]
    workload = None if test is None else test.entry["workload"]
    absent = numbers.NOT_MEASURED
    return [
        f"- Workload: {absent if workload is None else workload['name']}",
        f"- Load Model: {absent if load is None else load['description']}",
        f"- Request Count: {absent if load is None else load['requests']}",
        f"- Test Duration: {absent if load is None else numbers.number(load['duration_s']) + ' seconds'}",
    ]


def _result(test: TestView | None, label: str, name: str | None) -> str:
    metric = None if test is None or name is None else test.metric(name)
    if test is None or name is None or metric is None or metric["point"] is None:
        return f"- {label}: {numbers.NOT_MEASURED}"
    value = test.unsupported(name) or numbers.quantity(metric["point"], metric["unit"])
    return f"- {label}: {value}"


def _deviations(view: ReportView) -> list[str]:
    notes = [
        f"{test.name} is void and its numbers are not reported: {finding['message']}"
        if test.measured
        else f"{test.name} was not measured: {test.entry.get('error')}"
        for test in view.tests
        if not test.valid
        for finding in test.noteworthy_findings[:1]
    ]
    unmet = {r["id"]: r for test in view.tests for r in test.unmet("blocks")}
    notes += [f"{r['id']}: {r.get('statement') or ''} ({r['reason']})" for r in unmet.values()]
    if not notes:
        audited = any(test.requirements for test in view.tests)
        return [f"- Deviations: {'none' if audited else 'not audited'}"]
    return ["- Deviations:", *(f"  - {' '.join(note.split())}" for note in notes)]


def _guardrails(view: ReportView) -> str:
    filters = [
        f"{side} filter {_declared(view, f'guardrails.{side}_filter')}" for side in ("input", "output")
    ]
    systems = view.fact("guardrails.systems")
    return ", ".join([*filters, *([f"systems: {fact_text(systems)}"] if systems is not None else [])])


def _declared(view: ReportView, key: str) -> str:
    value = view.fact(key)
    return "not declared" if value is None else str(value)


__all__ = ["FIRST_LINE", "KEY_RESULTS", "LAST_LINE", "minimum_report"]
