"""A system that was offered more than it serves, and what its limits come to."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.metrics.overload import FEWEST_REQUESTS, overload
from pytest_llmbench.model.judgement import GateVerdict, Overload
from pytest_llmbench.model.objective import goodput_share, ms, tpot, ttft
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.batching import load_at_full_slots
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

ENGINE = "h100-8b?max_num_seqs=64"
"""It carries some 29 requests per second."""


def sent(rate: float, requests: int, engine: str = ENGINE) -> Records:
    plan = LoadPlan("load", SYNTHETIC_UNIFORM, OpenLoop(rate), requests, seed=3)
    return ReplayEngine(parse_scenario(engine)).run(plan).records


@pytest.mark.parametrize("rate", [40.0, 120.0])
def test_more_than_is_served_is_an_overload(rate: float) -> None:
    found = overload([(sent(rate, 600), 64)], rate, ["ttft"])
    assert found is not None
    assert (found.offered_rps, found.given_up) == (rate, 0)
    assert found.served_rps == pytest.approx(29, rel=0.06)
    assert found.wait_growth == pytest.approx(rate / found.served_rps - 1, rel=0.35)
    assert str(found).endswith("the queue grew throughout")


@pytest.mark.parametrize("rate", [5.0, 20.0])
def test_a_load_that_is_carried_is_none(rate: float) -> None:
    assert overload([(sent(rate, 600), 64)], rate) is None


def test_a_run_may_end_before_its_queue_begins() -> None:
    """256 slots carry 45 requests per second; of 300 requests none waits."""
    run = sent(52.0, 300, "h100-8b")
    found = overload([(run, 256)], 52.0, ["ttft"])
    assert found is not None
    assert (found.wait_growth, found.given_up) == (0.0, 0)
    assert found.served_rps == pytest.approx(45, rel=0.06)
    assert {"ttft", "e2e", "goodput"} <= set(found.unbounded)
    assert str(found).endswith("with all slots busy: in a longer run the queue keeps growing")
    judged = gate([ttft.p50 <= 1e6 * ms], {}, found).objectives
    assert [each.verdict for each in judged] == [GateVerdict.FAIL]
    assert overload([(run, None)], 52.0) is None  # the engine does not say its slots
    assert overload([(run, 1024)], 52.0) is None  # far from full
    assert overload([(run, 128)], 52.0) is None  # more were at work than it says
    assert overload([(sent(41.0, 300, "h100-8b"), 256)], 41.0) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSlowerFromHalfOn(EngineConfig):
    """Decoding takes as long for 128 of 256 sequences as for all."""

    def step_ns(self, prefill_tokens: int, decode_sequences: int, *more: float) -> int:  # type: ignore[override]
        straight = EngineConfig.step_ns(self, prefill_tokens, decode_sequences, *more)  # type: ignore[arg-type]
        return straight + round(1000 * self._more_us(decode_sequences))

    def decode_step_us(self, decode_sequences: int) -> float:
        return EngineConfig.decode_step_us(self, decode_sequences) + self._more_us(decode_sequences)

    def _more_us(self, sequences: int) -> float:
        return self.decode_us_per_sequence * (min(2 * sequences, self.max_num_seqs) - sequences)


def test_steps_that_reach_a_ceiling_are_no_overload_before_there_is_a_queue() -> None:
    """It carries 34 requests per second. A straight line through the times per token says 29."""
    straight = parse_scenario("h100-8b?decode_us_per_sequence=60")
    figures = {each.name: getattr(straight.engine, each.name) for each in fields(EngineConfig)}
    engine = ReplayEngine(replace(straight, engine=NoSlowerFromHalfOn(**figures)))
    for rate, overloaded in ((32.4, False), (40.9, True)):
        plan = LoadPlan("load", SYNTHETIC_UNIFORM, OpenLoop(rate), 300, seed=3)
        run = engine.run(plan).records
        supposed = load_at_full_slots(run, 256, rate)
        assert supposed is not None
        assert supposed.least > 1
        assert supposed.in_reach
        assert (overload([(run, 256)], rate) is not None) == overloaded


def test_replies_in_one_piece_do_not_tell_an_overload_before_there_is_a_queue() -> None:
    run = sent(52.0, 300, "h100-8b")
    assert overload([(run.without_streams(), 256)], 52.0) is None


def test_nothing_is_said_of_a_few_requests() -> None:
    assert overload([(sent(120.0, FEWEST_REQUESTS - 1), 64)], 120.0) is None


def test_limits_that_a_longer_run_would_break_fail() -> None:
    found = Overload(60.0, 48.0, 0.25, 0, ("goodput_share", "ttft"))
    limits = (ttft.p50 <= 1e6 * ms, goodput_share >= 0.1, tpot.p50 <= 50 * ms, ttft.p50 >= 1 * ms)
    judged = gate(limits, {}, found).objectives
    fails, undecided = GateVerdict.FAIL, GateVerdict.INCONCLUSIVE
    assert [each.verdict for each in judged] == [fails, fails, undecided, undecided]
    assert judged[0].reason == "60 req/s offered, 48 served, the queue grew throughout"
