"""Requests through an HTTP proxy: preflight, metrics page, load and ad-hoc requests, and none past it."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

import pytest
import trustme
from relays import ProxyLog, http_proxy, in_front_of

from pytest_llmbench.compare.split import WHOLES, parts_by_run, split
from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.http_client import HttpProxy
from pytest_llmbench.model.numbers import Figure
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.model.result import Table
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

DEADLINES = Deadlines(connect_s=5, first_byte_s=10, between_chunks_s=10, total_s=20, drain_s=20)
PLAN = LoadPlan(
    "test", SyntheticWorkload("small", Fixed(32), Fixed(4)), ClosedLoop(2), 6, 1, deadlines=DEADLINES
)
CANARY = "pr0xy-pa55"


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast") as engine:
        yield engine


@pytest.fixture
def over_tls(engine: EmbeddedEngine) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with in_front_of(engine.url, context) as url:
        yield url


def measured(
    url: str, proxy: str, *, workers: int = 0, insecure: bool = False, http: Literal["1.1", "2"] = "1.1"
) -> Observation:
    settings = Settings(endpoint=url, proxy=proxy, workers=workers, insecure=insecure, http=http)
    session = BenchSession(settings)
    try:
        return session.execute(PLAN, url)
    finally:
        session.close()


def posted(log: ProxyLog) -> list[str]:
    return [line for line in log.asked if line.startswith("POST")]


def test_the_delay_of_a_proxy_is_outside_of_the_engine(engine: EmbeddedEngine) -> None:
    with http_proxy() as near, http_proxy(delay_s=0.2) as far:
        sides = [parts_by_run([measured(engine.url, log.url) for _ in range(2)]) for log in (near, far)]
    for whole in WHOLES:
        table = split(whole, *sides, paired=True, level=0.95)
        assert isinstance(table, Table), table
        found = {str(row[0]): row[3].estimate.point for row in table.cells if isinstance(row[3], Figure)
                 and row[3].estimate is not None and row[3].estimate.point is not None}  # fmt: skip
        *parts, mean = found
        assert max(parts, key=lambda name: found[name]) == "Outside"
        assert found["Outside"] > 150
        assert sum(found[name] for name in parts) == pytest.approx(found[mean], rel=0.02)


@pytest.mark.parametrize("workers", [0, 1])
def test_each_request_has_the_whole_url(engine: EmbeddedEngine, workers: int) -> None:
    before = len(engine.ground_truth())
    with http_proxy() as log:
        seen = measured(engine.url, log.url, workers=workers)
    assert seen.records.counts()["ok"] == 6
    wanted = f"POST http://{urlsplit(engine.url).netloc}/v1/chat/completions HTTP/1.1"
    assert posted(log) == [wanted] * len(posted(log))
    # All that the engine was asked came through the proxy: the load, and the small request of the preflight.
    assert len(posted(log)) == len(engine.ground_truth()) - before >= 7
    assert any("/metrics" in line for line in log.asked)
    assert log.credentials == [""] * len(log.asked)


@pytest.mark.parametrize("workers", [0, 1])
def test_over_tls_the_proxy_sees_a_tunnel_and_no_prompt(over_tls: str, workers: int) -> None:
    with http_proxy() as log:
        seen = measured(over_tls, log.url, workers=workers, insecure=True)
    assert seen.records.counts()["ok"] == 6
    assert set(log.asked) == {f"CONNECT {urlsplit(over_tls).netloc} HTTP/1.1"}
    assert b"chat/completions" not in log.inside


def test_the_proxy_of_the_environment_has_its_password(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the environment no proxy is taken for a loopback address, so the engine has another name.
    url = engine.url.replace("127.0.0.1", "engine.invalid")
    with http_proxy(hosts={"engine.invalid": "127.0.0.1"}) as log:
        monkeypatch.setenv("http_proxy", log.url.replace("//", f"//user:{CANARY}@"))
        seen = measured(url, "env", workers=1)
    assert seen.records.counts()["ok"] == 6
    token = base64.b64encode(f"user:{CANARY}".encode()).decode()
    assert log.credentials == [f"Basic {token}"] * len(log.asked)
    assert CANARY not in str(seen.facts)


def test_llm_client_goes_the_same_way(engine: EmbeddedEngine) -> None:
    with http_proxy() as log:
        session = BenchSession(Settings(endpoint=engine.url, proxy=log.url, workers=0))
        try:
            before = len(posted(log))
            reply = asyncio.run(session.client(engine.url).complete("the sea", max_tokens=3))
        finally:
            session.close()
    assert reply.ok
    assert len(posted(log)) > before


def test_a_proxy_that_refuses_is_named_before_any_load(engine: EmbeddedEngine, over_tls: str) -> None:
    answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    for url in (engine.url, over_tls):
        with http_proxy(refuses=answer) as log, pytest.raises(SUTError) as caught:
            measured(url, log.url)
        assert "407" in str(caught.value)


def test_a_proxy_that_is_down_is_named(engine: EmbeddedEngine) -> None:
    with pytest.raises(SUTError, match=r"through the proxy http://127\.0\.0\.1:9\b"):
        measured(engine.url, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("proxy", "what"),
    [
        ("socks5://127.0.0.1:1080", "only http:// is spoken to a proxy"),
        ("https://127.0.0.1:3128", "only http:// is spoken to a proxy"),
        ("127.0.0.1:3128", "only http:// is spoken to a proxy"),
        ("http://127.0.0.1", "names no host and port"),
        ("http://127.0.0.1:99999", "not a URL"),
        ("http://127.0.0.1:3128/pac", "has no path"),
        (f"http://user:{CANARY}@127.0.0.1:3128", "credentials"),
    ],
)
def test_what_is_no_proxy(engine: EmbeddedEngine, proxy: str, what: str) -> None:
    with pytest.raises(SuiteError) as caught:
        measured(engine.url, proxy)
    assert what in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["sim", "replay", "ws://127.0.0.1:9/v1", "grpc://127.0.0.1:9"])
def test_nothing_but_http_goes_through_a_proxy(endpoint: str) -> None:
    session = BenchSession(Settings(endpoint=endpoint, proxy="http://127.0.0.1:9"))
    with pytest.raises(SuiteError, match="--llm-proxy is for http:// and https:// endpoints"):
        session.execute(PLAN, SUT(endpoint))


def test_credentials_are_in_no_text() -> None:
    proxy = HttpProxy.parse(f"http://user:{CANARY}@[::1]:3128")
    assert (proxy.url, repr(proxy)) == ("http://[::1]:3128", "HttpProxy(http://[::1]:3128)")
    assert proxy.credentials == f"user:{CANARY}"
