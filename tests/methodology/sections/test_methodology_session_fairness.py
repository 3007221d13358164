"""Fairness between classes of sessions: by canned records whose TTFT is known, and by an engine whose batch
is too small for both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from canned_levels import are_in_the_catalogue, canned_setting
from canned_sessions import MS, SessionServer
from replayed_sut import ReplayedSUT

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import fairness
from pytest_llmbench.model.judgement import ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, SessionSlots
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.request import PlannedRequest, prompt_lengths
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.mixture import Mixture, SessionMix

CHAT: Any = {"sessions": {"turns": 2, "input_tokens": 20, "output_tokens": 10}}
AGENT: Any = {"sessions": {"turns": 6, "input_tokens": 30, "output_tokens": 40, "system_tokens": 64}}
MIX: Any = {"chat": (CHAT, 0.7), "agent": (AGENT, 0.3)}


def known_ms(request: PlannedRequest, plan: LoadPlan) -> float:
    """Alone 10 ms and 20 ms; in the mix chats wait three times as long, agents as long as alone."""
    if request.class_label == "chat":
        return 30.0 if plan.label == "mix of classes" else 10.0
    return 20.0


def canned(server: SessionServer | None = None, **keywords: Any) -> TestResult:
    parameters = build(fairness.Parameters, {"workload": MIX} | keywords)
    setting = replace(canned_setting("standard"), workload=workload(parameters.workload))
    return drive(fairness.TEST.procedure(parameters, setting), server or SessionServer(known_ms))


def point(result: TestResult, name: str) -> float:
    found = result.metrics[name].point
    assert found is not None, name
    return found


def test_figures_of_the_classes_and_jains_index_over_their_slowdowns() -> None:
    result = canned(sessions=4, sessions_per_class=40)
    assert point(result, "ttft[chat].p50") == pytest.approx(30.0)
    assert point(result, "ttft[chat alone].p50") == pytest.approx(10.0)
    assert point(result, "ttft_inflation[chat].p50") == pytest.approx(3.0)
    assert point(result, "ttft_inflation[agent].p99") == pytest.approx(1.0)
    # Slowdowns 3 and 1: (3 + 1)² / (2 (9 + 1)).
    assert point(result, "class_jain_index") == pytest.approx(0.8)
    # A turn of a chat takes 30 + 90 ms for 10 tokens, one of an agent 20 + 90 ms for 40.
    (mixed,) = (run for run in result.observations if run.plan.label == "mix of classes")
    level = next(level for level in result.levels if level.role == "mix")
    assert level.observation == result.observations.index(mixed)
    assert point(result, "job_time[chat].p50") == pytest.approx(0.24)
    assert point(result, "job_time[agent].p50") == pytest.approx(0.66)
    assert are_in_the_catalogue(result.metrics)


def test_jains_index_is_of_sessions() -> None:
    result = canned(sessions=4, sessions_per_class=40)
    mixed = result.observations[-1].records
    inside = next(level for level in result.levels if level.role == "mix")
    labels = np.array(mixed.class_label, dtype=object)
    index = result.metrics["jain_index"]
    counted = len(np.unique(mixed.session))
    # As many values as sessions in the window, fewer than turns.
    assert counted * 0.7 < index.n <= counted < len(labels)
    per_token = {"chat": 120 / 10, "agent": 110 / 40}
    of = Counter(str(labels[mixed.session == number][0]) for number in np.unique(mixed.session))
    whole = np.repeat([per_token[name] for name in of], [of[name] for name in of])
    expected = whole.sum() ** 2 / (len(whole) * np.square(whole).sum())
    assert index.point == pytest.approx(expected, abs=0.02)
    assert inside.window_s > 0


def test_a_session_starves_with_one_turn_that_waits_too_long() -> None:
    def stuck(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        assert request.turn is not None
        row.queue_wait_ns = MS
        starves = request.turn.number == 5 and request.turn.session % 2 == 0
        if plan.label == "mix of classes" and request.class_label == "agent" and starves:
            row.queue_wait_ns = 6 * MS

    result = canned(SessionServer(known_ms, stuck), sessions=4, sessions_per_class=100)
    # One turn in twelve, and one session in two.
    starved = result.metrics["starvation_rate[agent]"]
    assert starved.point == pytest.approx(0.5, abs=0.15)
    assert starved.n < 150
    assert point(result, "starvation_rate[chat]") == 0.0
    assert result.metrics["starvation_rate[chat]"].upper is not None
    assert result.metrics["starvation_rate[chat]"].upper > 0
    assert any("the wait is the server queue wait" in note for note in map(str, result.notes))


def test_each_class_alone_and_then_the_mix_with_as_many_at_once() -> None:
    server = SessionServer(known_ms)
    result = canned(server, sessions=6, sessions_per_class=30)
    assert [(plan.label, plan.load) for plan in server.plans] == [
        ("chat alone", SessionSlots(6)),
        ("agent alone", SessionSlots(6)),
        ("mix of classes", SessionSlots(6)),
    ]
    chats, agents, mixed = (run.records for run in result.observations)
    assert set(chats.class_label) == {"chat"}
    assert set(agents.class_label) == {"agent"}
    for name in ("chat", "agent"):
        of_class = np.array(mixed.class_label, dtype=object) == name
        assert len(np.unique(mixed.session[of_class])) >= 30
    assert [(level.role, level.class_label) for level in result.levels] == [
        ("baseline", "chat"), ("baseline", "agent"), ("mix", ""),
    ]  # fmt: skip
    assert validity(result.observations, Budget(), result.budgeted).verdict is ValidityVerdict.VALID


def test_chats_wait_for_agents_in_a_small_batch() -> None:
    long: Any = {"sessions": {**AGENT["sessions"], "input_tokens": 600, "output_tokens": 120}}
    result = ReplayedSUT("fast?max_num_seqs=4").measure(
        fairness.TEST, workload={"chat": (CHAT, 0.6), "agent": (long, 0.4)}, sessions=8, sessions_per_class=80
    )
    inflation = result.metrics["ttft_inflation[chat].p50"]
    assert inflation.lower is not None
    assert inflation.lower > 2
    assert "whole sessions" in inflation.method
    assert point(result, "class_jain_index") < 0.9


def test_tables_and_plot() -> None:
    result = canned(sessions=4, sessions_per_class=40)
    by_class, indices, alone = result.tables
    assert [row[0] for row in by_class.rows] == ["Chat", "Agent"]
    assert by_class.rows[0][-3:] == ("3", "3", "3, indicative")
    assert indices.rows[1][:2] == ("Class-Level Fairness Index", "0.8")
    assert [row[0] for row in alone.rows] == ["Chat", "Agent"]
    assert {name: (x[0], x[-1]) for name, (x, _) in result.plots[0].series.items()} == {
        "chat, mix": (30, 30), "chat, alone": (10, 10), "agent, mix": (20, 20), "agent, alone": (20, 20),
    }  # fmt: skip
    mixed = result.observations[-1].records
    sessions = Counter(dict(zip(mixed.session.tolist(), mixed.class_label, strict=True)).values())
    assert [row[1] for row in by_class.rows] == [str(sessions[name]) for name in ("chat", "agent")]
    assert any("significant unfairness" in note for note in map(str, result.notes))
    assert any("the workload has sessions: 4 at once" in note for note in map(str, result.notes))


def test_no_clause_about_requests_is_met() -> None:
    found = audit(Evidence("fairness", canned(sessions=4, sessions_per_class=40)))
    told = {each.id: each for each in found.requirements}
    own = [each for name, each in told.items() if "5.6." in name]
    assert len(own) >= 12
    assert {str(each.status) for each in own} <= {"unmet", "not_applicable"}
    for clause in ("P-5.6.2-classes", "P-5.6.3-isolated-baseline", "P-5.6.4-jain", "P-5.6.4-starvation"):
        assert "requests that are not turns of sessions" in told[clause].reason
    assert str(found.verdict) == "not_compliant"


def test_a_level_that_this_machine_spoiled_is_measured_again_with_other_sessions() -> None:
    server, spoiled = SessionServer(known_ms), []

    def late(plan: LoadPlan) -> Observation:
        seen = server(plan)
        if plan.label == "agent alone" and not spoiled:
            spoiled.append(plan)
            records = replace(seen.records, submitted_ns=seen.records.scheduled_ns + 80 * MS)
            return replace(seen, records=records, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=80 * MS))
        return seen

    parameters = build(fairness.Parameters, {"workload": MIX, "sessions_per_class": 30})
    setting = replace(canned_setting("standard"), workload=workload(parameters.workload))
    result = drive(fairness.TEST.procedure(parameters, setting), late)
    again = [plan for plan in server.plans if plan.label == "agent alone"]
    assert again[0].seed != again[1].seed
    assert len(result.void_loads) == 1


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"workload": CHAT}, "workload has one class of sessions"),
        ({"workload": "session:chat"}, "workload has one class of sessions"),
        ({"capacity_rps": 4.0}, "capacity_rps applies to requests: give sessions"),
        ({"load_percent": 70.0}, "load_percent applies to requests"),
        ({"equal_load": "requests"}, "equal_load applies to requests"),
        ({"requests_per_class": 9}, "requests_per_class applies to requests"),
        ({"max_inflation": {"long": 2.0}}, r"max_inflation limits \['long'\]; the classes are chat, agent"),
        ({"workload": "synthetic-skewed", "sessions": 4}, "sessions applies to sessions"),
        ({"workload": {"chat": (CHAT, 1), "x": ("synthetic-uniform", 1)}}, "workload must be"),
    ],
)
def test_mistakes(keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError, match=told):
        build(fairness.Parameters, {"workload": MIX} | keywords)


def test_limits_by_class_become_objectives() -> None:
    limits = {"max_inflation": {"chat": 2.0}, "ttft_p99_ms": 500, "min_class_jain": 0.9}
    parameters = build(fairness.Parameters, {"workload": MIX, **limits})
    assert [str(objective) for objective in parameters.objectives] == [
        "class_jain_index >= 0.9",
        "ttft_inflation[chat].p50 <= 2",
        "ttft[chat].p99 <= 500 ms",
        "ttft[agent].p99 <= 500 ms",
    ]


def test_sessions_that_do_not_fit_the_model_are_refused_before_anything_is_sent() -> None:
    far: Any = {"sessions": {**AGENT["sessions"], "own_tokens": 400_000}}
    sut = ReplayedSUT()
    parameters = build(fairness.Parameters, {"workload": {"chat": (CHAT, 1), "agent": (far, 1)}})
    (missing,) = fairness.TEST.needs(parameters, sut.setting(parameters.workload))
    assert "a model with a longer context" in missing


def test_a_mix_of_sessions_draws_whole_sessions_and_its_shapes_are_those_of_its_requests() -> None:
    mix = workload(MIX)
    assert isinstance(mix, SessionMix)
    assert mix.unit == "session"
    requests = mix.requests(400, 3)
    assert [request.index for request in requests] == list(range(400))
    shapes = [
        (total, kept) for session in islice(mix.shapes(3), 300) for total, kept in prompt_lengths(session, 0)
    ]
    drawn = [(request.input_tokens, request.turn.kept_tokens) for request in requests if request.turn]
    assert drawn == shapes[:400]
    by_session = {request.turn.session: request.class_label for request in requests if request.turn}
    assert list(by_session.values())[:60] == list(islice(mix.drawn(3), 60))
    share = Counter(islice(mix.drawn(3), 4_000))["chat"] / 4_000
    assert share == pytest.approx(0.7, abs=0.03)
    assert set(islice(mix.isolated("agent").drawn(3), 20)) == {"agent"}


def test_a_mix_of_sessions_and_requests_is_of_requests() -> None:
    mixed = workload({"chat": (CHAT, 1), "x": ("synthetic-uniform", 1)})
    assert isinstance(mixed, Mixture)
    assert {request.turn for request in mixed.requests(40, 3)} == {None}
