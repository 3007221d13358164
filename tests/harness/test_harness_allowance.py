"""Budgets of a session: no request leaves above them, and what they cut is void for that."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.allowance import Allowance, Budgets, Spent, raised
from pytest_llmbench.harness.plan import exceeding
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import WarmupPolicy
from pytest_llmbench.model.judgement import ValidityVerdict
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, Looks, OpenLoop, SessionSlots, Watched
from pytest_llmbench.model.record import Phase
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

ROOMY = Budgets(requests=10**9, tokens=10**15, seconds=1e9, rate=1e6, concurrency=10**6)
HUNDRED = SyntheticWorkload("hundred", Fixed(70), Fixed(30))
PLAN = LoadPlan("load", HUNDRED, ClosedLoop(4), 50, seed=7)


class Session:
    """An allowance over the engine in virtual time."""

    def __init__(self, scenario: str = "fast", **budgets: Any) -> None:
        self.engine = ReplayEngine(parse_scenario(scenario))
        kept = {name: getattr(ROOMY, name) for name in Budgets.__dataclass_fields__}
        self.allowance = Allowance(Budgets(**(kept | budgets)))
        self.sent = 0

    def run(self, plan: LoadPlan) -> Observation:
        return self.allowance.run(plan, self._execute, self.engine.clock.anchor)

    def _execute(self, plan: LoadPlan) -> Observation:
        seen = self.engine.run(plan)
        self.sent += len(seen.records)
        return seen


def is_void(seen: Observation) -> bool:
    return validity([seen], Budget()).verdict is ValidityVerdict.INVALID


LOADS = [
    PLAN,
    PLAN.with_(load=OpenLoop(20.0)),
    PLAN.with_(requests=8, duration_s=30.0, max_requests=5000),
    PLAN.with_(load=OpenLoop(20.0), duration_s=2.5),
]


@pytest.mark.parametrize("plan", LOADS, ids=["closed", "open", "closed, timed", "open, timed"])
@pytest.mark.parametrize(
    ("budgets", "allowed"), [({"requests": 30}, 30), ({"tokens": 3_099}, 30), ({"tokens": 3_100}, 31)]
)
def test_a_load_ends_where_the_budget_does(plan: LoadPlan, budgets: dict[str, int], allowed: int) -> None:
    session = Session(**budgets)
    seen = session.run(plan)
    name, budget = next(iter(budgets.items()))
    assert (session.sent, len(seen.records), seen.plan) == (allowed, allowed, plan)
    assert f"--llm-caps={name}={budget} allows: raise it with --llm-caps={name}=" in str(seen.interrupted)
    assert is_void(seen)
    again = session.run(plan)
    assert session.sent == allowed
    assert "not sent: " in str(again.interrupted)
    assert is_void(again)


@pytest.mark.parametrize("plan", LOADS, ids=["closed", "open", "closed, timed", "open, timed"])
def test_what_is_within_the_budget_is_sent_whole(plan: LoadPlan) -> None:
    free = Session().run(plan)
    spent = len(free.records)
    session = Session(requests=spent, tokens=100 * spent)
    if plan.most_requests == spent:
        seen = session.run(plan)
        assert (seen.interrupted, seen.stopped, len(seen.records)) == (None, None, spent)
        assert not is_void(seen)
    assert Session(requests=plan.most_requests).run(plan).interrupted is None


def test_a_timed_load_that_ends_by_itself_before_the_budget_does_is_whole() -> None:
    plan = LOADS[2]
    spent = len(Session().run(plan).records)
    assert 8 < spent < plan.most_requests
    assert Session(requests=spent + 1).run(plan).interrupted is None
    assert Session(requests=spent - 1).run(plan).interrupted is not None


def test_replies_that_were_shorter_than_asked_leave_more_for_the_next() -> None:
    whole = PLAN.with_(ignore_eos=False)
    session = Session("fast?eos_mean_tokens=3", tokens=9_000)
    assert session.run(whole).interrupted is None
    assert len(session.run(whole.with_(first=50)).records) > 40


def test_a_lost_reply_may_have_been_as_long_as_it_was_asked_for() -> None:
    session = Session("fast?fault=http_error&fault_status=500", tokens=9_999)
    session.run(PLAN)
    assert session.sent == 50
    assert len(session.run(PLAN.with_(first=50)).records) == 49


def test_what_was_spent_is_counted_over_all_loads() -> None:
    session = Session()
    session.run(PLAN)
    before = session.allowance.spent
    assert before == Spent(50, 50 * 70, 50 * 30)
    seen = session.run(PLAN.with_(first=50, requests=10, ignore_eos=True))
    assert session.allowance.spent.since(before) == Spent(10, 700, 300)
    assert seen.records.output_tokens.sum() == 300
    lost = Session("fast?fault=http_error&fault_status=500")
    lost.run(PLAN)
    assert lost.allowance.spent.output_tokens == 50 * 30, "they may have been made all the same"


def test_a_load_that_may_end_early_takes_no_look_within_less_than_it_was_planned_for() -> None:
    ttft = Objective("ttft.p50", "<=", 10_000.0, "ms")
    looks = Looks((Watched(ttft, "ttft", 50.0),), 0.01)
    plan = PLAN.with_(requests=2000, looks=looks)
    assert Session().run(plan).stopped is not None
    seen = Session(requests=1999).run(plan)
    assert (seen.stopped, len(seen.records)) == (None, 1999)
    assert "--llm-caps=requests=1999" in str(seen.interrupted)


@pytest.mark.parametrize("plan", [PLAN.with_(load=OpenLoop(2.0)), PLAN.with_(requests=5000)])
def test_no_load_goes_on_beyond_the_seconds(plan: LoadPlan) -> None:
    session = Session(seconds=3.0)
    seen = session.run(plan)
    assert "--llm-caps=seconds=3 allows: raise it with --llm-caps=seconds=10" in str(seen.interrupted)
    assert 0 < len(seen.records) < plan.requests
    assert int(seen.records.submitted_ns.max()) < seen.started_ns + 3_000_000_000
    assert seen.duration_s <= 3.5
    assert is_void(seen)
    assert "has sent for as many seconds" in str(session.run(plan).interrupted)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            OpenLoop(51.0),
            "51 req/s is more than --llm-caps=rate=50 allows: raise it with --llm-caps=rate=100",
        ),
        (ClosedLoop(65), "65 in flight is more than --llm-caps=concurrency=64 allows"),
        (SessionSlots(65), "65 sessions at once are more than --llm-caps=concurrency=64 allows"),
    ],
)
def test_a_load_that_is_too_wide_is_not_sent_at_all(load: Load, said: str) -> None:
    session = Session(rate=50, concurrency=64)
    seen = session.run(PLAN.with_(load=load))
    assert said in str(seen.interrupted)
    assert session.sent == 0
    assert is_void(seen)
    for kept in (OpenLoop(50.0), ClosedLoop(64)):
        assert session.run(PLAN.with_(load=kept)).interrupted is None


def test_a_warm_up_that_may_not_be_sent_is_an_error() -> None:
    with pytest.raises(SuiteError, match="--llm-caps=requests=10"):
        Session(requests=10).run(PLAN.with_(phase=Phase.WARMUP))


@pytest.mark.parametrize(
    ("needed", "told"),
    [(11, "20"), (20, "20"), (21, "50"), (999_999, "1000000"), (10**12 + 1, "2000000000000")],
)
def test_the_next_budget_is_round_and_enough(needed: float, told: str) -> None:
    assert raised("requests", 10, needed).endswith(f"raise it with --llm-caps=requests={told}")


def test_sessions_beside_one_another_share() -> None:
    shared = Budgets(100, 1000, 60.0, 50.0, 8).divided(4)
    assert shared == Budgets(25, 250, 15.0, 50.0, 8)


# --- the session


def session_of(**given: Any) -> BenchSession:
    return BenchSession(Settings(endpoint="replay:fast", **given))


def measured(session: BenchSession, name: str, **given: Any) -> Any:
    chosen = definition(name)
    parameters = build(chosen.parameters, given)
    warmup = WarmupPolicy(requests=5, output_tokens=0, probes=3)
    return session.measure("t::x", chosen, parameters, "replay:fast", warmup)


def test_a_search_that_goes_beyond_a_limit_is_void_and_keeps_its_levels() -> None:
    found = measured(session_of(max_concurrency=16, scale="quick"), "capacity")
    assert "32 in flight is more than --llm-caps=concurrency=16 allows" in found.void_text()
    assert found.result.metrics == {}
    assert [len(run.records) > 0 for run in found.result.observations] == [True, True, False]


def test_both_arms_and_every_run_spend_of_one_budget() -> None:
    options = {"baseline_endpoint": "replay:fast", "runs": 4, "scale": "quick"}
    found = measured(session_of(max_requests=300, **options), "ttft", rate=50)
    results = [found.result, *found.peers]
    assert sum(len(run.records) for result in results for run in result.observations) <= 300
    assert "--llm-caps=requests=300" in found.void_text()


# --- before anything is sent


def selected(*given: tuple[str, dict[str, Any]]) -> list[Any]:
    return [
        (f"t::{number}", definition(name), build(definition(name).parameters, keywords))
        for number, (name, keywords) in enumerate(given)
    ]


TWO = (("ttft", {"rate": 20, "requests": 200}), ("ttft", {"rate": 50, "requests": 300}))


def test_every_budget_that_is_certainly_exceeded_is_told_at_once_with_tests_and_figures() -> None:
    options = {"max_requests": 400, "max_tokens": 1000, "max_seconds": 1, "max_rate": 30}
    wide, requests, tokens, seconds = exceeding(selected(*TWO), Settings(endpoint="replay:fast", **options))
    assert wide == (
        "t::1: rate=50 is more than --llm-caps=rate=30 allows: raise it with --llm-caps=rate=50, "
        "or lower rate"
    )
    assert requests == (
        "the tests send at least 500 requests (t::1 300, t::0 200), more than --llm-caps=requests=400 allows"
        ": raise it with --llm-caps=requests=500"
    )
    assert "--llm-caps=tokens=1000" in tokens
    assert "--llm-caps=seconds=1 " in seconds
