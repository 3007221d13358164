"""Adapters that come and go during a load: known times and effects, and calls that fail or hang."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.harness.sut.adapter_calls import calls_of, with_churn
from pytest_llmbench.methodology.measuring.adapter_calls import with_adapter_calls
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import job, ttft
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop, churn
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import ControlPlane
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.replay.load import Delays
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.mixture import of_adapters
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

pytestmark = pytest.mark.usefixtures("however_late")
LOAD_MS, STEP_MS = 60.0, 4.0
ENGINE = (
    f"fast?adapters=3&adapter_load_ms={LOAD_MS}&step_base_us={1000 * STEP_MS}&kv_us_per_token=0"
    "&decode_us_per_sequence=0&prefill_us_per_token=0"
)
WORK = of_adapters(SyntheticWorkload("short", Fixed(16), Fixed(51)), ["adapter-1"])
COMES_AND_GOES = churn({"adapter-2": "/a/2", "adapter-3": "/a/3"}, rate=4)
PLAN = LoadPlan("load", WORK, ClosedLoop(2), 24, 7, beside=COMES_AND_GOES)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(ENGINE) as engine:
        yield engine


def sent(engine: EmbeddedEngine, plan: LoadPlan, url: str | None = None) -> Observation:
    generator = LoadGenerator(Target.parse(engine.url), OpenAIChat(), model=engine.model)
    with generator:
        return with_churn(generator, url or engine.url, Access()).run(plan)


def held_up(seen: Observation) -> float:
    """How often both replies in flight had to wait for the load of an adapter."""
    records = seen.records
    ends = zip(records.chunk_offsets[:-1], records.chunk_offsets[1:], strict=True)
    instants = [
        np.append(submitted_ns, records.chunk_ns[first:end])
        for submitted_ns, (first, end) in zip(records.submitted_ns, ends, strict=True)
    ]
    return sum(int((np.diff(each) > (STEP_MS + LOAD_MS / 2) * 1e6).sum()) for each in instants) / 2


def in_result(seen: Observation, *, is_job: bool = True) -> TestResult:
    plain = TestResult("job", "", "Job", {}, (), (), {}, (seen,), WarmupReport(), Facts())
    return with_adapter_calls(plain, seen.plan.beside or COMES_AND_GOES, is_job=is_job)


def test_what_comes_and_goes_takes_its_known_time_and_holds_up_the_load(engine: EmbeddedEngine) -> None:
    """Each load by a call holds up the two replies in flight once, in real time as in a replay."""
    real, virtual = sent(engine, PLAN), ReplayEngine(parse_scenario(ENGINE)).run(PLAN)
    for seen in (real, virtual):
        kinds = [(each.kind, each.adapter) for each in seen.adapter_calls]
        assert kinds[:4] == [(kind, f"adapter-{n}") for n in (2, 3) for kind in ("unload", "load")]
        assert not any(each.problem for each in seen.adapter_calls)
        assert seen.records.ok.all()
        loads = [each for each in seen.adapter_calls if each.kind == "load"]
        assert held_up(seen) >= len(loads) - 1.5  # a busy host adds some
        due = seen.duration_s * COMES_AND_GOES.rate
        assert len(loads) <= due + 1
        found = in_result(seen)
        assert found.metrics["adapter_load.min"].point >= LOAD_MS
        none = Objective("adapter_call_failures", "<=", 0.0, "count")
        assert gate([none], found.metrics).verdict is GateVerdict.PASS
        assert not [each for each in found.findings if "adapter" in each.check]
    loads = [each for each in virtual.adapter_calls if each.kind == "load"]
    assert held_up(virtual) == len(loads) + 1  # the first use of adapter-1
    figures = in_result(virtual).metrics
    assert figures["adapter_load.p95"].point == LOAD_MS
    assert figures["adapter_unload.p50"].point == 0
    assert real.plan.key != replace(PLAN, beside=None).key


def test_a_request_for_an_adapter_that_is_away_is_refused() -> None:
    away = PLAN.with_(beside=churn({"adapter-1": "/a/1"}, rate=4), load=OpenLoop(50.0), requests=400)
    seen = ReplayEngine(parse_scenario(ENGINE)).run(away)
    refused = seen.records.http_status == 404
    received_ns = seen.records.submitted_ns + Delays().to_engine_ns
    away_at = [(each.at_ns, each.at_ns + each.took_ns) for each in seen.adapter_calls if each.kind == "load"]
    assert refused.tolist() == [any(a <= at_ns < b for a, b in away_at) for at_ns in received_ns]
    assert refused.mean() == pytest.approx(4 * LOAD_MS / 1000, abs=0.08)


@contextmanager
def served(answer: Any) -> Iterator[str]:
    """A server that answers each POST by ``answer(path, body)``: a status and a JSON body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = answer(self.path, body)
            told = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None: ...  # a client that waits no longer is what is tested

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def test_sglang_has_paths_of_its_own_and_says_why_a_load_failed(engine: EmbeddedEngine) -> None:
    def sglang(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if not path.startswith(("/load_lora", "/unload_lora")):
            return 404, {"detail": "Not Found"}
        if not body:
            return 400, {"object": "error", "message": "lora_name: Field required"}
        missing = body.get("lora_path") == "/a/3"
        return (
            (400, {"success": False, "error_message": "no such path"})
            if missing
            else (200, {"success": True})
        )

    with served(sglang) as url:
        seen = sent(engine, PLAN, url)
    found = in_result(seen)
    (failed,) = [each for each in found.findings if each.check == "adapter_calls_failed"]
    assert "load adapter-3: HTTP 400" in failed.message
    assert "afterwards it has no adapter-3" in failed.message
    assert not failed.voids
    failures = found.metrics["adapter_call_failures"].point
    assert failures == sum(each.kind == "load" and each.adapter == "adapter-3" for each in seen.adapter_calls)
    assert seen.records.ok.all()
    none = Objective("adapter_call_failures", "<=", 0.0, "count")
    assert gate([none], found.metrics).verdict is GateVerdict.FAIL


def test_a_call_that_hangs_is_a_finding_and_the_load_counts(engine: EmbeddedEngine) -> None:
    released = threading.Event()

    def hangs(_: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body:
            released.wait(10)
        return 400, {}

    patient = PLAN.with_(beside=churn({"adapter-2": "/a/2"}, rate=20, timeout_s=0.2))
    with served(hangs) as url:
        begun = time.monotonic()
        seen = sent(engine, patient, url)
        took = time.monotonic() - begun
        released.set()
    found = in_result(seen)
    assert seen.records.ok.all()
    assert took < seen.duration_s + 5
    (failed, behind) = [each for each in found.findings if "adapter" in each.check]
    assert "no answer within 0.2 s" in failed.message
    assert behind.check == "adapter_calls_behind"
    assert found.metrics["adapter_load.p95"].point is None


def test_a_server_without_such_calls_is_told_before_any_load() -> None:
    with (
        served(lambda *_: (404, {})) as url,
        ControlPlane(url, Access()) as control,
        pytest.raises(SUTError, match="no call to load an adapter") as raised,
    ):
        calls_of(control, url)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in str(raised.value)
    with (
        served(lambda *_: (401, {})) as url,
        ControlPlane(url, Access()) as control,
        pytest.raises(SUTError, match="HTTP 401"),
    ):
        calls_of(control, url)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"adapters": ["a"], "rate": 1}, "must be the path of each by its name"),
        ({"adapters": {"a": ""}, "rate": 1}, "give a name and a path in quotes"),
        ({"adapters": {}, "rate": 0, "timeout_s": -1}, "3 mistakes"),
        ({"adapters": {"a": "/a"}, "rate": float("nan")}, "rate must be a number above 0"),
        ({"adapters": {"a": "/a"}, "rate": True}, "rate must be a number above 0"),
    ],
)
def test_mistakes_of_the_author(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError, match=told):
        churn(**given)


def test_mistakes_of_the_marker() -> None:
    with pytest.raises(SuiteError, match=r"beside must be churn\("):
        build(job.Parameters, {"beside": "churn"}, test="job")
    limit = Objective("adapter_load.p95", "<=", 500.0, "ms")
    with pytest.raises(SuiteError, match=r"needs adapters that come and go: give beside=churn"):
        build(ttft.Parameters, {"slo": [limit]}, test="ttft")
    assert build(job.Parameters, {"slo": [limit], "beside": COMES_AND_GOES}, test="job").beside


SUITE = """
from pytest_llmbench import Fixed, SyntheticWorkload, churn, llmbench, metric, ms

SHORT = SyntheticWorkload("short", Fixed(16), Fixed(40))
COMES = churn({"adapter-3": "/a/3"}, rate=8)
LIMITS = [metric("adapter_load.p95", "ms") <= 2000 * ms]

@llmbench.job(prompts=30, concurrency=4, workload=SHORT, slo=LIMITS, beside=COMES)
def test_churn(llm_result):
    (table,) = [each for each in llm_result.tables if each.id == "adapter_calls"]
    assert [row[0] for row in table.rows] == ["unload", "load"]
    assert llm_result.metrics["adapter_call_failures"].point == 0

@llmbench.job(prompts=30, workload=SHORT, beside=churn({"adapter-8": "/a/8"}, rate=8))
def test_absent(llm_result):
    raise AssertionError("nothing is sent")
"""


@pytest.mark.parametrize("virtual", [True, False])
def test_in_a_session(pytester: pytest.Pytester, engine: EmbeddedEngine, virtual: bool) -> None:
    suite = Suite(pytester)
    suite.write(SUITE, SMALL_WARMUP)
    outcome = suite.measure(f"replay:{ENGINE}" if virtual else engine.url, "-n0")
    outcome.assert_outcomes(passed=1, errors=1)
    outcome.stdout.fnmatch_lines(["*the endpoint has no adapter adapter-8*"])


def test_a_server_without_adapters_in_a_session(pytester: pytest.Pytester) -> None:
    suite = Suite(pytester)
    suite.write(SUITE, SMALL_WARMUP)
    with EmbeddedEngine.start("fast") as plain:
        outcome = suite.measure(plain.url, "-n0", "-k", "churn")
    outcome.assert_outcomes(errors=1)
    outcome.stdout.fnmatch_lines(["*no call to load an adapter*", "*VLLM_ALLOW_RUNTIME_LORA_UPDATING*"])
