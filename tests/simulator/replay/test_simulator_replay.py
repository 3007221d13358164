"""The engine in virtual time: the same bytes for the same seed, figures that can be worked out by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from replayed import fixed, replayed
from three_attempts import three_attempts

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.metrics.uncertainty import is_exact
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.model.observation import ACCEPTED_AT, INTERRUPTED_BY_CTRL_C, Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.registry import names
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.replay.load import Delays
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

US = 1000
THERE, BACK = 25 * US, 25 * US

SEVERAL = pytest.mark.skipif(not names("deployments"), reason="the extra of several engines is left out")


def plan(
    load: OpenLoop | ClosedLoop, requests: int, workload: Workload = SYNTHETIC_UNIFORM, **changes: object
) -> LoadPlan:
    return LoadPlan("replay", workload, load, requests, seed=7).with_(**changes)


def as_bytes(records: Records) -> list[bytes]:
    values = [getattr(records, column.name) for column in fields(records)]
    return [v.tobytes() if isinstance(v, np.ndarray) else repr(list(v)).encode() for v in values]


def test_nothing_is_left_for_the_collector_of_garbage() -> None:
    for scenario in ("fast", "fast?fault=reset,http_error&fault_rate=0.2&output_filter=enabled"):
        engine = ReplayEngine(parse_scenario(scenario))
        gc.collect()
        before = sum(each["collections"] for each in gc.get_stats())
        seen = engine.run(plan(OpenLoop(60), 1500))
        after = sum(each["collections"] for each in gc.get_stats())
        assert after - before <= 2  # just before it and just after it; dozens otherwise
        assert gc.isenabled()
        assert gc.collect() < len(seen.records) // 100


def test_the_collector_stays_as_it_was() -> None:
    engine = ReplayEngine(parse_scenario("fast"))
    gc.disable()
    try:
        engine.run(plan(OpenLoop(60), 10))
        assert not gc.isenabled()
    finally:
        gc.enable()


# Determinism.


@pytest.mark.parametrize(
    "load",
    [OpenLoop(60), OpenLoop(60, "gamma", 0.25), OpenLoop(60, "uniform"), ClosedLoop(12)],
    ids=lambda load: load.describe(),
)
def test_the_same_seed_gives_the_same_bytes(load: OpenLoop | ClosedLoop) -> None:
    plans = [plan(ClosedLoop(4), 20, phase=Phase.WARMUP), plan(load, 200)]
    once, again = (replayed("fast?eos_mean_tokens=40&seed=3", *plans) for _ in range(2))
    for first, second in zip(once, again, strict=True):
        assert as_bytes(first.records) == as_bytes(second.records)
        assert (first.started_ns, first.ended_ns) == (second.started_ns, second.ended_ns)
        assert first.selfcheck == second.selfcheck
        assert first.sequence_sha256 == second.sequence_sha256
    other = replayed("fast?eos_mean_tokens=40&seed=4", *plans)[1]
    assert not np.array_equal(other.records.output_tokens, once[1].records.output_tokens)


def test_plans_follow_one_another_on_one_clock() -> None:
    engine = ReplayEngine(parse_scenario("fast").engine)
    before_ns = engine.clock.monotonic_ns()
    first, second = (engine.run(plan(ClosedLoop(2), 6, first=first)) for first in (0, 6))
    assert before_ns < first.started_ns
    assert first.ended_ns < second.started_ns
    assert second.records.index.tolist() == [6, 7, 8, 9, 10, 11]
    assert not set(first.records.request_id) & set(second.records.request_id)


def test_a_plan_takes_up_the_schedule_where_the_one_before_it_ended() -> None:
    load = OpenLoop(50)
    whole = replayed("fast", plan(load, 40))[0].records.scheduled_ns
    rest = replayed("fast", plan(load, 15, first=25))[0]
    assert np.array_equal(np.diff(rest.records.scheduled_ns), np.diff(whole)[25:])
    assert rest.records.scheduled_ns[0] - rest.started_ns == whole[25] - whole[24]


# Known answers.


def test_one_request_takes_what_the_formula_says() -> None:
    engine = parse_scenario("fast").engine
    (seen,) = replayed("fast", plan(ClosedLoop(1), 1, fixed(300, 5)))
    records = seen.records
    prefill_ns = engine.step_ns(300, 0, 0)
    decode_ns = [engine.step_ns(0, 1, 300 + given) for given in (1, 2, 3, 4)]
    assert prefill_ns == round((1200 + 10 * 300) * US)
    assert records.first_content_ns[0] - records.submitted_ns[0] == THERE + prefill_ns + BACK
    assert np.diff(records.chunk_ns).tolist() == decode_ns
    assert records.finished_ns[0] == records.last_content_ns[0] == records.chunk_ns[-1]
    assert records.first_byte_ns[0] == records.submitted_ns[0] + THERE + BACK
    assert (records.input_tokens[0], records.output_tokens[0]) == (300, 5)
    assert records.finish_reason[0] == "length"


def test_delays_are_what_they_are_said_to_be() -> None:
    work = plan(ClosedLoop(1), 1, fixed(64, 2))
    (near,) = replayed("fast", work)
    far_away = ReplayEngine(parse_scenario("fast").engine, delays=Delays(2000.0, 3000.0))
    far = far_away.run(work)
    ttft_near, ttft_far = (
        int((run.records.first_content_ns - run.records.submitted_ns)[0]) for run in (near, far)
    )
    assert ttft_far - ttft_near == (2000 + 3000 - 50) * US
    facts = far_away.disclosure()
    assert facts.value("replay.submit_to_received_us") == 2000.0
    assert facts["replay.write_to_read_us"].origin is Origin.SIMULATED
    with pytest.raises(SuiteError, match="submit_to_received_us is -1"):
        Delays(submit_to_received_us=-1)


def test_a_request_that_comes_in_mid_step_joins_the_next() -> None:
    engine = parse_scenario("fast").engine
    (seen,) = replayed("fast", plan(OpenLoop(2000, "uniform"), 2, fixed(300, 1)))
    records = seen.records
    assert records.submitted_ns[1] - records.submitted_ns[0] == 500 * US
    first_read_ns = records.submitted_ns[0] + THERE + engine.step_ns(300, 0, 0) + BACK
    assert records.first_content_ns.tolist() == [first_read_ns, first_read_ns + engine.step_ns(300, 0, 0)]


def test_nobody_is_late_in_virtual_time() -> None:
    (seen,) = replayed("fast", plan(OpenLoop(100), 50))
    assert np.array_equal(seen.records.scheduled_ns, seen.records.dispatched_ns)
    check = seen.selfcheck
    assert (check.send_lag_p99_ns, check.send_lag_max_ns, check.coalesced_chunks) == (0, 0, 0)
    assert check.clock == "virtual"
    assert check.loop_lag_p99_ns is None
    assert is_exact(seen)
    (closed,) = replayed("fast", plan(ClosedLoop(8), 50))
    assert (closed.selfcheck.empty_slot_share, closed.selfcheck.unresolved_chunks) == (None, 0)
    assert is_exact(closed)
    assert check.cpu_share is None
    assert {fact.origin for fact in seen.facts.values()} == {Origin.SIMULATED}


# Load.


def test_the_closed_loop_keeps_its_number_in_flight() -> None:
    (seen,) = replayed("fast", plan(ClosedLoop(5), 60))
    records = seen.records
    assert seen.selfcheck.peak_in_flight == 5
    assert records.submitted_ns[:5].tolist() == [seen.started_ns] * 5
    # Every later request leaves at the instant at which an earlier one ended.
    ends = np.sort(records.finished_ns)[: len(records) - 5]
    assert np.array_equal(records.submitted_ns[5:], ends)


def test_throughput_saturates_and_latency_has_a_knee() -> None:
    limit = "fast?max_num_seqs=8"
    levels = (1, 2, 4, 8, 16, 32)
    runs = [replayed(limit, plan(ClosedLoop(level), 150, fixed(100, 40)))[0] for level in levels]
    throughput = [len(run.records.chunk_ns) / run.duration_s for run in runs]
    ttft_ms = [
        float(np.median(run.records.first_content_ns - run.records.submitted_ns)) / 1e6 for run in runs
    ]
    assert throughput[0] < throughput[1] < throughput[2] < throughput[3]
    assert throughput[5] == pytest.approx(throughput[3], rel=0.1)
    assert ttft_ms[3] < 15
    assert ttft_ms[4] > 3 * ttft_ms[3]
    assert ttft_ms[5] > 2 * ttft_ms[4]


def test_an_overloaded_open_loop_runs_into_the_silence_deadline() -> None:
    deadlines = Deadlines(between_chunks_s=1.0)
    work = plan(OpenLoop(40), 400, fixed(200, 100), deadlines=deadlines)
    (seen,) = replayed("fast?max_num_seqs=2", work)
    counts = seen.records.counts()
    assert counts["ok"] + counts["timeout"] == 400
    assert counts["timeout"] > 100
    late = seen.records.has_outcome(Outcome.TIMEOUT)
    waited_ns = (seen.records.finished_ns - seen.records.submitted_ns)[late]
    assert set(waited_ns.tolist()) == {1_000_000_000 + THERE + BACK}
    assert "between-chunks deadline" in str(seen.records.error[int(np.flatnonzero(late)[0])])
    assert (np.diff(seen.records.chunk_offsets)[late] == 0).all()


def test_a_long_reply_runs_into_the_total_deadline_and_keeps_its_chunks() -> None:
    work = plan(ClosedLoop(1), 3, fixed(10, 500), deadlines=Deadlines(total_s=0.1))
    (seen,) = replayed("fast", work)
    assert seen.records.counts()["timeout"] == 3
    assert (seen.records.finished_ns - seen.records.submitted_ns).tolist() == [100_000_000] * 3
    chunks = np.diff(seen.records.chunk_offsets)
    assert ((chunks > 70) & (chunks < 90)).all()
    assert (seen.records.last_content_ns <= seen.records.finished_ns).all()


def test_what_the_drain_cuts_off_is_cancelled() -> None:
    work = plan(OpenLoop(1000), 50, fixed(10, 500), deadlines=Deadlines(drain_s=0.2))
    engine = ReplayEngine(parse_scenario("fast").engine)
    seen = engine.run(work)
    assert seen.in_flight_at_end == 50
    assert seen.records.counts()["cancelled"] == 50
    after = engine.run(plan(ClosedLoop(1), 1, fixed(10, 5)))
    assert after.records.counts()["ok"] == 1, "the cut-off requests hold no place any more"


def test_a_prompt_that_does_not_fit_is_refused_as_a_server_would() -> None:
    (seen,) = replayed("fast?context_limit_tokens=100", plan(ClosedLoop(2), 4, fixed(90, 20)))
    assert seen.records.counts()["http_error"] == 4
    assert set(seen.records.http_status.tolist()) == {400}
    assert "maximum context length is 100" in str(seen.records.error[0])
    assert len(seen.records.chunk_ns) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (plan(ClosedLoop(0), 1), "concurrency is 0"),
        (plan(ClosedLoop(1), 1, first=-1), "from number -1 on"),
        (plan(OpenLoop(0.0), 1), "rate"),
    ],
)
def test_plans_that_cannot_be_run(wrong: LoadPlan, said: str) -> None:
    with pytest.raises(SuiteError, match=said):
        ReplayEngine(parse_scenario("fast").engine).run(wrong)


@dataclass(eq=True)
class Interrupted(StreamedWorkload):
    """Requests of which twenty can be taken: then somebody presses Ctrl-C. Not hashable, so that its stream
    reaches the engine itself and not a copy."""

    name: str = "interrupted"

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        yield from fixed(50, 40).requests(21, seed)  # one is drawn ahead
        raise KeyboardInterrupt

    def specification(self) -> Mapping[str, Any]:
        return {}


def test_ctrl_c_keeps_what_was_measured() -> None:
    engine = ReplayEngine(parse_scenario("fast").engine)
    seen = engine.run(plan(ClosedLoop(4), 50, Interrupted()))
    assert seen.interrupted == INTERRUPTED_BY_CTRL_C
    counts = seen.records.counts()
    assert counts["ok"] >= 16
    assert counts["ok"] + counts["cancelled"] == 20
    assert engine.run(plan(ClosedLoop(4), 5)).records.counts()["ok"] == 5


def test_a_plan_without_requests_is_over_at_once() -> None:
    (seen,) = replayed("fast", plan(OpenLoop(10), 0))
    assert len(seen.records) == 0
    assert seen.started_ns == seen.ended_ns


# Rows.


def test_rows_say_the_same_as_the_columns() -> None:
    rows: list[RequestRecord] = []
    engine = ReplayEngine(parse_scenario("fast?eos_mean_tokens=30").engine)
    seen = engine.run(plan(OpenLoop(80), 60, deadlines=Deadlines(total_s=0.05)), rows.append)
    assert {row.outcome for row in rows} == {Outcome.OK, Outcome.TIMEOUT}
    assert as_bytes(Records.from_rows(rows)) == as_bytes(seen.records)
    ends = [row.finished_ns for row in rows]
    assert ends == sorted(ends)


# The two faces.


@pytest.mark.timing
@three_attempts
def test_the_two_faces_agree_at_low_load() -> None:
    preset = "fast?step_base_us=20000"
    work = plan(OpenLoop(20), 20, SyntheticWorkload("mixed", Uniform(64, 256), Uniform(10, 30)))
    (virtual,) = replayed(preset, work)
    with EmbeddedEngine.start(preset) as served:
        spoken = dialect("openai-completions")
        target = Target.parse(served.url)
        with LoadGenerator(target, spoken, model=served.model, prompt_form="token_ids") as generator:
            real = generator.run(work)
    for seen in (real, virtual):
        assert seen.records.counts()["ok"] == 20
    assert np.array_equal(real.records.input_tokens, virtual.records.input_tokens)
    assert np.array_equal(real.records.output_tokens, virtual.records.output_tokens)
    # The bounds, less than half a step, are for a busy machine; on a quiet one they differ by some tens of
    # microseconds.
    assert (_apart(_ttft_ms, real, virtual, 8.0), _apart(_itl_ms, real, virtual, 4.0)) == (0, 0)


def _apart(times_ms: Callable[[Records], np.ndarray], a: Observation, b: Observation, bound: float) -> float:
    """The most by which their lower quartiles and medians are farther apart than ``bound``, in ms."""
    quartiles = [np.percentile(times_ms(seen.records), (25, 50)) for seen in (a, b)]
    return float(np.maximum(np.abs(quartiles[0] - quartiles[1]) - bound, 0.0).max())


def _ttft_ms(records: Records) -> np.ndarray:
    return (records.first_content_ns - records.submitted_ns) / 1e6


def _itl_ms(records: Records) -> np.ndarray:
    gaps = np.diff(records.chunk_ns) / 1e6
    within = np.ones(len(gaps), dtype=bool)
    within[records.chunk_offsets[1:-1] - 1] = False
    return gaps[within]


# Scenarios.


def test_chunks_of_several_tokens() -> None:
    work = plan(ClosedLoop(2), 6, fixed(50, 10))
    (one,), (four,) = replayed("fast", work), replayed("fast?tokens_per_chunk=4", work)
    assert four.records.chunk_tokens[:4].tolist() == [1, 4, 4, 1]
    assert four.records.output_tokens.tolist() == [10] * 6
    assert np.array_equal(one.records.finished_ns, four.records.finished_ns)
    tokens = one.records.chunk_ns[:10]
    assert four.records.chunk_ns[:4].tolist() == tokens[[0, 4, 8, 9]].tolist()


def test_speculative_decoding_gives_what_was_accepted_together() -> None:
    off, on = (
        replayed(f"fast?speculative_tokens={k}&acceptance=0.5", plan(ClosedLoop(1), 5, fixed(50, 2000)))[0]
        for k in (0, 4)
    )
    records, readings = on.records, on.engine
    assert readings is not None
    assert records.output_tokens.tolist() == [2000] * 5
    sums = np.add.reduceat(records.chunk_tokens, records.chunk_offsets[:-1])
    assert sums.tolist() == [2000] * 5
    # 1 + the accepted of four guesses: the mean is (1 - a^5) / (1 - a).
    mean = (1 - 0.5**5) / 0.5
    assert records.chunk_tokens.mean() == pytest.approx(mean, rel=0.05)
    drafts, accepted = readings.grown("drafts"), readings.grown("accepted_draft_tokens")
    assert drafts is not None
    assert accepted is not None
    assert (len(records.chunk_ns) - 5, readings.grown("draft_tokens")) == (drafts, 4 * drafts)
    assert 1 + accepted / drafts == pytest.approx(mean, rel=0.03)
    by_place = readings.grown_by_label(ACCEPTED_AT)
    assert by_place is not None
    assert [by_place[str(n)] / drafts for n in range(4)] == pytest.approx([0.5, 0.25, 0.125, 0.0625], rel=0.1)
    assert records.accepted_draft_tokens.sum() == 5 * 1999 - drafts  # without what is beyond the ends
    assert records.draft_tokens.sum() == 4 * drafts
    configs = [parse_scenario(f"fast?speculative_tokens={k}").engine for k in (0, 4)]
    plain, guessing = (config.step_ns(0, 1, 1050) for config in configs)
    slower = guessing / plain
    assert slower > 1.15
    assert off.duration_s / on.duration_s == pytest.approx(mean / slower, rel=0.03)


@pytest.mark.parametrize(
    "options",
    [
        "preemption=recompute", "preemption=swap",
        pytest.param("prefill_workers=1&decode_workers=1", marks=SEVERAL),
        "think_mean_tokens=30&scheduler=phase&output_kv_share=0.3", "prefix_caching=on",
    ],
)  # fmt: skip
def test_speculative_decoding_leaves_no_block_behind(options: str) -> None:
    """Few blocks, so that sequences give way in the middle; the last drafts reach far over a block."""
    figures = "fast?speculative_tokens=40&acceptance=0.9&context_limit_tokens=512&kv_blocks=60"
    engine = ReplayEngine(parse_scenario(f"{figures}&{options}"))
    seen = engine.run(plan(ClosedLoop(8), 60, fixed(100, 120)))
    sums = np.add.reduceat(seen.records.chunk_tokens, seen.records.chunk_offsets[:-1])
    assert set(sums[seen.records.output_tokens > 0].tolist()) == {120}
    assert {own.kv_usage for own in engine._engines} == {0.0}
    assert {own._decoding_kv_tokens for own in engine._engines} == {0}


def test_thoughts_are_reasoning_and_not_content() -> None:
    (seen,) = replayed("fast?think_mean_tokens=20&think_spread=0", plan(ClosedLoop(1), 4, fixed(50, 60)))
    records = seen.records
    assert records.reasoning_tokens.tolist() == [20] * 4
    begins = records.chunk_offsets[:-1]
    assert np.array_equal(records.first_reasoning_ns, records.chunk_ns[begins])
    assert np.array_equal(records.first_content_ns, records.chunk_ns[begins + 20])
    assert np.array_equal(records.first_nonempty_ns, records.first_reasoning_ns)
    assert np.array_equal(records.thinking_end_ns, records.chunk_ns[begins + 19])
    assert np.array_equal(records.last_reasoning_ns, records.thinking_end_ns)
    assert records.thinking_end_reason == ["converged"] * 4


def test_preemptions_leave_gaps_and_lose_no_token() -> None:
    few_blocks = "fast?context_limit_tokens=512&kv_blocks=40"
    work = plan(ClosedLoop(8), 40, fixed(100, 120))
    (seen,) = replayed(few_blocks, work)
    (roomy,) = replayed("fast?context_limit_tokens=512", work)
    records = seen.records
    assert records.counts()["ok"] == 40
    assert records.output_tokens.tolist() == [120] * 40
    assert np.diff(records.chunk_offsets).tolist() == [120] * 40
    assert _itl_ms(records).min() > 0
    assert _itl_ms(records).max() > 5 * _itl_ms(roomy.records).max()


def test_the_output_filter_holds_windows_back_and_refuses() -> None:
    work = plan(ClosedLoop(1), 30, fixed(50, 128))
    windowed = "fast?output_filter=enabled&output_filter_window_tokens=64"
    (seen,) = replayed(windowed, work)
    assert all(len(set(row)) == 2 for row in seen.records.chunk_ns.reshape(30, 128).tolist())
    (strict,) = replayed(f"{windowed}&output_refusal_share=0.5", work)
    refused = strict.records.has_outcome(Outcome.REFUSED)
    assert 5 < refused.sum() < 25
    assert set(np.diff(strict.records.chunk_offsets)[refused].tolist()) == {0, 64}
    assert {strict.records.finish_reason[i] for i in np.flatnonzero(refused).tolist()} == {"content_filter"}


def test_the_input_filter_delays_and_refuses() -> None:
    work = plan(ClosedLoop(1), 40, fixed(50, 4))
    (plain,) = replayed("fast", work)
    filtered = "fast?input_filter=enabled&input_filter_us=3000&input_filter_us_per_token=0"
    (seen,) = replayed(filtered, work)
    assert _ttft_ms(seen.records)[0] - _ttft_ms(plain.records)[0] == pytest.approx(3.0)
    (strict,) = replayed(f"{filtered}&input_refusal_share=0.5", work)
    counts = strict.records.counts()
    assert counts["refused"] + counts["ok"] == 40
    assert counts["refused"] > 5


def test_a_full_queue_turns_requests_away() -> None:
    (seen,) = replayed("fast?max_num_seqs=1&max_waiting=2", plan(OpenLoop(500), 50, fixed(50, 50)))
    counts = seen.records.counts()
    assert counts["rate_limited"] > 30
    assert counts["ok"] + counts["rate_limited"] == 50


@pytest.mark.parametrize(
    ("fault", "outcome", "chunks"),
    [
        ("http_error", "http_error", 0),
        ("rate_limit", "rate_limited", 0),
        ("overloaded", "rate_limited", 0),
        ("in_band_error", "in_band_error", 3),
        ("reset", "disconnected", 3),
        ("half_close", "disconnected", 3),
        ("truncate", "truncated", 3),
    ],
)
def test_faults_end_replies_where_they_are_told_to(fault: str, outcome: str, chunks: int) -> None:
    text = f"fast?fault={fault}&fault_rate=0.5&fault_after_tokens=3"
    once, again = (replayed(text, plan(ClosedLoop(3), 60, fixed(50, 8)))[0].records for _ in range(2))
    counts = once.counts()
    assert counts["ok"] + counts[outcome] == 60
    assert 15 < counts[outcome] < 45
    struck = once.has_outcome(Outcome(outcome))
    assert set(np.diff(once.chunk_offsets)[struck].tolist()) == {chunks}
    assert as_bytes(once) == as_bytes(again)


def test_a_stall_shows_in_the_spacing_and_a_long_one_as_a_timeout() -> None:
    work = plan(ClosedLoop(1), 3, fixed(50, 8))
    (seen,) = replayed("fast?fault=stall&stall_ms=500&fault_after_tokens=3", work)
    assert seen.records.counts()["ok"] == 3
    assert _itl_ms(seen.records)[2] == pytest.approx(500, abs=0.1)
    (dead,) = replayed("fast?fault=stall&stall_ms=90000&fault_after_tokens=3", work)
    assert dead.records.counts()["timeout"] == 3
    assert np.diff(dead.records.chunk_offsets).tolist() == [3, 3, 3]


def test_a_buffering_proxy_sends_all_at_the_end() -> None:
    (seen,) = replayed("fast?fault=buffering", plan(ClosedLoop(1), 2, fixed(50, 8)))
    assert np.array_equal(seen.records.first_content_ns, seen.records.last_content_ns)
    assert np.array_equal(seen.records.first_byte_ns, seen.records.first_content_ns)


def test_a_crash_takes_everything_down_for_a_while() -> None:
    text = "fast?fault=crash&fault_from=10&fault_count=1&recovery_ms=200"
    (seen,) = replayed(text, plan(OpenLoop(100, "uniform"), 60, fixed(50, 20)))
    counts = seen.records.counts()
    assert counts["disconnected"] >= 1
    assert 15 <= counts["rate_limited"] + counts["http_error"] <= 25
    assert seen.records.ok[-10:].all()


def test_what_lives_in_the_bytes_is_refused_by_name() -> None:
    with pytest.raises(SuiteError, match="drip") as caught:
        ReplayEngine(parse_scenario("fast?fault=drip,reset&first_chunk=whitespace"))
    assert "first_chunk" in str(caught.value)
