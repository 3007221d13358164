"""``load_report`` of a report with every test: levels, undefined metrics, comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import load_report


def test_every_test_is_read_with_its_levels(whole_report: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(whole_report), "utf-8")
    report = load_report(tmp_path)
    assert len(report.tests) == len(whole_report["tests"]) >= 9
    for test, stored in zip(report.tests, whole_report["tests"], strict=True):
        assert list(test.metrics) == list(stored["metrics"])
        assert [level.label for level in test.levels] == [level["label"] for level in stored["levels"]]
        for name, metric in stored["metrics"].items():
            own = test.metrics[name]
            assert (own.point, own.lower, own.upper, own.unit) == (
                metric["point"], metric["lower"], metric["upper"], metric["unit"],
            )  # fmt: skip
    levels = next(test.levels for test in report.tests if test.levels)
    assert levels[0].metrics["ttft.p99"].unit == "ms"
    undefined = [own for test in report.tests for own in test.metrics.values() if not own.defined]
    assert undefined
    assert all(own.point is None for own in undefined)


def test_a_report_is_not_written_to(whole_report: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(whole_report), "utf-8")
    test = load_report(tmp_path).tests[0]
    with pytest.raises(AttributeError):
        test.nodeid = "other"  # type: ignore[misc]
