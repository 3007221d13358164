"""Figures of sessions, of records whose instants are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.definitions import definition, is_metric
from pytest_llmbench.metrics.kv_cache import ttft_reductions
from pytest_llmbench.metrics.session_figures import (
    hit_rate,
    job_metrics,
    jobs_of,
    latencies,
    session_goodput,
    turn_metrics,
    unsent_turns,
)
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import TurnClass

S = 1_000_000_000
MS = 1_000_000


def turn(
    session: int,
    number: int,
    due_s: float,
    end_s: float,
    *,
    turns: int,
    late_s: float = 0.0,
    ttft_ms: float = 100.0,
    ok: bool = True,
    cached: int | None = 30,
) -> RequestRecord:
    submitted = round((due_s + late_s) * S)
    first = submitted + round(ttft_ms * MS)
    return RequestRecord(
        index=100 * session + number,
        request_id=f"{session}-{number}",
        phase=Phase.MEASURE,
        scheduled_ns=round(due_s * S),
        dispatched_ns=submitted,
        submitted_ns=submitted,
        first_content_ns=first if ok else None,
        chunk_ns=(first, round(end_s * S)) if ok else (),
        chunk_tokens=(1, 1) if ok else (),
        last_content_ns=round(end_s * S) if ok else None,
        finished_ns=round(end_s * S),
        input_tokens=100 * number,
        output_tokens=2,
        cached_tokens=cached,
        shared_prefix_tokens=100 * (number - 1),
        outcome=Outcome.OK if ok else Outcome.HTTP_ERROR,
        session=session,
        turn=number,
        session_turns=turns,
    )


def records(*rows: RequestRecord) -> Records:
    return Records.from_rows(rows)


@pytest.mark.parametrize(
    ("turns", "parts"),
    [
        pytest.param(
            [(1.0, 2.0, 0.0), (5.0, 6.5, 0.25), (7.0, 9.0, 0.5)],
            (8.0, 0.75, 3.5, 1.0 + 1.25 + 1.5),
            id="in a row",
        ),
        # Turn 3 is due and sent while turn 2 is in flight; turn 4 joins both.
        pytest.param(
            [(0.0, 1.0, 0.5), (1.0, 4.0, 0.0), (2.0, 3.0, 0.5), (6.0, 7.0, 0.0)],
            (7.0, 0.5, 2.0, 0.5 + 3.0 + 1.0),
            id="side by side, which count once",
        ),
    ],
)
def test_the_parts_of_a_job(
    turns: list[tuple[float, float, float]], parts: tuple[float, float, float, float]
) -> None:
    """Turns: due, ended, sent late; parts: of time, wait, pause and LLM."""
    count = len(turns)
    rows = [turn(0, n, *of, turns=count, late_s=late) for n, (*of, late) in enumerate(turns, start=1)]
    jobs = jobs_of(records(*rows))
    assert jobs.complete.tolist() == [True]
    found = jobs.time_s, jobs.wait_s, jobs.pause_s, jobs.llm_s
    assert [part.tolist() for part in found] == [[part] for part in parts]


def test_the_parts_add_up_whatever_the_turns_are() -> None:
    generator = np.random.default_rng(1)
    rows = []
    for session in range(200):
        turns = int(generator.integers(1, 6))
        for number in range(1, turns + 1):
            due = float(generator.uniform(0, 50)) + session
            rows.append(
                turn(
                    session,
                    number,
                    due,
                    due + 1 + generator.uniform(0, 9),
                    turns=turns,
                    late_s=generator.uniform(),
                )
            )
    jobs = jobs_of(records(*rows))
    np.testing.assert_allclose(jobs.time_s, jobs.llm_s + jobs.wait_s + jobs.pause_s)
    for part in (jobs.llm_s, jobs.wait_s, jobs.pause_s):
        assert (part >= 0).all()
    for row in range(200):
        own = [each for each in rows if each.session == jobs.session[row]]
        first = min(each.scheduled_ns or 0 for each in own)
        assert jobs.time_s[row] == pytest.approx((max(each.finished_ns or 0 for each in own) - first) / S)


def test_a_session_that_was_cut_off_has_no_job_time_and_is_not_good() -> None:
    run = records(
        turn(0, 1, 0.0, 1.0, turns=2),
        turn(0, 2, 2.0, 3.0, turns=2),
        turn(1, 1, 0.5, 1.5, turns=4),
        turn(1, 2, 2.5, 3.5, turns=4, ok=False),
        turn(2, 1, 0.7, 1.0, turns=1, ttft_ms=150.0),
    )
    jobs = jobs_of(run, (("ttft", 120.0),))
    assert jobs.session.tolist() == [0, 1, 2]
    assert jobs.complete.tolist() == [True, False, True]
    assert (jobs.cut_off, jobs.unsent, unsent_turns(run)) == (1, 2, 2)
    metrics = job_metrics([jobs])
    assert metrics["job_time.p50"].n == 2
    assert metrics["job_time.max"].point == 3.0
    assert metrics["job_time.max"].unit == "s"
    assert metrics["session_completion_rate"].point == pytest.approx(2 / 3)
    assert session_goodput([jobs], None).point == pytest.approx(1 / 3)
    assert session_goodput([jobs_of(run)], None).point == pytest.approx(2 / 3)
    assert session_goodput([jobs_of(run)], 1.0).point == pytest.approx(1 / 3)


def test_turns_that_lack_without_a_failure_are_not_excused() -> None:
    assert unsent_turns(records(turn(0, 1, 0.0, 1.0, turns=3))) == 0


def test_no_sessions_have_no_figures() -> None:
    jobs = jobs_of(records())
    assert len(jobs) == 0
    metrics = job_metrics([jobs]) | turn_metrics([records()], [TurnClass(1)], seed=1)
    metrics["session_goodput"] = session_goodput([jobs], 3.0)
    assert [name for name, estimate in metrics.items() if estimate.point is not None] == []


def chats(latencies_ms: Sequence[Sequence[float]]) -> Records:
    return records(
        *(
            turn(
                session,
                number,
                10.0 * session + number,
                10.0 * session + number + 0.9,
                turns=len(own),
                ttft_ms=ms,
            )
            for session, own in enumerate(latencies_ms)
            for number, ms in enumerate(own, start=1)
        )
    )


def test_figures_by_number_of_the_turn() -> None:
    run = chats([[100.0, 10.0, 20.0], [200.0, 30.0], [300.0]])
    classes = [TurnClass.parse(key) for key in (1, "2+", 3)]
    metrics = turn_metrics([run], classes, seed=1)
    assert [metrics[f"turn_ttft[{each}].max"].point for each in ("1", "2+", "3")] == [300.0, 30.0, 20.0]
    assert [metrics[f"turn_ttft[{each}].p50"].point for each in ("1", "2+", "3")] == [200.0, 20.0, 20.0]
    assert metrics["turn_ttft[2+].mean"].point == pytest.approx(20.0)
    assert metrics["ttft.min"].point == 10.0
    assert metrics["ttft.p50"].n == 6
    # Turn n has 100 n input tokens, of which it may have had 100 (n - 1) before and found 30.
    assert metrics["turn_cached_share[1]"].point == pytest.approx(0.3)
    assert metrics["turn_cacheable_share[1]"].point == 0.0
    assert metrics["turn_cached_share[2+]"].point == pytest.approx(90 / 700)
    assert metrics["turn_cacheable_share[2+]"].point == pytest.approx(400 / 700)
    # First turns have nothing to find; later ones have 100, 200 and 100 tokens, and found 30 each.
    assert metrics["turn_cache_hit_rate[1]"].point is None
    assert metrics["turn_cache_hit_rate[1]"].method == "no turns that share a prefix"
    assert metrics["turn_cache_hit_rate[2+]"].point == pytest.approx(90 / 400)
    assert set(metrics) <= {name for name in metrics if is_metric(name)}


def test_a_hit_is_at_most_what_could_be_cached() -> None:
    run = records(turn(0, 1, 0.0, 1.0, turns=2), turn(0, 2, 2.0, 3.0, turns=2, cached=180))
    assert hit_rate([run], seed=1).point == 1.0


def test_reductions_of_ttft_by_turn() -> None:
    without, with_cache = (
        chats([[ms, factor * 40.0 + ms / 10, factor * 80.0 + ms / 10] for ms in range(100, 160)])
        for factor in (1.0, 0.25)
    )
    found = ttft_reductions(without, with_cache, [TurnClass(1), TurnClass(2, onwards=True), TurnClass(3)])
    assert found["turn_ttft_reduction[1].p50"].point == pytest.approx(0.0)
    assert found["turn_ttft_reduction[3].p50"].point == pytest.approx(1 - 32.95 / 92.95)
    several = found["turn_ttft_reduction[2+].p50"]
    assert "whole sessions" in several.method
    assert several.lower is not None
    assert several.upper is not None
    assert several.lower < 1 - 27.95 / 72.95 < several.upper
    assert found["ttft_reduction.p50"].unit == "ratio"
    assert not ttft_reductions(without, records(), [])["ttft_reduction.p50"].defined


def test_a_server_that_tells_no_cached_tokens_has_no_cached_share() -> None:
    run = records(turn(0, 1, 0.0, 1.0, turns=2), turn(0, 2, 2.0, 3.0, turns=2, cached=None))
    metrics = turn_metrics([run], [TurnClass(1), TurnClass(2, onwards=True)], seed=1)
    assert metrics["turn_cached_share[1]"].point == pytest.approx(0.3)
    assert metrics["turn_cached_share[2+]"].point is None
    assert metrics["turn_cached_share[2+]"].method.startswith("1 of 1 turns have no count")


def test_one_turn_a_session_is_an_ordinary_sample() -> None:
    ms = np.random.default_rng(3).exponential(50.0, 200).round(3)
    run = chats([[value] for value in ms])
    assert latencies([run], "ttft", None) == distribution("ttft", [run_ttft(run)])


def run_ttft(run: Records) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray((run.first_content_ns - run.submitted_ns) / 1e6)


def test_turns_that_are_alike_are_worth_as_many_samples_as_there_are_sessions() -> None:
    generator = np.random.default_rng(5)
    levels = generator.lognormal(4.0, 0.8, 150)
    alike = latencies([chats([[level] * 8 for level in levels.round(6)])], "ttft", None)["ttft.p90"]
    mixed = generator.lognormal(4.0, 0.8, (150, 8)).round(6)
    independent = latencies([chats(mixed.tolist())], "ttft", None)["ttft.p90"]
    alone = latencies([chats([[level] for level in levels.round(6)])], "ttft", None)["ttft.p90"]
    widths = {}
    for name, each in (("alike", alike), ("independent", independent), ("alone", alone)):
        assert each.point is not None
        assert each.lower is not None
        assert each.upper is not None
        widths[name] = np.log(each.upper / each.lower)
    assert widths["alike"] > 1.5 * widths["independent"]
    assert widths["alike"] == pytest.approx(widths["alone"], rel=0.5)
    assert "whole sessions" in alike.method


@pytest.mark.parametrize("key", [0, -1, "x", "2-", "1.5", True, "", "02", "+"])
def test_what_is_no_number_of_a_turn_is_refused(key: int | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        TurnClass.parse(key)


def test_metrics_by_turn_need_the_number_of_a_turn() -> None:
    assert is_metric("turn_ttft[2+].p95")
    assert is_metric("turn_cached_share[3]")
    assert is_metric("job_time.p95")
    for name in ("turn_ttft.p95", "turn_ttft[0].p95", "turn_ttft[2-4].p95", "turn_cached_share", "job_time"):
        assert not is_metric(name)
    with pytest.raises(SuiteError, match=r"turn_ttft\[1\]"):
        definition("turn_ttft.p95")


@pytest.mark.slow
def test_intervals_of_turns_hold_the_truth_as_often_as_they_say() -> None:
    """Sessions have a level of their own, so their turns are alike; the truth is that of all sessions."""
    truth = _quantile_of_all()
    for q, name in ((50, "p50"), (95, "p95")):
        held = closed = plain = 0
        for seed in range(300):
            drawn = _sessions(np.random.default_rng(seed), 250)
            estimate = latencies([chats(drawn)], "ttft", None)[f"ttft.{name}"]
            every = [np.concatenate([np.asarray(own) for own in drawn])]
            naive = distribution("ttft", every)[f"ttft.{name}"]
            if estimate.lower is None or estimate.upper is None:
                continue
            closed += 1
            held += estimate.lower <= truth[q] <= estimate.upper
            plain += (naive.lower or 0) <= truth[q] <= (naive.upper or np.inf)
        assert closed >= 290, (name, closed)
        assert held / closed >= 0.92, (name, held, closed, plain)


def _sessions(generator: np.random.Generator, count: int) -> list[list[float]]:
    turns = np.minimum(1 + generator.geometric(0.2, count), 20)
    levels = generator.normal(0.0, 0.7, count)
    return [
        np.exp(4.0 + level + generator.normal(0.0, 0.3, n)).round(6).tolist()
        for level, n in zip(levels, turns, strict=True)
    ]


def _quantile_of_all() -> dict[int, float]:
    """Lengths and levels are independent, so a turn taken at random is log-normal."""
    sigma = float(np.hypot(0.7, 0.3))
    return {50: float(np.exp(4.0)), 95: float(np.exp(4.0 + 1.6448536 * sigma))}
