"""What the server's cache held, and what was too long for it: counted, told, and answered with what to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_llmbench.errors import SUTError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.measuring.warmup import (
    TOO_LONG_REMEDY,
    beyond_context,
    is_beyond_context,
    others_served,
    prefix_cache_hits,
    taken_late,
    warm_up,
)
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload


@pytest.mark.parametrize(
    "error",
    [
        "request (2475 tokens) exceeds the available context size (2048 tokens), try increasing it",
        "400: exceed_context_size_error",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "Input is longer (code context_length_exceeded)",
        "prompt is too long: 204851 tokens > 200000 maximum",
        "Prompt length (5000) exceeds maximum input length (4096)",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000",
        "the prompt exceeds the model's context window",
    ],
)
def test_what_engines_say(error: str) -> None:
    assert is_beyond_context(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        "",
        "context deadline exceeded",
        "CUDA out of memory",
        "max_tokens must be at least 1",
        "queue full",
    ],
)
def test_what_is_something_else(error: str | None) -> None:
    assert not is_beyond_context(error)


def load(least: int, most: int) -> LoadPlan:
    workload = SyntheticWorkload("some too long", Uniform(least, most), Fixed(4))
    return LoadPlan("measure", workload, ClosedLoop(2), 40, seed=1)


def test_they_are_counted() -> None:
    engine = ReplayEngine(parse_scenario("fast?context_limit_tokens=300"))
    records = engine.run(load(100, 500)).records
    refused = int(records.has_outcome(Outcome.HTTP_ERROR).sum())
    assert 0 < refused < 40
    found = beyond_context(records)
    assert found is not None
    assert (found.ok, found.voids, found.value) == (False, False, refused)
    assert found.message.startswith(f"{refused} of 40 requests exceed the model's context")
    assert beyond_context(engine.run(load(100, 200)).records) is None


def test_a_warm_up_of_nothing_else_says_what_to_do() -> None:
    setting = Setting(load(400, 500).workload, 1, warmup=WarmupPolicy(requests=20, output_tokens=0))
    all_of_them = r"none of (\d+) warm-up requests succeeded; \1 of them ended with"
    with pytest.raises(SUTError, match=all_of_them) as caught:
        drive(warm_up(setting), ReplayEngine(parse_scenario("fast?context_limit_tokens=300")).run)
    assert caught.value.remedy == TOO_LONG_REMEDY


def sent_twice(scenario: str) -> tuple[Observation, Observation]:
    """The same load on one engine, whose cache holds it the second time."""
    engine = ReplayEngine(parse_scenario(scenario))
    return engine.run(load(100, 200)), engine.run(load(100, 200))


def silent(seen: Observation, tokens: int = MISSING) -> Observation:
    """As of a server whose usage says nothing of its cache, or this in every reply."""
    return replace(seen, records=replace(seen.records, cached_tokens=np.full(len(seen.records), tokens)))


def test_hits_are_known_from_the_metrics_page_where_replies_do_not_tell_them() -> None:
    first, second = sent_twice("fast?prefix_caching=true")
    told = prefix_cache_hits([second])
    counted = prefix_cache_hits([silent(second)])
    assert told is not None
    assert counted is not None
    assert not told.ok
    assert not counted.ok
    assert counted.value == pytest.approx(told.value, abs=0.02)
    assert counted.message.startswith("its metrics page says that the server took 9")
    fresh = prefix_cache_hits([silent(first)])
    assert fresh is not None
    assert fresh.ok


def test_zeros_in_all_replies_are_not_believed_where_the_page_counts_hits() -> None:
    first, second = sent_twice("fast?prefix_caching=true")
    assert prefix_cache_hits([silent(second, 0)]) == prefix_cache_hits([silent(second)])
    for zeros in (silent(replace(second, engine=None), 0), silent(first, 0)):
        found = prefix_cache_hits([zeros])
        assert found is not None
        assert (found.ok, found.value) == (True, 0.0)
        assert found.message.startswith("the server took 0 %")


def test_nothing_is_said_where_neither_tells() -> None:
    _, second = sent_twice("fast?prefix_caching=true")
    unknown = replace(silent(second), engine=None)
    assert prefix_cache_hits([unknown]) is None
    assert prefix_cache_hits([silent(second), unknown]) is None, "half of the load is not all of it"
    assert prefix_cache_hits([]) is None


def test_a_wait_ahead_of_the_submission_is_in_no_ttft_and_is_told() -> None:
    seen = ReplayEngine(parse_scenario("fast")).run(
        LoadPlan("measure", load(100, 200).workload, ClosedLoop(2), 400, seed=1)
    )
    records = seen.records
    assert taken_late(records) is None

    def waiting(count: int, wait_ns: int) -> Finding | None:
        waits_ns = np.where(np.arange(len(records)) < count, wait_ns, 0)
        return taken_late(replace(records, dispatched_ns=records.submitted_ns - waits_ns))

    assert waiting(4, 400_000_000) is None, "one in a hundred"
    found = waiting(5, 400_000_000)
    assert found is not None
    assert (found.ok, found.voids, found.value) == (False, False, 5 / 400)
    assert found.message.startswith("5 of 400 requests waited before their last byte left")
    assert "400 ms in the median, 400 ms at most" in found.message
    assert waiting(400, 10_000_000) is None, "no long time"
    slow = replace(records, first_content_ns=records.submitted_ns + 5_000_000_000)
    assert taken_late(replace(slow, dispatched_ns=slow.submitted_ns - 400_000_000)) is None, (
        "a part of its TTFT"
    )
    (told,) = [
        each
        for each in validity(
            [replace(seen, records=replace(records, dispatched_ns=records.submitted_ns - 400_000_000))],
            Budget(),
        ).findings
        if each.check == "taken_late"
    ]
    assert told.value == 1.0
    never = np.full(len(records), MISSING)
    assert taken_late(replace(records, dispatched_ns=never)) is None
    unsent = replace(records, submitted_ns=never, dispatched_ns=records.submitted_ns)
    assert taken_late(unsent) is None


def beside_others(finished: float | None) -> Observation:
    """A load of 40 requests during which the server finished so many, by its metrics page."""
    seen = sent_twice("fast")[0]
    assert seen.engine is not None
    before = {} if finished is None else {"requests_finished": 1000.0}
    after = {} if finished is None else {"requests_finished": 1000.0 + finished}
    return replace(seen, engine=replace(seen.engine, totals_before=before, totals_after=after))


def test_requests_of_others_are_told_by_the_count_of_the_server() -> None:
    found = others_served([beside_others(40), beside_others(80)])
    assert found is not None
    assert (found.ok, found.voids, found.value) == (False, False, pytest.approx(1 / 3))
    assert "counts 120 finished requests, this session sent 80" in found.message


def test_a_server_of_ones_own_or_one_that_does_not_count_is_no_warning() -> None:
    assert others_served([sent_twice("fast")[0]]) is None
    assert others_served([beside_others(42)]) is None, "the end of what was sent before"
    assert others_served([beside_others(None), replace(beside_others(80), engine=None)]) is None
    unread = beside_others(80)
    nothing = np.full(len(unread.records), MISSING)
    vectors = replace(unread, records=replace(unread.records, output_tokens=nothing))
    assert others_served([vectors]) is None, "engines count each text of a request"
