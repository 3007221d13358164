"""A report as the store sees it."""

from __future__ import annotations

import pytest
from stored_results import make_report, make_result

from pytest_llmbench.store import entries, schema


@pytest.fixture
def report() -> schema.Report:
    entry = entries.entry_from_result(
        make_result(), nodeid="gates/test_a.py::test_a", outcome="failed", records_file="records/a.jsonl"
    )
    broken = entries.entry_from_error(
        nodeid="gates/test_a.py::test_b", test="ttft", section="5.1", error="refused"
    )
    return make_report(entry, broken)
