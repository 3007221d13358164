"""The files for CI systems: of the form that each of them reads, with what was measured and nothing else."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from outcome_samples import failed, regressed, void
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sample_report import make_report

from pytest_llmbench.reports.ci_files import (
    annotations_text,
    bencher,
    bigger_is_better,
    ctrf,
    figures,
    gitlab_metrics,
    properties,
    smaller_is_better,
    workflow_commands,
)
from pytest_llmbench.store import schema

Entry = dict[str, Any]
NODEID = "gates/test_chat.py::test_quick"
TEXT = {"type": "string", "minLength": 1}
STATUS = {"enum": ["passed", "failed", "skipped", "pending", "other"]}
WHOLE = {"type": "integer"}
CTRF: dict[str, Any] = {
    "type": "object",
    "required": ["reportFormat", "specVersion", "results"],
    "additionalProperties": False,
    "properties": {
        "reportFormat": {"const": "CTRF"},
        "specVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "generatedBy": TEXT,
        "results": {
            "type": "object",
            "required": ["tool", "summary", "tests"],
            "additionalProperties": False,
            "properties": {
                "tool": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
                "summary": {
                    "type": "object",
                    "required": [
                        "tests", "passed", "failed", "skipped", "pending", "other", "start", "stop",
                    ],
                    "additionalProperties": WHOLE,
                },
                "environment": {"type": "object"},
                "tests": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "status", "duration"],
                        "additionalProperties": False,
                        "properties": {
                            "name": TEXT, "status": STATUS, "duration": WHOLE, "rawStatus": TEXT,
                            "filePath": {"type": "string"}, "message": {"type": "string"},
                            "suite": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                            "tags": {"type": "array", "items": {"type": "string"}},
                            "retries": WHOLE, "flaky": {"type": "boolean"}, "extra": {"type": "object"},
                            "retryAttempts": {
                                "type": "array",
                                "items": {
                                    "required": ["attempt", "status"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "attempt": {"type": "integer", "minimum": 1},
                                        "status": STATUS,
                                        "duration": WHOLE, "message": {"type": "string"},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip
"""What the schema of CTRF 0.1.0 demands of the fields that are written here."""


@pytest.fixture
def one(report: Entry, entry: Entry) -> Entry:
    """A report of one test that failed."""
    return report | {"tests": [failed(entry)]}


def samples(text: str) -> dict[str, dict[tuple[str, str], float]]:
    """Family → (metric, test) → value; the parser refuses what is no OpenMetrics."""
    return {
        family.name: {(each.labels["metric"], each.labels["test"]): each.value for each in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_figures_are_those_with_a_limit_and_those_that_the_test_is_about(one: Entry) -> None:
    found = figures(one)
    assert [each.metric for each in found] == [
        "ttft.p99", "ttft.p99_9", "tpot.p99", "output_token_throughput",
    ]  # fmt: skip
    assert [each.better for each in found] == ["lower", "lower", "lower", "higher"]
    assert [dict(each.limits) for each in found] == [{"<=": 300.0}, {"<=": 900.0}, {}, {}]


def test_a_void_run_and_one_that_measured_nothing_have_no_figures(report: Entry, entry: Entry) -> None:
    assert figures(report | {"tests": [void(entry), report["tests"][2]]}) == []


def test_a_percentile_that_may_not_be_claimed_is_no_figure(one: Entry) -> None:
    one["tests"][0]["gate"]["objectives"] = []
    assert one["tests"][0]["metrics"]["ttft.p99"]["n"] == 998
    assert [each.metric for each in figures(one)] == ["tpot.p99", "output_token_throughput"]


def test_of_two_limits_on_a_metric_the_strictest_counts(one: Entry) -> None:
    first = one["tests"][0]["gate"]["objectives"][0]
    one["tests"][0]["gate"]["objectives"] += [first | {"limit": 200.0}, first | {"op": ">=", "limit": 10.0}]
    assert figures(one)[0].limits == {"<=": 200.0, ">=": 10.0}


def test_a_comparison_that_decides_makes_a_figure(one: Entry, entry: Entry) -> None:
    test = regressed(entry)
    test["gate"]["objectives"] = []
    for comparison in test["comparisons"]:
        comparison["gated"] = comparison["metric"] == "completion_rate"
    test["comparisons"][0] |= {"metric": "completion_rate", "gated": True}
    found = figures(one | {"tests": [test]})
    assert [each.metric for each in found] == ["completion_rate", "tpot.p99", "output_token_throughput"]


def test_annotations_name_file_limit_and_cause(one: Entry) -> None:
    assert workflow_commands(one) == [
        "::error file=gates/test_chat.py,title=FAIL test_quick::"
        "ttft.p99 <= 300 ms: 468.3 ms [449.5, 491.7] (+56 %25)%0A"
        "the whole interval lies beyond the limit"
    ]


def test_an_annotation_names_the_line_where_it_is_known(one: Entry) -> None:
    one["tests"][0]["line"] = 41
    (command,) = workflow_commands(one)
    assert command.startswith("::error file=gates/test_chat.py,line=41,title=FAIL test_quick::")


def test_what_the_policy_lets_pass_is_a_warning(report: Entry) -> None:
    report["tests"][0]["outcome"] = "passed"  # undecided, --llm-inconclusive=pass
    commands = workflow_commands(report)
    assert [command.partition(" ")[0] for command in commands] == ["::error", "::warning"]


def test_ten_annotations_the_worst_first(report: Entry, entry: Entry) -> None:
    several = [
        test | {"nodeid": f"{test['nodeid']}{number}"} for number in range(5) for test in report["tests"]
    ]
    report["tests"] = [*several, failed(entry)]
    commands = workflow_commands(report)
    assert len(commands) == 10
    assert commands[0].startswith("::error file=gates/test_chat.py,title=FAIL test_quick::")


@pytest.mark.parametrize("text", ["a\nb", "a\r\n::stop-commands::x", "100 %", "x::y,file=z", "ä💥 \u2028"])
def test_no_text_ends_a_command_early(report: Entry, text: str) -> None:
    report["tests"] = report["tests"][2:]
    report["tests"][0] |= {"nodeid": f"gates/{text}.py::test[{text}]", "error": text}
    (command,) = workflow_commands(report)
    assert annotations_text(report) == f"{command}\n"
    match = re.fullmatch(r"::error file=([^\r\n:,]*),title=([^\r\n:,]*)::([^\r\n]*)", command)
    assert match is not None
    assert match[1].replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace(
        "%2C", ","
    ).replace("%25", "%") == f"gates/{text}.py".partition("::")[0]  # fmt: skip


def test_openmetrics_hold_value_ends_and_limit(one: Entry) -> None:
    found = samples(gitlab_metrics(one))
    assert set(found) == {"llmbench_value", "llmbench_lower", "llmbench_upper", "llmbench_limit"}
    key = ("ttft.p99", NODEID)
    assert [found[f"llmbench_{of}"][key] for of in ("value", "lower", "upper", "limit")] == [
        468.0, 450.0, 492.0, 300.0,
    ]  # fmt: skip
    open_end = ("ttft.p99_9", NODEID)
    assert open_end in found["llmbench_lower"]
    assert open_end not in found["llmbench_upper"]


@pytest.mark.parametrize(
    "text", ['quote " here', "back\\slash", "line\nbreak", '\\"\n', "ä💥", "{a=b}, 3 # x"]
)
def test_openmetrics_take_any_name(one: Entry, text: str) -> None:
    one["tests"][0]["nodeid"] = text
    assert {test for _, test in samples(gitlab_metrics(one))["llmbench_value"]} == {text}


def test_bencher_has_values_with_their_ends(one: Entry) -> None:
    found = json.loads(bencher(one))
    assert set(found) == {NODEID}
    metrics = one["tests"][0]["metrics"]
    assert found[NODEID]["ttft.p99 (ms)"] == {
        "value": metrics["ttft.p99"]["point"],
        "lower_value": metrics["ttft.p99"]["lower"],
        "upper_value": metrics["ttft.p99"]["upper"],
    }
    assert set(found[NODEID]["ttft.p99_9 (ms)"]) == {"value", "lower_value"}


def test_bencher_refuses_no_name(one: Entry) -> None:
    name = f"ttft[{'x' * 100}].p99"
    test = one["tests"][0]
    test["nodeid"] = f"a.py::test[{'y' * 2000}]"
    test["gate"]["objectives"][0]["metric"] = name
    (benchmark, measures), = json.loads(bencher(one)).items()  # fmt: skip
    assert len(benchmark) == 1024
    assert max(map(len, measures)) == 64


def test_each_direction_has_its_file(one: Entry) -> None:
    small, big = json.loads(smaller_is_better(one)), json.loads(bigger_is_better(one))
    assert small[0] == {
        "name": f"{NODEID} ttft.p99",
        "unit": "ms",
        "value": pytest.approx(468.3, abs=0.1),
        "range": "449.534 to 491.678",
        "extra": "limit <= 300",
    }
    assert small[1]["range"].startswith("> 535")
    assert [each["name"] for each in big] == [f"{NODEID} output_token_throughput"]
    assert not {each["name"] for each in small} & {each["name"] for each in big}


def test_ctrf_maps_outcomes(report: Entry, entry: Entry) -> None:
    report["tests"] += [failed(entry), void(entry)]
    told = json.loads(ctrf(report))
    jsonschema.validate(told, CTRF)
    tests = told["results"]["tests"]
    assert [(test["rawStatus"], test["status"]) for test in tests] == [
        ("INCONCLUSIVE", "other"), ("PASS", "passed"), ("ERROR", "failed"), ("FAIL", "failed"),
        ("INVALID", "other"),
    ]  # fmt: skip
    summary = told["results"]["summary"]
    assert [summary[name] for name in ("tests", "passed", "failed", "other")] == [5, 1, 2, 2]
    assert summary["start"] == 1_768_901_400_000
    assert tests[3]["message"] == "the whole interval lies beyond the limit"
    assert tests[3]["extra"]["figures"][0]["limits"] == [{"op": "<=", "limit": 300.0}]
    assert tests[4]["extra"]["figures"] == []


def test_ctrf_tells_a_test_that_was_run_again_once(report: Entry, entry: Entry) -> None:
    first = {"status": "FAIL", "reason": "too slow", "duration_s": 2.0}
    again = report["tests"][1] | {"attempts": 2, "duration_s": 1.25, "earlier_attempts": [first]}
    told = json.loads(ctrf(report | {"tests": [again]}))
    jsonschema.validate(told, CTRF)
    (test,) = told["results"]["tests"]
    assert (test["status"], test["flaky"], test["retries"], test["duration"]) == ("passed", True, 1, 1250)
    earlier = {"attempt": 1, "status": "failed", "duration": 2000, "message": "too slow"}
    assert test["retryAttempts"] == [earlier]
    assert told["results"]["summary"]["stop"] - told["results"]["summary"]["start"] == 3250
    assert test["extra"]["figures"][0]["limits"] == [{"op": "<=", "limit": 600.0}]


def test_ctrf_tells_why_the_last_attempt_did_not_pass(report: Entry, entry: Entry) -> None:
    first = {"status": "INCONCLUSIVE", "reason": "undecided", "duration_s": None}
    last = failed(entry) | {"attempts": 2, "earlier_attempts": [first]}
    told = json.loads(ctrf(report | {"tests": [last]}))
    (test,) = told["results"]["tests"]
    assert (test["rawStatus"], test["flaky"]) == ("FAIL", False)
    assert test["message"] == "the whole interval lies beyond the limit"


def test_a_duration_that_is_not_known_is_said(one: Entry) -> None:
    test = json.loads(ctrf(one))["results"]["tests"][0]
    assert (test["duration"], test["extra"]["durationKnown"]) == (0, False)


RENDERERS = (bencher, smaller_is_better, bigger_is_better, ctrf, gitlab_metrics, annotations_text)


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_what_is_undefined_is_left_out_and_never_zero(one: Entry, bad: float | None) -> None:
    test = one["tests"][0]
    test["gate"]["objectives"] = []
    test["metrics"]["tpot.p99"]["point"] = bad
    test["metrics"]["output_token_throughput"]["upper"] = bad
    assert [(each.metric, each.upper) for each in figures(one)] == [("output_token_throughput", None)]
    for render in (bencher, smaller_is_better, bigger_is_better, ctrf):
        json.loads(render(one), parse_constant=pytest.fail)
        assert "tpot" not in render(one)
    assert "tpot" not in gitlab_metrics(one)
    assert samples(gitlab_metrics(one))["llmbench_upper"] == {}


@pytest.mark.parametrize("render", RENDERERS, ids=lambda render: render.__name__)
def test_a_report_without_tests_has_a_file_too(render: Callable[[Entry], str]) -> None:
    text = render(make_report())
    if render is gitlab_metrics:
        assert not any(samples(text).values())
        assert text.endswith("# EOF\n")
    elif render is annotations_text:
        assert text == ""
    else:
        json.loads(text)


# JUnit properties.


def test_verdicts_then_each_limit(entry: Entry) -> None:
    assert properties(entry) == [
        ("llmbench.verdict", "inconclusive"),
        ("llmbench.validity", "valid"),
        ("llmbench.compliance", "not_compliant"),
        ("llmbench.ttft.p99.value", "468.265"),
        ("llmbench.ttft.p99.lower", "449.534"),
        ("llmbench.ttft.p99.upper", "491.678"),
        ("llmbench.ttft.p99.unit", "ms"),
        ("llmbench.ttft.p99.op", "<="),
        ("llmbench.ttft.p99.limit", "600"),
        ("llmbench.ttft.p99.n", "998"),
        ("llmbench.ttft.p99_9.value", "557.41"),
        ("llmbench.ttft.p99_9.lower", "535.114"),
        ("llmbench.ttft.p99_9.unit", "ms"),
        ("llmbench.ttft.p99_9.op", "<="),
        ("llmbench.ttft.p99_9.limit", "900"),
        ("llmbench.ttft.p99_9.n", "998"),
    ]


def test_undefined_is_left_out_and_never_zero(broken: schema.TestEntry) -> None:
    found = dict(properties(broken.plain()))
    assert found["llmbench.ttft.p99.limit"] == "500"
    assert not {f"llmbench.ttft.p99.{name}" for name in ("value", "lower", "upper")} & set(found)


def test_two_limits_on_one_metric_are_numbered(entry: Entry) -> None:
    floor = copy.deepcopy(entry["gate"]["objectives"][0]) | {"op": ">=", "limit": 10.0}
    entry["gate"]["objectives"] = [entry["gate"]["objectives"][0], floor]
    found = dict(properties(entry))
    assert [found[f"llmbench.ttft.p99.{name}"] for name in ("op", "limit", "op2", "limit2")] == [
        "<=", "600", ">=", "10",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.998, "0.998"), (0.0, "0"), (1_234_567.8, "1234568"), (468.27, "468.27"), (2.5e-9, "2.5e-09")],
)
def test_numbers_are_numbers(entry: Entry, value: float, text: str) -> None:
    entry["gate"]["objectives"][0] |= {"point": value, "unit": "ratio"}
    found = dict(properties(entry))
    assert found["llmbench.ttft.p99.value"] == text
    assert float(text) == pytest.approx(value, rel=1e-5)
    assert found["llmbench.ttft.p99.unit"] == "ratio"


def test_a_comparison_that_decides_has_its_change_as_a_share(entry: Entry) -> None:
    found = dict(properties(regressed(entry)))
    key = "llmbench.ttft.p99.regression"
    assert found[key] == "regressed"
    assert found[f"{key}.change"] == "0.200012"
    assert float(found[f"{key}.change.lower"]) > 0.05 == float(found[f"{key}.allowed"])
    assert float(found[f"{key}.detectable"]) > 0
    assert not any("tpot" in name for name in found)


def test_of_several_systems_each_has_its_own(entry: Entry) -> None:
    test = regressed(entry)
    test["comparisons"] += [one | {"candidate_name": "third"} for one in copy.deepcopy(test["comparisons"])]
    found = dict(properties(test))
    assert found["llmbench.ttft.p99.regression.now"] == "regressed"
    assert found["llmbench.ttft.p99.regression.third"] == "regressed"
