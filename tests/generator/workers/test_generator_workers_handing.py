"""What ends a load of the same two workers, while it is dealt to them and later, and they go on; and a plan
that no worker holds as a whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_lines import measuring_processes, processes_below
from planned_load import Prompts
from scripted_server import REPLY, ScriptedServer
from waiting import wait_for

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.generator.limits import Limits
from pytest_llmbench.generator.workers import distributed
from pytest_llmbench.generator.workers.coordinator import WorkerPatience
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.generator.workers.sharding import Deal
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, TIME_IS_UP, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord

MakePlan = Callable[..., LoadPlan]

DEALING = 400
"""Requests after which drawing has gone on beyond what is drawn while workers come up."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def generator(folder: Path, request: pytest.FixtureRequest) -> Iterator[DistributedLoadGenerator]:
    """Two workers for test after test; a parameter: further options, and two of their own. Nothing of their
    files, and no process, is left at the end."""
    before = processes_below()
    server = ScriptedServer(lambda conversation: conversation.send(REPLY))
    options = {"workers": 2, "model": "m"} | getattr(request, "param", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        with DistributedLoadGenerator(Address(server.url), "openai-chat", **options) as made:
            yield made
    server.stop()
    assert processes_below() <= before
    assert list(folder.glob("llmbench-*")) == []


def worker_pids() -> list[int]:
    """In the order of their start, which is not that of the numbers where these have begun anew."""
    return [child.pid for child in measuring_processes()]


def dealt(plan: MakePlan, **changes: Any) -> LoadPlan:
    """A plan that would take ten seconds to deal."""
    return plan(200_000, load=OpenLoop(100.0), **changes)


def nothing_was_sent(seen: Observation, why: str) -> bool:
    return seen.interrupted == why and len(seen.records) == 0


@pytest.fixture
def goes_on(generator: DistributedLoadGenerator, plan: MakePlan) -> Iterator[None]:
    """Whatever became of the plan before: the next one is measured, with requests of its own only."""
    yield
    seen = generator.run(plan(11, load=ClosedLoop(2)))
    assert seen.interrupted is None
    assert sorted(seen.records.index.tolist()) == list(range(11))
    assert seen.records.counts()["ok"] == 11


@pytest.mark.usefixtures("goes_on")
@pytest.mark.parametrize("at", [3, DEALING])
def test_a_stop_while_requests_are_dealt(generator, plan, at):
    generator.run(plan(1))
    workers = worker_pids()
    workload = Prompts(at=at, happens=lambda: generator.stop("enough"))
    assert nothing_was_sent(generator.run(dealt(plan, workload=workload)), "enough")
    assert workload.drawn < at + 100
    assert worker_pids()[: len(workers)] == workers


@pytest.mark.usefixtures("goes_on")
def test_ctrl_c_while_requests_are_dealt(generator, plan):
    workload = Prompts(at=DEALING, happens=lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    assert nothing_was_sent(generator.run(dealt(plan, workload=workload)), INTERRUPTED_BY_CTRL_C)
    assert time.monotonic() - began < 50


@pytest.mark.usefixtures("goes_on")
def test_a_worker_that_dies_while_it_is_dealt_to(generator, plan):
    workload = Prompts(at=DEALING, happens=lambda: os.kill(worker_pids()[1], signal.SIGKILL))
    seen = generator.run(dealt(plan, workload=workload))
    assert nothing_was_sent(seen, "worker 2 of 2 was killed by SIGKILL")


@pytest.mark.usefixtures("goes_on")
@pytest.mark.parametrize("generator", [{"patience": WorkerPatience(give_up_s=0.3)}], indirect=True)
def test_a_worker_that_does_not_listen_is_killed_in_the_end(generator, plan):
    workload = Prompts(at=DEALING, happens=lambda: os.kill(worker_pids()[0], signal.SIGSTOP))
    seen = generator.run(dealt(plan, workload=workload))
    assert nothing_was_sent(seen, "worker 1 of 2 was killed by SIGKILL")


@pytest.mark.usefixtures("goes_on")
def test_a_stop_does_not_wait_for_a_worker_that_does_not_listen(generator, plan):
    stopped: list[int] = []

    def halt() -> None:
        stopped.append(worker_pids()[0])
        os.kill(stopped[0], signal.SIGSTOP)
        threading.Timer(1.0, lambda: generator.stop("enough")).start()

    began = time.monotonic()
    seen = generator.run(dealt(plan, workload=Prompts(at=DEALING, happens=halt)))
    assert nothing_was_sent(seen, "enough")
    assert time.monotonic() - began < 50
    os.kill(stopped[0], signal.SIGCONT)


@pytest.mark.usefixtures("goes_on")
@pytest.mark.parametrize("at", [3, DEALING])
def test_an_error_of_the_workload_is_raised_as_it_is(generator, plan, at):
    def fail() -> None:
        raise ZeroDivisionError("of the suite")

    generator.run(plan(4, load=ClosedLoop(2)))
    workers = worker_pids()
    with pytest.raises(ZeroDivisionError, match="of the suite"):
        generator.run(dealt(plan, workload=Prompts(at=at, happens=fail)))
    assert worker_pids() == workers


@pytest.mark.usefixtures("goes_on")
def test_a_stop_while_requests_are_drawn_is_not_lost(generator, plan, monkeypatch):

    def stopped_meanwhile(*arguments: Any, **options: Any) -> Deal:
        generator.stop("too early")
        return Deal(*arguments, **options)

    monkeypatch.setattr(distributed, "Deal", stopped_meanwhile)
    seen = generator.run(plan(1000, load=OpenLoop(10.0)))
    assert seen.interrupted == "too early"
    assert len(seen.records) == 0


@pytest.mark.usefixtures("goes_on")
def test_ctrl_c_is_told_and_does_not_reach_the_workers(generator, plan):
    kept: list[RequestRecord] = []

    def interrupt() -> None:
        wait_for(lambda: len(kept) > 10)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    seen = generator.run(plan(1500, load=OpenLoop(100.0)), kept.append)
    thread.join()
    assert seen.interrupted == INTERRUPTED_BY_CTRL_C
    assert seen.records.counts()["ok"] > 10
    assert len(worker_pids()) == 2


@pytest.mark.usefixtures("goes_on")
def test_an_error_of_the_caller_ends_the_run(generator, plan):
    def broken(record: RequestRecord) -> None:
        raise ZeroDivisionError("of the caller")

    with pytest.raises(GeneratorError, match="ZeroDivisionError: of the caller"):
        generator.run(plan(1500, load=OpenLoop(100.0)), broken)


@pytest.mark.usefixtures("goes_on")
def test_all_workers_keep_the_time_of_the_load(generator, plan):
    seen = generator.run(plan(1500, load=OpenLoop(100.0), most_s=1.0))
    assert seen.interrupted == TIME_IS_UP
    assert 20 <= len(seen.records) <= 1000


@pytest.mark.usefixtures("goes_on")
@pytest.mark.parametrize("generator", [{"host": Limits(ports=80)}], indirect=True)
def test_what_is_known_once_all_are_drawn_is_refused_then(generator, plan):
    """Of an open loop the connections depend on the length of replies: 79 without any, 89 for 8 tokens."""
    with pytest.raises(SuiteError, match="89 connections to one server need as many local ports"):
        generator.run(plan(200, load=OpenLoop(100.0)))


@pytest.mark.parametrize("generator", [{}], indirect=True)
def test_a_plan_that_no_worker_holds_as_a_whole(generator, plan, folder):
    """Each of two workers is sent 80 MB of prompts, and encodes 64 MiB of it ahead."""
    whole = plan(160, load=ClosedLoop(8), workload=Prompts(1_000_000), first=3)
    seen = generator.run(whole)
    assert seen.interrupted is None
    assert sorted(seen.records.index.tolist()) == list(range(3, 163))
    assert seen.records.counts()["ok"] == 160
    for number in (0, 1):  # each in the order of the sequence
        share = seen.records.index[seen.records.index % 2 == number]
        assert sorted(share) == pytest.approx(share, abs=16)
    assert list(folder.glob("*/llmbench-*")) == []
    held = [psutil.Process(pid).memory_info().rss for pid in worker_pids()]
    assert max(held) < 200 * 2**20
