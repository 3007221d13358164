"""Estimate, Objective, Facts, LoadPlan, TestResult views: their own consistency."""

from __future__ import annotations

import fnmatch
import math
import operator
import pickle
from dataclasses import fields, replace

import pytest

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.model.estimate import Estimate, ReadEstimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.named_metrics import MetricView
from pytest_llmbench.model.objective import (
    Objective,
    completion_rate,
    metric,
    ms,
    percent,
    s,
    tok_s,
    ttft,
    us,
)
from pytest_llmbench.model.observation import HostLimits, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.workloads.catalogue import workload


@pytest.mark.parametrize("field", ["point", "lower", "upper"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_estimate_holds_no_nan_and_no_infinity(field: str, value: float) -> None:
    values = {"point": 1.0, "lower": 0.5, "upper": 2.0, field: value}
    with pytest.raises(ValueError, match=field):
        Estimate(**values, level=0.95, n=1, method="m", unit="ms")  # type: ignore[arg-type]


def test_units_are_brought_to_the_canonical_one() -> None:
    assert (ttft.p99 <= 500 * ms).limit == 500
    assert (ttft.p99 <= 0.5 * s).limit == 500
    assert (ttft.p99 < 500 * us).limit == 0.5
    assert (completion_rate >= 99 * percent).limit == pytest.approx(0.99)
    assert (completion_rate >= 0.99).limit == 0.99


def test_a_distribution_has_no_limit() -> None:
    for compare in (operator.le, operator.lt, operator.ge, operator.gt):
        with pytest.raises(TypeError, match=r"ttft\[0-256\] is a distribution, .*such as ttft\[0-256\]\.p99"):
            compare(ttft["0-256"], 500 * ms)


def test_objectives_have_no_truth_value() -> None:
    with pytest.raises(TypeError, match="no truth value"):
        assert ttft.p99 <= 500 * ms
    with pytest.raises(TypeError, match="no truth value"):
        bool(ttft.p99)


def test_a_limit_needs_the_right_unit() -> None:
    with pytest.raises(TypeError, match="write 500 \\* ms"):
        _ = ttft.p99 <= 500
    with pytest.raises(TypeError, match="measured in ms, the limit is in tok/s"):
        _ = ttft.p99 <= 500 * tok_s


def test_facts_merge_and_digest() -> None:
    declared = Facts.of(Origin.DECLARED, {"sut.boundary": "model_engine", "sut.profile": None}, "sut.toml")
    detected = Facts.of(Origin.DETECTED, {"sut.model.name": "m"})
    both = declared | detected
    assert "sut.profile" not in both
    assert both.value("sut.model.name") == "m"
    assert both["sut.boundary"].source == "sut.toml"
    assert set(both.under("sut.model")) == {"sut.model.name"}
    assert both.sha256() == (detected | declared).sha256()
    assert both.sha256() != declared.sha256()
    assert both.value("nothing") is None


def plan(**changes: object) -> LoadPlan:
    start = LoadPlan("measure", workload("synthetic-uniform"), OpenLoop(20.0), 10, seed=42)
    return start.with_(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"load": OpenLoop(21.0)},
        {"load": ClosedLoop(20)},
        {"load": OpenLoop(20.0, of_sessions=True)},
        {"requests": 11},
        {"seed": 43},
        {"first": 1},
        {"phase": Phase.WARMUP},
        {"ignore_eos": True},
    ],
)
def test_plan_key_sees_what_changes_the_load(changes: dict[str, object]) -> None:
    assert plan(**changes).key != plan().key
    assert plan(label="another name").key == plan().key


def test_keys_are_those_of_earlier_reports() -> None:
    """A load that was saved is found again by its key."""
    keys = [plan(load=load).key[:8] for load in (OpenLoop(20.0), ClosedLoop(4))]
    keys += [plan(load=replace(load, of_sessions=True)).key[:8] for load in (OpenLoop(20.0), ClosedLoop(4))]
    assert keys == ["827cae3b", "88615200", "e971365f", "659043a3"]


def test_metrics_by_attribute() -> None:
    one = Estimate(1.0, 0.9, 1.1, 0.95, 10, "m", "ms")
    view = MetricView({"ttft.p99": one, "output_token_throughput": one}, "")
    assert view.ttft.p99 is one  # type: ignore[union-attr]
    assert view.output_token_throughput is one
    with pytest.raises(AttributeError, match=r"did you mean ttft\.p99"):
        _ = view.ttft.p98  # type: ignore[union-attr]


def test_errors_list_all_mistakes_and_survive_pickling() -> None:
    error = SuiteError.from_mistakes(["a", "b"], where="here", remedy="mend")
    assert str(error) == "here: 2 mistakes\n  - a\n  - b\n  → mend"
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, SuiteError)
    assert str(again) == str(error)
    assert str(SUTError("down")) == "down"


@pytest.mark.parametrize(
    ("estimate", "number", "why"),
    [
        (
            Estimate(2.0, 1.0, None, 0.95, 40, "m", "ms", n_required=300),
            "upper",
            "no upper end, about 300 are",
        ),
        (Estimate(2.0, None, 3.0, 0.95, 40, "m", "ms"), "lower", "40 samples give it no lower end (m)"),
        # what is there already is no advice
        (Estimate(2.0, None, 3.0, 0.95, 40, "m", "ms", n_required=10), "lower", "no lower end (m)"),
        (
            Estimate.undefined(unit="ms", method="m"),
            "upper",
            "x.upper is None: the metric is undefined, there is no",
        ),
        (
            Estimate.undefined(unit="ms", method="m", n=3),
            "point",
            "x.point is None*cannot be computed from 3",
        ),
    ],
)
def test_a_number_that_is_not_there_says_why_when_it_is_read(
    estimate: Estimate, number: str, why: str
) -> None:
    heard: list[str] = []
    read = ReadEstimate.of(estimate, "x", heard.append)
    assert getattr(read, number) is None
    assert len(heard) == 1
    assert fnmatch.fnmatchcase(heard[0], f"*{why}*")


def test_what_is_there_is_read_without_a_word() -> None:
    heard: list[str] = []
    estimate = Estimate(1.0, 0.9, 1.1, 0.95, 10, "m", "ms")
    read = ReadEstimate.of(estimate, "x", heard.append)
    assert (read.point, read.lower, read.upper, read.n, read.closed) == (1.0, 0.9, 1.1, 10, True)
    assert heard == []


def test_a_time_of_jobs_takes_any_unit_of_time() -> None:
    assert (metric("job_time.p50", "s") <= 1500 * ms) == Objective("job_time.p50", "<=", 1.5, "s")


def test_limits_of_the_host_are_read_by_their_names() -> None:
    read = HostLimits.parse("send_lag_ns=5e7, rate_share=0.9")
    assert read == HostLimits(send_lag_ns=50_000_000, rate_share=0.9)
    assert isinstance(read.send_lag_ns, int)
    assert read.loosened == ("send_lag_ns 5e+07, usually 1e+07", "rate_share 0.9, usually 0.95")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lag=3", "'lag' is not a limit; give some of send_lag_ns, rate_share"),
        ("", "'' is not a limit"),
        ("rate_share", "rate_share takes a number from 0 on"),
        ("rate_share=-1", "rate_share takes a number from 0 on"),
        ("latency_ms=nan", "latency_ms takes a number from 0 on"),
        ("send_lag_ns=inf", "send_lag_ns takes a number from 0 on"),
        ("send_lag_ns=nan", "send_lag_ns takes a number from 0 on"),
    ],
)
def test_what_is_no_limit_of_the_host(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        HostLimits.parse(text)


def test_self_checks_together_sum_what_is_counted_and_keep_the_worst_of_the_rest() -> None:
    numbers = {each.name for each in fields(SelfCheck) if not isinstance(each.default, str)}
    one, other = (SelfCheck(**dict.fromkeys(numbers, value)) for value in (2, 3))
    both = SelfCheck.together([one, other])
    summed = {name for name in numbers if getattr(both, name) == 5}
    assert summed == {
        "reads", "content_chunks", "coalesced_chunks", "unresolved_chunks", "connections_prewarmed",
        "connections_opened", "stale_retries", "gc_collections", "voluntary_switches", "involuntary_switches",
        "unstamped_reads", "distrusted_stamps", "moved_stamps", "clock_steps",
    }  # fmt: skip
    assert {getattr(both, name) for name in numbers - summed} == {3}
    words = [SelfCheck(event_loop=loop, cpu_share=None) for loop in ("uvloop", "", "asyncio", "uvloop")]
    assert SelfCheck.together(words).event_loop == "uvloop; asyncio"
    assert SelfCheck.together(words).cpu_share is None
