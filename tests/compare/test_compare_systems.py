"""Several systems side by side, on figures whose intervals are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmbench.compare.comparability import evidence, hardware_is_equal, rules
from pytest_llmbench.compare.systems import (
    PER_COST,
    PER_GPU,
    System,
    against_first,
    is_real,
    of_runs,
    side_by_side,
    significance,
)
from pytest_llmbench.model.facts import Facts, Origin

OURS = System(
    "ours",
    {"ttft.p50": (100.0, 110.0, 121.0), "output_token_throughput": (1000.0, 1000.0, 1000.0)},
    {"ttft": np.arange(1.0, 200.0)},
    accelerators=4,
    dollars_per_hour=8.0,
)
THEIRS = System(
    "theirs",
    {"ttft.p50": (200.0, 221.0, 241.0), "output_token_throughput": (1000.0, 1010.0, 990.0)},
    {"ttft": np.arange(101.0, 300.0)},
    accelerators=2,
)
MANIFEST = {
    "workload.sequence_sha256": "ab",
    "workload.seed": 42,
    "sut.boundary": "model_engine",
    "sut.components": ["router", "engine"],
    "sut.hardware.accelerator_type": "H100",
    "sut.hardware.accelerator_count": 8,
    "sut.hardware.accelerator_memory_gib": 80.0,
    "load.model": "open",
    "load.rate_rps": 20.0,
    "tokenizer.name": "llama-3",
}


def test_the_figure_of_a_system_is_the_geometric_mean_with_students_interval() -> None:
    # Logarithms 100, 110, 121 lie ln 1.1 apart: s = ln 1.1, t(2) = 4.302653, half = t s / √3.
    found = of_runs((100.0, 110.0, 121.0), "ms")
    assert found.point == pytest.approx(110.0)
    half = 4.302653 * math.log(1.1) / math.sqrt(3)
    assert (found.lower, found.upper) == pytest.approx(
        (110 * math.exp(-half), 110 * math.exp(half)), rel=1e-6
    )
    assert of_runs((5.0,), "ms").lower is None
    assert of_runs((5.0, None, 5.0), "ms").point is None
    assert of_runs((0.0, 0.0, 0.0), "ratio").point is None


def test_what_is_real_and_what_is_not() -> None:
    found = {each.metric: each for each in against_first((OURS, THEIRS))}
    assert found["ttft.p50"].change.point == pytest.approx(2 * (1.0045) * 0.9979 - 1, abs=0.01)
    assert is_real(found["ttft.p50"])
    assert not is_real(found["output_token_throughput"])
    assert found["ttft.p50"].paired
    assert (found["ttft.p50"].baseline_name, found["ttft.p50"].candidate_name) == ("ours", "theirs")
    assert not any(each.gated for each in found.values()), "a comparison of systems fails nothing"


def test_only_the_metrics_that_are_asked_for() -> None:
    (only,) = against_first((OURS, THEIRS), ["ttft.p50"], margin=0.2)
    assert (only.metric, only.margin) == ("ttft.p50", 0.2)
    (missing,) = against_first((OURS, THEIRS), ["ttft.p99"])
    assert missing.change.point is None


def test_the_table_has_each_system_and_each_difference() -> None:
    table = side_by_side((OURS, THEIRS), against_first((OURS, THEIRS)))
    assert table.columns[:4] == ("Metric", "ours", "theirs", "theirs against ours")
    rows = {row[0]: row for row in table.rows}
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert rows["ttft.p50"][4] == "regressed"
    assert float(rows["ttft.p50"][5]) < 1e-6
    assert rows["output_token_throughput"][4] == "equivalent"
    assert rows["output_token_throughput"][5] == "", "requests do not support a rate"
    assert rows[PER_GPU][1:3] == ("250.0 tok/s", rows[PER_GPU][2])
    assert rows[PER_GPU][2].startswith("500.0 tok/s [")
    assert rows[PER_COST][1:3] == ("125.0 tok/s", "not declared")


def test_a_slower_second_system_is_told_from_a_third_that_is_equal() -> None:
    third = System("third", OURS.by_run, OURS.samples)
    found = against_first((OURS, THEIRS, third), ["ttft.p50"])
    assert [is_real(each) for each in found] == [True, False]
    rows = side_by_side((OURS, THEIRS, third), found).rows
    assert len(rows[0]) == 1 + 3 + 2 * 3


def test_every_metric_has_its_interval_and_its_support() -> None:
    entries = {
        entry["metric"]: entry for entry in significance(against_first((OURS, THEIRS)), (OURS, THEIRS))
    }
    assert entries["ttft.p50"]["supporting_p_value"] < 1e-6
    assert "supporting" not in entries["output_token_throughput"]
    assert len(entries["output_token_throughput"]["interval"]) == 2


def found_with(schedule: str | None = "s", **changes: object) -> dict[str, bool]:
    """Which rules hold between a system and one with some facts of its manifest changed."""
    first = Facts.of(Origin.DECLARED, MANIFEST)
    second = first | Facts.of(Origin.DECLARED, {k.replace("__", "."): v for k, v in changes.items()})
    without = Facts({key: fact for key, fact in second.items() if fact.value != "gone"})
    facts = {"ours": first, "theirs": without}
    equal = evidence(facts, {"ours": "s", "theirs": schedule})
    return {finding.check: finding.ok for finding in rules(equal)} | {"hardware": hardware_is_equal(equal)}


def test_equal_manifests_are_equivalent() -> None:
    assert set(found_with().values()) == {True}
    assert set(found_with(sut__components=["engine", "router"]).values()) == {True}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"workload__sequence_sha256": "cd"}, {"same_requests"}),
        ({"workload__seed": 7}, {"same_requests"}),
        ({"schedule": "t"}, {"same_requests"}),
        ({"load__rate_rps": 21.0}, {"same_load"}),
        ({"sut__boundary": "compound_system"}, {"same_boundary"}),
        ({"sut__hardware__accelerator_count": 4}, {"same_hardware", "hardware"}),
        ({"sut__hardware__accelerator_type": "gone"}, {"same_hardware", "hardware"}),
        ({"tokenizer__name": "o200k_base"}, {"same_tokenizer"}),
    ],
)
def test_each_rule_is_broken_by_its_own_facts(changes: dict[str, object], broken: set[str]) -> None:
    held = found_with(**changes)  # type: ignore[arg-type]
    assert {check for check, ok in held.items() if not ok} == broken


def test_percentages_of_each_systems_own_capacity_are_one_load() -> None:
    facts = {
        name: Facts.of(
            Origin.DECLARED,
            {**MANIFEST, "load.levels_percent": [50, 90], "load.rate_rps": rate, "load.duration_s": rate},
        )
        for name, rate in (("ours", 10.0), ("theirs", 30.0))
    }
    held = {f.check: f.ok for f in rules(evidence(facts, dict.fromkeys(facts)))}
    assert held["same_load"]


def test_one_difference_has_one_verdict() -> None:
    """A loss of 0.28 %, told apart from none beyond doubt, and far within the 5 % that are allowed."""
    base = (100.0, 100.001, 99.999)
    slower = System("slower", {"request_throughput": tuple(0.9972 * value for value in base)})
    systems = (System("ours", {"request_throughput": base}), slower)
    (only,) = against_first(systems, ["request_throughput"])
    assert is_real(only)
    table = side_by_side(systems, (only,))
    assert table.columns[4] == "Verdict"
    assert table.rows[0][4] == only.verdict == "equivalent"
