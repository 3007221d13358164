"""Over HTTP/2 against hypercorn, a server of another maker, which tells when it did what."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from http2_server import hypercorn, truth
from three_attempts import three_attempts

from pytest_llmbench import make_workload
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.wire.openai_chat import OpenAIChat


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with hypercorn() as url:
        yield url


def load_on(target: Target, concurrency: int = 8, requests: int = 24) -> LoadPlan:
    return LoadPlan(
        "over HTTP/2",
        make_workload(input_tokens=16, output_tokens=6),
        ClosedLoop(concurrency),
        requests=requests,
        seed=1,
    )


@pytest.mark.timing
@three_attempts
def test_instants_are_those_of_the_server(server: str) -> None:
    """Both ends read one clock: no instant of ours is before the one at which the server did its part, and
    every chunk has been read before the server sent the next."""
    target = Target.parse(server, http2=True)
    with LoadGenerator(target, OpenAIChat(), model="m") as generator:
        seen = generator.run(load_on(target))
    records, told = seen.records, truth(server)
    assert records.counts()["ok"] == 24, records.error
    assert seen.selfcheck.connections_prewarmed + seen.selfcheck.connections_opened == 1
    chunks = iter(records.chunk_ns)
    for row, request_id in enumerate(records.request_id):
        did = told[request_id]
        assert did["http_version"] == "2"
        assert records.submitted_ns[row] <= did["read_ns"]
        assert records.first_content_ns[row] >= did["sent_ns"][0]
        ours = [next(chunks) for _ in did["sent_ns"]]
        assert ours[0] == records.first_content_ns[row]
        for sent_ns, at_ns, next_ns in zip(did["sent_ns"], ours, [*did["sent_ns"][1:], None], strict=True):
            assert sent_ns <= at_ns
            assert next_ns is None or at_ns < next_ns


def test_as_many_connections_as_its_streams_ask_for(tmp_path: Path) -> None:
    config = tmp_path / "hypercorn.toml"
    config.write_text("h2_max_concurrent_streams = 1\n")
    with hypercorn("--config", str(config)) as url:
        target = Target.parse(url, http2=True)
        with LoadGenerator(target, OpenAIChat(), model="m") as generator:
            seen = generator.run(load_on(target, concurrency=3, requests=9))
    assert seen.records.counts()["ok"] == 9, seen.records.error
    assert seen.selfcheck.connections_prewarmed == 3


def test_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    names = {name: tmp_path / f"{name}.pem" for name in ("key", "chain", "ca")}
    certificate.private_key_pem.write_to_path(str(names["key"]))
    certificate.cert_chain_pems[0].write_to_path(str(names["chain"]))
    authority.cert_pem.write_to_path(str(names["ca"]))
    with hypercorn("--keyfile", str(names["key"]), "--certfile", str(names["chain"]), tls=True) as url:
        target = Target.parse(url, ca_file=names["ca"], http2=True)
        assert isinstance(target.ssl_context, ssl.SSLContext)
        with LoadGenerator(target, OpenAIChat(), model="m") as generator:
            seen = generator.run(load_on(target))
        versions = {did["http_version"] for did in truth(url).values()}
    assert seen.records.counts()["ok"] == 24, seen.records.error
    assert versions == {"2"}
