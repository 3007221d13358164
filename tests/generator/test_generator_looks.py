"""A load that ends when its limits are decided: nothing more is sent, what is in flight is not given up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from scripted_server import REPLY, Conversation, reply

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import ClosedLoop, Looks, OpenLoop, Watched
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.stats.failing import look_taker


def looks(limit_ms: float = 60_000.0) -> Looks:
    """A limit on the median, which few requests decide."""
    return Looks((Watched(Objective("e2e.p50", "<=", limit_ms, "ms"), "e2e", 50.0),), 0.01, every=50)


@pytest.mark.parametrize("load", [ClosedLoop(4), OpenLoop(400.0)], ids=["closed", "open"])
def test_a_decided_load_ends_early_and_drains(serve, generator_for, plan, load):
    def script(conversation: Conversation) -> None:
        conversation.wait(random.uniform(0.002, 0.04))  # in lockstep four requests would be worth one
        conversation.send(REPLY)

    server = serve(script)
    wanted = plan(1_000, load=load, looks=looks())
    seen = generator_for(server).run(wanted)
    assert seen.interrupted is None
    assert seen.stopped is not None
    assert "every limit is decided after" in seen.stopped
    assert 100 <= len(seen.records) < 900
    assert seen.records.counts()["ok"] == len(seen.records) == len(server.served)
    assert not seen.records.has_outcome(Outcome.CANCELLED).any()
    taker = look_taker(wanted)
    assert taker is not None
    taker.add_all(seen.records)
    assert taker.reason(taker.close()) == seen.stopped


def test_a_load_that_is_not_decided_is_sent_to_its_end(serve, generator_for, plan):
    none = replace(looks(), watched=(Watched(Objective("e2e.p99_9", "<=", 60_000.0, "ms"), "e2e", 99.9),))
    seen = generator_for(serve(reply(REPLY))).run(plan(300, load=ClosedLoop(4), looks=none))
    assert seen.stopped is None
    assert len(seen.records) == 300


def test_failures_beyond_the_budget_end_the_load(serve, generator_for, plan):
    def script(conversation: Conversation) -> None:
        conversation.wait(0.01)
        conversation.close()

    seen = generator_for(serve(script)).run(plan(1_000, load=ClosedLoop(4), looks=looks()))
    assert seen.stopped is not None
    assert "error budget" in seen.stopped
    assert len(seen.records) < 900


def test_one_worker_process_looks_and_several_refuse(serve, plan):
    def script(conversation: Conversation) -> None:
        # So that the load is not over before a busy machine has looked at it.
        conversation.wait(random.uniform(0.002, 0.03))
        conversation.send(REPLY)

    server = serve(script)
    wanted = plan(1_000, load=ClosedLoop(4), looks=looks())
    with DistributedLoadGenerator(Address(server.url), "openai-chat", workers=1, model="m") as generator:
        seen = generator.run(wanted)
    assert seen.interrupted is None
    assert seen.stopped is not None
    assert "every limit is decided" in seen.stopped
    assert len(seen.records) < 900
    with (
        DistributedLoadGenerator(Address(server.url), "openai-chat", workers=2, model="m") as generator,
        pytest.raises(SuiteError, match="needs one process, not 2"),
    ):
        generator.run(wanted)


def test_the_looks_are_part_of_what_a_plan_is(plan):
    assert plan(100).key != plan(100, looks=looks()).key
    assert plan(100, looks=looks(5.0)).key != plan(100, looks=looks(6.0)).key
    assert plan(100, looks=looks()).key == plan(100, looks=looks()).key
