"""What the generator must not do to the process that it runs in, and what it says about itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_server import REPLY, reply

from pytest_llmbench import timing
from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.limits import Limits, LoadLimits
from pytest_llmbench.generator.loop_thread import Progress
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.timing import frozen_by_others
from pytest_llmbench.wire.openai_chat import OpenAIChat


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What these tests have frozen for their whole run is none of a load's, which counts what is frozen."""
    monkeypatch.setattr(timing, "frozen_by_others", frozen_by_others)
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


@pytest.fixture
def gc_settings(thawed: None) -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 13)
    yield (701, 11, 13)
    gc.set_threshold(*before)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("thawed")
def test_nothing_is_left_behind(serve, plan, loop_factory):
    """Threads, descriptors, loop policy, collector: as they were."""
    server = serve(reply(REPLY))
    policy = asyncio.get_event_loop_policy()
    loop_factory().close()  # the first loop of libuv's opens a pipe for the process
    threads, open_before = set(threading.enumerate()), descriptors()
    generator = LoadGenerator(
        Target.parse(server.url.replace("127.0.0.1", "localhost")),
        OpenAIChat(),
        model="m",
        loop_factory=loop_factory,
    )
    with generator:
        generator.run(plan(20, load=OpenLoop(rate=400)))
        generator.run(plan(20, load=ClosedLoop(4)))
        ours = set(threading.enumerate()) - threads
        assert "llmbench-load" in {thread.name for thread in ours}
    generator.close()  # a second time
    assert not any(thread.name == "llmbench-load" for thread in threading.enumerate())
    server.stop()
    assert descriptors() <= open_before
    assert asyncio.get_event_loop_policy() is policy
    assert gc.get_freeze_count() == 0


def test_gc_settings_are_restored(serve, generator_for, plan, gc_settings):
    during: list[tuple[tuple[int, int, int], int]] = []

    def note(_record: RequestRecord) -> None:
        during.append((gc.get_threshold(), gc.get_freeze_count()))

    generator_for(serve(reply(REPLY))).run(plan(1), note)
    assert during[0][0][0] > 100_000
    assert during[0][1] > 0
    assert gc.get_threshold() == gc_settings
    assert gc.get_freeze_count() == 0


def test_gc_settings_are_restored_after_an_error(serve, generator_for, plan, gc_settings):
    def fail(_record: RequestRecord) -> None:
        raise ValueError("disk full")

    generator = generator_for(serve(reply(REPLY)))
    with pytest.raises(GeneratorError, match="ValueError: disk full"):
        generator.run(plan(50), fail)
    assert gc.get_threshold() == gc_settings
    assert gc.get_freeze_count() == 0


def test_what_others_have_frozen_stays_so(serve, generator_for, plan, gc_settings):
    gc.freeze()
    generator_for(serve(reply(REPLY))).run(plan(1))
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == gc_settings
    gc.unfreeze()


def test_an_error_of_on_record_ends_the_run_with_its_cause(serve, generator_for, plan):
    calls: list[RequestRecord] = []

    def fail_third(record: RequestRecord) -> None:
        calls.append(record)
        if len(calls) == 3:
            raise ValueError("disk full")

    generator = generator_for(serve(reply(REPLY)))
    with pytest.raises(GeneratorError) as caught:
        generator.run(plan(1000, load=OpenLoop(rate=100)), fail_third)
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(calls) == 3


def test_an_error_of_on_progress_ends_the_run(serve, generator_for, plan):
    def fail(_progress: Progress) -> None:
        raise ValueError("no terminal")

    generator = generator_for(serve(reply(REPLY)), on_progress=fail)
    with pytest.raises(GeneratorError, match="no terminal"):
        generator.run(plan(1000, load=OpenLoop(rate=100)))


def test_progress_is_told_a_few_times_a_second(serve, generator_for, plan):
    told: list[Progress] = []
    generator_for(serve(reply(REPLY)), on_progress=told.append).run(plan(100, load=OpenLoop(rate=100)))
    assert 2 <= len(told) <= 20
    assert [progress.submitted for progress in told] == sorted(progress.submitted for progress in told)
    assert told[-1] == Progress(
        submitted=100, ok=100, failed=0, in_flight=0, planned=100, elapsed_s=told[-1].elapsed_s
    )


async def _run_inside(generator: LoadGenerator, plan: LoadPlan) -> int:
    return len(generator.run(plan).records)


def test_a_running_loop_of_the_caller_does_not_matter(serve, generator_for, plan):
    assert asyncio.run(_run_inside(generator_for(serve(reply(REPLY))), plan(3))) == 3


def test_records_are_handed_on_as_requests_end(serve, generator_for, plan):
    threads: set[str] = set()
    handed: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        threads.add(threading.current_thread().name)
        handed.append(record)

    seen = generator_for(serve(reply(REPLY))).run(plan(20), keep)
    assert threads == {"llmbench-load"}
    assert [record.request_id for record in handed] == list(seen.records.request_id)


def test_what_an_observation_says(serve, generator_for, plan):
    wanted = plan(10, load=OpenLoop(rate=500))
    seen = generator_for(serve(reply(REPLY))).run(wanted)
    assert seen.plan is wanted
    assert len(seen.sequence_sha256) == 64
    assert seen.started_ns < seen.ended_ns == seen.records.finished_ns.max()
    assert seen.anchor.wall_ns > 1_600_000_000 * 10**9
    assert seen.anchor.monotonic_ns <= seen.started_ns
    assert (seen.in_flight_at_start, seen.in_flight_at_end) == (0, 0)
    facts = {key: fact.value for key, fact in seen.facts.items()}
    resolution = facts.pop("timing.clock_resolution_ns")
    assert 1 <= resolution <= 1_000_000
    assert facts == {
        "streaming.protocol": "sse",
        "wire.dialect": "openai-chat",
        "wire.http_version": "1.1",
        "wire.prompt_form": "text",
        "timing.stamp_unit": "read",
        "timing.submit_point": "last_request_byte",
        "timing.first_point": "parsed_data_event",
        "timing.first_token_kind": "content",
        "timing.timestamp_format": "epoch_ms",
    }
    assert {fact.origin for fact in seen.facts.values()} == {Origin.GENERATOR}
    check = seen.selfcheck
    assert check.clock == "CLOCK_MONOTONIC"
    assert check.clock_resolution_ns == resolution
    assert check.transport == "http/1.1"
    assert check.event_loop in ("uvloop", "asyncio")
    assert check.send_lag_p50_ns is not None
    assert check.loop_lag_p99_ns is not None
    assert check.cpu_share is not None
    assert check.reads >= 10
    assert check.gc_collections >= 0


def test_plans_that_make_no_sense(serve, generator_for, plan):
    generator = generator_for(serve(reply(REPLY)))
    for impossible in (plan(-1), plan(1, first=-1), plan(1, load=ClosedLoop(0)), plan(1, load=OpenLoop(0.0))):
        with pytest.raises(SuiteError):
            generator.run(impossible)


def test_no_descriptors_left_is_our_fault_and_said_so(serve, generator_for, plan):
    """Not a thousand failed requests of the server's, but one error of ours."""
    unforeseen = LoadLimits(Limits())
    generator = generator_for(serve(reply(REPLY)), limits=unforeseen)
    generator.run(plan(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hoard: list[socket.socket] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                hoard.append(socket.socket())
        with pytest.raises(GeneratorError, match=r"(?s)cannot open another connection.*ulimit -n 65536"):
            generator.run(plan(50, load=ClosedLoop(50)))
    finally:
        for held in hoard:
            held.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert generator.run(plan(1)).records.counts()["ok"] == 1
