"""Levels, stretches and plots of a test with several loads: from the model to JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from stored_results import make_observation, make_report, make_result

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict, RequirementStatus, Status
from pytest_llmbench.model.observation import EngineReadings
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop, describe_loads
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import Level, Plot, TestResult
from pytest_llmbench.redaction import Redactor
from pytest_llmbench.store import entries, schema
from pytest_llmbench.store.schema import DRAFT

CANARY = "sk-canary-0123456789"


def convert(result: TestResult) -> schema.TestEntry:
    return entries.entry_from_result(result, nodeid="a.py::a", outcome="passed")


def some_level(**changes: Any) -> Level:
    values: dict[str, Any] = {
        "label": "80%",
        "load_model": "open",
        "duration_s": 60.0,
        "window_s": 54.0,
        "n_submitted": 1200,
        "n_ok": 1190,
        "n_failed": 10,
        "completion_ratio": 1190 / 1200,
        "metrics": {"ttft.p99": Estimate(412.5, 400.0, None, 0.95, 1190, "order statistics", "ms", 2000)},
        "offered_rps": 20.0,
        "percent_of_capacity": 80.0,
        "in_flight_means": (1.0, float("nan"), 3.0),
        "queue_growing": False,
        "saturated": True,
        "saturation_reasons": ("10 requests failed",),
        "errors": {"timeout": 10},
        "role": "reported",
        "observation": 1,
        "shared_from": "b.py::b",
    }
    return Level(**(values | changes))


def engine(**changes: Any) -> EngineReadings:
    values: dict[str, Any] = {
        "at_ns": np.array([0, 1_500_000_000, 2_000_000_000, 3_000_000_000]),
        "gauges": {"running": np.array([99.0, 10.0, 30.0, 70.0]), "waiting": np.full(4, np.nan)},
        "totals_before": {"preemptions": 2.0, "prompt_tokens": 50.0, "requests_finished": 7.0},
        "totals_after": {"preemptions": 5.0, "prompt_tokens": 10.0, "generated_tokens": 9.0},
        "max_num_seqs": 256,
        "source": f"http://user:{CANARY}@host:8000/metrics",
        "gap": f"the page said {CANARY}",
    }
    return EngineReadings(**(values | changes))


def test_a_level_keeps_its_numbers_and_its_place() -> None:
    probe = make_observation(0)
    probe = replace(probe, plan=probe.plan.with_(phase=Phase.PROBE))
    result = make_result(observations=(probe, make_observation(1)), levels=(some_level(),))
    told = convert(result).plain()["levels"][0]
    assert told["metrics"]["ttft.p99"] == {
        "point": 412.5, "lower": 400.0, "upper": None, "level": 0.95, "n": 1190,
        "method": "order statistics", "unit": "ms", "n_required": 2000,
        "too_high_by": 0.0, "too_low_by": 0.0, "kind": "sample", "runs": 1, "reason": None,
        "given_up": 0,
    }  # fmt: skip
    assert told["in_flight_means"] == [1.0, None, 3.0]
    assert (told["stretch"], told["concurrency"], told["passed"]) == (0, None, None)
    assert (told["saturated"], told["saturation_reasons"], told["errors"]) == (
        True, ["10 requests failed"], {"timeout": 10},
    )  # fmt: skip
    assert (told["offered_rps"], told["percent_of_capacity"], told["role"]) == (20.0, 80.0, "reported")
    assert told["shared_from"] == "b.py::b"


def test_a_level_without_a_kept_observation_points_nowhere() -> None:
    levels = (some_level(observation=None), some_level(observation=7))
    assert [level.stretch for level in convert(make_result(levels=levels)).levels] == [None, None]


def test_the_published_schema_takes_levels_and_engine_readings() -> None:
    runs = (replace(make_observation(0), engine=engine()),)
    report = make_report(convert(make_result(levels=(some_level(),), observations=runs)))
    document = json.loads(json.dumps(report.plain()))
    jsonschema.Draft202012Validator(schema.json_schema()).validate(document)
    assert schema.Report.model_validate(document) == report


def test_the_engine_is_summed_up_while_load_was_sent() -> None:
    run = replace(make_observation(0), engine=engine(), load_ended_ns=2_000_000_000)
    told = convert(make_result(observations=(run,))).stretches[0].engine
    assert told is not None
    running = told.gauges["running"]
    assert (running.mean, running.max, running.n) == (20.0, 30.0, 2)
    assert (told.gauges["waiting"].mean, told.gauges["waiting"].n) == (None, 0)
    assert told.growth == {
        "preemptions": 3.0, "prompt_tokens": None, "requests_finished": None, "generated_tokens": None,
    }  # fmt: skip
    assert (told.source, told.max_num_seqs) == ("http://host:8000/metrics", 256)


def test_a_stretch_says_where_it_ran_and_how_it_ended() -> None:
    base = make_observation(0)
    run = replace(
        base,
        plan=base.plan.with_(variant="cache_enabled", duration_s=60.0),
        shared_from="b.py::b",
        stopped="nothing answered for 20 s",
    )
    told = convert(make_result(observations=(run,))).stretches[0]
    assert (told.variant, told.load_duration_s) == ("cache_enabled", 60.0)
    assert (told.shared_from, told.stopped, told.engine) == ("b.py::b", "nothing answered for 20 s", None)


def test_no_secret_in_the_new_texts() -> None:
    level = some_level(
        fail_reasons=(f"401 {CANARY}",), saturation_reasons=(CANARY,), variant=CANARY, shared_from=CANARY
    )
    run = replace(make_observation(0), engine=engine(), stopped=CANARY, shared_from=CANARY)
    plain = convert(make_result(levels=(level,), observations=(run,))).plain()
    assert CANARY in json.dumps(plain)
    assert CANARY not in json.dumps(Redactor([CANARY]).value(plain))


def test_bands_and_axes_of_a_plot() -> None:
    nan = float("nan")
    plot = Plot(
        "p", "T", "x", "y",
        series={"a": ((1.0, 2.0, 3.0), (10.0, nan, 30.0))},
        bands={"a": ((1.0, 2.0), (9.0, 1.0), (11.0, float("inf")))},
        y_log=True,
    )  # fmt: skip
    told = convert(make_result(plots=(plot,))).plain()["plots"]["p"]
    assert told["series"] == {"a": {"x": [1.0, 3.0], "y": [10.0, 30.0]}}
    assert told["bands"] == {"a": {"x": [1.0], "lower": [9.0], "upper": [11.0]}}
    assert (told["x_log"], told["y_log"]) == (False, True)


def _compliance(verdict: ComplianceVerdict) -> Compliance:
    def one(id_: str, status: Status, effect: str) -> RequirementStatus:
        return RequirementStatus(id_, "MUST", status, "seen", {}, effect)

    requirements = (
        one("S-1", Status.UNMET, "downgrades"),
        one("M-1", Status.UNMET, "blocks"),
        one("M-2", Status.MET, "blocks"),
        one("O-1", Status.UNMET, "none"),
    )
    return Compliance(verdict, verdict, DRAFT, requirements)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (ComplianceVerdict.NOT_COMPLIANT, {"class": "conditional", "clauses": ["M-1"]}),
        (ComplianceVerdict.CONDITIONAL, {"class": "unconditional", "clauses": ["S-1", "M-1"]}),
        (ComplianceVerdict.UNCONDITIONAL, None),
    ],
)
def test_what_keeps_the_test_from_the_next_class(verdict: ComplianceVerdict, expected: Any) -> None:
    entry = convert(make_result(compliance=_compliance(verdict)))
    assert entry.plain()["compliance"]["next_class"] == expected
    assert schema.TestEntry.model_validate(entry.plain()) == entry


def test_nobody_knows_what_an_unaudited_run_lacks() -> None:
    assert convert(make_result(compliance=None)).compliance.next_class is None


def test_few_loads_are_named_and_many_are_a_range() -> None:
    assert describe_loads([OpenLoop(5), OpenLoop(20), OpenLoop(5)]) == (
        "open loop, poisson arrivals at 5 req/s; open loop, poisson arrivals at 20 req/s"
    )
    many = [OpenLoop(2.0 * i) for i in range(1, 13)]
    assert describe_loads(many) == "open loop, poisson arrivals at 2 to 24 req/s (12 loads)"
    both = [*many, ClosedLoop(8), ClosedLoop(512), OpenLoop(3, "uniform")]
    assert describe_loads(both) == (
        "open loop, poisson arrivals at 2 to 24 req/s (12 loads); open loop, uniform arrivals at 3 req/s; "
        "closed loop, 8 to 512 in flight (2 loads)"
    )
