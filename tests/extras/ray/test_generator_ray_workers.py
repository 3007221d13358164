"""The load generator on a cluster that is a stand-in: real workers and relays, no Ray."""

from __future__ import annotations

import os
import signal
import ssl
import sys
import threading
import time
import tomllib
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from command_lines import processes_below
from planned_load import Prompts
from ray_stand_in import Machines, StandInActor, StandInBridge, StandInCluster
from scripted_server import REPLY, Conversation, ScriptedServer, reply
from waiting import in_thread, wait_for

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.extras.ray import pool as ray_pool
from pytest_llmbench.extras.ray import worker_actor as actor_module
from pytest_llmbench.extras.ray.cluster import AUTHENTICATES, Cluster
from pytest_llmbench.extras.ray.pool import RayLoadGenerator
from pytest_llmbench.generator.workers.coordinator import WorkerPatience
from pytest_llmbench.generator.workers.placement import RaySpec
from pytest_llmbench.generator.workers.protocol import Address, Requests
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord

Serve = Callable[..., ScriptedServer]
MakePlan = Callable[..., LoadPlan]
GeneratorFor = Callable[..., RayLoadGenerator]
S = 1_000_000_000


@pytest.fixture
def machines() -> Machines:
    return Machines()


@pytest.fixture
def clusters() -> list[StandInCluster]:
    return []


@pytest.fixture
def generator_on(
    machines: Machines,
    clusters: list[StandInCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[GeneratorFor]:
    """Nothing of it, and no process, is left at the end."""
    monkeypatch.setattr(StandInBridge, "machines", machines, raising=False)
    monkeypatch.setattr(StandInBridge, "clusters", clusters, raising=False)
    monkeypatch.setattr(ray_pool, "BridgeProcess", StandInBridge)
    monkeypatch.setattr(ray_pool.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = processes_below()
    made: list[RayLoadGenerator] = []

    def make(server: ScriptedServer | str, spec: str = "ray?workers=2", **options: Any) -> RayLoadGenerator:
        how = {name: options.pop(name) for name in ("ca_file", "insecure") if name in options}
        address = Address(server if isinstance(server, str) else server.url, **how)
        options = {"dialect": "openai-chat", "model": "m", "cluster": RaySpec.parse(spec)} | options
        made.append(RayLoadGenerator(address, **options))
        made[-1].margin_ns = 50_000_000
        return made[-1]

    yield make
    for generator in made:
        generator.close()
        generator.close()
    assert processes_below() <= before
    assert list(tmp_path.glob("llmbench-*")) == []


def test_workers_with_the_same_clock(serve: Serve, generator_on: GeneratorFor, plan: MakePlan) -> None:
    kept: list[RequestRecord] = []
    generator = generator_on(serve(reply()))
    for each in (plan(60, load=OpenLoop(300.0), first=5), plan(41, load=ClosedLoop(5))):
        kept.clear()
        seen = generator.run(each, kept.append)
        assert seen.interrupted is None
        assert seen.records.counts()["ok"] == each.requests
        assert sorted(seen.records.index.tolist()) == list(range(each.first, each.first + each.requests))
        assert sorted(record.request_id for record in kept) == sorted(seen.records.request_id)
        assert seen.facts.value("generator.workers") == 2
        (machine,) = seen.facts.value("clock.workers")
        assert (machine["method"], machine["workers"]) == ("one clock", [1, 2])


def test_other_clocks_are_brought_onto_ours(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    """A clock that is said to be ahead by half a second makes its worker, whose clock is really ours, start
    half a second late; in the records that has to vanish."""
    ahead_ns = 500_000_000
    machines.ahead_ns = [ahead_ns, 0]
    kept: list[RequestRecord] = []
    seen = generator_on(serve(reply())).run(plan(40, load=OpenLoop(100.0), seed=8), kept.append)
    assert seen.interrupted is None
    records = seen.records
    far, here = seen.facts.value("clock.workers")
    assert (far["host"], far["workers"], far["method"]) == ("machine-0", [1], "round trips")
    assert (here["host"], here["workers"], here["method"]) == ("machine-1", [2], "one clock")
    assert far["offset_ms"] == pytest.approx(-500, abs=far["error_ms"])
    assert 0 < far["error_ms"] < 100
    expected = seen.started_ns + schedule_ns(OpenLoop(100.0), 40, arrival_seed(8))
    apart = records.scheduled_ns[np.argsort(records.index)] - expected
    tolerance_ns = 2 * far["error_ms"] * 1e6
    assert np.all(np.abs(apart) <= tolerance_ns)
    assert np.all(apart[1::2] == 0)
    assert seen.selfcheck.send_lag_p50_ns is not None
    assert np.all(np.diff(records.submitted_ns) >= 0)
    # What is handed on while load is running is on our clock as well.
    submitted = {record.index: record.submitted_ns for record in kept}
    for index, instant in zip(records.index.tolist(), records.submitted_ns.tolist(), strict=True):
        assert abs(int(submitted[index] or 0) - instant) <= tolerance_ns


def test_a_clock_that_is_not_known_well_enough_is_refused(
    generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    machines.delay_s = 0.03
    with pytest.raises(GeneratorError, match=r"(?s)machine-0 is known to ± 1\d\.\d ms only.*4\.7\.2"):
        generator_on("http://127.0.0.1:9/v1").run(plan(4))


def test_a_clock_that_jumps_voids_the_run(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    def jumps(conversation: Conversation) -> None:
        machines.ahead_ns[0] = 201_000_000
        conversation.send(REPLY)

    machines.ahead_ns = [1_000_000]
    seen = generator_on(serve(jumps)).run(plan(4, load=ClosedLoop(2)))
    assert "the clock of machine-0 moved by -200" in str(seen.interrupted)
    assert seen.records.counts()["ok"] == 4


def test_a_lost_actor_voids_the_run_and_is_replaced(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, clusters: list[StandInCluster]
) -> None:
    kept: list[RequestRecord] = []
    generator = generator_on(serve(reply()))
    thread, seen = in_thread(generator, plan(4000, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) > 40)
    clusters[0].actors[1].die("NodeDiedError: the node of the actor is gone")
    thread.join(15)
    (observation,) = seen
    assert observation.interrupted == (
        "worker 2 of 2 was lost: NodeDiedError: the node of the actor is gone (on machine-0)"
    )
    counts = observation.records.counts()
    assert 40 <= counts["ok"] <= counts["submitted"] < 2000
    assert {int(index) % 2 for index in observation.records.index[:40]} == {0, 1}  # both ones' records
    assert len(kept) == counts["submitted"]
    again = generator.run(plan(10, load=ClosedLoop(2)))
    assert again.interrupted is None
    assert again.records.counts()["ok"] == 10
    assert len(clusters[0].actors) == 3


def test_requests_are_handed_to_an_actor_one_call_at_a_time(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[StandInActor, list[Future[Any]]] = {}
    start = StandInActor.start

    def watched(actor: StandInActor, method: str, *arguments: object) -> Future[Any]:
        earlier = calls.setdefault(actor, [])
        if method == "begin" or any(isinstance(each, Requests) for each in arguments):
            assert all(call.done() for call in earlier)
            earlier.append(start(actor, method, *arguments))
            return earlier[-1]
        return start(actor, method, *arguments)

    monkeypatch.setattr(StandInActor, "start", watched)
    seen = generator_on(serve(reply())).run(plan(300, load=ClosedLoop(4), workload=Prompts()))
    assert sorted(seen.records.index.tolist()) == list(range(300))
    assert [len(each) > 30 for each in calls.values()] == [True, True]


def test_an_actor_that_is_lost_while_it_is_dealt_to(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, clusters: list[StandInCluster]
) -> None:
    workload = Prompts(at=400, happens=lambda: clusters[0].actors[1].die("NodeDiedError: it is gone"))
    generator = generator_on(serve(reply()))
    seen = generator.run(plan(10**6, load=ClosedLoop(4), workload=workload))
    assert seen.interrupted == "worker 2 of 2 was lost: NodeDiedError: it is gone (on machine-0)"
    assert len(seen.records) == 0
    assert generator.run(plan(10, load=ClosedLoop(2))).records.counts()["ok"] == 10


def test_a_worker_that_dies_under_its_actor_is_told(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    kept: list[RequestRecord] = []
    generator = generator_on(serve(reply()))
    thread, seen = in_thread(generator, plan(4000, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) > 10)
    member = machines.foremen[0]._member
    assert member is not None
    os.kill(member.process.pid, signal.SIGKILL)
    thread.join(15)
    assert seen[0].interrupted == "worker 1 of 2 was killed by SIGKILL (on machine-0)"


def test_a_worker_that_hangs_is_put_down(
    serve: Serve,
    generator_on: GeneratorFor,
    plan: MakePlan,
    machines: Machines,
) -> None:
    kept: list[RequestRecord] = []
    generator = generator_on(serve(reply()), patience=WorkerPatience(0.3, 0.3))
    thread, seen = in_thread(generator, plan(4000, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) > 10)
    member = machines.foremen[0]._member
    assert member is not None
    os.kill(member.process.pid, signal.SIGSTOP)
    thread.join(15)
    assert "worker 1 of 2 was lost: ActorDiedError: killed" in str(seen[0].interrupted)


def test_a_worker_without_a_session_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alone = actor_module.WorkerActor(lonely_s=0.2)
    setup = ray_pool.Setup(Address("http://127.0.0.1:9/v1"), "openai-chat", "m")
    assert isinstance(alone.engage(setup, b"certificates"), str)
    member = alone._member
    assert member is not None
    ca_file = member.setup.address.ca_file
    assert ca_file is not None
    assert ca_file.read_bytes() == b"certificates"
    assert member.process.wait(10) is not None
    wait_for(lambda: alone.receive(0.1).ending is not None)
    alone.end()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.suffix for path in files] == [".lock"]  # of this process, which lives


def test_stop_and_ctrl_c_keep_what_was_measured(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan
) -> None:
    kept: list[RequestRecord] = []
    generator = generator_on(serve(reply(after_s=0.02)))
    thread, seen = in_thread(generator, plan(4000, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) > 10)
    with pytest.raises(GeneratorError, match="already running"):
        generator.run(plan(1))
    generator.stop("enough")
    thread.join(15)
    assert seen[0].interrupted == "enough"
    kept.clear()

    def interrupt() -> None:
        wait_for(lambda: len(kept) > 10)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    last = generator.run(plan(4000, load=OpenLoop(100.0)), kept.append)
    helper.join()
    assert last.interrupted == INTERRUPTED_BY_CTRL_C
    assert last.records.counts()["submitted"] == len(kept) > 10


def test_the_session_deadline_is_by_our_clock(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    machines.ahead_ns = [-3 * S]
    deadline_ns = time.monotonic_ns() + 60 * S
    generator = generator_on(serve(reply()), session_deadline_ns=deadline_ns)
    assert generator.run(plan(2)).interrupted is None
    told = machines.foremen[0]._member
    assert told is not None
    assert told.setup.session_deadline_ns == pytest.approx(deadline_ns - 3 * S, abs=S)


def test_one_worker_on_each_node_unless_told_otherwise(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    machines.ahead_ns = [0, 0, 0]
    seen = generator_on(serve(reply()), "ray").run(plan(9, load=ClosedLoop(3)))
    assert seen.facts.value("generator.workers") == 3


@pytest.mark.parametrize("how", ["checked", "insecure", "unknown"])
def test_certificates_are_checked_on_nodes_too(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, tmp_path: Path, how: str
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    known: dict[str, dict[str, Any]] = {
        "checked": {"ca_file": tmp_path / "ca.pem"},
        "insecure": {"insecure": True},
        "unknown": {},
    }
    seen = generator_on(serve(reply(), tls=context), **known[how]).run(plan(4))
    assert seen.records.counts()["disconnected" if how == "unknown" else "ok"] == 4
    assert ("CERTIFICATE_VERIFY_FAILED" in str(seen.records.error[0])) == (how == "unknown")


def test_other_versions_are_refused(generator_on: GeneratorFor, plan: MakePlan, machines: Machines) -> None:
    machines.greeting = {"version": "0.0.9 (worker protocol 0)"}
    with pytest.raises(SuiteError, match=r"(?s)has pytest-llmbench 0\.0\.9.*install the same version"):
        generator_on("http://127.0.0.1:9/v1").run(plan(2))


def test_loopback_addresses_are_for_this_machine(
    generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    machines.same_network = False
    for url in ("http://127.0.0.1:9/v1", "http://localhost:9/v1", "http://[::1]:9/v1"):
        with pytest.raises(SuiteError, match="is this machine only: on machine-0 it would be"):
            generator_on(url).run(plan(2))


def test_what_the_cluster_refuses_is_raised(
    generator_on: GeneratorFor, plan: MakePlan, machines: Machines
) -> None:
    machines.refusal = SuiteError("2 workers need 2 CPUs; 1 is free")
    generator = generator_on("http://127.0.0.1:9/v1")
    for _ in range(2):
        with pytest.raises(SuiteError, match="1 is free"):
            generator.run(plan(2, load=ClosedLoop(2)))
    with pytest.raises(SuiteError, match="concurrency is 0"):
        generator.run(plan(1, load=ClosedLoop(0)))


def test_a_node_that_is_being_lost_is_not_tried_twice(
    serve: Serve, generator_on: GeneratorFor, plan: MakePlan, clusters: list[StandInCluster]
) -> None:
    """Ray gives actors to a node until it has missed enough heartbeats."""
    generator = generator_on(serve(reply()), "ray?workers=1")
    generator.run(plan(1))
    hire = clusters[0].hire
    tried: list[int] = []

    def fails_first(count: int) -> list[Any]:
        actors = hire(count)
        tried.append(count)
        if len(tried) == 1:
            actors[0].die("ActorDiedError: the node has died, the actor never ran")
        return actors

    clusters[0].hire = fails_first  # type: ignore[method-assign]
    clusters[0].actors[0].die("NodeDiedError")
    wait_for(lambda: not generator._ray_pool._members[0].alive)
    assert generator.run(plan(3)).interrupted is None
    assert tried == [1, 1]


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SuiteError, match=r"(?s)Ray is not installed here.*pytest-llmbench\[ray\]"):
        RayLoadGenerator(Address("http://127.0.0.1:9/v1"), "openai-chat", cluster=RaySpec(), model="m")


def test_an_address_that_does_not_answer_is_told_at_once(
    plan: MakePlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_pool.importlib.util, "find_spec", lambda name: name)
    began_s = time.monotonic()
    with (
        RayLoadGenerator(
            Address("http://127.0.0.1:9/v1"), "openai-chat", cluster=RaySpec("127.0.0.1:9"), model="m"
        ) as generator,
        pytest.raises(SuiteError, match=r"(?s)nothing answers at 127\.0\.0\.1:9: .*ray status"),
    ):
        generator.run(plan(2))
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize("version", ["2.51.9", "1.13.0", "unknown"])
def test_a_ray_that_cannot_authenticate_is_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches such a cluster runs code on it."""
    old = types.ModuleType("ray")
    old.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", old)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # join sets it, in the bridge's process
    with pytest.raises(SuiteError, match=f"Ray {version} cannot authenticate"):
        Cluster.join(RaySpec("auto"), tmp_path)


def test_the_extra_asks_for_a_ray_that_authenticates() -> None:
    wanted = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
    (ray,) = wanted["project"]["optional-dependencies"]["ray"]
    assert ray == f"ray[client]>={'.'.join(map(str, AUTHENTICATES))}"
