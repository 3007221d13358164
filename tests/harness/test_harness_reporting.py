"""The session's report: built from entries, without what must not be in it."""

from __future__ import annotations

import pytest

from pytest_llmbench.harness.report_files import build_report, head_of
from pytest_llmbench.harness.settings import Settings


def test_an_endpoint_s_query_is_in_no_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = "https://user:canary-1@host/v1?key=canary-2"
    monkeypatch.setattr("sys.argv", ["pytest", f"--llm-endpoint={endpoint}"])
    head = head_of(Settings(endpoint=endpoint), started_ns=0)
    text = build_report(head, []).model_dump_json() + head.model_dump_json()
    assert "canary" not in text
    assert "--llm-endpoint=https://host/v1?key=" in text
