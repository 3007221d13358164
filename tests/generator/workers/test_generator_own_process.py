"""The measuring process: the same measurement as within this one, and nothing of it leaks in or out."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import trustme
from command_lines import command_line, measuring_processes
from scripted_server import HEAD, LAST, REPLY, Conversation, chunk, plain, text_event

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.limits import KEPT
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.placement import usable_cpus
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.observation import Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.wire.catalogue import dialect

Apart = Callable[..., DistributedLoadGenerator]

REPLIES = (
    REPLY,
    plain("500 Internal Server Error", b"oops"),
    plain("429 Too Many Requests", b"slow down"),
    HEAD + chunk(text_event("cut short")) + LAST,
    b"ceci n'est pas HTTP\r\n\r\n",
)


def by_prompt(conversation: Conversation) -> None:
    """Each request has the reply that its number stands for."""
    number = int(conversation.headers["x-request-id"].rpartition("-")[2])
    conversation.send(REPLIES[number % len(REPLIES)])
    if number % len(REPLIES) == len(REPLIES) - 1:
        conversation.close()


@pytest.fixture
def apart() -> Iterator[Apart]:
    made: list[DistributedLoadGenerator] = []

    def make(url: str, **options: Any) -> DistributedLoadGenerator:
        options = {"dialect": "openai-chat", "model": "m", "workers": 1} | options
        made.append(DistributedLoadGenerator(Address(url), **options))
        return made[-1]

    yield make
    for generator in made:
        generator.close()


def settled(records: Records) -> dict[str, list[Any]]:
    """Everything that the plan and the server decide, request by request; of instants, which there are."""
    order = np.argsort(records.index, kind="stable").tolist()
    found: dict[str, list[Any]] = {}
    for field in fields(Records):
        value = getattr(records, field.name)
        if field.name in ("request_id", "coalesced_chunks", "unresolved_chunks") or len(value) != len(
            records
        ):
            continue
        rows = [value[place] for place in order]
        found[field.name] = [row == MISSING for row in rows] if field.name.endswith("_ns") else rows
    chunks = np.diff(records.chunk_offsets)
    found["chunks"] = [int(chunks[place]) for place in order]
    return found


def unmeasured(check: SelfCheck) -> set[str]:
    """The figures that there are none of; but for the loop's lag and the stolen time, as a load may end
    before the first beat, and before the first tick of the system's clock."""
    none = {field.name for field in fields(check) if getattr(check, field.name) is None}
    return none - {"loop_lag_p99_ns", "loop_lag_max_ns", "stolen_share"}


def test_it_measures_what_a_generator_within_this_process_measures(serve, apart, plan):
    server = serve(by_prompt)
    count = reference_tokenizer().count
    target, spoken = Address(server.url).target(), dialect("openai-chat")
    with LoadGenerator(target, spoken, model="m", count_text=count) as within:
        process = apart(server.url, count_text=True, counts_early=False)
        for each in (plan(25, load=OpenLoop(200.0), first=3), plan(20, load=ClosedLoop(4))):
            one, other = within.run(each), process.run(each)
            assert {"ok", "http_error", "rate_limited", "truncated", "undecodable"} <= {
                name for name, many in one.records.counts().items() if many
            }
            assert settled(other.records) == settled(one.records)
            assert other.sequence_sha256 == one.sequence_sha256
            assert (other.interrupted, other.stopped, other.in_flight_at_end) == (None, None, 0)
            assert set(other.facts) == {*one.facts, "generator.workers"}
            assert unmeasured(other.selfcheck) == unmeasured(one.selfcheck)
            for name in ("reads", "stale_retries", "clock", "event_loop", "transport", "peak_in_flight"):
                if name != "peak_in_flight" or isinstance(each.load, ClosedLoop):
                    assert getattr(other.selfcheck, name) == getattr(one.selfcheck, name), name


def test_the_self_check_is_that_of_the_measuring_process(serve, apart, plan):
    """A thread of the suite that never rests does not show in it."""
    over = threading.Event()

    def rummage() -> None:
        while not over.is_set():
            gc.collect(0)  # counts as one; a whole one takes long where many modules are loaded
            sum(range(20_000))

    thread = threading.Thread(target=rummage)
    thread.start()
    try:
        seen = apart(serve(lambda c: c.send(REPLY)).url).run(plan(30, load=OpenLoop(60.0)))
    finally:
        over.set()
        thread.join()
    check = seen.selfcheck
    assert check.gc_collections <= 2
    assert check.cpu_share is not None
    assert check.cpu_share < 0.5
    assert check.voluntary_switches is not None
    assert check.involuntary_switches is not None


def test_tls_traces_and_headers_reach_it(serve, plan, tmp_path):
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = serve(lambda conversation: conversation.send(REPLY), tls=context)
    address = Address(server.url, {"Authorization": "Bearer key-1"}, tmp_path / "ca.pem")
    offsets_ns = (0, 5_000_000, 5_000_000, 40_000_000)
    load = OpenLoop(50.0, arrival="trace", offsets_ns=offsets_ns)
    with DistributedLoadGenerator(address, "openai-chat", workers=1, model="m") as generator:
        seen = generator.run(plan(4, load=load))
    assert seen.records.counts()["ok"] == 4
    assert tuple(seen.records.scheduled_ns - seen.started_ns) == offsets_ns
    assert all("Bearer key-1" in served.head for served in server.served)


def test_a_limit_that_was_not_foreseen_voids_the_run_with_its_remedy(serve, apart, plan):
    """An open loop on a server that never answers, in a process that may not open as many files."""
    server = serve(lambda conversation: conversation.wait(30))
    generator = apart(server.url)
    generator.run(plan(0))
    (child,) = measuring_processes()
    allowed = KEPT + 30
    child.rlimit(psutil.RLIMIT_NOFILE, (allowed, allowed))
    seen = generator.run(plan(400, load=OpenLoop(20.0, "uniform"), deadlines=Deadlines(drain_s=0.3)))
    assert "the measuring process failed: " in str(seen.interrupted)
    assert "cannot open another connection" in str(seen.interrupted)
    assert "ulimit -n 65536" in str(seen.interrupted)
    assert len(seen.records) >= 20


class Kind(StrEnum):
    CHAT = "chat"


class Kept(PlannedRequest):
    """A request of a class that the measuring process cannot import."""


def test_a_workload_of_the_suite_need_not_be_portable(serve, apart, plan):
    """It is asked here for its requests, which are made plain; so a lock within it does not matter."""

    class Own:
        name = "own"
        standard = False

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
            with self.lock:
                return [Kept(i, 8, 1, token_ids=(9906,), class_label=Kind.CHAT) for i in range(count)]

        def specification(self) -> Mapping[str, Any]:
            return {}

    seen = apart(serve(lambda c: c.send(REPLY)).url).run(plan(5, workload=Own()))
    assert seen.records.counts()["ok"] == 5
    assert list(seen.records.class_label) == ["chat"] * 5


def test_what_cannot_be_handed_over_is_said_in_words(serve, apart, plan):
    class Odd:
        name = "odd"
        standard = False

        def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
            odd: Any = threading.Lock()
            return [PlannedRequest(i, 8, 1, text="hello", temperature=odd) for i in range(count)]

        def specification(self) -> Mapping[str, Any]:
            return {}

    generator = apart(serve(lambda c: c.send(REPLY)).url)
    with pytest.raises(SuiteError, match=r"(?s)cannot be handed to a worker process.*lock.*--llm-workers 0"):
        generator.run(plan(5, workload=Odd()))
    assert generator.run(plan(2)).records.counts()["ok"] == 2
    with pytest.raises(SuiteError, match="extra_body is not JSON"):
        apart("http://127.0.0.1:9/v1", extra_body={"x": object()})


def test_nothing_global_changes_in_the_process_of_the_suite(serve, apart, plan):
    def state() -> dict[str, Any]:
        return {
            "policy": type(asyncio.get_event_loop_policy()),
            "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
            "environment": dict(os.environ),
            "thresholds": gc.get_threshold(),
            # Some frozen objects are freed meanwhile; to thaw leaves none, and to freeze adds far more.
            "frozen": pytest.approx(gc.get_freeze_count(), rel=0.01),
            "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
            "cores": os.sched_getaffinity(0),
            "directory": Path.cwd(),
            "threads": {
                thread.name for thread in threading.enumerate() if thread.name.startswith("llmbench")
            },
        }

    def now() -> dict[str, Any]:
        return {**state(), "frozen": gc.get_freeze_count()}

    before = state()
    generator = apart(serve(lambda c: c.send(REPLY)).url, cpus=usable_cpus("auto")[:1])
    generator.run(plan(3))
    assert now() == before
    generator.close()
    assert now() == before


def test_no_key_is_in_the_process_list(serve, plan):
    """It goes to the measuring process over a socket that only the two of them have."""
    key, seen = "sk-canary-0123456789", []

    def script(conversation: Conversation) -> None:
        seen.append(" ".join(map(command_line, psutil.Process().children(recursive=True))))
        conversation.send(REPLY)

    address = Address(serve(script).url, {"Authorization": f"Bearer {key}"})
    with DistributedLoadGenerator(address, "openai-chat", model="m", workers=2) as generator:
        assert generator.run(plan(4)).records.counts()["ok"] == 4
    assert all("workers.process" in listed for listed in seen)
    assert not any(key in listed or "Bearer" in listed for listed in seen)


def test_the_environment_without_coverage_and_with_one_arena(serve, apart, plan, monkeypatch):
    monkeypatch.setenv("COV_CORE_SOURCE", "x")
    monkeypatch.setenv("COVERAGE_PROCESS_START", "y")
    monkeypatch.setenv("PYTHONTRACEMALLOC", "5")
    monkeypatch.setenv("OWN_SETTING", "kept")
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    apart(serve(lambda c: c.send(REPLY)).url).run(plan(1))
    (child,) = measuring_processes()
    inherited = child.environ()
    assert (inherited["OWN_SETTING"], inherited["MALLOC_ARENA_MAX"]) == ("kept", "1")
    assert not {"COV_CORE_SOURCE", "COVERAGE_PROCESS_START", "PYTHONTRACEMALLOC"} & set(inherited)
    assert "Bearer" not in command_line(child)


def test_cores_are_named_checked_and_refused():
    assert usable_cpus("none") == usable_cpus("") == ()
    assert usable_cpus("auto", (0, 2, 5)) == (0, 2, 5)
    assert usable_cpus(" 5,0-2 ", (0, 1, 2, 5)) == (5, 0, 1, 2)
    with pytest.raises(SuiteError, match=r"may not use core 7; it may use 0, 1"):
        usable_cpus("1,7", (0, 1))
    for wrong in ("two", "3-1", "1,,2", "-1", "1-"):
        with pytest.raises(SuiteError, match="is not a list of cores"):
            usable_cpus(wrong, (0, 1, 2, 3))


def ends_by_its_rule(seen: Observation) -> bool:
    return seen.interrupted is None and "the SUT has stopped answering" in str(seen.stopped)


def test_a_server_that_is_gone_ends_a_load_by_its_own_rule(apart, plan):
    seen = apart("http://127.0.0.1:9/v1").run(plan(1500, load=OpenLoop(100.0), stop_when_failing=True))
    assert ends_by_its_rule(seen)
    assert Outcome.DISCONNECTED in {
        Outcome(name) for name, n in seen.records.counts().items() if n and name != "submitted"
    }
