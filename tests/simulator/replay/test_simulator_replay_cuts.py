"""Users who cut requests in virtual time: the engine drops them, and every instant is known beforehand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from engine_runs import installed

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import (
    ClosedLoop,
    Deadlines,
    Load,
    LoadPlan,
    Looks,
    OpenLoop,
    SessionSlots,
    Watched,
)
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.catalogue import with_cuts
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

MS = 1_000_000
LONG = SyntheticWorkload("long", Fixed(200), Fixed(1000))
MIXED = SyntheticWorkload("mixed", Uniform(20, 400), Uniform(5, 300))
ENGINES = installed("fast", "fast?replicas=3&router=least_loaded", "fast?prefill_workers=1&decode_workers=2")


def run(
    workload: Workload, load: Load, requests: int, scenario: str = "fast", **changes: object
) -> Observation:
    plan = LoadPlan("cuts", workload, load, requests, seed=3).with_(**changes)
    return ReplayEngine(parse_scenario(scenario)).run(plan)


def cut_off(records: Records) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return ~records.judged & np.array([end is None for end in records.end_before_cut])


@pytest.mark.parametrize("scenario", ENGINES)
@pytest.mark.parametrize("load", [OpenLoop(40.0), ClosedLoop(8)], ids=["open", "closed"])
def test_what_is_cut_ends_at_the_planned_instant_and_nothing_is_read_after_it(
    load: Load, scenario: str
) -> None:
    workload = with_cuts(MIXED, Cuts(0.3, Uniform(5, 400)))
    records = run(workload, load, 300, scenario).records
    planned = workload.requests(300, 3)
    assert sorted(records.index.tolist()) == list(range(300))
    of_plan = np.array([planned[i].cut_after_ns or MISSING for i in records.index.tolist()])
    assert records.cut_after_ns.tolist() == of_plan.tolist()
    assert (records.judged == (of_plan == MISSING)).all()
    assert records.ok[records.judged].all()
    cut, took_ns = cut_off(records), records.finished_ns - records.submitted_ns
    assert 20 < cut.sum() < 90
    assert (took_ns[cut] == records.cut_after_ns[cut]).all()
    complete = ~records.judged & ~cut
    assert complete.any()
    assert (took_ns[complete] < records.cut_after_ns[complete]).all()
    assert set(np.array(records.end_before_cut, dtype=object)[complete]) == {"ok"}
    for row in np.flatnonzero(cut).tolist():
        chunks = records.chunk_ns[records.chunk_offsets[row] : records.chunk_offsets[row + 1]]
        assert (chunks <= records.finished_ns[row]).all()
        assert records.finish_reason[row] is None
        assert records.error[row] is None


def test_the_slot_of_a_cut_request_is_free_for_the_next() -> None:
    """One request at a time, all of them cut after 50 ms: each begins where the one before it was cut."""
    records = run(with_cuts(LONG, Cuts(1.0, Fixed(50))), ClosedLoop(1), 20).records
    assert cut_off(records).all()
    assert (np.diff(records.submitted_ns) == 50 * MS).all()


@pytest.mark.parametrize("scenario", ENGINES)
def test_the_engine_frees_what_it_held(scenario: str) -> None:
    """Without the cuts one batch of 4 would hold up the others for longer than their users wait."""
    engine = (
        f"{scenario}{'&' if '?' in scenario else '?'}max_num_seqs=4&kv_blocks=350&context_limit_tokens=4000"
    )
    load = OpenLoop(60.0)
    patient = run(LONG, load, 200, engine)
    impatient = run(with_cuts(LONG, Cuts(0.9, Fixed(100))), load, 200, engine)
    waited, cut = (seen.records.first_content_ns - seen.records.submitted_ns for seen in (patient, impatient))
    ok = impatient.records.ok
    assert ok.sum() == 20
    same = np.isin(patient.records.index, impatient.records.index[ok])
    assert np.median(cut[ok]) < 0.2 * np.median(waited[same])


@pytest.mark.parametrize("scenario", ENGINES)
def test_what_comes_next_finds_an_empty_engine(scenario: str) -> None:
    after, fresh = (ReplayEngine(parse_scenario(scenario)) for _ in range(2))
    all_cut = with_cuts(LONG, Cuts(1.0, Uniform(5, 90)))
    assert cut_off(after.run(LoadPlan("cut", all_cut, ClosedLoop(8), 100, seed=3)).records).all()
    plan = LoadPlan("next", LONG, ClosedLoop(8), 8, seed=4)
    ends = [seen.records.finished_ns - seen.started_ns for seen in (after.run(plan), fresh.run(plan))]
    assert ends[0].tolist() == ends[1].tolist()


def test_a_cut_before_the_first_token_leaves_no_instant() -> None:
    records = run(with_cuts(LONG, Cuts(1.0, Fixed(1))), OpenLoop(5.0), 10, "h100-8b").records
    assert (records.first_content_ns == MISSING).all()
    assert (records.finished_ns - records.submitted_ns == MS).all()
    assert (np.diff(records.chunk_offsets) == 0).all()


def test_with_the_input_filter_and_behind_the_output_filter() -> None:
    """A user may leave while the prompt is checked; and of an answer that is held back the open window is not
    read."""
    scenario = (
        "fast?input_filter=enabled&output_filter=enabled&input_filter_us=40000&output_filter_window_tokens=20"
    )
    workload = with_cuts(LONG, Cuts(0.5, Uniform(20, 200)))
    records = run(workload, OpenLoop(20.0), 100, scenario).records
    cut = cut_off(records)
    assert cut.sum() == 50
    early = cut & (records.cut_after_ns < 40 * MS)
    assert early.any()
    assert (records.http_status[early] == MISSING).all()
    assert (np.diff(records.chunk_offsets)[early] == 0).all()
    read = np.diff(records.chunk_offsets)[cut & ~early]
    assert read.any()
    assert (read % 20 == 0).all()
    assert records.ok[~cut].all()  # who leaves takes nobody along that is checked beside him


def test_failures_before_the_cut_are_told_and_count_nowhere() -> None:
    workload = with_cuts(MIXED, Cuts(0.5, Fixed(10_000)))
    seen = run(workload, OpenLoop(40.0), 200, "fast?fault=http_error&fault_rate=0.2")
    records = seen.records
    ends = [end for end in records.end_before_cut if end is not None]
    assert len(ends) == 100
    assert 5 < ends.count("http_error") < 40
    assert records.has_outcome(Outcome.HTTP_ERROR).sum() == records.failed.sum()
    assert not (records.failed & ~records.judged).any()


def test_failures_of_requests_to_be_cut_end_no_load() -> None:
    workload = with_cuts(MIXED, Cuts(0.5, Fixed(10_000)))
    seen = run(workload, OpenLoop(40.0), 200, "fast?fault=http_error&fault_rate=0.2", most_failures=25)
    assert seen.interrupted is None
    assert len(seen.records) == 200
    patient = run(MIXED, OpenLoop(40.0), 200, "fast?fault=http_error&fault_rate=0.2", most_failures=25)
    assert patient.interrupted is not None


CUT_TURNS = Cuts(0.4, Uniform(5, 60))
CHAT = SessionWorkload("chat", Fixed(5), Fixed(40), Fixed(400), Fixed(700), cuts=CUT_TURNS)
RECORDED = TraceSessionWorkload(
    "recorded",
    (
        TracedSession(
            (TracedTurn(40, 400), *(TracedTurn(40 + 440 * n, 400, (n,), 700.0) for n in range(1, 5)))
        ),
    )
    * 12,
    DatasetIdentity("made up", "1", "all"),
    timed=False,
    cuts=CUT_TURNS,
)


@pytest.mark.parametrize("workload", [CHAT, RECORDED], ids=["of laws", "of a trace"])
@pytest.mark.parametrize("scenario", ENGINES)
def test_a_session_goes_on_after_a_cut(
    scenario: str, workload: SessionWorkload | TraceSessionWorkload
) -> None:
    count = turns_of(workload, 12, 3)
    records = run(workload, SessionSlots(3), count, scenario).records
    assert len(records) == count
    assert cut_off(records).any()
    rows = {place: row for row, place in enumerate(zip(records.session, records.turn, strict=True))}
    for request in workload.requests(count, 3):
        assert request.turn is not None
        row = rows[request.turn.session, request.turn.number]
        if request.turn.number > 1:
            before = rows[request.turn.session, request.turn.number - 1]
            assert records.scheduled_ns[row] == records.finished_ns[before] + 700 * MS


def test_rows_say_what_the_columns_do() -> None:
    rows: list[RequestRecord] = []
    plan = LoadPlan("cuts", with_cuts(MIXED, Cuts(0.3, Uniform(5, 400))), OpenLoop(40.0), 100, seed=3)
    records = ReplayEngine(parse_scenario("fast")).run(plan, rows.append).records
    again = Records.from_rows(rows)
    assert again.cut_after_ns.tolist() == records.cut_after_ns.tolist()
    assert list(again.end_before_cut) == list(records.end_before_cut)
    assert again.outcome.tolist() == records.outcome.tolist()


def test_looks_judge_those_whose_users_wait() -> None:
    """The verdict is that of the waiting requests alone: with the cut ones among the failures it would be the
    opposite."""
    limit = Objective("completion_rate", ">=", 0.9, "ratio")
    looks = Looks((Watched(limit, "ok"),), max_error_share=0.01)
    workload = with_cuts(MIXED, Cuts(0.3, Uniform(5, 50)))
    seen = run(workload, OpenLoop(40.0), 5000, looks=looks)
    assert seen.stopped is not None
    assert "every limit is decided" in seen.stopped
    assert len(seen.records) < 2500
    assert math.isclose(seen.records.ok_share or 0.0, 1.0)


def test_the_base_is_what_it_was() -> None:
    """A share of none is the very load without cuts."""
    plain = run(MIXED, OpenLoop(40.0), 100).records
    none = run(with_cuts(MIXED, Cuts(0.0, Fixed(5))), OpenLoop(40.0), 100).records
    assert plain.chunk_ns.tolist() == none.chunk_ns.tolist()
    assert replace(none, request_id=plain.request_id).ok.all()


STEPS_OF_10_MS = "step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
GIVEN_UP = [
    ("seed=1", 20),
    ("output_filter=enabled&output_filter_window_tokens=8&output_refusal_share=0", 16),
    ("fault=stall&fault_after_tokens=3&stall_ms=90", 20),
    ("fault=stall&fault_after_tokens=3&stall_ms=5000", 3),
    ("fault=buffering", 0),
]


@pytest.mark.parametrize(("options", "read"), GIVEN_UP)
@pytest.mark.parametrize("engines", installed("fast?", "fast?replicas=2&"))
@pytest.mark.parametrize("change", [{"deadlines": Deadlines(total_s=0.205)}, {"most_s": 0.195}])
def test_who_gives_up_has_read_what_had_reached_it(
    options: str, read: int, engines: str, change: dict[str, object]
) -> None:
    """A token leaves every 10 ms, and the end of a plan is seen as a step ends. What a filter, a stall or a
    proxy holds has not come."""
    scenario = f"{engines}{STEPS_OF_10_MS}&{options}"
    records = run(LONG, ClosedLoop(1), 1, scenario, **change).records
    assert not records.ok.any()
    assert len(records.chunk_ns) == read
    assert (records.first_byte_ns[0] == MISSING) == (read == 0)
