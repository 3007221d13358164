"""The test of sessions: what it sends, what it judges, what voids it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replayed_sut import Change, ReplayedSUT, ended

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.advice import advised
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.search.level_search import JobLevels
from pytest_llmbench.methodology.sections import goodput, sessions, ttft
from pytest_llmbench.metrics.session_figures import jobs_of
from pytest_llmbench.model.estimate import EstimateKind, Reason
from pytest_llmbench.model.judgement import Gate, GateVerdict, JudgedObjective, ValidityVerdict
from pytest_llmbench.model.objective import Objective, metric, ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Choice, Fixed, LogNormal, Uniform, check_specification
from pytest_llmbench.workloads.sessions import ProbeSessions, SessionWorkload
from pytest_llmbench.workloads.trace import TraceEntry, TraceWorkload
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

SHORT = {"sessions": {"turns": (1, 5), "input_tokens": (20, 60), "output_tokens": 20, "pause_s": (0.1, 1.0)}}
LONG = {"sessions": {"turns": 20, "input_tokens": 20, "output_tokens": 4}}
CACHED = "fast?prefix_caching=true"
AGENT = (
    TracedTurn(700, 20, hash_ids=(0, 1)),
    TracedTurn(900, 10, (1,), 250.0, (0, 2)),
    TracedTurn(800, 15, (1,), 900.0, (0, 3)),
    TracedTurn(1200, 30, (2, 3), 0.5, (0, 2, 4)),
)
TRACE = TraceSessionWorkload(
    "agents",
    tuple(TracedSession(AGENT, 400.0 * number) for number in range(30)),
    DatasetIdentity("made up", "1", subset_method="all"),
)
SINGLE = TraceWorkload("single", (TraceEntry(0, 5, 5), TraceEntry(1, 5, 5)), TRACE.dataset)


def measured(scenario: str = CACHED, change: Change = lambda seen: seen, **given: Any) -> TestResult:
    given = {"workload": SHORT, "total_sessions": 120, "rate": 2.0} | given
    return ReplayedSUT(scenario, change=change).measure(sessions.TEST, **given)


def test_a_run_has_its_sessions_and_figures() -> None:
    sut = ReplayedSUT(CACHED)
    result = sut.measure(
        sessions.TEST,
        workload=SHORT,
        total_sessions=300,
        rate=3.0,
        job_p50_s=60.0,
        turn_ttft_p95_ms={1: 200, "2+": 200},
        min_session_goodput=0.9,
        ttft_ms=500,
    )
    (plan,) = (each for each in sut.plans if each.label == "measure")
    (seen,) = result.observations
    assert plan.load == SessionStarts(3.0)
    assert len(set(seen.records.session.tolist())) == 300
    assert plan.requests == len(seen.records)
    judged = gate(result.objectives, result.metrics)
    assert [each.verdict for each in judged.objectives] == [GateVerdict.PASS] * 4
    assert result.metrics["job_time.p50"].unit == "s"
    assert result.metrics["session_goodput"].point == 1.0
    assert validity(result.observations, Budget()).verdict is ValidityVerdict.VALID
    tables = {table.id: table for table in result.tables}
    assert tables["session_results"].rows[0][1] == "300 of 300"
    assert tables["session_turns"].rows[0][0] == "1"
    assert result.plots[0].id == "ttft_by_turn"
    assert result.facts.value("load.session_rate") == 3.0


def test_what_could_be_cached_is_a_share_of_what_was_asked_for_however_the_server_counts() -> None:
    """A server of another vocabulary counts other tokens, of the prompt and of what it had of it."""
    sut = ReplayedSUT(CACHED)
    result = sut.measure(sessions.TEST, workload=SHORT, total_sessions=40, rate=2.0)
    (seen,) = result.observations
    records = seen.records
    more = replace(records, input_tokens=3 * records.input_tokens, cached_tokens=3 * records.cached_tokens)
    parameters = build(sessions.Parameters, {"workload": SHORT, "total_sessions": 40, "rate": 2.0})
    counted = sessions.result(parameters, sut.setting(SHORT), result.warmup, [replace(seen, records=more)])
    turns, others = (
        {table.id: table for table in each.tables}["session_turns"].rows for each in (result, counted)
    )
    assert [row[4:] for row in others] == [row[4:] for row in turns]
    assert float(turns[1][5].rstrip("%")) > 0


def test_job_time_is_the_sum_of_its_parts_on_average() -> None:
    metrics = measured().metrics
    parts = [metrics[f"job_{part}.mean"].point for part in ("llm_time", "pause_time", "generator_wait")]
    assert metrics["job_time.mean"].point == pytest.approx(sum(part or 0.0 for part in parts))
    assert metrics["job_generator_wait.max"].point == 0.0


def test_runs_have_sessions_of_their_own() -> None:
    sut = ReplayedSUT(CACHED)
    result = sut.measure(sessions.TEST, workload=SHORT, total_sessions=20, rate=3.0, runs=3)
    seeds = {run.plan.seed for run in result.observations}
    assert len(seeds) == len(result.observations) == 3
    assert len(result.by_run["job_time.p50"]) == 3
    assert all(run.plan.load == SessionStarts(3.0) for run in result.observations)


def test_sessions_that_are_cut_off_void_a_run_beyond_its_budget() -> None:
    result = measured("fast?fault=http_error&fault_from=40&fault_count=4", max_error_share=0.02)
    found = validity(result.observations, Budget(0.02))
    by_check = {finding.check: finding for finding in found.findings}
    # Of turns 4 in some hundreds failed, of sessions 4 in 120.
    assert by_check["error_budget"].ok
    assert not by_check["sessions_cut_off"].ok
    assert "4 of 120 sessions were cut off" in by_check["sessions_cut_off"].message
    assert by_check["all_requests_recorded"].ok
    assert "never sent because their session was cut off" in by_check["all_requests_recorded"].message
    assert found.verdict is ValidityVerdict.INVALID
    assert any("4 of 120 sessions were cut off" in note for note in map(str, result.notes))
    assert result.metrics["session_goodput"].point == pytest.approx(116 / 120)


def test_turns_that_got_lost_without_a_failure_are_missing_records() -> None:
    def lose(seen: Observation) -> Observation:
        return replace(seen, records=seen.records.select(seen.records.turn < 4))

    result = measured(change=lose, total_sessions=40)
    by_check = {finding.check: finding for finding in validity(result.observations, Budget(1.0)).findings}
    assert not by_check["all_requests_recorded"].ok


def test_turns_that_left_late_void_the_run() -> None:
    def late(seen: Observation) -> Observation:
        return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=3_000_000_000))

    result = measured(change=late, total_sessions=40, rate=None, sessions=4)
    assert result.observations[0].plan.load == SessionSlots(4)
    assert result.facts.value("load.sessions") == 4
    by_check = {finding.check: finding for finding in validity(result.observations, Budget()).findings}
    assert not by_check["send_lag"].ok
    assert by_check["send_lag"].voids


def test_a_cache_that_serves_sessions_is_no_cause_for_a_warning() -> None:
    result = measured()
    assert result.metrics["turn_cached_share[2+]"].point > 0.2  # type: ignore[operator]
    assert "prefix_cache_hits" not in {f.check for f in validity(result.observations, Budget()).findings}


def test_sessions_beyond_the_models_context_are_refused_before_anything_is_sent() -> None:
    sut = ReplayedSUT("fast?context_limit_tokens=2048")
    parameters = build(sessions.Parameters, {"workload": "session:chat", "total_sessions": 50})
    (needed,) = sessions.TEST.needs(parameters, sut.setting("session:chat"))
    assert "a model with a longer context, or a workload with context_tokens=2048: session " in needed
    assert "tokens of context with the reply, the model has 2048" in needed
    assert (
        sessions.TEST.needs(
            parameters, ReplayedSUT("fast?context_limit_tokens=131072").setting("session:chat")
        )
        == []
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"rate": 1.0, "sessions": 2}, "exclude each other"),
        ({"arrival": "gamma"}, "arrival needs rate"),
        ({"rate": 1.0, "arrival": "gamma"}, "needs burstiness"),
        ({"rate": 1.0, "burstiness": 0.5}, "needs arrival='gamma'"),
        ({"workload": "synthetic-uniform"}, "name one of sessions"),
        ({"workload": "session:chatt"}, "did you mean 'session:chat'"),
        ({"turn_ttft_p95_ms": {"0": 5}}, "must be given as"),
        ({"turn_ttft_p95_ms": {1: -5}}, "must be greater than zero"),
        ({"turn_ttft_p95_ms": {}}, "must be a mapping"),
        ({"turn_ttft_p95_ms": 300}, "must be a mapping"),
        ({"compliance": "conditional"}, "not part of the draft"),
        ({"workload": SINGLE}, "or a trace with sessions = true"),
        ({"workload": TRACE, "speedup": 2.0}, "speedup needs arrival='trace'"),
        ({"workload": TRACE, "arrival": "trace", "speedup": 0}, "must be greater than zero"),
        ({"workload": TRACE, "arrival": "trace", "rate": 1.0}, "leave out rate, and give speedup"),
        ({"workload": TRACE, "arrival": "trace", "sessions": 2}, "exclude each other"),
        ({"workload": TRACE, "arrival": "trace", "burstiness": 0.5}, "not 'trace'"),
        ({"workload": TRACE, "arrival": "trace", "total_sessions": 31}, "the trace has 30 sessions"),
        ({"workload": SHORT, "arrival": "trace"}, "'sessions' has 0"),
        ({"arrival": "trace"}, "'session:chat' has 0"),
        ({"workload": replace(TRACE, timed=False), "arrival": "trace"}, "'agents' has 0"),
        ({"min_session_goodput": 1.5}, "between 0 and 1"),
        ({"find": "jobs"}, "must be one of jobs_per_hour"),
        ({"find": "jobs_per_hour"}, "needs a limit that overload breaks"),
        ({"min_jobs_per_hour": 9_000, "job_p95_s": 5}, "can never pass: maximum is 6400"),
        (
            {"find": "jobs_per_hour", "job_p95_s": 5, "initial": 50, "maximum": 20},
            "initial must not be above",
        ),
        ({"job_p95_s": 5, "maximum": 20}, "maximum applies to a search: add find='jobs_per_hour'"),
        ({"job_p95_s": 5, "duration_s": 20}, "duration_s applies to a search"),
        ({"find": "jobs_per_hour", "job_p95_s": 5, "rate": 2}, "rate is not for it"),
        ({"find": "jobs_per_hour", "job_p95_s": 5, "arrival": "gamma"}, "arrival='gamma' needs burstiness"),
        ({"find": "jobs_per_hour", "max_slowdown": 2}, "a slowdown needs one load"),
        ({"workload": TRACE, "arrival": "trace", "min_jobs_per_hour": 5}, "arrival='trace' is not for it"),
        ({"max_slowdown": 0}, "must be greater than zero"),
        ({"probe_sessions": -1}, "must be 0 or more"),
        ({"max_slowdown": 2, "probe_sessions": 0}, "probe_sessions is 0, but a limit is on the slowdown"),
        ({"slo": [metric("job_slowdown.p95", "ratio") <= 2], "probe_sessions": 0}, "probe_sessions is 0"),
        ({"probe_sessions": 30, "total_sessions": 20}, "but only 20 sessions are measured"),
        ({"workload": TRACE, "arrival": "trace", "probe_sessions": 31}, "but only 30 sessions are measured"),
        ({"workload": {"sessions": {"turns": 3}}}, "input_tokens is missing"),
        ({"workload": {"sessions": 3}}, "is not a workload"),
        ({"workload": {"chats": {}}}, "part 'chats' is {}"),
        ({"workload": {"sessions": {"turn": 3}}}, "did you mean turns"),
        ({"workload": {"sessions": SHORT["sessions"] | {"pause_s": -1}}}, "pause_s is -1"),
        ({"workload": {"sessions": SHORT["sessions"] | {"pause_s": float("nan")}}}, "pause_s is nan"),
        (
            {"workload": {"sessions": SHORT["sessions"] | {"groups": 2.5}}},
            "groups is 2.5: give a whole number",
        ),
        ({"workload": {"sessions": SHORT["sessions"] | {"turns": "many"}}}, "turns is 'many'"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError) as caught:
        build(sessions.Parameters, given)
    assert complaint in str(caught.value)


def test_all_mistakes_of_a_described_workload_are_told_at_once() -> None:
    with pytest.raises(SuiteError) as caught:
        workload({"sessions": {"turns": 0, "input_tokens": "x", "pause_s": "long", "spin": 1}})
    for part in ("turns", "input_tokens is 'x'", "output_tokens is missing", "pause_s is 'long'", "'spin'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("module", [ttft, goodput])
def test_other_tests_refuse_a_workload_of_sessions(module: Any) -> None:
    with pytest.raises(SuiteError, match=r"which only @llmbench\.sessions, .* send"):
        build(
            module.Parameters, {"workload": "session:chat", "ttft_ms": 5} if module is goodput else SHORT_TTFT
        )


SHORT_TTFT = {"workload": SHORT, "p99_ms": 500}


def test_limits_by_turn_may_be_written_like_any_other() -> None:
    given = {"workload": SHORT, "slo": [metric("turn_ttft[3].p50", "ms") <= 200 * ms]}
    parameters = build(sessions.Parameters, given)
    assert [str(each) for each in parameters.classes] == ["1", "2+", "3"]
    result = measured(**given)
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.PASS


def test_named_shapes_are_what_they_are_said_to_be() -> None:
    chat, research = workload("session:chat"), workload("session:deep-research")
    assert isinstance(chat, SessionWorkload)
    assert isinstance(research, SessionWorkload)
    assert (chat.system_tokens, research.system_tokens) == (1_000, 2_000)
    assert isinstance(chat.turns, LogNormal)
    for one in (chat, research):
        assert check_specification(one) == []
    lengths = [len(session.turns) for _, session in zip(range(4000), chat.shapes(1), strict=False)]
    assert sum(lengths) / len(lengths) == pytest.approx(4.0, abs=0.3)
    described = workload(
        {"sessions": {"name": "mine", "turns": 2, "input_tokens": [5, 9], "output_tokens": (1, 3)}}
    )
    assert described == SessionWorkload("mine", Fixed(2), Choice((5, 9)), Uniform(1, 3))


def test_the_plan_is_known_beforehand() -> None:
    parameters = build(sessions.Parameters, {"workload": SHORT, "total_sessions": 30, "rate": 1.0})
    setting = ReplayedSUT().setting(SHORT)
    (plan,) = sessions.TEST.plans(parameters, setting)
    quick = replace(setting, scale="quick")
    (small,) = sessions.TEST.plans(parameters, quick)
    assert small.requests < plan.requests


def starts_s(seen: Observation) -> dict[int, float]:
    first = seen.records.select(seen.records.turn == 1)
    begun = (first.scheduled_ns - seen.started_ns) / 1e9
    return dict(zip(first.session.tolist(), begun.tolist(), strict=True))


@pytest.mark.parametrize("speedup", [None, 4.0])
def test_sessions_of_a_trace_start_when_they_started(speedup: float | None) -> None:
    result = measured(workload=TRACE, total_sessions=None, rate=None, arrival="trace", speedup=speedup)
    (seen,) = result.observations
    assert starts_s(seen) == pytest.approx({n: 0.4 * n / (speedup or 1.0) for n in range(30)})
    assert seen.records.ok.all()
    assert len(seen.records) == 120
    # Pauses are those of the trace whatever the speed: a job takes as long as its slower tool at least.
    assert 0.9 < result.metrics["job_time.min"].point < 3.0  # type: ignore[operator]
    assert result.facts.value("load.arrival") == "trace"
    assert result.facts.value("load.session_rate") == pytest.approx(30 / 11.6 * (speedup or 1.0))
    assert validity(result.observations, Budget()).verdict is ValidityVerdict.VALID


def test_turns_of_a_trace_wait_for_what_they_waited_for() -> None:
    (seen,) = measured(workload=TRACE, rate=None, arrival="trace", total_sessions=5).observations
    records = seen.records
    for session in range(5):
        own = records.select(records.session == session)
        order = np.argsort(own.turn)
        due, ended = own.scheduled_ns[order], own.finished_ns[order]
        assert (due[1:3] - ended[0]).tolist() == [250_000_000, 900_000_000]
        assert due[3] - max(ended[1], ended[2]) == 500_000


def test_runs_of_a_trace_have_the_same_sessions_in_other_words() -> None:
    sut = ReplayedSUT(CACHED)
    result = sut.measure(sessions.TEST, workload=TRACE, arrival="trace", runs=2)
    one, two = result.observations
    assert one.plan.seed != two.plan.seed
    assert starts_s(one) == starts_s(two)
    assert one.sequence_sha256 != two.sequence_sha256
    small = sut.measure(sessions.TEST, "quick", workload=TRACE, arrival="trace")
    assert len(small.observations[0].records) == 40


def test_a_trace_may_be_sent_by_another_schedule_and_goes_round() -> None:
    (seen,) = measured(workload=TRACE, rate=5.0, total_sessions=40).observations
    assert seen.plan.load == SessionStarts(5.0)
    assert sorted(starts_s(seen)) == list(range(40))
    (closed,) = measured(workload=TRACE, rate=None, sessions=3, total_sessions=6).observations
    assert closed.plan.load == SessionSlots(3)


def test_all_mistakes_of_a_load_of_a_trace_are_told_at_once() -> None:
    given = {"workload": TRACE, "arrival": "trace", "rate": 2.0, "sessions": 3, "total_sessions": 31}
    with pytest.raises(SuiteError, match="3 mistakes"):
        build(sessions.Parameters, given)


def test_more_sessions_than_a_trace_has_are_not_advised() -> None:
    given: dict[str, Any] = {"workload": TRACE, "arrival": "trace", "total_sessions": 15}
    result = ReplayedSUT(CACHED).measure(sessions.TEST, **given)
    undecided = JudgedObjective(
        Objective("job_time.p95", "<=", 1.0, "s"), 1.0, 0.5, None, 15, GateVerdict.INCONCLUSIVE, ""
    )
    growing = Gate(tuple(replace(undecided, growth=growth) for growth in (1.5, 3.0)))
    told = advised(growing, result, build(sessions.Parameters, given), "standard").objectives
    assert [each.advice and each.advice.setting for each in told] == ["total_sessions=23", None]


def test_a_workload_whose_sessions_are_not_known_is_refused() -> None:
    """Of a report that holds only its name."""
    parameters = build(sessions.Parameters, {"workload": TRACE, "arrival": "trace"})
    setting = ReplayedSUT().setting("synthetic-uniform")
    with pytest.raises(SuiteError, match="the sessions of workload 'synthetic-uniform' are not known here"):
        sessions.TEST.plans(parameters, setting)


def test_the_slowest_job_is_drawn_turn_by_turn() -> None:
    result = measured(total_sessions=40, runs=2)
    (plot,) = (each for each in result.plots if each.id == "slowest_job")
    records = [run.records for run in result.observations]
    runs = [jobs_of(each) for each in records]
    run = max((0, 1), key=lambda number: runs[number].time_s.max())
    slowest = int(runs[run].time_s.argmax())
    own = records[run].select(records[run].session == runs[run].session[slowest])
    job = f"The slowest job: {runs[run].time_s[slowest]:.3g} s, {len(own)} turns"
    assert plot.title == f"{job}; gaps are pauses (run {run + 1})"
    assert plot.rows == tuple(f"turn {number}" for number in range(1, len(own) + 1))
    begun = own.scheduled_ns.min()
    x, y = plot.series["output"]
    assert y == tuple(row for row in range(len(own)) for _ in "be")
    assert x[::2] == pytest.approx((np.sort(own.first_content_ns) - begun) / 1e9)
    assert x[1::2] == pytest.approx((np.sort(own.last_content_ns) - begun) / 1e9)
    assert "wait in the generator" not in plot.series  # in virtual time there is none
    assert plot.series["to the first token"][0][1::2] == x[::2]


def test_of_a_long_job_the_first_turns_are_drawn() -> None:
    (plot,) = (each for each in measured(workload=LONG, total_sessions=10).plots if each.id == "slowest_job")
    assert plot.title.endswith("20 turns, the first 16 shown; gaps are pauses")
    assert len(plot.rows) == 16
    assert max(y for _, places in plot.series.values() for y in places) == 15


def test_no_job_is_drawn_where_none_was_completed() -> None:
    result = measured("fast?fault=http_error&fault_from=20", workload=LONG, total_sessions=5)
    assert result.metrics["job_time.p50"].point is None
    assert "slowest_job" not in {plot.id for plot in result.plots}


SLOW = "fast?prefix_caching=true&decode_us_per_sequence=2000"


def probes_of(sut: ReplayedSUT) -> list[LoadPlan]:
    return [plan for plan in sut.plans if plan.label.endswith("sessions alone")]


def test_sessions_are_probed_alone_before_the_load() -> None:
    sut = ReplayedSUT(SLOW)
    given = {"workload": SHORT, "total_sessions": 100, "sessions": 8, "max_slowdown": 6.0}
    result = sut.measure(sessions.TEST, max_llm_slowdown=1.1, **given)
    (probe,) = probes_of(sut)
    load = sut.plans[-1]
    assert sut.plans.index(probe) == len(sut.plans) - 2
    assert (probe.load, probe.phase) == (SessionSlots(1), Phase.PROBE)
    assert isinstance(probe.workload, ProbeSessions)
    numbers = probe.workload.numbers
    assert len(numbers) == 40
    assert probe.seed != load.seed
    sent = {tuple(each.token_ids or ()) for each in load.workload.requests(load.requests, load.seed)}
    alone = probe.workload.requests(probe.requests, probe.seed)
    assert not sent & {tuple(each.token_ids or ()) for each in alone}
    assert {each.label for each in sut.plans if each.phase is Phase.MEASURE} == {"measure"}
    # Eight at once take longer at each step than one alone.
    assert result.metrics["job_llm_slowdown.p50"].n == 40
    assert result.metrics["job_llm_slowdown.p50"].point > 1.3  # type: ignore[operator]
    assert 1.0 < result.metrics["job_slowdown.p50"].point < result.metrics["job_llm_slowdown.p50"].point  # type: ignore[operator]
    verdicts = [each.verdict for each in gate(result.objectives, result.metrics).objectives]
    assert verdicts == [GateVerdict.PASS, GateVerdict.FAIL]
    assert len(result.observations) == 1
    assert len(jobs_of(result.observations[0].records)) == 100
    shown = dict(row[:2] for row in result.tables[0].rows)
    assert shown["Job time against the same job alone P50"].startswith("1.")


def test_a_load_of_one_session_at_once_slows_nobody_down() -> None:
    metrics = measured(SLOW, rate=None, sessions=1, total_sessions=30, probe_sessions=30).metrics
    assert metrics["job_slowdown.p50"].point == pytest.approx(1.0, abs=0.01)
    assert metrics["job_llm_slowdown.max"].point == pytest.approx(1.0, abs=0.05)


def test_without_probes_the_slowdown_is_not_measured() -> None:
    sut = ReplayedSUT(CACHED)
    result = sut.measure(sessions.TEST, workload=SHORT, total_sessions=10, rate=3.0)
    assert probes_of(sut) == []
    assert result.metrics["job_slowdown.p50"].point is None
    assert result.metrics["job_slowdown.p50"].method == "no session was probed alone"
    assert (
        dict(row[:2] for row in result.tables[0].rows)["Job time against the same job alone P50"]
        == "not measured: no session was probed alone"
    )


def test_each_run_has_probes_of_its_own_before_the_first_of_them() -> None:
    sut = ReplayedSUT(CACHED)
    result = sut.measure(sessions.TEST, workload=SHORT, total_sessions=12, rate=3.0, runs=2, probe_sessions=6)
    kinds = [plan.phase for plan in sut.plans[-4:]]
    assert kinds == [Phase.PROBE, Phase.PROBE, Phase.MEASURE, Phase.MEASURE]
    assert result.metrics["job_slowdown.p50"].n == 12
    one, two = result.by_run["job_slowdown.p50"]
    assert one is not None
    assert two is not None


def test_a_run_that_is_measured_again_is_compared_with_probes_of_its_own_sessions() -> None:
    def late(seen: Observation) -> Observation:
        if seen.plan.label != "measure" or seen.plan.attempt > 1:
            return seen
        return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=3_000_000_000))

    sut = ReplayedSUT(CACHED, change=late)
    result = sut.measure(sessions.TEST, workload=SHORT, total_sessions=12, rate=3.0, probe_sessions=6)
    first, again = probes_of(sut)
    loads = [plan for plan in sut.plans if plan.label == "measure"]
    assert [probe.workload.shapes_seed for probe in (first, again)] == [load.seed for load in loads]  # type: ignore[attr-defined]
    assert result.metrics["job_llm_slowdown.p50"].n == 6
    assert result.metrics["job_llm_slowdown.min"].point > 0.9  # type: ignore[operator]


def test_probes_that_this_machine_spoiled_are_sent_again_and_else_left_out() -> None:
    def late(attempts: int) -> Change:
        def change(seen: Observation) -> Observation:
            if seen.plan.label.endswith("alone") and seen.plan.attempt <= attempts:
                return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=3_000_000_000))
            return seen

        return change

    given = {"workload": SHORT, "total_sessions": 12, "rate": 3.0, "probe_sessions": 6}
    once = ReplayedSUT(CACHED, change=late(1))
    result = once.measure(sessions.TEST, **given)
    assert [plan.attempt for plan in probes_of(once)] == [1, 2]
    assert len({plan.seed for plan in probes_of(once)}) == 2
    assert result.metrics["job_slowdown.p50"].n == 6
    assert [void.label for void in result.void_loads] == ["6 sessions alone"]
    never = measured(change=late(9), **given)
    assert never.metrics["job_slowdown.p50"].point is None
    assert never.metrics["job_slowdown.p50"].method == "this machine spoiled the probes"
    assert any("spoiled the probes of 1 of 1 runs" in note for note in map(str, never.notes))


def test_probes_of_a_trace_pair_with_its_sessions() -> None:
    result = measured(workload=TRACE, rate=None, total_sessions=None, arrival="trace", probe_sessions=10)
    assert result.metrics["job_slowdown.p50"].n == 10
    assert 0.9 < result.metrics["job_slowdown.p50"].point < 2.0  # type: ignore[operator]


def test_probes_that_are_cut_off_have_no_slowdown() -> None:
    fault = "fast?fault=http_error&fault_from=40&fault_count=2"
    result = measured(fault, total_sessions=40, probe_sessions=20)
    lacking = 20 - result.metrics["job_slowdown.p50"].n
    assert lacking in (1, 2)
    assert f"{lacking} of 20 probes were cut off: they have no slowdown" in map(str, result.notes)


def test_an_undecided_slowdown_needs_more_probes() -> None:
    given: dict[str, Any] = {"workload": SHORT, "total_sessions": 40, "probe_sessions": 20, "max_slowdown": 2}
    result = measured(**given)
    undecided = JudgedObjective(
        Objective("job_slowdown.p50", "<=", 2.0, "ratio"), 1.0, 0.5, None, 20, GateVerdict.INCONCLUSIVE, ""
    )
    growing = Gate(tuple(replace(undecided, growth=growth) for growth in (1.5, 3.0)))
    told = advised(growing, result, build(sessions.Parameters, given), "standard").objectives
    assert [each.advice and each.advice.setting for each in told] == [
        "probe_sessions=30",
        "total_sessions=60, probe_sessions=60",
    ]


def test_all_mistakes_of_a_search_are_told_at_once() -> None:
    given = {"find": "jobs_per_hour", "rate": 2.0, "sessions": 3, "runs": 2, "initial": 9, "maximum": 8}
    with pytest.raises(SuiteError, match="5 mistakes"):
        build(sessions.Parameters, given)


UNIFORM: dict[str, Any] = {"arrival": "uniform"}
JOBS = {"sessions": {"turns": 2, "input_tokens": 20, "output_tokens": 20, "pause_s": 1.0}}


def searched(
    holds: Callable[[float], bool],
    change: Change = lambda seen: seen,
    **given: Any,
) -> tuple[TestResult, ReplayedSUT]:
    """A system that keeps a limit on TTFT at the rates (jobs per hour) that ``holds`` says."""

    def slow_down(seen: Observation) -> Observation:
        load, records = seen.plan.load, seen.records
        if not isinstance(load, OpenLoop) or holds(3600 * load.rate):
            return change(seen)
        late = replace(records, first_content_ns=records.submitted_ns + 900_000_000)
        return change(replace(seen, records=late))

    sut = ReplayedSUT(CACHED, change=slow_down)
    given = {"workload": JOBS, "ttft_p95_ms": 500, "duration_s": 30.0, "total_sessions": 30} | UNIFORM | given
    return sut.measure(sessions.TEST, **({"find": "jobs_per_hour"} | given)), sut


def level_rate(plan: LoadPlan) -> float | None:
    """Sessions per second of a level; None for other loads."""
    load = plan.load
    return load.rate if isinstance(load, OpenLoop) and load.of_sessions else None


def rates(sut: ReplayedSUT) -> list[int]:
    return [round(3600 * rate) for plan in sut.plans if (rate := level_rate(plan))]


def test_the_most_jobs_per_hour_are_found_between_two_levels() -> None:
    result, sut = searched(lambda jobs: jobs <= 1500, min_jobs_per_hour=1000)
    assert rates(sut) == [200, 400, 800, 1600, 1200, 1400, 1500, 1550]
    found = result.metrics["jobs_per_hour"]
    assert (found.point, found.lower, found.upper) == (1500, 1500, 1550)
    assert found.unit == "count"
    assert [level.passed for level in result.levels] == [True, True, True, False, True, True, True, False]
    assert "ttft.p95 900 ms (limit <= 500 ms)" in result.levels[3].fail_reasons
    assert result.objectives == (Objective("jobs_per_hour", ">=", 1000.0, "count"),)
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.PASS
    more = (
        Objective("jobs_per_hour", ">=", 1525.0, "count"),
        Objective("jobs_per_hour", ">=", 1551.0, "count"),
    )
    assert [each.verdict for each in gate(more, result.metrics).objectives] == [
        GateVerdict.INCONCLUSIVE,
        GateVerdict.FAIL,
    ]
    assert result.metrics["job_time.p95"].point == result.levels[6].metrics["job_time.p95"].point
    assert result.budgeted == (6,)
    assert result.facts.value("load.session_rate") == pytest.approx(1500 / 3600)
    table = result.tables[0]
    assert table.id == "session_search"
    assert [row[-2] for row in table.rows] == ["Pass"] * 3 + ["Fail"] + ["Pass"] * 3 + ["Fail"]


def test_a_range_that_ends_without_a_failure_gives_a_lower_bound() -> None:
    result, sut = searched(lambda _: True, maximum=700)
    assert rates(sut) == [200, 400, 700]
    found = result.metrics["jobs_per_hour"]
    assert (found.point, found.lower, found.upper) == (700, 700, None)
    assert (found.kind, found.reason) == (EstimateKind.BOUND, Reason.RANGE_ENDED)
    floor = Objective("jobs_per_hour", ">=", 800.0, "count")
    assert gate([floor], result.metrics).verdict is GateVerdict.INCONCLUSIVE


def test_where_no_rate_keeps_the_limits_there_is_no_figure() -> None:
    result, sut = searched(lambda _: False, min_jobs_per_hour=1)
    assert rates(sut) == [200, 100, 50]
    found = result.metrics["jobs_per_hour"]
    assert (found.point, found.lower, found.upper) == (None, None, None)
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.INCONCLUSIVE
    assert any(
        "even 50 jobs per hour miss the limits: ttft.p95 900" in note for note in map(str, result.notes)
    )


def test_a_search_goes_down_where_its_first_level_fails() -> None:
    result, sut = searched(lambda jobs: jobs < 80, initial=200)
    assert rates(sut) == [200, 100, 50, 75, 87, 81, 78]
    assert result.metrics["jobs_per_hour"].point == 78
    assert result.metrics["jobs_per_hour"].upper == 81


def test_levels_too_short_to_fill_the_system_tell_nothing() -> None:
    result, _ = searched(lambda _: True, duration_s=1.0, total_sessions=3, initial=36_000, maximum=36_000)
    assert result.metrics["jobs_per_hour"].point is None
    assert all(
        reason.startswith("too short to tell") for level in result.levels for reason in level.fail_reasons
    )


def test_rates_above_that_were_too_short_to_tell_are_no_upper_end() -> None:
    result, _ = searched(lambda _: True, duration_s=1.0, total_sessions=12, initial=3600, maximum=3600 * 6)
    found = result.metrics["jobs_per_hour"]
    assert found.point is not None
    assert found.upper is None
    assert (found.reason, "too short to tell" in found.method) == (Reason.UNDECIDED, True)


def test_a_rate_beyond_this_generator_is_no_upper_end() -> None:
    def late(seen: Observation) -> Observation:
        if not isinstance(seen.plan.load, OpenLoop) or seen.plan.load.rate < 0.2:
            return seen
        return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=3_000_000_000))

    result, sut = searched(lambda _: True, late)
    assert rates(sut)[:5] == [200, 400, 800, 800, 800]
    levels = [plan for plan in sut.plans if level_rate(plan)]
    assert len({plan.seed for plan in levels}) == len(levels)  # no attempt sends the prompts of another
    found = result.metrics["jobs_per_hour"]
    assert 400 <= found.point < 800  # type: ignore[operator]
    assert found.upper is None
    assert found.reason is Reason.BEYOND_GENERATOR
    assert validity(result.observations, Budget(), result.budgeted).verdict is not None


def test_a_level_that_falls_behind_its_starts_says_so() -> None:
    slow = "fast?prefix_caching=true&max_num_seqs=2&step_base_us=80000"
    work = {"sessions": {"turns": 2, "input_tokens": 20, "output_tokens": 25, "pause_s": 0.1}}
    given: dict[str, Any] = {"rate": None, "workload": work, "total_sessions": 60, "job_p95_s": 60}
    result = measured(slow, **given, find="jobs_per_hour", initial=400, duration_s=300)
    failed = [level for level in result.levels if not level.passed]
    assert failed
    reasons = [reason for level in failed for reason in level.fail_reasons]
    assert any(
        "the queue grows" in reason or "of the rate at which they begin" in reason for reason in reasons
    )
    # Two sequences at 80 ms a token: a job of 50 tokens takes 4 s of one of them, so at most 1800 an hour.
    assert 1_500 < result.metrics["jobs_per_hour"].point < 2_000  # type: ignore[operator]


def test_the_rate_of_the_ends_is_reckoned_from_how_job_times_grow() -> None:
    def growing(seen: Observation) -> Observation:
        load, records = seen.plan.load, seen.records
        if not isinstance(load, OpenLoop) or load.rate < 0.2:
            return seen
        more = np.where(records.turn == 2, (records.submitted_ns - seen.started_ns) // 4, 0)
        return replace(seen, records=replace(records, finished_ns=records.finished_ns + more))

    result, _ = searched(lambda _: True, growing, maximum=800, total_sessions=100)
    assert [level.passed for level in result.levels[:3]] == [True, True, False]
    assert result.levels[2].fail_reasons == (
        "sessions end at 80 % of the rate at which they begin (limit 90 %): "
        "their LLM time grows by 0.25 s per second",
    )


def test_the_bracket_holds_the_rates_at_which_sessions_really_began() -> None:
    farther = []
    for end in (300, 700, 1500):
        result, _ = searched(lambda jobs, end=end: jobs <= end, arrival="poisson")
        began = {}
        for seen in result.observations:
            starts = np.sort(list(starts_s(seen).values()))
            jobs = round(3600 * seen.plan.load.rate)  # type: ignore[union-attr]
            began[jobs] = 3600 * (len(starts) - 1) / np.ptp(starts)
        found, passed = result.metrics["jobs_per_hour"], [jobs for jobs in began if jobs <= end]
        most, least = max(passed), min(jobs for jobs in began if jobs > end)
        assert found.point == most
        assert found.lower == pytest.approx(min(most, began[most]), rel=1e-3)
        assert found.upper == pytest.approx(max(least, began[least]), rel=1e-3)
        farther += [found.lower < most, found.upper > least]  # type: ignore[operator]
    assert any(farther)


def test_sessions_cut_off_at_rates_beyond_do_not_void_the_search() -> None:
    result, _ = searched(lambda jobs: jobs <= 400, max_error_share=0.02)
    runs = list(result.observations)
    runs[2] = ended(runs[2], Outcome.HTTP_ERROR, slice(10))
    found = {each.check: each for each in validity(runs, Budget(0.02), result.budgeted).findings}
    assert found["sessions_cut_off"].ok
    everything = {each.check: each for each in validity(runs, Budget(0.02)).findings}
    assert not everything["sessions_cut_off"].ok


def test_equal_levels_are_equal_plans_whatever_the_limits() -> None:
    _, one = searched(lambda _: True, maximum=400)
    _, two = searched(lambda _: True, maximum=400, ttft_p95_ms=300, job_p95_s=50)
    keys = [[plan.key for plan in sut.plans if level_rate(plan)] for sut in (one, two)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


def test_a_level_lasts_for_the_pauses_of_its_sessions() -> None:
    setting = ReplayedSUT().setting(JOBS)
    long = {"sessions": {"turns": 3, "input_tokens": 5, "output_tokens": 5, "pause_s": 100}}
    asked: dict[str, Any] = {"limits": (), "figures": lambda records: {}, "law": OpenLoop(1.0)}
    assert JobLevels(setting=setting, **asked).level_s == 300
    paused = ReplayedSUT().setting(long)
    assert JobLevels(setting=paused, **asked).level_s == 1_000
    assert JobLevels(setting=paused, duration_s=60.0, **asked).level_s == 60
