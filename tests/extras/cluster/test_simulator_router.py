"""Who takes a request: assignments worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.cluster import EXTRA
from pytest_llmbench.extras.cluster.engines import ClusterOptions, Router, RouterPolicy
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import (
    Scenario,
    disclosure,
    option_meanings,
    parse_scenario,
    with_overrides,
)


@dataclass
class Seen:
    """A replica as a list: what it took, and how much of a prompt it has cached."""

    cached: int = 0
    taken: list[EngineSequence] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.taken)

    @property
    def prompt_tokens(self) -> int:
        return sum(sequence.prompt_tokens for sequence in self.taken)

    def cached_tokens(self, sequence: EngineSequence) -> int:
        return min(self.cached, sequence.prompt_tokens)


def route(
    policy: RouterPolicy,
    replicas: list[Seen],
    asked: Sequence[tuple[int, int | None]],
    *,
    up: list[int] | None = None,
    **options: int,
) -> list[int]:
    """The replicas of requests of so many prompt tokens, each of a session; none of them ends."""
    router = Router(policy, **options)
    chosen = []
    for prompt_tokens, session in asked:
        sequence = EngineSequence("", prompt_tokens, 1)
        numbers = list(range(len(replicas))) if up is None else up
        chosen.append(router.choose(replicas, numbers, sequence, session))
        replicas[chosen[-1]].taken.append(sequence)
    return chosen


def test_round_robin_takes_turns_whatever_the_load() -> None:
    replicas = [Seen(), Seen(), Seen()]
    assert route("round_robin", replicas, [(900, 1), (1, 1), (1, 1), (1, None), (1, 2)]) == [0, 1, 2, 0, 1]


def test_round_robin_passes_over_those_that_are_down_and_keeps_its_place() -> None:
    replicas = [Seen(), Seen(), Seen()]
    router = Router()
    sequence = EngineSequence("", 1, 1)
    ups = ([0, 1, 2], [0, 2], [0, 2], [0, 1, 2], [2], [0, 1, 2])
    assert [router.choose(replicas, up, sequence, None) for up in ups] == [0, 2, 0, 1, 2, 0]


def test_least_loaded_goes_by_requests_then_prompt_tokens_then_order() -> None:
    replicas = [Seen(), Seen(), Seen()]
    asked = [(100, None), (300, None), (200, None), (50, None), (60, None), (10, None)]
    # All empty: in order. One each: 100 < 200 < 300 tokens. Then one request against two.
    assert route("least_loaded", replicas, asked) == [0, 1, 2, 0, 2, 1]


def test_the_longest_cached_prefix_wins_then_load_then_order() -> None:
    assert route("prefix", [Seen(32), Seen(64), Seen()], [(100, None)] * 3) == [1, 1, 1]
    assert route("prefix", [Seen(64), Seen(64), Seen()], [(100, None)] * 4) == [0, 1, 0, 1]
    assert route("prefix", [Seen(64), Seen(32)], [(16, None), (16, None)]) == [0, 1]  # both have all of it


def test_a_replica_too_far_ahead_gets_no_more() -> None:
    replicas = [Seen(), Seen(64), Seen(32)]
    # One may lead by two: the third request finds it at two, the fourth at three.
    assert route("prefix", replicas, [(100, None)] * 8, max_lead=2) == [1, 1, 1, 2, 2, 2, 0, 1]


def test_later_turns_of_a_session_go_where_its_first_one_went() -> None:
    replicas = [Seen(), Seen(), Seen()]
    asked = [(10, 7), (10, 8), (900, 7), (10, None), (10, 7), (10, 9), (10, 8), (10, 9)]
    assert route("session", replicas, asked) == [0, 1, 0, 2, 0, 1, 1, 1]


def test_a_session_whose_replica_is_down_moves_and_stays_there() -> None:
    replicas = [Seen(), Seen()]
    router = Router("session")
    sequence = EngineSequence("", 1, 1)
    assert [router.choose(replicas, up, sequence, 5) for up in ([0, 1], [1], [0, 1])] == [0, 1, 1]


def cached_config() -> EngineConfig:
    return parse_scenario("fast?prefix_caching=on&kv_blocks=10000").engine


def run_out(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def test_looking_at_a_prefix_cache_tells_what_admission_finds_and_changes_nothing() -> None:
    looked, other = Engine(cached_config()), Engine(cached_config())
    for engine in (looked, other):
        engine.submit(EngineSequence("", 100, 1, token_ids=range(100)))
        run_out(engine)
    later = EngineSequence("", 200, 1, token_ids=range(200))
    assert looked.cached_tokens(later) == 96
    assert looked.cached_tokens(EngineSequence("", 96, 1, token_ids=range(96))) == 80  # one token is left
    assert looked.cached_tokens(EngineSequence("", 96, 1, token_ids=range(1, 97))) == 0
    assert looked.cached_tokens(EngineSequence("", 96, 1)) == 0
    assert looked.totals == other.totals
    looked.submit(later)
    run_out(looked)
    assert later.cached_tokens == 96


def test_looking_does_not_save_a_block_from_eviction() -> None:
    def survivors(look: bool) -> list[int]:
        engine = Engine(parse_scenario("fast?prefix_caching=on&kv_blocks=12&context_limit_tokens=128").engine)
        first, second = range(64), range(1000, 1064)
        for ids in (first, second):
            engine.submit(EngineSequence("", 64, 1, token_ids=ids))
            run_out(engine)
        if look:
            assert engine.cached_tokens(EngineSequence("", 65, 1, token_ids=[*first, 0])) == 64
        engine.submit(EngineSequence("", 96, 1, token_ids=range(2000, 2096)))
        run_out(engine)
        return [
            engine.cached_tokens(EngineSequence("", 65, 1, token_ids=[*ids, 0])) for ids in (first, second)
        ]

    assert survivors(look=True) == survivors(look=False)
    assert survivors(look=False)[0] < survivors(look=False)[1] == 64


def test_the_first_replica_draws_as_one_engine_does_and_the_others_otherwise() -> None:
    config, options = parse_scenario("fast").engine, ClusterOptions(replicas=50)
    seeds = [
        engine.config.seed for seed in range(50) for engine in options.started(replace(config, seed=seed))
    ]
    assert seeds[0::50] == list(range(50))
    assert len(set(seeds)) == 2500


def test_every_mistake_about_replicas_is_said_at_once() -> None:
    with pytest.raises(SuiteError) as caught:
        parse_scenario("fast?replicas=0&router=prefx&router_max_lead=-1&replcas=2")
    text = str(caught.value)
    for said in (
        "replicas is 0; it must be from 1 to 256",
        "router is 'prefx'; it must be one of round_robin, least_loaded, prefix, session",
        "did you mean 'prefix'?",
        "router_max_lead is -1; it must be 0 or more",
        "unknown option 'replcas'; did you mean 'replicas'",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("router=prefix", "router is prefix, but there is one replica: add replicas=2 or more"),
        ("replicas=1&router=session", "add replicas=2 or more"),
        ("replicas=257", "from 1 to 256"),
        ("replicas=two", "a whole number"),
        ("replicas=2&router_max_lead=3", "only router=prefix looks at it"),
        ("replicas=2&router=session&router_max_lead=3", "only router=prefix looks at it"),
    ],
)
def test_options_that_cannot_be(options: str, said: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse_scenario(f"fast?{options}")
    assert said in str(caught.value)


def test_a_router_is_named_or_takes_turns() -> None:
    found = {
        options: parse_scenario(f"fast?{options}").deployment
        for options in ("replicas=1&router=none", "replicas=3", "replicas=3&router=prefix&router_max_lead=2")
    }
    assert list(found.values()) == [
        ClusterOptions(),
        ClusterOptions(replicas=3),
        ClusterOptions(replicas=3, router="prefix", router_max_lead=2),
    ]
    assert [each.policies() for each in found.values()] == ["none", "round_robin", "prefix"]


def test_options_over_those_of_a_scenario() -> None:
    routed = with_overrides(parse_scenario("fast"), {"replicas": "3", "router": "prefix"})
    assert routed.deployment == ClusterOptions(replicas=3, router="prefix")
    assert with_overrides(routed, {"router": "session"}).deployment.policies() == "session"
    assert with_overrides(routed, {"seed": "4"}).deployment == routed.deployment
    alone = with_overrides(routed, {"replicas": "1", "router": "none"})
    assert disclosure(alone.engine, alone.deployment) == disclosure(alone.engine)


def test_every_option_is_named_and_has_a_meaning() -> None:
    assert EXTRA.deployments.keys() == option_meanings(ClusterOptions).keys()
    assert all(option_meanings(ClusterOptions).values())


def test_options_of_two_kinds_of_deployments_do_not_go_together() -> None:
    @dataclass(frozen=True)
    class Spares(Deployment):
        title = "spare engines"
        spares: int = 0

    spared = Scenario(parse_scenario("fast").engine, deployment=Spares())
    with pytest.raises(SuiteError, match="'replicas' cannot be combined with those of the spare engines"):
        with_overrides(spared, {"replicas": "2"})
