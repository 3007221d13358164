"""The time until a limit holds again: of known answers, of runs that do not recover, and of a crash."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replayed_sut import ReplayedSUT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.recovery import figures
from pytest_llmbench.extras.recovery.figures import Recovery, recovery, time_to_recovery
from pytest_llmbench.extras.recovery.procedure import TEST, Parameters
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.model.estimate import EstimateKind, Reason
from pytest_llmbench.model.facts import Facts, LoadFact, Origin
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import spike
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

P90 = Objective("ttft.p90", "<=", 100.0, "ms")
SAME = SyntheticWorkload("same", Fixed(256), Fixed(16))
EVEN = 1e6


def records(waits_ms: list[float | None], every_s: float = 0.1) -> Records:
    """Requests at equal distances, each with its TTFT; None: it failed."""
    rows = []
    for index, wait in enumerate(waits_ms):
        due_ns = round(index * every_s * 1e9)
        first = {} if wait is None else {
            "first_content_ns": due_ns + round(wait * 1e6), "last_content_ns": due_ns + round(wait * 1e6)
        }  # fmt: skip
        rows.append(
            RequestRecord(
                index,
                f"r{index}",
                Phase.MEASURE,
                scheduled_ns=due_ns,
                submitted_ns=due_ns,
                finished_ns=due_ns + 10**8,
                outcome=Outcome.OK if wait is not None else Outcome.HTTP_ERROR,
                **first,
            )
        )
    return Records.from_rows(rows)


def found(waits_ms: list[float | None], from_s: float | None = 2.0, window_s: float = 1.0) -> Recovery:
    end_s = len(waits_ms) * 0.1
    return recovery(records(waits_ms), 0, [P90], window_s=window_s, from_s=from_s, end_s=end_s)


def test_it_ends_with_the_last_window_that_does_not_hold() -> None:
    """Slow from 2 s to 5 s: a window of ten requests may have one slow one, so the last that fails has two,
    those of 4.8 s and 4.9 s, and begins at the first of them."""
    told = found([10.0] * 20 + [500.0] * 30 + [10.0] * 50)
    assert told.recovered
    assert told.time_s == pytest.approx(2.8)


@pytest.mark.parametrize("slow", [500.0, None])
def test_a_single_slow_answer_later_is_no_relapse_and_two_are(slow: float | None) -> None:
    waits: list[float | None] = [10.0] * 20 + [500.0] * 10 + [10.0] * 70
    waits[80] = slow
    assert found(waits).time_s == pytest.approx(0.8)
    waits[81] = slow
    assert found(waits).time_s == pytest.approx(6.0)


def test_what_never_broke_recovered_at_once_and_has_no_first_break() -> None:
    assert found([10.0] * 100) == Recovery(2.0, 2.0, recovered=True)
    assert found([10.0] * 100, from_s=None).time_s is None
    undefined = time_to_recovery([Recovery(None, 0.0, recovered=True)], 1.0)
    assert undefined.point is None
    assert undefined.reason is Reason.NO_SAMPLES


def test_without_a_stage_it_begins_with_the_first_request_beyond_the_limit() -> None:
    told = found([10.0] * 40 + [None] * 20 + [10.0] * 40, from_s=None)
    assert told.begun_s == pytest.approx(4.0)
    assert told.time_s == pytest.approx(1.8)


@pytest.mark.parametrize("waits", [[10.0] * 20 + [500.0] * 80, [10.0] * 20 + [None] * 80])
def test_what_does_not_recover_is_a_lower_bound(waits: list[float | None]) -> None:
    told = found(waits)
    assert not told.recovered
    assert told.time_s == pytest.approx(7.0)
    bound = time_to_recovery([told], 1.0)
    assert (bound.kind, bound.lower, bound.upper) == (EstimateKind.BOUND, pytest.approx(7.0), None)
    limit = Objective(figures.TIME.name, "<=", 5.0, "s")
    assert limit.decided(bound.lower, bound.upper) is False
    assert replace(limit, limit=9.0).decided(bound.lower, bound.upper) is None


def test_a_pause_in_which_nothing_is_due_does_not_hold() -> None:
    slow = records([10.0] * 100)
    due_s = slow.scheduled_ns / 1e9
    gone = slow.select((due_s < 4.0) | (due_s >= 7.0))
    assert recovery(gone, 0, [P90], window_s=1.0, from_s=2.0, end_s=10.0).time_s == pytest.approx(
        3.9, abs=0.11
    )


def test_runs_have_an_interval() -> None:
    runs = [Recovery(10.0, 10.0 + time_s, recovered=True) for time_s in (18.0, 20.0, 22.0)]
    made = time_to_recovery(runs, 5.0)
    assert made.kind is EstimateKind.RUNS
    logs = np.log([23.0, 25.0, 27.0])
    half = 4.302653 * logs.std(ddof=1) / 3**0.5
    assert made.point == pytest.approx(np.exp(logs.mean()) - 5)
    assert made.upper == pytest.approx(np.exp(logs.mean() + half) - 5, rel=1e-5)
    alone = time_to_recovery(runs[:1], 5.0)
    assert (alone.point, alone.lower, alone.upper) == (
        18,
        pytest.approx(23 / 1.5 - 5),
        pytest.approx(23 * 1.5 - 5),
    )
    lost = time_to_recovery([*runs[:2], Recovery(10.0, 40.0, recovered=False)], 5.0)
    assert (lost.kind, lost.upper, lost.reason) == (EstimateKind.BOUND, None, Reason.NOT_REACHED)


def test_a_queue_of_one_server_drains_when_the_closed_form_says() -> None:
    """One at a time: work grows by λs - 1 a second in the spike, and shrinks by 1 - λs after it."""
    shape = spike(4, 30, before_s=4, for_s=4, after_s=24)
    result = ReplayedSUT("fast?max_num_seqs=1&step_base_us=4800").measure(
        TEST, arrival=shape, burstiness=EVEN, workload=SAME, holds=[Objective("ttft.p50", "<=", 500.0, "ms")],
        window_s=1.0,
    )  # fmt: skip
    (run,) = result.observations
    served = run.records
    busy = (served.submitted_ns - run.started_ns > 5e9) & (served.submitted_ns - run.started_ns < 8e9)
    serving_s = float(np.median(np.diff(np.sort(served.finished_ns[busy])))) / 1e9
    alone_s = float(np.min(served.first_content_ns - served.submitted_ns)) / 1e9
    assert 30 * serving_s > 1.5 > 0.7 > 4 * serving_s
    holds_at_s = ((30 * serving_s - 1) * 4 + alone_s - 0.5) / (1 - 4 * serving_s)
    expected = holds_at_s - 0.5  # half of the last window that fails may hold already
    assert result.metrics["time_to_recovery"].point == pytest.approx(expected, abs=2 / 4)
    assert [plot.marks.get("holds again") is not None for plot in result.plots[:3]] == [True, True, True]
    assert result.tables[0].rows[0][0] == "run 1"


@pytest.mark.parametrize(("scenario", "least"), [("", 2.5), ("&replicas=2", 0.0)])
def test_a_crash_takes_as_long_as_the_engine_and_another_replica_takes_over(
    scenario: str, least: float
) -> None:
    crash = f"fast?fault=crash&fault_from=60&fault_count=1&recovery_ms=3000{scenario}"
    result = ReplayedSUT(crash).measure(
        TEST, rate=20, burstiness=EVEN, arrival="gamma", prompts=200, workload=SAME, holds=[P90],
        window_s=1.0, max_recovery_s=10,
    )  # fmt: skip
    time = result.metrics["time_to_recovery"]
    failed = int(result.observations[0].records.failed.sum())
    assert failed > 0
    if least:
        assert time.point == pytest.approx(3.0, abs=0.4)
        assert failed == pytest.approx(60, abs=5)
    else:
        assert failed < 5
        assert time.point is None or time.point < 0.5
    assert not [finding.id for finding in result.findings if finding.voids and not finding.ok]


def test_a_restart_may_take_longer_than_other_loads_wait_for_an_answer() -> None:
    crash = "fast?fault=crash&fault_from=60&fault_count=1&recovery_ms=45000"
    result = ReplayedSUT(crash).measure(
        TEST, rate=20, burstiness=EVEN, arrival="gamma", prompts=1200, workload=SAME, holds=[P90],
        window_s=1.0, runs=1,
    )  # fmt: skip
    assert result.observations[0].interrupted is None
    assert result.metrics["time_to_recovery"].point == pytest.approx(45.0, abs=0.4)


def test_the_time_begins_with_the_event_and_without_one_there_is_none() -> None:
    asked = {"rate": 20, "prompts": 200, "workload": SAME, "window_s": 2.0, "event": "true", "event_at_s": 4}
    crash = "fast?fault=crash&fault_from=80&fault_count=1&recovery_ms=3000"
    happened = Facts.of(Origin.MEASURED, {LoadFact.EVENT_AT_S: 3.5})
    sut = ReplayedSUT(crash, change=lambda seen: replace(seen, facts=seen.facts | happened))
    result = sut.measure(TEST, **asked)
    assert [plan.event for plan in sut.plans if plan.phase is Phase.MEASURE] == ["true"]
    assert not [plan for plan in sut.plans if plan.event and plan.phase is not Phase.MEASURE]
    assert result.metrics["time_to_recovery"].point == pytest.approx(3.5, abs=1)
    virtual = ReplayedSUT(crash).measure(TEST, **asked)
    assert virtual.metrics["time_to_recovery"].point is None
    assert "no_event" in [note.id for note in virtual.notes]


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({}, "give rate or arrival"),
        ({"rate": 5, "holds": [Objective("ttft.mean", "<=", 5.0, "ms")]}, "a ceiling of a percentile"),
        ({"rate": 5, "holds": [Objective("ttft.p95", ">=", 5.0, "ms")]}, "a ceiling of a percentile"),
        (
            {"rate": 5, "holds": [Objective("completion_rate", ">=", 0.5, "ratio")]},
            "a ceiling of a percentile",
        ),
        ({"rate": 5, "after": "spike"}, "the stages of arrival are none"),
        ({"arrival": spike(2, 9, before_s=9, for_s=9, after_s=60), "after": "x"}, "are before, spike, after"),
        (
            {"arrival": spike(9, 20, before_s=9, for_s=9, after_s=60), "after": "spike", "event": "x"},
            "give one",
        ),
        ({"rate": 1}, "window_s=10 has 10 requests at 1 req/s, and holds needs 40"),
        ({"arrival": spike(9, 20, before_s=9, for_s=9, after_s=12)}, "two windows, 20 s, are the least"),
        ({"arrival": spike(9, 20, before_s=9, for_s=9, after_s=60), "prompts": 9}, "leave out their end"),
    ],
)
def test_what_shows_no_recovery_is_refused(keywords: dict, told: str) -> None:
    with pytest.raises(SuiteError) as error:
        build(Parameters, keywords)
    assert told in str(error.value)
