"""Common Test Report Format: one JSON shape for the tests of any framework.

Of version 0.1.0: ``schema/ctrf.schema.json`` and ``docs/specification/`` of ctrf-io/ctrf. What the format has
no field for is in ``extra``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.ci.figures import Figure, figures
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.first_screen import FirstScreen
from pytest_llmbench.reports.report_view import ReportView

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
            "environment": _environment(view),
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
        told["retryAttempts"] = [_attempt(number, one) for number, one in enumerate(earlier, start=1)]
    return told | {"extra": _extra(test, found)}


def _attempt(number: int, attempt: Entry) -> dict[str, Any]:
    told = {"status": _STATUSES[attempt["status"]], "duration": _milliseconds(attempt)}
    told["message"] = attempt["reason"]
    return {"attempt": number, **{name: value for name, value in told.items() if value is not None}}


def _extra(test: TestView, found: Sequence[Figure]) -> dict[str, Any]:
    """What was judged and measured, for which the format has no field. Where ``durationKnown`` is false, the
    duration of 0 means nothing: the format demands one."""
    return {
        "nodeid": test.nodeid,
        "outcome": test.entry["outcome"],
        "validity": test.entry["validity"]["verdict"],
        "compliance": test.compliance_text if test.measured else None,
        "durationKnown": _milliseconds(test.entry) is not None,
        "figures": [_figure(one) for one in found],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    ends = {"lower": figure.lower, "upper": figure.upper}
    return {
        "metric": figure.metric,
        "unit": figure.unit,
        "value": figure.value,
        **{name: end for name, end in ends.items() if end is not None},
        "limits": [{"op": op, "limit": limit} for op, limit in figure.limits.items()],
    }


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


def _environment(view: ReportView) -> dict[str, Any]:
    sut = {"endpoint": view.report["sut"]["endpoint"], "software": view.software, "hardware": view.hardware}
    return {"reportName": "LLM serving benchmarks", "appName": view.model, "extra": sut}


def _milliseconds(attempt: Entry) -> int | None:
    seconds = attempt.get("duration_s")
    return None if seconds is None else round(seconds * 1000)
