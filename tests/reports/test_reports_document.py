"""The view that every renderer shares."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_report import make_report

from pytest_llmbench import load_report
from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.ci_files import properties
from pytest_llmbench.reports.comparisons import HEADLINES, headline_names, metric_label
from pytest_llmbench.reports.document import ReportView, TestView, fact_text, measured_text, objective_text
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import markdown_report
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.reports.summaries import level_name, level_table, load_text, offered
from pytest_llmbench.reports.terminal import section_lines


@pytest.mark.parametrize(
    ("outcome", "validity", "gate", "measured", "word"),
    [
        ("passed", "valid", "pass", True, "PASS"),
        ("failed", "valid", "fail", True, "FAIL"),
        ("failed", "valid", "inconclusive", True, "INCONCLUSIVE"),
        ("passed", "valid", "inconclusive", True, "INCONCLUSIVE"),
        ("error", "invalid", "inconclusive", True, "INVALID"),
        ("error", "invalid", "inconclusive", False, "ERROR"),
        ("failed", "valid", "pass", True, "FAIL"),
        ("error", "valid", "pass", True, "ERROR"),
        ("skipped", "valid", "pass", False, "SKIPPED"),
    ],
)
def test_headline(entry: Entry, outcome: str, validity: str, gate: str, measured: bool, word: str) -> None:
    entry["outcome"] = outcome
    entry["validity"]["verdict"] = validity
    entry["gate"]["verdict"] = gate
    if not measured:
        entry["metrics"] = {}
    assert TestView(entry).headline == word


def test_texts_of_a_test(entry: Entry) -> None:
    test = TestView(entry)
    assert test.name == "test_first_token_is_quick"
    assert test.kind == "ttft (5.1 Time to First Token)"
    assert test.judgements == "valid · not compliant"
    assert test.completion == "998 of 1000 requests completed (99.8 %); 2 timeout"
    assert objective_text(test.objectives[0]) == "ttft.p99 <= 600 ms"
    assert measured_text(test.objectives[0]) == "468.3 ms [449.5, 491.7]"
    assert measured_text(test.objectives[1]) == "557.4 ms (> 535.1 ms)"


def test_tails_that_the_sample_does_not_carry(entry: Entry) -> None:
    test = TestView(entry)
    assert test.claim("ttft.p99") == "n < 1000, not reported"
    assert test.claim("ttft.p99_9") == "n < 10000, not reported"
    assert test.claim("ttft.p50") == "128.8 ms [123.7, 135.3]"
    assert test.claim("tpot.p99") == "14.5 ms [12, 15], indicative"
    assert test.claim("e2e.p99") == "not measured"


def test_only_percentiles_that_may_be_claimed_are_marked(entry: Entry) -> None:
    assert list(TestView(entry).plots["ttft_cdf"]["marks"]) == ["P50", "limit P99"]
    whole = copy.deepcopy(entry)
    for metric in whole["metrics"].values():
        metric["n"] = 10_000
    assert list(TestView(whole).plots["ttft_cdf"]["marks"]) == ["P50", "P99", "limit P99"]
    assert list(entry["plots"]["ttft_cdf"]["marks"]) == ["limit P99"]
    # With two arms in one picture nobody could tell whose they are.
    (line,) = whole["plots"]["ttft_cdf"]["series"].values()
    whole["plots"]["ttft_cdf"]["series"] = {"candidate": line, "baseline": line}
    assert list(TestView(whole).plots["ttft_cdf"]["marks"]) == ["limit P99"]


def test_missing_facts_are_those_one_can_declare(entry: Entry) -> None:
    assert TestView(entry).missing_facts == [
        "sut.boundary",
        "sut.hardware.accelerator_type",
        "sut.hardware.accelerator_count",
        "guardrails.input_filter",
    ]


def test_blocking_requirements_come_first(entry: Entry) -> None:
    effects = [requirement["effect"] for requirement in TestView(entry).unmet()]
    assert effects == ["blocks"] * 4 + ["downgrades"]


def test_voiding_findings_come_first(entry: Entry) -> None:
    entry["validity"]["findings"].append({"check": "x", "ok": False, "voids": True, "message": "void"})
    assert [finding["check"] for finding in TestView(entry).noteworthy_findings] == ["x", "client_cpu"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("ttft.p99_9", "TTFT P99.9"),
        ("ttft.mean", "TTFT Mean"),
        ("ttft_scheduled.p50", "TTFT (scheduled) P50"),
        ("ttft[0-256].p95", "TTFT [0-256] P95"),
        ("ttft", "TTFT"),
        ("itl[90%].p99", "ITL [90%] P99"),
        ("e2e[full@2.5 req/s].p50", "E2E [full@2.5 req/s] P50"),
        ("starvation_rate[short]", "Starvation rate [short]"),
        ("ttft_inflation[long].p50", "Latency inflation [long] P50"),
        ("ttft_queue_wait.p50", "Queue wait P50"),
        ("jain_index", "Jain's fairness index"),
        ("output_token_throughput", "Output token throughput"),
    ],
)
def test_metric_label(name: str, label: str) -> None:
    assert metric_label(name) == label


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not declared"),
        (False, "no"),
        ([], "none"),
        (["a", 1], "a, 1"),
        ({"type": "x"}, '{"type": "x"}'),
        (0, "0"),
    ],
)
def test_fact_text(value: Any, text: str) -> None:
    assert fact_text(value) == text


def test_identification_from_facts() -> None:
    facts = {
        "sut.model.name": "tiny-7b",
        "sut.model.version": "v2",
        "sut.model.quantization": "none",
        "sut.hardware.accelerator_type": "H200",
        "sut.hardware.accelerator_count": 4,
        "sut.software.engine": "vLLM",
        "sut.software.version": "0.9",
        "sut.boundary": "model_engine",
    }
    view = ReportView(make_report(**facts))
    assert (view.model, view.hardware) == ("tiny-7b v2", "H200 x 4")
    assert (view.software, view.boundary) == ("vLLM 0.9", "Model Engine")
    assert view.tally == "no test ran"


@pytest.mark.parametrize(("origin", "told"), [("simulated", "m"), ("declared", "m r3"), ("measured", "m r3")])
def test_the_digest_of_a_simulated_model_is_left_out(report: Entry, origin: str, told: str) -> None:
    facts = {
        key: {"value": value, "origin": origin, "source": "x"}
        for key, value in (("sut.model.name", "m"), ("sut.model.version", "r3"))
    }
    assert ReportView({**report, "sut": {**report["sut"], "facts": facts}}).model == told


def test_undisclosed_hardware_is_said() -> None:
    assert ReportView(make_report(**{"sut.hardware.disclosed": False})).hardware == "undisclosed"


def test_facts_of_a_run_are_not_facts_about_the_system(report: Entry) -> None:
    report["tests"][0]["facts"]["workload.seed"] = {"value": 1, "origin": "declared", "source": ""}
    assert list(ReportView(report).facts) == ["sut.prefix_caching"]


def test_the_floors_of_the_ttft_test_bind_no_other(every_entry: dict[str, Entry]) -> None:
    throughput = TestView(every_entry["throughput"])
    assert throughput.claim("ttft.p99") == "1124 ms [1079, 1169], indicative"
    assert throughput.unsupported("ttft.p99") is None
    fairness = TestView(every_entry["fairness"])
    assert fairness.claim("ttft[short].p99") == "234 ms [224.6, 243.4]"


def test_each_test_has_the_figures_it_is_about(every_entry: dict[str, Entry]) -> None:
    assert TestView(every_entry["throughput"]).headlines == [
        "max_output_token_throughput",
        "sustainable_rate",
        "output_tokens_per_gpu_second",
    ]
    assert TestView(every_entry["fairness"]).headlines == [
        "jain_index",
        "starvation_rate[short]",
        "starvation_rate[long]",
        "ttft_inflation[short].p50",
    ]
    assert all(TestView(entry).headlines for entry in every_entry.values())


def test_every_headline_is_a_metric() -> None:
    for names in HEADLINES.values():
        assert all(is_metric(name.replace("[*]", "[x]")) for name in names)
    assert len(HEADLINES) == 10


def test_a_bucket_of_lengths_is_no_headline() -> None:
    assert headline_names("ttft", ["ttft.p99", "ttft[0-256].p99"]) == ["ttft.p99"]
    assert headline_names("itl", ["itl.p99", "itl[90%].p99", "itl[90%].p50"]) == ["itl.p99", "itl[90%].p99"]


def test_metrics_by_what_they_are_of(every_entry: dict[str, Entry]) -> None:
    groups = TestView(every_entry["fairness"]).by_qualifier()
    assert list(groups) == ["", "short", "long"]
    assert groups["long"] == ["starvation_rate[long]", "ttft[long].p99"]


def test_latency_families_have_their_qualifier(every_entry: dict[str, Entry]) -> None:
    assert TestView(every_entry["itl"]).families() == [f"itl[{share}%]" for share in (25, 50, 75, 90)]
    assert TestView(every_entry["guardrail"]).families() == [
        "input_filter_overhead[50%]",
        "guardrail_overhead[50%]",
        "e2e[full@50%]",
    ]


def test_whose_measurement_it_was(every_entry: dict[str, Entry]) -> None:
    entry = copy.deepcopy(every_entry["throughput"])
    assert TestView(entry).sharing == [
        "shared measurement: 2 of 4 loads measured by gates/test_capacity.py::test_maximum"
    ]
    entry["stretches"] = entry["stretches"][:2]
    assert TestView(entry).sharing == ["shared measurement: measured by gates/test_capacity.py::test_maximum"]
    assert TestView(every_entry["capacity"]).sharing == []


def test_the_next_class_of_a_report_that_does_not_tell_it(entry: Entry) -> None:
    told = TestView(entry).next_class
    del entry["compliance"]["next_class"]
    assert TestView(entry).next_class == told
    assert told is not None
    assert (told[0], len(told[1])) == ("conditional", 4)
    entry["compliance"]["verdict"] = "conditional"
    further = TestView(entry).next_class
    assert further is not None
    assert (further[0], len(further[1])) == ("unconditional", 5)
    entry["compliance"]["verdict"] = "unconditional"
    assert TestView(entry).next_class is None


def test_a_ratio_that_is_no_share_is_no_percentage(entry: Entry) -> None:
    objective = entry["gate"]["objectives"][0] | {
        "metric": "jain_index", "op": ">=", "limit": 0.9, "unit": "ratio",
        "point": 0.8712, "lower": 0.85, "upper": 0.89,
    }  # fmt: skip
    assert objective_text(objective) == "jain_index >= 0.9"
    assert measured_text(objective) == "0.8712 [0.85, 0.89]"
    starved = objective | {"metric": "starvation_rate[short]", "limit": 0.01}
    assert objective_text(starved) == "starvation_rate[short] >= 1 %"
    found = objective | {"metric": "max_concurrency", "unit": "count", "limit": 64.0}
    assert measured_text(found | dict.fromkeys(("point", "lower", "upper"), 48.0)) == "48"


def test_a_limit_on_what_cannot_be_measured_says_so(entry: Entry) -> None:
    objective = entry["gate"]["objectives"][0] | {"point": None, "lower": None, "upper": None}
    assert measured_text(objective | {"reason": "not judged: void"}) == "not measured"
    assert measured_text(objective | {"lower": 48.0, "unit": "req/s"}) == "> 48 req/s"


# The levels of a test as a table.


def test_a_search_over_rates(every_entry: dict[str, Entry]) -> None:
    table = level_table(every_entry["throughput"]["levels"])
    assert table.columns == [
        "Offered", "Achieved", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "Completion", "Queue",
        "Saturated", "Measured by",
    ]  # fmt: skip
    assert list(table.rows[1]) == [
        "40 req/s (probe)", "5600 tok/s", "2400 ms", "3600 ms, indicative", "80 ms",
        "128 ms, indicative", "100 %", "growing",
        "yes: the queue grows", "gates/test_capacity.py::test_maximum",
    ]  # fmt: skip
    assert (table.rows[3][0], table.rows[3][-1]) == ("20 req/s (reported)", "this test")


def test_a_search_over_slots_has_criteria(every_entry: dict[str, Entry]) -> None:
    table = level_table(every_entry["capacity"]["levels"])
    assert table.columns[-1] == "Criteria"
    assert [row[-1] for row in table.rows][3:5] == ["met", "not met: completion 97.2% is under 99 %"]
    assert table.rows[4][table.columns.index("Completion")] == "97.2 %; 3 timeout"


def test_enough_samples_need_no_mark(every_entry: dict[str, Entry]) -> None:
    table = level_table(every_entry["tradeoff"]["levels"][8:])
    assert (table.columns[:2], table.rows[0][:2]) == (["Level", "Offered"], ["90%", "18 req/s"])
    assert not any("indicative" in cell for row in table.rows for cell in row)


def test_what_is_not_known_is_said(every_entry: dict[str, Entry]) -> None:
    level = copy.deepcopy(every_entry["throughput"]["levels"][0])
    level |= {"queue_growing": None, "saturated": None, "completion_ratio": None, "offered_rps": None}
    del level["metrics"]["ttft.p50"]
    undefined = {"point": None, "method": "no tokens", "reason": "not_measurable", "unit": "ms", "n": 0}
    level["metrics"]["tpot.p50"] = level["metrics"]["tpot.p50"] | undefined
    row = dict(zip(level_table([level]).columns, level_table([level]).rows[0], strict=True))
    assert row["Offered"] == "not known"
    assert (row["TTFT P50"], row["TPOT P50"]) == ("not measured", "not measurable: no tokens")
    assert (row["Completion"], row["Queue"], row["Saturated"]) == ("not measured", "not known", "not known")


def test_names_of_levels(every_entry: dict[str, Entry]) -> None:
    level = every_entry["capacity"]["levels"][0]
    assert (offered(level), load_text(level)) == ("8 in flight", "closed loop, 8 in flight")
    named = level | {"label": "cold", "variant": "cache_enabled", "class_label": "short", "role": "cold"}
    assert level_name(named) == "cold, variant cache_enabled, class short"
    assert offered(level | {"percent_of_capacity": 125.0}) == "8 in flight, 125 %"


# A run in virtual time says in every artefact that nothing was sent, and its class is marked.


def terminal(report: Entry) -> str:
    return "\n".join(line.text for test in report["tests"] for line in section_lines(test))


def junit(report: Entry) -> str:
    return "\n".join(f"{name}={value}" for test in report["tests"] for name, value in properties(test))


ARTEFACTS: dict[str, Callable[[Entry], str]] = {
    "terminal": terminal,
    "html": html_report,
    "markdown": markdown_report,
    "minimum": minimum_report,
    "junit": junit,
}


@pytest.mark.parametrize("artefact", ARTEFACTS)
def test_the_artefact_says_so(report: Entry, artefact: str) -> None:
    render = ARTEFACTS[artefact]
    assert "simulated" not in render(report).lower()
    for test in report["tests"]:
        test["compliance"]["simulated"] = True
    text = render(report)
    assert "(simulated)" in text or artefact == "minimum"
    assert "nothing was sent" in text or artefact == "terminal"


# ``load_report`` of a report with every test: levels, undefined metrics, comparisons.


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
