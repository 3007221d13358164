"""The load generator of several processes, against scripted servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_lines import measuring_processes, processes_below
from planned_load import TextWorkload
from scipy import stats
from scripted_server import REPLY, Conversation, ScriptedServer, reply
from scripted_server import plain as plain_reply
from three_attempts import three_attempts
from waiting import in_thread, wait_for

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.generator.measurement import SESSION_DEADLINE
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers import pool as worker_pool
from pytest_llmbench.generator.workers.coordinator import WorkerPatience
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.pool import WorkerPool
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sequence import drawn_sha256
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of

WorkersFor = Callable[..., DistributedLoadGenerator]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the workers' files go. Nothing of them, and no process, is left at the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = processes_below()
    yield tmp_path
    assert processes_below() <= before
    assert list(tmp_path.glob("llmbench-*")) == []


@pytest.fixture
def workers_for(temporary: Path) -> Iterator[WorkersFor]:
    made: list[DistributedLoadGenerator] = []

    def make(server: ScriptedServer | str, workers: int = 2, **options: Any) -> DistributedLoadGenerator:
        address = Address(server if isinstance(server, str) else server.url)
        options = {"dialect": "openai-chat", "model": "m"} | options
        made.append(DistributedLoadGenerator(address, workers=workers, **options))
        return made[-1]

    yield make
    for generator in made:
        generator.close()
        generator.close()


@dataclass(frozen=True)
class HalfACharacter(TextWorkload):
    """One of its texts cannot be sent."""

    place: int = 0

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        made = super().requests(count, seed)
        return [replace(each, text="half \ud83d") if each.index == self.place else each for each in made]


def worker_pids() -> list[int]:
    """In the order of their start, which is not that of the numbers where these have begun anew."""
    return [child.pid for child in measuring_processes()]


def test_workers_send_what_a_single_generator_sends(serve, workers_for, plan):
    """One pair of workers, plan after plan; and the same plans from one process."""
    server = serve(reply())
    kept: list[RequestRecord] = []
    several = workers_for(server)
    plans = [plan(90, load=OpenLoop(300.0), first=5), plan(41, load=ClosedLoop(5)), plan(0)]
    with LoadGenerator(Address(server.url).target(), _chat(), model="m") as single:
        for each in plans:
            kept.clear()
            one, many = single.run(each), several.run(each, kept.append)
            assert many.interrupted is None
            assert many.plan is each
            assert many.sequence_sha256 == one.sequence_sha256
            for name in ("index", "outcome", "output_tokens", "requested_max_tokens", "http_status"):
                rows = [
                    sorted(zip(seen.records.index, getattr(seen.records, name), strict=True))
                    for seen in (one, many)
                ]
                assert rows[0] == rows[1], name
            assert many.records.counts()["ok"] == each.requests
            assert np.all(np.diff(many.records.submitted_ns) >= 0)
            assert sorted(record.request_id for record in kept) == sorted(many.records.request_id)
            assert many.selfcheck.reads >= each.requests
            assert set(many.facts) == {*one.facts, "generator.workers"}
    assert len(worker_pids()) == 2


@pytest.mark.parametrize("load", [SessionStarts(30.0), SessionSlots(3)], ids=["open", "closed"])
def test_workers_share_the_sessions_of_a_load(serve, workers_for, plan, load):
    """Each stays on its worker. One is cut off, and the identity is that of all that were begun."""
    bad, script = count(), reply()

    def one_fails(conversation: Conversation) -> None:
        if next(bad) == 7:
            conversation.send(plain_reply("500 Internal Server Error", b"{}"))
        else:
            script(conversation)

    talks = SessionWorkload("talks", Uniform(2, 4), Fixed(9), Fixed(4), Fixed(20), system_tokens=5)
    wanted = plan(turns_of(talks, 9, 1), workload=talks, load=load)
    seen = workers_for(serve(one_fails)).run(wanted)
    records = seen.records
    assert seen.interrupted is None
    assert int((~records.ok).sum()) == 1
    assert sorted(set(records.session.tolist())) == list(range(9))
    assert seen.sequence_sha256 == drawn_sha256(talks, 0, wanted.requests, 1)
    for session in range(9):
        own = records.select(records.session == session)
        assert own.turn.tolist() == list(range(1, len(own) + 1))
        assert (own.scheduled_ns[1:] == own.finished_ns[:-1] + 20_000_000).all()
        assert len(own) == int(own.session_turns[0]) or not own.ok[-1]
    if isinstance(load, OpenLoop) and load.of_sessions:
        starts = seen.started_ns + schedule_ns(OpenLoop(30.0), 9, arrival_seed(1))
        firsts = records.select(records.turn == 1)
        assert firsts.scheduled_ns[np.argsort(firsts.session)].tolist() == starts.tolist()


def _chat() -> Any:
    from pytest_llmbench.wire.catalogue import dialect

    return dialect("openai-chat")


def test_the_merged_sends_keep_the_one_schedule(serve, workers_for, plan):
    seen = workers_for(serve(reply()), 3).run(plan(240, load=OpenLoop(300.0), seed=8))
    records = seen.records
    assert seen.facts.value("generator.workers") == 3
    expected = seen.started_ns + schedule_ns(OpenLoop(300.0), 240, arrival_seed(8))
    assert np.array_equal(records.scheduled_ns[np.argsort(records.index)], expected)
    gaps_s = np.diff(np.sort(records.scheduled_ns)) / 1e9
    assert stats.kstest(gaps_s, stats.expon(scale=1 / 300).cdf).pvalue > 0.001
    assert seen.selfcheck.send_lag_p50_ns is not None
    assert np.all(records.dispatched_ns >= records.scheduled_ns)


@pytest.mark.timing
@three_attempts
def test_a_closed_loop_keeps_its_slots_full_until_its_time_is_over(serve, workers_for, plan):
    whole = plan(10, load=ClosedLoop(5), duration_s=0.6, max_requests=2000)
    server = serve(reply(after_s=0.02))
    seen = workers_for(server, 2).run(whole)
    records = seen.records
    assert seen.selfcheck.peak_in_flight == server.peak_in_service == 5
    instants = seen.started_ns + np.arange(50, 550, 25)[:, None] * 1_000_000
    running = ((records.dispatched_ns <= instants) & (records.finished_ns > instants)).sum(axis=1)
    # A replacement follows an end within microseconds; the instant may fall in between, and on a busy machine
    # the end may be heard late.
    assert running.max() <= 5
    assert np.median(running) >= 4
    # A worker whose last submission fell on the very end of the time has its load end with it.
    assert 0 <= seen.load_ended_ns - (seen.started_ns + 600_000_000) < 100_000_000
    assert 20 <= len(records) <= 150
    assert records.submitted_ns.max() < seen.load_ended_ns
    assert len(set(records.index.tolist())) == len(records)


def test_no_more_than_the_ceiling_is_sent(serve, workers_for, plan):
    whole = plan(3, load=ClosedLoop(4), duration_s=60.0, max_requests=30)
    seen = workers_for(serve(reply()), 3).run(whole)
    assert sorted(seen.records.index.tolist()) == list(range(30))
    assert seen.duration_s < 50


def test_a_killed_worker_voids_the_run_and_is_replaced(serve, workers_for, plan):
    kept: list[RequestRecord] = []
    server = serve(reply())
    generator = workers_for(server)
    thread, seen = in_thread(generator, plan(1500, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) > 40)
    victim = worker_pids()[1]
    os.kill(victim, signal.SIGKILL)
    thread.join(10)
    (observation,) = seen
    assert observation.interrupted == "worker 2 of 2 was killed by SIGKILL"
    counts = observation.records.counts()
    assert 40 <= counts["ok"] <= counts["submitted"] < 1000
    # What the dead one had written down is there, too.
    assert {int(index) % 2 for index in observation.records.index[:40]} == {0, 1}
    assert len(kept) == counts["submitted"]
    again = generator.run(plan(10, load=ClosedLoop(2)))
    assert again.interrupted is None
    assert again.records.counts()["ok"] == 10
    assert victim not in worker_pids()


def test_workers_that_came_up_before_anything_was_known_are_taken_over(serve, workers_for, plan):
    pool = WorkerPool()
    pool.call(2)
    before = [member.process.pid for member in pool._members.values()]
    generator = workers_for(serve(reply()))
    generator.take_over(pool)
    for requests, slots in ((1, 1), (8, 2)):  # the first load is not for both of them
        seen = generator.run(plan(requests, load=ClosedLoop(slots)))
        assert seen.records.counts()["ok"] == requests
    assert [member.process.pid for member in pool._members.values()] == before


def test_a_worker_that_dies_before_the_start_ends_the_plan(serve, workers_for, plan):
    """The first stands still from before the plan, so that it cannot be ready: the second waits for it."""
    opened = threading.Event()
    generator = workers_for(serve(reply(), greet=lambda _: opened.set()))
    assert generator.run(plan(4, load=ClosedLoop(2))).interrupted is None  # both are up
    first = worker_pids()[0]
    os.kill(first, signal.SIGSTOP)
    opened.clear()
    thread, seen = in_thread(generator, plan(40, load=OpenLoop(20.0)), lambda record: None)
    assert opened.wait(15)
    os.kill(first, signal.SIGKILL)
    thread.join(15)
    (observation,) = seen
    assert observation.interrupted == "worker 1 of 2 was killed by SIGKILL"
    assert len(observation.records) == 0


def test_workers_ask_as_they_were_told(serve, workers_for, plan):
    server = serve(reply())
    address = Address(server.url, {"Authorization": "Bearer key-1"})
    assert "key-1" not in repr(address)
    with DistributedLoadGenerator(
        address, "chat", workers=2, model="mine", extra_body={"top_k": 3}, count_text=True
    ) as generator:
        seen = generator.run(plan(6, load=ClosedLoop(2), ignore_eos=True))
    assert seen.records.counts()["ok"] == 6
    assert len(server.served) == 6
    for served in server.served:
        assert "Bearer key-1" in served.head
        said = json.loads(served.body)
        assert (said["model"], said["top_k"], said["ignore_eos"]) == ("mine", 3, True)


@pytest.mark.parametrize(("place", "workers"), [(5, 1), (0, 2), (5, 2)])
def test_a_request_that_cannot_be_encoded_is_told_from_every_process(
    serve, workers_for, plan, place, workers
):
    generator = workers_for(serve(reply()), workers=workers)
    with pytest.raises(SuiteError, match=f"request {place}: the prompt cannot be sent as UTF-8"):
        generator.run(plan(6, workload=HalfACharacter(place=place), load=ClosedLoop(2)))


def test_a_dialect_that_cannot_send_the_prompts_is_told(serve, workers_for, plan):
    generator = workers_for(serve(reply()), dialect="openai-completions", prompt_form="token_ids")
    with pytest.raises(SuiteError, match="the request has no token ids to send"):
        generator.run(plan(4, load=ClosedLoop(2)))  # texts, where token ids are wanted


def test_a_worker_that_cannot_start_shows_what_it_printed(serve, workers_for, plan, monkeypatch):
    monkeypatch.setattr(worker_pool, "__package__", "pytest_llmbench.no_such")
    with pytest.raises(
        GeneratorError, match=r"(?s)worker 1: did not start: it ended with exit code 1;.*no_such"
    ):
        workers_for("http://127.0.0.1:9/v1").run(plan(4, load=ClosedLoop(2)))


def test_a_worker_that_hangs_is_killed(serve, workers_for, plan):
    kept: list[RequestRecord] = []
    generator = workers_for(serve(reply()), patience=WorkerPatience(0.3, 0.3))
    thread, seen = in_thread(generator, plan(1500, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) > 10)
    os.kill(worker_pids()[0], signal.SIGSTOP)
    thread.join(10)
    assert [each.interrupted for each in seen] == ["worker 1 of 2 was killed by SIGKILL"]


def test_stopping_and_closing_keep_what_was_measured(serve, workers_for, plan):
    kept: list[RequestRecord] = []
    generator = workers_for(serve(reply(after_s=0.05)))
    generator.stop("nothing is running")
    for end, reason in ((lambda: generator.stop("enough"), "enough"), (generator.close, "being closed")):
        kept.clear()
        thread, seen = in_thread(generator, plan(1500, load=OpenLoop(100.0)), kept.append)
        wait_for(lambda: len(kept) > 10)
        with pytest.raises(GeneratorError, match="already running"):
            generator.run(plan(1))
        end()
        thread.join(10)
        (observation,) = seen
        assert reason in str(observation.interrupted)
        counts = observation.records.counts()
        assert counts["ok"] > 10
        assert counts["submitted"] < 1000
        assert counts["ok"] + counts["cancelled"] == counts["submitted"] == len(kept)


def test_the_session_deadline_ends_all(serve, workers_for, plan):
    generator = workers_for(serve(reply()), session_deadline_ns=time.monotonic_ns())
    assert generator.run(plan(10, load=ClosedLoop(2))).interrupted == SESSION_DEADLINE


def test_a_server_that_is_gone_ends_the_load_by_its_own_rule(workers_for, plan):
    seen = workers_for("http://127.0.0.1:9/v1").run(plan(6000, load=OpenLoop(100.0), stop_when_failing=True))
    assert seen.interrupted is None
    assert "the SUT has stopped answering" in str(seen.stopped)
    assert seen.duration_s < 50


def test_the_error_budget_is_that_of_all_workers(serve, workers_for, plan):
    server = serve(lambda conversation: conversation.send(plain_reply("500 Internal Server Error")))
    seen = workers_for(server).run(plan(1500, load=OpenLoop(100.0), most_failures=30))
    assert "the error budget cannot be kept any more" in str(seen.interrupted)
    assert seen.stopped is None
    assert 31 <= seen.records.counts()["http_error"] <= 400


def test_the_rule_goes_by_what_all_workers_see(serve, workers_for, plan):
    """The SUT answers every second request, and those are all the other worker's: it has not stopped."""

    def every_second(conversation: Conversation) -> None:
        number = int(conversation.headers["x-request-id"].rpartition("-")[2])
        conversation.send(REPLY if number % 2 else plain_reply("500 Internal Server Error"))

    server = serve(every_second)
    seen = workers_for(server).run(plan(200, load=OpenLoop(200.0), stop_when_failing=True))
    assert (seen.stopped, seen.interrupted) == (None, None)
    counts = seen.records.counts()
    assert counts["ok"] == counts["http_error"] == 100


def test_mistakes_are_told_before_anything_starts(workers_for, plan):
    generator = workers_for("http://127.0.0.1:9/v1")
    with pytest.raises(SuiteError, match="concurrency is 0"):
        generator.run(plan(1, load=ClosedLoop(0)))
    assert worker_pids() == []
    with pytest.raises(SuiteError, match="0 workers"):
        workers_for("http://127.0.0.1:9/v1", 0)
    with pytest.raises(SuiteError, match="unknown API dialect"):
        workers_for("http://127.0.0.1:9/v1", dialect="morse")
    with pytest.raises(SuiteError):
        workers_for("gopher://127.0.0.1")


def test_workers_on_cores_of_their_own(serve, workers_for, plan):
    core = min(os.sched_getaffinity(0))
    generator = workers_for(serve(reply()), cpus=[core, 10_000])  # a core that there is, and one there is not
    assert generator.run(plan(4, load=ClosedLoop(2))).records.counts()["ok"] == 4
    first, second = worker_pids()
    assert os.sched_getaffinity(first) == {core}
    assert os.sched_getaffinity(second) == os.sched_getaffinity(0)


def test_workers_end_though_a_forked_process_holds_their_line(serve, workers_for, plan):
    before_they_are_killed = WorkerPatience(end_s=80.0)
    generator = workers_for(serve(reply()), patience=before_they_are_killed)
    generator.run(plan(2, load=ClosedLoop(2)))
    held = [os.dup(member.line.connection.fileno()) for member in generator._pool._members.values()]  # type: ignore[union-attr]
    began = time.monotonic()
    generator.close()
    assert time.monotonic() - began < 60
    for copy in held:
        os.close(copy)


ORPHANS = """
    import sys
    sys.path.insert(0, {tests!r})
    from planned_load import TextWorkload
    from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
    from pytest_llmbench.generator.workers.protocol import Address
    from pytest_llmbench.model.plan import LoadPlan, OpenLoop

    generator = DistributedLoadGenerator(Address({url!r}), "openai-chat", workers=2, model="m")
    plan = LoadPlan("long", TextWorkload(), OpenLoop(50.0), requests=1500, seed=1)
    generator.run(plan, lambda _: print("one", flush=True))
"""


def test_workers_do_not_outlive_a_coordinator_that_is_killed(serve, temporary):
    script = textwrap.dedent(ORPHANS).format(tests=str(Path(__file__).parents[2]), url=serve(reply()).url)
    run = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)}
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == b"one\n"
        orphans = psutil.Process(run.pid).children()
        assert len(orphans) == 2
    finally:
        run.kill()
        run.communicate()
    assert psutil.wait_procs(orphans, timeout=10)[1] == []
    assert TextWorkload().standard is False
