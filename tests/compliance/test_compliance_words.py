"""Words decide nothing: with every sentence changed to another, no status of any clause moves."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping
from typing import Any

import pytest
from mutations import stating
from replayed_runs import KEYWORDS, complete
from search_rows import SEVERAL
from situations import SITUATIONS

from pytest_llmbench.compliance import audit as module
from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.model import sentences
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import RequirementStatus
from pytest_llmbench.model.result import Level, Plot, Table, TestResult
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.terminal import closing_lines, section_lines
from pytest_llmbench.store.entries import entry_from_result

OTHER = "Lorem ipsum."
IN_WORDS = (
    "fairness.jain_normalisation",
    "isolation.health_probe",
    "isolation.recovery_plan",
    "load.capacity_source",
    "load.out_of_memory_rule",
    "long_context.best_fit",
    "streaming.chunk_handling",
    "streaming.itl_option_reason",
    "warmup.description",
)
"""Facts that are sentences."""


def other_words(evidence: Evidence) -> Evidence:
    changed = {key: OTHER for key in IN_WORDS if evidence.result.facts.value(key) is not None}
    evidence = stating(changed)(evidence)
    siblings = tuple(_result(sibling) for sibling in evidence.siblings)
    return dataclasses.replace(evidence, result=_result(evidence.result), siblings=siblings)


def _result(result: TestResult) -> TestResult:
    return dataclasses.replace(
        result,
        title=OTHER,
        metrics=_metrics(result.metrics),
        tables=tuple(_table(table) for table in result.tables),
        plots=tuple(_plot(plot) for plot in result.plots),
        configuration=tuple((OTHER, OTHER) for _ in result.configuration),
        levels=tuple(_level(level) for level in result.levels),
        warmup=dataclasses.replace(result.warmup, description=OTHER),
    )


def _metrics(metrics: Mapping[str, Estimate]) -> dict[str, Estimate]:
    return {name: dataclasses.replace(each, method=OTHER) for name, each in metrics.items()}


def _table(table: Table) -> Table:
    cells = tuple(tuple(OTHER for _ in row) for row in table.cells)
    return dataclasses.replace(table, title=OTHER, columns=tuple(OTHER for _ in table.columns), cells=cells)


def _plot(plot: Plot) -> Plot:
    series = {f"{OTHER} {place}": points for place, points in enumerate(plot.series.values())}
    return dataclasses.replace(plot, title=OTHER, x_label=OTHER, y_label=OTHER, series=series)


def _level(level: Level) -> Level:
    return dataclasses.replace(
        level,
        metrics=_metrics(level.metrics),
        saturation_reasons=tuple(OTHER for _ in level.saturation_reasons),
        fail_reasons=tuple(OTHER for _ in level.fail_reasons),
        queue_source=OTHER,
    )


def without_reasons(evidence: Evidence) -> list[tuple[Any, ...]]:
    """What counts of each clause: all but its words."""
    found = audit(evidence)
    statuses: tuple[RequirementStatus, ...] = found.requirements
    return [(found.verdict, found.verdict_literal), *((each.id, each.status) for each in statuses)]


RUNS = [
    *(pytest.param(lambda test=test: complete(test), id=test) for test in KEYWORDS),
    *(
        pytest.param(lambda option=option: complete("itl", SEVERAL, method=option), id=f"itl by {option}")
        for option in ("A", "B")
    ),
    *(pytest.param(build, id=name) for name, build in SITUATIONS.items()),
]


@pytest.mark.parametrize("run", RUNS)
def test_no_status_moves_with_other_words(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = without_reasons(run())
    document = module._document()
    conditions = dict.fromkeys(document["conditions"], OTHER)
    monkeypatch.setattr(module, "_document", lambda: {**document, "conditions": conditions})
    say_otherwise(monkeypatch)
    assert without_reasons(other_words(run())) == before


def say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every finding and note says the same from now on."""
    known = sentences.every_sentence().items()
    other = {identifier: usual._replace(text=OTHER, advice="") for identifier, usual in known}
    monkeypatch.setattr(sentences, "SENTENCES", other)


def pages(entry: dict[str, Any]) -> list[str]:
    """The lines of the terminal's summary, and the texts of the HTML report, with its sentences left out."""
    report = {
        "generator": {"name": "pytest-llmbench", "version": "1"},
        "started": "2026-01-20T09:30:00.000Z",
        "environment": {"implementation": "CPython", "python": "3", "platform": "Linux", "cpu_count": 8},
        "sut": {"endpoint": "https://host/v1", "model": "tiny", "api": "openai-chat", "facts": {}},
        "tests": [entry],
    }
    lines = [*section_lines(entry, width=10_000), *closing_lines([entry], width=10_000)]
    text = "\n".join(line.text for line in lines)
    text += html.unescape(re.sub(r"<[^>]*>", "\n", html_report(report)))
    sentences = {finding["message"] for finding in entry["validity"]["findings"]} | {*entry["notes"]}
    for sentence in sorted(sentences, key=len, reverse=True):
        text = text.replace(sentence, OTHER)
    return text.split("\n")


@pytest.mark.parametrize("test", KEYWORDS)
def test_nothing_but_sentences_moves_in_a_report(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and verdicts stay what they are: in the report, on the terminal and on its page."""

    def entry() -> dict[str, Any]:
        result = complete(test).result
        judged = result.judged(validity_of(result, Budget()), None, result.gate)
        return entry_from_result(judged, nodeid="a::b", outcome="passed").plain()

    before = entry()
    shown = pages(before)
    say_otherwise(monkeypatch)
    after = entry()
    assert shown.count(OTHER) > 0
    assert set(pages(after)) == set(shown)
    assert {finding["message"] for finding in after["validity"]["findings"]} == {OTHER}
    for findings in (before["validity"]["findings"], after["validity"]["findings"]):
        for finding in findings:
            finding["message"] = OTHER
    before["notes"] = [OTHER for _ in before["notes"]]
    assert after == before


def test_every_sentence_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change itself: whatever text a result holds beside ids is another one afterwards."""
    changed = other_words(complete("throughput")).result
    say_otherwise(monkeypatch)
    assert set(map(str, changed.notes)) == {OTHER}
    assert {cell for table in changed.tables for row in table.rows for cell in row} == {OTHER}
    assert {each.method for each in changed.metrics.values()} == {OTHER}
