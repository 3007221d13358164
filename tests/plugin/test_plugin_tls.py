"""TLS from the option to the report: checked by default, ``--llm-insecure`` loud and recorded."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from plugin_suite import SMALL_WARMUP, Suite
from relays import in_front_of

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

pytestmark = pytest.mark.usefixtures("however_late")

SUITE = """
from pytest_llmbench import llmbench, make_workload

@llmbench.ttft(concurrency=2, requests=10, workload=make_workload(input_tokens=16, output_tokens=128))
def test_first_token(): ...
"""
WARNING = "*WARNING: --llm-insecure: the server's certificate is not checked*reads the API key*"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def endpoint(engine: EmbeddedEngine, authority: trustme.CA) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with in_front_of(engine.url, context) as url:
        yield url


def test_a_certificate_that_nobody_vouches_for_is_an_error(suite: Suite, endpoint: str) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(endpoint)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*certificate is not trusted*", "*SSL_CERT_FILE*--llm-insecure*"])


@pytest.mark.parametrize("workers", [0, 1])
def test_insecure_is_loud_and_recorded(suite: Suite, endpoint: str, workers: int) -> None:
    """Preflight, the metrics page and the load itself, in this process and in another."""
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(endpoint, "--llm-insecure", f"--llm-workers={workers}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([WARNING])
    result.stdout.fnmatch_lines(["*the server's certificate was not checked*"])
    report = suite.report
    assert report["environment"]["settings"]["insecure"] is True
    written = (suite.path / "out" / "report.json").read_text("utf-8")
    assert '"certificate_checked"' in written
    assert '"endpoint.certificate_checked"' in written
    assert '"engine.metrics"' in written
    assert report["tests"][0]["metrics"]["ttft_queue_wait.mean"]["point"] is not None
    for name in ("report.html", "summary.md"):
        assert "certificate was not checked" in (suite.path / "out" / name).read_text("utf-8"), name


@pytest.mark.parametrize(
    ("key", "public"), [("sk-in-the-clear-4711", True), ("", True), ("sk-at-home-4711", False)]
)
def test_a_key_without_encryption_is_told(
    suite: Suite, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch, key: str, public: bool
) -> None:
    monkeypatch.setattr("pytest_llmbench.probes.host.is_public", lambda host: public)
    monkeypatch.setenv("LLM_API_KEY", key)
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(engine.url, "--llm-workers=0")
    result.assert_outcomes(passed=1)
    told = "was sent to a public address"
    assert (told in result.stdout.str()) is bool(key and public)
    assert (told in (suite.path / "out" / "summary.md").read_text("utf-8")) is bool(key and public)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_checked_certificate_is_nothing_to_speak_of(
    suite: Suite, endpoint: str, authority: trustme.CA, workers: int
) -> None:
    authority.cert_pem.write_to_path(str(suite.path / "ca.pem"))
    (suite.path / "sut.toml").write_text('[endpoint]\nca_file = "ca.pem"\n')
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(endpoint, "--llm-sut=sut.toml", f"--llm-workers={workers}")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*not checked*")


def test_authorities_of_the_environment_reach_the_workers(
    suite: Suite, endpoint: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    suite.write(SUITE, conftest=SMALL_WARMUP)
    suite.measure(endpoint, "--llm-workers=1").assert_outcomes(passed=1)
