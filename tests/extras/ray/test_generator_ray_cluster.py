"""The load generator on a real Ray cluster of two nodes on this machine, and the plugin with it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest
from live_talk import CHAT, SESSIONS, Heard, by_chat, over_http
from planned_load import Prompts
from scripted_server import Conversation, Script, ScriptedServer, reply
from waiting import in_thread, wait_for

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.ray.pool import RayLoadGenerator
from pytest_llmbench.generator.workers.placement import RaySpec
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop, SessionSlots
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.workloads.sessions import turns_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'pytest-llmbench[ray]'",
)
Serve = Callable[..., ScriptedServer]
MakePlan = Callable[..., LoadPlan]


@dataclass
class Nodes:
    """Two nodes of two CPUs each."""

    process: subprocess.Popen[str]
    address: str

    def lose_one(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    # In /tmp and short: the paths of Ray's sockets must not be longer than 107 bytes.
    with TemporaryDirectory(prefix="nodes-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        said = Path(directory) / "stderr.txt"
        with said.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(Path(__file__).with_name("ray_nodes.py")), directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            up = process.stdout.readline()
            assert up, f"the nodes died:\n{said.read_text('utf-8', 'replace')[-4000:]}"
            yield Nodes(process, json.loads(up)["address"])
        finally:
            process.stdin.close()
            try:
                process.wait(20)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.stdout.close()


def bodies_read(script: Script) -> Script:
    """For a server that does not read them itself."""

    def read(conversation: Conversation) -> None:
        conversation.read_body()
        script(conversation)

    return read


@dataclass
class Answers:
    """A server that answers as the test wants it."""

    script: Script = field(default_factory=reply)

    def __call__(self, conversation: Conversation) -> None:
        self.script(conversation)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="module")
def generator(nodes: Nodes, answers: Answers) -> Iterator[RayLoadGenerator]:
    """One for all tests that send a load from both nodes. Nothing of Ray's driver is in this process, and no
    worker is left."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook, environment = sys.excepthook, _environment()
    server = ScriptedServer(answers, read_body=False)
    spec = RaySpec.parse(f"ray:{nodes.address}")
    with RayLoadGenerator(Address(server.url), "openai-chat", cluster=spec, model="m") as made:
        yield made
    server.stop()
    assert raylets_of_workers() == []
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert sys.excepthook is hook
    assert _environment() == environment
    assert "ray" not in sys.modules


def _environment() -> dict[str, str]:
    """Without the name of the test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def raylets_of_workers() -> list[int]:
    """For each worker process on this machine that has a raylet above it: that raylet."""
    found = []
    for process in psutil.process_iter():
        try:
            if "workers.process" in " ".join(process.cmdline()):
                found += [above.pid for above in process.parents() if above.name() == "raylet"][:1]
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_cluster_of_our_own_is_private(
    serve: Serve, plan: MakePlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On loopback, with a token, in a folder that nobody else can enter; the home is left as it was."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    before = {process.pid for process in psutil.process_iter()}
    with RayLoadGenerator(
        Address(serve(reply()).url), "openai-chat", cluster=RaySpec(), model="m"
    ) as generator:
        assert generator.run(plan(4, load=ClosedLoop(1))).records.counts()["ok"] == 4
        ours = psutil.Process().children(recursive=True)
        theirs = [each for each in ours if each.pid not in before]
        names = {each.name() for each in theirs}
        assert {"raylet", "gcs_server"} <= names
        listening = {
            (each.pid, socket.laddr.ip)
            for each in theirs
            for socket in each.net_connections("inet")
            if socket.status == psutil.CONN_LISTEN
        }
        assert listening
        assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        (raylet,) = (each for each in theirs if each.name() == "raylet")
        environment = raylet.environ()
        assert environment["RAY_AUTH_MODE"] == "token"
        assert len(environment["RAY_AUTH_TOKEN"]) > 40
        assert environment["RAY_AUTH_TOKEN"] not in " ".join(raylet.cmdline())
        tops = {
            Path(found) for found in re.findall(r"/\S*?/llmbench-ray-[^/\s]+", " ".join(raylet.cmdline()))
        }
        assert tops
        assert {stat.S_IMODE(each.stat().st_mode) for each in tops} == {0o700}
    assert not (tmp_path / ".ray").exists()
    assert not any(each.exists() for each in tops)


@pytest.mark.slow
def test_more_workers_than_cpus_are_refused(nodes: Nodes, plan: MakePlan) -> None:
    """Before there are any."""
    spec = RaySpec.parse(f"ray:{nodes.address}?workers=5")
    with (
        RayLoadGenerator(
            Address("http://127.0.0.1:9/v1"), "openai-chat", cluster=spec, model="m"
        ) as generator,
        pytest.raises(SuiteError, match=r"5 workers of 1 CPUs each need 5; of the cluster's 4 CPUs 4 are"),
    ):
        generator.run(plan(9, load=ClosedLoop(5)))


@pytest.mark.slow
def test_the_plan_is_shared_by_nodes_of_a_cluster(
    generator: RayLoadGenerator, answers: Answers, plan: MakePlan
) -> None:
    kept: list[RequestRecord] = []
    answers.script = bodies_read(reply())
    seen = generator.run(plan(60, load=OpenLoop(200.0), seed=8), kept.append)
    assert seen.interrupted is None
    assert seen.facts.value("generator.workers") == 2  # one on each node
    assert len(set(raylets_of_workers())) == 2
    records = seen.records
    expected = seen.started_ns + schedule_ns(OpenLoop(200.0), 60, arrival_seed(8))
    assert np.array_equal(records.scheduled_ns[np.argsort(records.index)], expected)
    assert records.counts()["ok"] == 60
    assert sorted(record.request_id for record in kept) == sorted(records.request_id)
    (machine,) = seen.facts.value("clock.workers")
    assert machine["workers"] == [1, 2]
    again = generator.run(plan(41, load=ClosedLoop(5)))
    assert again.records.counts()["ok"] == 41
    # Some sixty calls that bring requests, to each worker in their order.
    much = generator.run(plan(500, load=ClosedLoop(8), workload=Prompts()))
    assert sorted(much.records.index.tolist()) == list(range(500))
    assert much.records.counts()["ok"] == 500


@pytest.mark.slow
def test_workers_on_nodes_read_live_answers(
    generator: RayLoadGenerator, answers: Answers, plan: MakePlan
) -> None:
    heard = Heard()
    answers.script = over_http(by_chat, heard)
    wanted = plan(turns_of(CHAT, SESSIONS, 1), workload=CHAT, load=SessionSlots(2))
    seen = generator.run(wanted)
    assert seen.facts.value("generator.workers") == 2
    assert seen.records.counts()["ok"] == wanted.requests
    heard.assert_each_read_what_it_was_told()


SUITE = """
from pytest_llmbench import WarmupPolicy, llmbench, s, ttft
import pytest

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=6, output_tokens=0, probes=0)

@llmbench.ttft(slo=[ttft.p50 <= 20 * s], rate=60, requests=50)
def test_load(llm_result):
    (seen,) = [run for run in llm_result.observations if run.plan.label == "measure"][:1]
    assert seen.facts.value("generator.workers") == 2
    assert sorted(seen.records.index.tolist()) == list(range(seen.plan.first, seen.plan.first + 50))
    assert seen.engine is not None
"""


@pytest.mark.usefixtures("however_late")
def test_the_plugin_measures_through_ray(nodes: Nodes, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)
    ran = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-W", "error", "--llm-endpoint=sim", "--llm-scale=quick",
        "--llm-report=out", "--llm-inconclusive=pass", f"--llm-workers=ray:{nodes.address}",
    )  # fmt: skip
    assert ran.ret == 0, str(ran.stdout)
    report = json.loads((pytester.path / "out" / "report.json").read_text("utf-8"))
    (entry,) = report["tests"]
    assert entry["outcome"] in ("passed", "inconclusive")  # the host may be too busy for a verdict
    assert entry["facts"]["clock.workers"]["value"][0]["method"] == "one clock"
    assert entry["facts"]["clock.topology"]["value"] == "single_machine"


@pytest.mark.slow
def test_a_lost_node_voids_the_run_and_keeps_its_records(
    nodes: Nodes, generator: RayLoadGenerator, answers: Answers, plan: MakePlan
) -> None:
    """The last test: there is one node less behind it."""
    kept: list[RequestRecord] = []
    answers.script = bodies_read(reply())
    thread, seen = in_thread(generator, plan(20_000, load=OpenLoop(100.0)), kept.append)
    wait_for(lambda: len(kept) >= 100)
    nodes.lose_one()
    thread.join(60)
    (observation,) = seen
    told = str(observation.interrupted)
    # A node that ends kills its worker, and either may be seen first.
    assert re.match(r"worker [12] of 2 was (lost: |killed by SIGKILL)", told)
    counts = observation.records.counts()
    assert counts["ok"] >= 100
    assert {int(index) % 2 for index in observation.records.index} == {0, 1}
    assert counts["submitted"] == len(kept)
    again = generator.run(plan(10, load=ClosedLoop(2)))  # both on the node that is left
    assert again.interrupted is None
    assert again.records.counts()["ok"] == 10
