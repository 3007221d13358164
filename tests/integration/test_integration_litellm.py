"""An application gateway with guardrails: LiteLLM's proxy before llama.cpp's server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import plain_http
import pytest
import trustme
from litellm_gateway import KEY, WAITS_MS, program, serving
from prometheus_client.parser import text_string_to_metric_families
from test_integration_llamacpp import run_suite

from pytest_llmbench import SUT, SyntheticWorkload, Uniform
from pytest_llmbench.errors import SUTError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.metrics.latency import e2e_ms, ttft_ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import OUTCOMES, Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.probes.access import Access, read_credentials
from pytest_llmbench.probes.endpoint import examine
from pytest_llmbench.wire.openai_chat import OpenAIChat

pytestmark = [pytest.mark.slow, pytest.mark.timing]
FIRST_TOKEN = "llm_api_time_to_first_token_metric"
SHORT = SyntheticWorkload("short", Uniform(8, 24), Uniform(16, 32))
SUT_FILE = """
[sut]
boundary = "application_gateway"
prefix_caching = "disabled"

[request.extra_body]
cache_prompt = false

[variants.guardrails_baseline]
guardrails = { input_filter = "disabled", output_filter = "disabled" }
request = { extra_body = { guardrails = [] } }

[variants.guardrails_full]
guardrails = { input_filter = "enabled", output_filter = "enabled" }
request = { extra_body = { guardrails = ["filter-in", "filter-out"] } }
"""
SUITE = """
import pytest
from pytest_llmbench import SUT, SyntheticWorkload, Uniform, WarmupPolicy, llmbench

SHORT = SyntheticWorkload("short", Uniform(8, 24), Uniform(16, 32))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=4, output_tokens=16, concurrency=2, probes=3)

@llmbench.guardrail(
    without="both are shown at once", workload=SHORT, capacity_rps=4, levels_percent=(50,), duration_s=6
)
def test_guardrails(): ...
"""


@dataclass(frozen=True)
class SaysThis:
    """One text, again and again."""

    text: str
    name: str = "says-this"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [
            PlannedRequest(index, max_tokens=24, input_tokens=8, text=self.text) for index in range(count)
        ]

    def specification(self) -> Mapping[str, Any]:
        return {}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    program()
    with serving(request.getfixturevalue("llama_cpp"), tmp_path_factory.mktemp("gateway")) as url:
        yield url


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API_KEY", KEY)


def measured(
    url: str,
    requests: int,
    *,
    model: str = "tiny",
    sut_file: Path | None = None,
    begins: Callable[[], None] = lambda: None,
) -> Observation:
    """One request after the other, sent by hand, after some that nothing is asked of."""
    sut = SUT(url, model, extra_body={"cache_prompt": False})
    session = BenchSession(Settings(endpoint=url, sut=sut_file, remeasure=6))
    try:
        session.execute(LoadPlan("before", SHORT, ClosedLoop(1), 8, seed=1), sut)
        begins()
        return session.execute(LoadPlan("load", SHORT, ClosedLoop(1), requests, seed=42), sut)
    finally:
        session.close()


def counters(url: str) -> dict[str, float]:
    """The gateway's metrics page, label sets summed."""
    page = plain_http.get(f"{url.removesuffix('/v1')}/metrics/", headers={"authorization": f"Bearer {KEY}"})
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page.raise_for_status().text):
        for sample in family.samples:
            name = sample.name.removeprefix("litellm_")
            found[name] = found.get(name, 0.0) + sample.value
    return found


def counted(url: str, requests: int) -> tuple[Observation, dict[str, float], dict[str, float]]:
    """A load, and the metrics page just before it and after it."""
    pages: list[dict[str, float]] = []
    seen = measured(url, requests, begins=lambda: pages.append(settled(url, 9)))
    return seen, pages[0], settled(url, 9 + requests)


def settled(url: str, requests: int) -> dict[str, float]:
    """The page that has so many requests more than when it started: they are counted behind their replies."""
    for _ in range(100):
        page = counters(url)
        if page.get(f"{FIRST_TOKEN}_count", 0.0) >= requests:
            return page
        time.sleep(0.1)
    raise AssertionError(f"{FIRST_TOKEN} counts {page.get(f'{FIRST_TOKEN}_count')}, not {requests}")


def overhead_ms(url: str) -> float:
    """What the gateway says of one request, in a header."""
    body = {"model": "tiny", "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    answer = plain_http.post(f"{url}/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
    return float(answer.raise_for_status().headers["x-litellm-overhead-duration-ms"])


def mean_ms(before: Mapping[str, float], after: Mapping[str, float], histogram: str) -> float:
    grown = [after[name] - before.get(name, 0.0) for name in (f"{histogram}_sum", f"{histogram}_count")]
    return 1e3 * grown[0] / grown[1]


@pytest.mark.usefixtures("key")
def test_its_part_of_the_time_is_what_it_says_itself(gateway, llama_cpp):
    """The same requests through it and past it; and beside its own histograms of those through it."""
    through, before, after = counted(gateway, 40)
    alone = measured(llama_cpp, 40, model="tiny-random")
    records = through.records
    assert records.ok.all()
    assert alone.records.ok.all()
    assert records.output_tokens.tolist() == alone.records.output_tokens.tolist()
    assert records.input_tokens.tolist() == alone.records.input_tokens.tolist()
    assert np.median(ttft_ms(records)) > np.median(ttft_ms(alone.records))
    ours = float(ttft_ms(records).mean()) - mean_ms(before, after, FIRST_TOKEN)
    said = float(np.median([overhead_ms(gateway) for _ in range(10)]))
    # What it says is the time in its own code until the reply begins; ours has the way there and back too.
    assert 0.3 * said < ours < 5 * said + 25.0, (ours, said)
    ratio = float(e2e_ms(records).mean()) / mean_ms(before, after, "request_total_latency_metric")
    assert 0.8 < ratio < 1.3, ratio


@pytest.mark.usefixtures("key")
def test_over_websocket(gateway):
    url = gateway.replace("http://", "ws://")
    seen = measured(url, 20, model="over-websocket")
    assert seen.records.ok.all()
    assert seen.selfcheck.transport == "websocket"
    assert seen.facts.value("streaming.protocol") == "websocket"
    assert seen.records.output_tokens.tolist() == seen.records.requested_max_tokens.tolist()
    assert (ttft_ms(seen.records) > 0).all()


@contextmanager
def generating(url: str, *guardrails: str, text: str = "hello") -> Iterator[Callable[[int, int], Records]]:
    """Sends so many requests with a seed, one after the other, and without a preflight."""
    target = Target.parse(url, headers={"authorization": f"Bearer {KEY}"})
    fields = {"cache_prompt": False, "guardrails": list(guardrails)}
    with LoadGenerator(target, OpenAIChat(), model="tiny", extra_body=fields) as generator:
        yield (
            lambda requests, seed: (
                generator.run(LoadPlan("load", SaysThis(text), ClosedLoop(1), requests, seed=seed)).records
            )
        )


def blocked(url: str, text: str, guardrail: str) -> tuple[str, str]:
    """Outcome and error of a request with that text."""
    with generating(url, guardrail, text=text) as load:
        records = load(1, 1)
    return OUTCOMES[records.outcome[0]].value, records.error[0] or ""


def test_a_prompt_that_its_filter_blocks_is_refused(gateway):
    outcome, error = blocked(gateway, "my number is 536-22-1234", "filter-in")
    assert outcome == "refused"
    assert error.startswith("HTTP 400 Bad Request: Content blocked: us_ssn pattern detected")
    assert blocked(gateway, "my number is none of yours", "filter-in") == ("ok", "")


def test_a_reply_that_its_filter_blocks_is_cut_off(gateway):
    """Behind the first bytes it closes the connection, and says to its log alone why."""
    outcome, error = blocked(gateway, "hello", "blocks-any-letter")
    assert outcome == "disconnected"
    assert "before the response was complete" in error


def test_first_contact(gateway):
    known = Access(read_credentials({"LLM_API_KEY": KEY}))
    wrong = Access(read_credentials({"LLM_API_KEY": "sk-of-somebody-else"}))
    for access, model, said in (
        (known, None, "choose one, for example --llm-model=tiny"),
        (known, "tinny", "it serves tiny, over-websocket (--llm-model)"),
        (wrong, "tiny", "the key from environment variable LLM_API_KEY is refused"),
    ):
        with pytest.raises(SUTError, match=re.escape(said)):
            examine(gateway, model=model, access=access)
    assert examine(gateway, model="tiny", access=known).api == "openai-chat"


def test_over_tls(llama_cpp, tmp_path, monkeypatch):
    program()
    authority, files = trustme.CA(), [tmp_path / name for name in ("ca.pem", "key.pem", "cert.pem")]
    issued = authority.issue_cert("127.0.0.1")
    pems = (authority.cert_pem, issued.private_key_pem, issued.cert_chain_pems[0])
    for pem, file in zip(pems, files, strict=True):
        pem.write_to_path(str(file))
    options = ("--ssl_keyfile_path", str(files[1]), "--ssl_certfile_path", str(files[2]))
    known = Access(read_credentials({"LLM_API_KEY": KEY}), ca_file=files[0])
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))  # for its health, which is asked for as it starts
    with serving(llama_cpp, tmp_path, *options) as url:
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(SUTError, match="ca_file"):
            examine(url, model="tiny", access=replace(known, ca_file=None))
        assert examine(url, model="tiny", access=known).facts.value("endpoint.certificate_checked") is True
        sut = tmp_path / "sut.toml"
        sut.write_text('[endpoint]\nca_file = "ca.pem"\n', "utf-8")
        monkeypatch.setenv("LLM_API_KEY", KEY)
        for address, model in ((url, "tiny"), (url.replace("https", "wss", 1), "over-websocket")):
            assert measured(address, 8, model=model, sut_file=sut).records.ok.all()


@pytest.mark.usefixtures("key")
def test_the_guardrail_test_on_its_own_content_filter(gateway, tmp_path):
    """The filter behind the model holds text back, so that the first text comes nearer to the last."""
    (tmp_path / "sut.toml").write_text(SUT_FILE, "utf-8")
    told = ("--llm-sut=sut.toml", "--llm-model=tiny", "--llm-scale=quick")
    printed = run_suite(tmp_path, SUITE, gateway, *told)
    assert "1 passed" in printed, printed
    (entry,) = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["tests"]
    assert entry["facts"]["sut.boundary"]["value"] == "application_gateway"
    statuses = {clause["id"]: clause["status"] for clause in entry["compliance"]["requirements"]}
    assert statuses["S-4.6.1-sse-for-gateway"] == "met"
    point = {name: metric["point"] for name, metric in entry["metrics"].items()}
    assert point["guardrail_overhead[50%].p50"] is not None
    off, on = (
        point[f"ttft[{name}@50%].p50"] / point[f"e2e[{name}@50%].p50"] for name in ("baseline", "full")
    )
    assert on > off


def test_a_guardrail_that_waits_costs_what_it_waits(gateway):
    """One request with it and one without, in turns, so that both meet the same machine."""
    with generating(gateway) as plain, generating(gateway, "waits") as guarded:
        for load in (plain, guarded):
            assert load(4, 0).ok.all()
        costs = [float((ttft_ms(guarded(1, seed)) - ttft_ms(plain(1, seed)))[0]) for seed in range(1, 31)]
    assert 0.8 * WAITS_MS < np.median(costs) < 1.6 * WAITS_MS, costs
