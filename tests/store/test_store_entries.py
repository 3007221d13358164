"""From TestResult to the entry of a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from stored_results import make_observation, make_result

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import (
    Comparison,
    ComparisonVerdict,
    Finding,
    Gate,
    RequirementStatus,
    Status,
    Validity,
)
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.result import Table, TestResult
from pytest_llmbench.store import entries, schema
from pytest_llmbench.store.objects import plain, plain_object


def convert(result: TestResult, **more: Any) -> schema.TestEntry:
    return entries.entry_from_result(result, nodeid="a.py::a", outcome="failed", **more)


def test_counts_hold_every_outcome_of_the_measured_phase() -> None:
    counts = convert(make_result()).counts
    assert (counts["submitted"], counts["ok"], counts["timeout"], counts["refused"]) == (3, 2, 1, 0)
    assert sum(counts.values()) == 2 * counts["submitted"]


def test_load_and_workload_are_told_in_numbers() -> None:
    entry = convert(make_result())
    assert entry.load is not None
    assert (entry.load.model, entry.load.rate_rps, entry.load.concurrency) == ("open", 20.0, None)
    assert entry.load.duration_s == 2.5
    assert entry.workload is not None
    assert entry.workload.specification["input_length"] == {"type": "uniform", "params": [128, 512]}
    assert (entry.workload.seed, entry.workload.sequence_sha256) == (42, "cd" * 32)
    assert entry.stretches[0].started == "2026-01-20T09:30:01.123Z"


def test_several_runs_add_up() -> None:
    runs = (
        make_observation(0, send_lag_p99_ns=5, reads=10, event_loop="uvloop", loop_lag_p99_ns=None),
        make_observation(1, send_lag_p99_ns=9, reads=7, event_loop="uvloop"),
    )
    facts = Facts.of(Origin.DECLARED, {"workload.sequence_sha256": "ef" * 32})
    entry = convert(make_result(observations=runs, facts=facts))
    assert entry.counts["submitted"] == 6
    assert entry.load is not None
    assert (entry.load.requests, entry.load.duration_s) == (6, 5.0)
    assert entry.selfcheck is not None
    assert (entry.selfcheck.send_lag_p99_ns, entry.selfcheck.reads) == (9, 17)
    assert entry.selfcheck.loop_lag_p99_ns is None
    assert entry.workload is not None
    assert entry.workload.sequence_sha256 == "ef" * 32
    assert len({stretch.key for stretch in entry.stretches}) == 2


def test_an_invalid_run_passes_nothing() -> None:
    void = Validity((Finding.of("send_lag"),))
    entry = convert(make_result(validity=void, gate=Gate(), objectives=()))
    assert entry.validity.verdict == "invalid"
    assert entry.gate.verdict == "inconclusive"


def test_a_limit_that_nobody_judged_is_inconclusive() -> None:
    result: TestResult = make_result()
    objectives = (*result.objectives, Objective("ttft.p50", "<=", 1.0, "ms"))
    entry = convert(replace(result, objectives=objectives))
    assert [o.metric for o in entry.gate.objectives] == ["ttft.p99", "ttft.p50"]
    assert (entry.gate.objectives[1].verdict, entry.gate.objectives[1].point) == ("inconclusive", None)


def test_a_test_without_limits_passes_its_gate() -> None:
    assert convert(make_result(gate=Gate(), objectives=())).gate.verdict == "pass"


def test_an_unaudited_result_is_not_compliant() -> None:
    compliance = convert(make_result(compliance=None)).compliance
    assert (compliance.verdict, compliance.verdict_literal) == ("not_compliant", "not_compliant")


def test_an_errored_test_has_an_entry() -> None:
    limit = Objective("ttft.p99", "<=", 500.0, "ms")
    entry = entries.entry_from_error(
        nodeid="a.py::a", test="ttft", section="5.1", error="connection refused", objectives=(limit,)
    )
    assert (entry.outcome, entry.validity.verdict, entry.gate.verdict) == ("error", "invalid", "inconclusive")
    assert entry.metrics == {}
    assert entry.counts["submitted"] == 0
    assert "connection refused" in entry.validity.findings[0].message


def test_evidence_of_any_type_becomes_json() -> None:
    seen = {"n": np.int64(3), "nan": float("nan"), "set": {"b", "a"}, "array": np.array([1.5, 2.0])}
    status = RequirementStatus("M-1-one", "MUST", Status.MET, "seen", seen, "blocks")
    result: TestResult = make_result()
    assert result.compliance is not None
    entry = convert(replace(result, compliance=replace(result.compliance, requirements=(status,))))
    assert entry.plain()["compliance"]["requirements"][0]["evidence"] == {
        "n": 3,
        "nan": None,
        "set": ["a", "b"],
        "array": [1.5, 2.0],
    }


def test_a_table_that_comes_twice_under_one_title_is_a_mistake() -> None:
    table = Table("twice", "T", ("A",), ())
    with pytest.raises(ValueError, match="share an id and a title: twice, twice"):
        convert(make_result(tables=(table, table)))


def test_one_table_per_level_keeps_order_and_gets_numbers() -> None:
    tables = tuple(Table("itl_results", f"at {share} %", ("A",), ()) for share in (25, 50, 75))
    other = Table("itl_by_level", "all", ("A",), ())
    told = convert(make_result(tables=(*tables, other))).tables
    assert list(told) == ["itl_results", "itl_results.2", "itl_results.3", "itl_by_level"]
    assert told["itl_results.2"].title == "at 50 %"


def test_an_entry_crosses_as_plain_json() -> None:
    entry = convert(make_result(), error="body failed", duration_s=3.5, shared=True)
    assert schema.TestEntry.model_validate(entry.plain()) == entry


def test_zero_stays_zero_and_bool_stays_bool() -> None:
    assert plain({"zero": 0.0, "no": False, "none": None}) == {"zero": 0.0, "no": False, "none": None}
    assert plain(True) is True


def test_only_a_mapping_is_an_object() -> None:
    with pytest.raises(TypeError, match="list cannot become"):
        plain_object([1])


def test_a_dataclass_is_stored_as_it_will_be_read() -> None:
    change = Estimate(0.1, 0.05, 0.15, 0.95, 3, "paired", "1")
    comparison = Comparison(
        "ttft.p99", "ms", "lower", "a", "b", (1.0,), (2.0,), True, change, 0.05, None,
        ComparisonVerdict.REGRESSED, "",
    )  # fmt: skip
    kept = entries.stored(Comparison, replace(comparison, baseline=(np.float64(1.5), 2.0)))
    assert kept.baseline == (1.5, 2.0)
    assert type(kept.baseline[0]) is float
    with pytest.raises(ValidationError, match="margin"):
        entries.stored(Comparison, replace(comparison, margin=float("nan")))
