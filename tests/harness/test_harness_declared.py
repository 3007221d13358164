"""What the SUT file says of a model's reasoning, on its way to those who read replies and pages."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.probes.disclosure import read_sut_file
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.server_figures import Declared


def access(tmp_path: Path, text: str) -> SUTAccess:
    file = tmp_path / "sut.toml"
    file.write_text(text, encoding="utf-8")
    return SUTAccess.to(SUT("http://127.0.0.1:9/v1"), Settings(), read_sut_file(file))


def test_without_a_word_about_it_only_opening_tags_count(tmp_path: Path) -> None:
    found = access(tmp_path, "")
    assert found.declared == Declared()
    assert found.series == {}
    assert SUTAccess.to(SUT("http://127.0.0.1:9/v1"), Settings(), None).declared == Declared()


def test_everything_about_it(tmp_path: Path) -> None:
    text = '[reasoning]\ntags = "think"\nstarts_thinking = true\nend_reason = "header:X-End"\n'
    found = access(tmp_path, text + 'critical_evictions = "metric:engine:late_total"\n')
    assert found.declared.inline == InlineReasoning("think", starts_thinking=True)
    assert found.declared.end_reason == "header:X-End"
    assert found.series == {"critical_evictions": "engine:late_total"}


def test_where_a_gateway_tells_its_times(tmp_path: Path) -> None:
    text = '[server_times]\nqueue_wait = "header:x-queue-time"\nprefill = "field:usage.prefill"\nunit = "s"\n'
    found = access(tmp_path, text).declared
    assert (found.queue_wait, found.prefill, found.time_unit) == (
        "header:x-queue-time", "field:usage.prefill", "s",
    )  # fmt: skip


def test_why_thinking_ended_may_be_a_counter_of_the_page(tmp_path: Path) -> None:
    found = access(tmp_path, '[reasoning]\nend_reason = "metric:engine:thoughts_total{why}"\n')
    assert found.series == {"thinking_ended": "engine:thoughts_total{why}"}
    assert not found.declared.tells
