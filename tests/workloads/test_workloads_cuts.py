"""Users who do not wait: which requests are cut and when is known before anything is sent."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.factory import make_workload
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.store.objects import described, rebuilt
from pytest_llmbench.workloads.adapted import Cuts, Salted, WithCuts, WithFixedOutput
from pytest_llmbench.workloads.catalogue import with_cuts, workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sequence import sequence_json
from pytest_llmbench.workloads.sessions import ProbeSessions, SessionWorkload
from pytest_llmbench.workloads.stream import streamed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

MS = 1_000_000
CUTS = Cuts(0.3, Uniform(200, 900))
CHAT: Mapping[str, Any] = {"turns": 4, "input_tokens": 20, "output_tokens": 30}


MADE_UP = DatasetIdentity("made up", "1", subset_method="all")
AGENT = (
    TracedTurn(40, 5),
    TracedTurn(60, 5, (1,), 250.0),
    TracedTurn(50, 5, (1,)),
    TracedTurn(90, 5, (2, 3)),
)


def recorded(**changes: Any) -> TraceSessionWorkload:
    """Five sessions of four turns."""
    sessions = tuple(TracedSession(AGENT) for _ in range(5))
    return TraceSessionWorkload("agents", sessions, MADE_UP, **changes)


def times(requests: Any) -> list[int | None]:
    return [request.cut_after_ns for request in requests]


def test_exactly_the_share_is_cut_and_the_rest_of_the_requests_stays_as_it_was() -> None:
    made = with_cuts(SYNTHETIC_UNIFORM, CUTS)
    requests, base = made.requests(200, 5), SYNTHETIC_UNIFORM.requests(200, 5)
    cut = [ns for ns in times(requests) if ns is not None]
    assert len(cut) == 60
    assert all(sum(ns is not None for ns in times(requests[at : at + 10])) == 3 for at in range(0, 200, 10))
    assert all(200 * MS <= ns <= 900 * MS for ns in cut)
    assert len(set(cut)) > 40
    assert [replace(request, cut_after_ns=None) for request in requests] == list(base)
    assert times(made.requests(37, 5)) == times(requests[:37])
    assert times(made.requests(200, 6)) != times(requests)


def test_anybody_can_draw_the_times_again() -> None:
    generator = random.Random(int.from_bytes(hashlib.sha256(b"42/cuts").digest()[:8], "big"))
    flags = [True] * 3 + [False] * 7
    generator.shuffle(flags)
    again = [generator.randint(200, 900) * MS if flag else None for flag in flags]
    assert list(islice(CUTS.times_ns(42), 10)) == again


@pytest.mark.parametrize(("share", "every"), [(0.0, 0), (1.0, 40), (0.25, 10)])
def test_any_share(share: float, every: int) -> None:
    planned = times(with_cuts(SYNTHETIC_UNIFORM, Cuts(share, Fixed(5))).requests(40, 1))
    assert sum(ns == 5 * MS for ns in planned) == every
    assert planned.count(None) == 40 - every


@pytest.mark.parametrize(
    ("share", "after_s", "said"),
    [
        (1.5, 1.0, "share of cut requests is 1.5: give a share from 0 to 1"),
        (-0.1, 1.0, "share of cut requests is -0.1"),
        ("half", 1.0, "share of cut requests is 'half'"),
        (float("nan"), 1.0, "share of cut requests is nan"),
        (0.5, -1.0, "cut_after_s is -1.0: give seconds, at least 0.001"),
        (0.5, 0, "cut_after_s is 0: give seconds"),
        (0.5, (0.1, -2), "cut_after_s is (0.1, -2)"),
        (0.5, (2.0, 1.0), "2000"),
        (0.5, "soon", "cut_after_s is 'soon'"),
        (0.5, [], "cut_after_s is []"),
        (0.5, None, "cut_share and cut_after_s belong together"),
        (None, 1.0, "cut_share and cut_after_s belong together"),
    ],
)
def test_what_is_no_share_and_no_time(share: Any, after_s: Any, said: str) -> None:
    with pytest.raises(SuiteError, match=r"cut|2000") as refused:
        make_workload("synthetic-uniform", cut_share=share, cut_after_s=after_s)
    assert said in str(refused.value)
    described_so = {"sessions": {**CHAT, "cut_share": share, "cut_after_s": after_s}}
    with pytest.raises(SuiteError) as refused:
        workload(described_so)
    assert said in str(refused.value)


def test_users_cut_once() -> None:
    made = make_workload("synthetic-uniform", cut_share=0.2, cut_after_s=1)
    with pytest.raises(SuiteError, match="cut requests already"):
        with_cuts(made, CUTS)
    with pytest.raises(SuiteError, match="cut requests already"):
        make_workload("profile:COMP", cut_share=0.2, cut_after_s=1)
    chats = workload({"sessions": {**CHAT, "cut_share": 0.2, "cut_after_s": 1}})
    with pytest.raises(SuiteError, match="sessions of laws and of traces, once"):
        with_cuts(chats, CUTS)
    with pytest.raises(SuiteError, match="sessions of laws and of traces, once"):
        with_cuts(with_cuts(recorded(), CUTS), CUTS)


def test_a_standard_workload_with_cuts_is_a_custom_one_that_declares_them() -> None:
    made = make_workload("synthetic-uniform", cut_share=0.25, cut_after_s=(0.1, 1.0))
    assert (made.name, made.standard) == ("synthetic-uniform (with cuts)", False)
    stated = made.specification()
    assert stated["cuts"]["share"] == 0.25
    after = stated["cuts"]["after"]
    assert (after["type"], after["params"]["min"], after["params"]["max"], after["unit"]) == (
        "uniform", 100, 1000, "ms"
    )  # fmt: skip
    assert [change["what"] for change in stated["deviations"]] == ["cuts"]
    assert rebuilt(described(made)) == made


def test_code_completion_is_cut_and_says_so() -> None:
    made = workload("profile:COMP")
    planned = times(made.requests(200, 3))
    cut = [ns for ns in planned if ns is not None]
    assert len(cut) == 50
    assert all(100 * MS <= ns <= 1000 * MS for ns in cut)
    assert made.specification()["cuts"]["share"] == 0.25
    assert rebuilt(described(made)) == made
    assert times(workload("profile:CHAT").requests(50, 3)) == [None] * 50


@pytest.mark.parametrize(
    "change",
    [lambda base: Salted(base, "monday"), lambda base: WithFixedOutput(base, 16)],
    ids=["salted", "fixed output"],
)
def test_other_changes_keep_the_cuts(change: Any) -> None:
    made = with_cuts(SYNTHETIC_UNIFORM, CUTS)
    assert times(change(made).requests(50, 5)) == times(made.requests(50, 5))
    assert change(made).specification()["cuts"] == made.specification()["cuts"]


def test_a_mixture_has_the_cuts_of_its_parts() -> None:
    made = workload({"profile:COMP": 0.5, "profile:CLAS": 0.5})
    requests = made.requests(400, 5)
    assert {r.class_label for r in requests if r.cut_after_ns is not None} == {"profile:COMP"}
    completions = [r for r in requests if r.class_label == "profile:COMP"]
    cut = sum(r.cut_after_ns is not None for r in completions)
    assert abs(cut - len(completions) / 4) <= 2
    assert made.specification()["cuts"]["share"] == 0.125
    assert "cuts" not in workload({"profile:CLAS": 1, "profile:SFQA": 1}).specification()


def test_turns_are_cut_and_probes_of_a_session_as_it_is() -> None:
    made = workload({"sessions": {**CHAT, "cut_share": 0.3, "cut_after_s": 0.5}})
    assert isinstance(made, SessionWorkload)
    made = streamed(made)
    assert made.unit == "session"
    plain = replace(made, cuts=None)
    requests = made.requests(80, 7)
    assert times(requests).count(500 * MS) == 24
    assert [replace(r, cut_after_ns=None) for r in requests] == list(plain.requests(80, 7))
    probed = ProbeSessions(made, 7, (2, 5)).requests(8, 9)
    of_them = [r for r in requests if r.turn is not None and r.turn.session in (2, 5)]
    assert times(probed) == times(of_them)
    assert made.specification()["cuts"]["share"] == 0.3
    assert "cuts" not in plain.specification()
    assert rebuilt(described(made)) == made


def test_turns_of_a_trace_are_cut_by_the_seed_and_stay_as_recorded() -> None:
    made, plain = with_cuts(recorded(), Cuts(0.3, Fixed(500))), recorded()
    assert isinstance(made, TraceSessionWorkload)
    assert made.name == "agents (with cuts)"
    requests = made.requests(80, 7)  # four times through
    assert times(requests).count(500 * MS) == 24
    assert [replace(r, cut_after_ns=None) for r in requests] == list(plain.requests(80, 7))
    assert times(made.requests(80, 8)) != times(requests)
    again = Cuts(0.3, Fixed(500)).times_ns(7)
    assert times(requests) == list(islice(again, 80))
    shapes = list(islice(made.shapes(7), 20))
    assert [turn.cut_after_ns for session in shapes for turn in session.turns] == times(requests)
    assert rebuilt(described(made)) == made != plain


def test_probes_of_recorded_sessions_are_cut_as_these_are() -> None:
    made = recorded(cuts=CUTS)
    of_them = [r for r in made.requests(80, 7) if r.turn is not None and r.turn.session in (2, 5)]
    assert any(times(of_them))
    assert times(ProbeSessions(made, 7, (2, 5)).requests(8, 9)) == times(of_them)


def test_a_shuffled_trace_is_cut_in_the_order_in_which_it_is_sent() -> None:
    sessions = tuple(TracedSession((TracedTurn(20 + n, 5),)) for n in range(40))
    made = TraceSessionWorkload("asked", sessions, MADE_UP, timed=False, shuffled=True, cuts=CUTS)
    requests = made.requests(40, 3)
    assert times(requests) == list(islice(CUTS.times_ns(3), 40))
    assert sorted(r.input_tokens for r in requests) == list(range(20, 60))


def test_a_recorded_workload_states_its_cuts() -> None:
    assert recorded(cuts=CUTS).specification()["cuts"] == CUTS.specification()
    assert "cuts" not in recorded().specification()


def test_the_digest_of_a_sequence_tells_the_cuts() -> None:
    one = PlannedRequest(0, 8, 2, token_ids=[5, 6])
    assert sequence_json([one]) == "[[8,[5,6]]]"
    assert sequence_json([replace(one, cut_after_ns=7 * MS)]) == "[[8,[5,6],7000000]]"


def test_a_file_of_workloads(tmp_path: Path) -> None:
    path = tmp_path / "workloads.toml"
    path.write_text(
        "[workloads.impatient]\ninput_tokens = 20\noutput_tokens = 30\ncut_share = 0.5\n"
        "cut_after_s = [0.2, 0.4]\n",
        "utf-8",
    )
    made: Workload = read_workload_file(path)["impatient"]
    assert isinstance(made, WithCuts)
    assert made.cuts == Cuts(0.5, Uniform(200, 400))
    (tmp_path / "agents.jsonl").write_text(
        '{"request_id": "a", "session_id": "s", "input_length": 40, "output_length": 5, "timestamp": 0}\n'
        '{"request_id": "b", "session_id": "s", "input_length": 60, "output_length": 5, "wait_for": ["a"]}\n',
        "utf-8",
    )
    path.write_text(
        '[workloads.agents]\nkind = "trace"\nsessions = true\npath = "agents.jsonl"\ndataset = "agents"\n'
        'version = "1"\nsubset_method = "all"\ncut_share = 0.5\ncut_after_s = [0.2, 0.4]\n',
        "utf-8",
    )
    agents = read_workload_file(path)["agents"]
    assert isinstance(agents, TraceSessionWorkload)
    assert agents.cuts == Cuts(0.5, Uniform(200, 400))
    path.write_text(
        "[workloads.x]\ninput_tokens = 20\noutput_tokens = 30\ncut_share = 2\ncut_after_s = 1\n", "utf-8"
    )
    with pytest.raises(SuiteError, match=r"workloads.x.*give a share from 0 to 1"):
        read_workload_file(path)
