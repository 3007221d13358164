"""Embeddings and scores from marker to outcome, and markers over an API of the other kind."""

from __future__ import annotations

import pytest
from plugin_suite import Suite

EMBED = """
@llmbench.non_generative(latency_p50_ms=5000, min_requests_per_s=1, concurrency=4, requests=200)
def test_embed(llm_result):
    assert "ttft.p50" not in llm_result.metrics
"""
BOTH = (
    EMBED
    + """
@llmbench.ttft(p99_ms=500)
def test_first_token(): ...
"""
)


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize(("endpoint", "api"), [("replay", "openai-embeddings"), ("sim", "score")])
def test_a_gate_on_vectors_or_scores(suite: Suite, endpoint: str, api: str) -> None:
    suite.write(EMBED)
    # Latencies of a disturbed machine may hang together so that they bound nothing.
    result = suite.measure(endpoint, f"--llm-api={api}", "--llm-inconclusive=pass", scale="standard")
    result.assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    assert entry["validity"]["verdict"] == "valid"
    assert entry["compliance"]["requirements"] == []
    assert entry["facts"]["streaming.protocol"]["value"] == "json"
    assert entry["facts"]["endpoint.api"]["value"] == api
    assert entry["metrics"]["latency.p50"]["n"] == 200
    assert not [
        name for name in entry["metrics"] if name.startswith(("ttft", "itl", "tpot", "output", "e2e"))
    ]


def test_a_marker_over_an_api_of_the_other_kind_is_a_usage_error(suite: Suite) -> None:
    suite.write(BOTH)
    over_text = suite.run("--llm-endpoint=replay")
    assert over_text.ret == pytest.ExitCode.USAGE_ERROR
    told = over_text.stderr.str()
    assert "@llmbench.non_generative measures requests that generate nothing, but auto takes" in told
    assert "--llm-api=openai-embeddings, rerank, score or logprobs" in told
    assert "test_first_token" not in told
    over_vectors = suite.run("--llm-endpoint=replay", "--llm-api=rerank")
    assert over_vectors.ret == pytest.ExitCode.USAGE_ERROR
    told = over_vectors.stderr.str()
    assert "@llmbench.ttft measures generated tokens, but rerank generates none" in told
    assert "test_embed" not in told


def test_a_fixture_that_chooses_the_api_is_looked_at_when_it_is_open(suite: Suite) -> None:
    suite.write(
        BOTH,
        conftest="""
        import pytest
        from pytest_llmbench import SUT

        @pytest.fixture(scope="session")
        def llm_sut():
            return SUT("replay", api="openai-embeddings")
        """,
    )
    result = suite.measure("replay", "--llm-inconclusive=pass")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*@llmbench.ttft measures generated tokens*"])


def test_without_an_endpoint_they_are_skipped(suite: Suite) -> None:
    suite.write(BOTH)
    suite.run().assert_outcomes(skipped=2)


def test_the_client_by_hand_says_that_there_is_no_stream(suite: Suite) -> None:
    suite.write("""
        def test_by_hand(llm_client): ...
    """)
    result = suite.run("--llm-endpoint=sim", "--llm-api=openai-embeddings")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*llm_client reads streams, but openai-embeddings answers in one document*"])


def test_what_is_called_in_process_is_refused_before_any_traffic(suite: Suite) -> None:
    suite.write(EMBED)
    result = suite.run("--llm-endpoint=python:json:dumps", "--llm-api=openai-embeddings")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "an endpoint in process streams tokens" in result.stderr.str()
