"""Every fault, end to end: what our own generator makes of it."""

from __future__ import annotations

import httpx
import plain_http
import pytest
from served_load import PATIENT, SHORT, TOKENS, load, serve_and_load
from waiting import wait_for

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.simulator.serving.process import EmbeddedEngine


@pytest.mark.parametrize(
    ("scenario", "outcome", "status"),
    [
        ("fault=http_error", Outcome.HTTP_ERROR, 500),
        ("fault=http_error&fault_status=400", Outcome.HTTP_ERROR, 400),
        ("fault=http_error&fault_status=503", Outcome.HTTP_ERROR, 503),
        ("fault=rate_limit", Outcome.RATE_LIMITED, 429),
        ("fault=overloaded", Outcome.RATE_LIMITED, 503),
        ("fault=in_band_error", Outcome.IN_BAND_ERROR, 200),
        ("fault=reset", Outcome.DISCONNECTED, 200),
        ("fault=half_close", Outcome.DISCONNECTED, 200),
        ("fault=truncate", Outcome.TRUNCATED, 200),
        ("fault=malformed_json", Outcome.UNDECODABLE, 200),
        ("fault=invalid_utf8", Outcome.UNDECODABLE, 200),
        ("fault=huge_line", Outcome.UNDECODABLE, 200),
        ("fault=stall", Outcome.TIMEOUT, 200),
        ("fault=crash", Outcome.DISCONNECTED, 200),
    ],
)
def test_the_outcome_of_a_fault(scenario: str, outcome: Outcome, status: int) -> None:
    deadlines = SHORT if outcome is Outcome.TIMEOUT else PATIENT
    row = serve_and_load(f"fast?{scenario}", deadlines=deadlines).only
    assert (row.outcome, row.http_status) == (outcome, status), row.error


@pytest.mark.parametrize("fault", ["in_band_error", "reset", "half_close", "truncate"])
def test_a_fault_strikes_after_the_tokens_it_was_told(fault: str) -> None:
    with EmbeddedEngine.start(f"fast?step_base_us=100000&fault={fault}&fault_after_tokens=5") as engine:
        # Steps so long that the engine has not given the rest before it hears that the client is gone.
        row = load(engine).only
        (truth,) = engine.ground_truth()
    assert truth.fault == fault
    assert (truth.aborted, truth.finish_reason) == (True, None)
    assert truth.output_tokens == 5
    # a reset throws away what the receiver has not read yet
    assert len(row.chunk_ns) == 5 or (fault == "reset" and len(row.chunk_ns) <= 5)


def test_before_the_first_token() -> None:
    row = serve_and_load("fast?fault=truncate&fault_after_tokens=0").only
    assert (row.outcome, len(row.chunk_ns)) == (Outcome.EMPTY, 0)


def test_a_reply_shorter_than_the_fault_s_place_is_struck_at_its_end() -> None:
    row = serve_and_load("fast?fault=truncate&fault_after_tokens=100").only
    assert (row.outcome, len(row.chunk_ns)) == (Outcome.TRUNCATED, TOKENS)


def test_a_stall_that_ends_is_a_gap() -> None:
    row = serve_and_load("fast?fault=stall&stall_ms=800&fault_after_tokens=3").only
    assert row.outcome is Outcome.OK
    gaps_ms = [(after - before) / 1e6 for before, after in zip(row.chunk_ns, row.chunk_ns[1:], strict=False)]
    assert gaps_ms[2] >= 400.0


def test_a_drip_is_slow_but_complete() -> None:
    with EmbeddedEngine.start("fast?fault=drip&drip_ms=4") as engine:
        row = load(engine).only
        (truth,) = engine.ground_truth()
    assert (row.outcome, row.output_tokens) == (Outcome.OK, TOKENS)
    assert row.finished_ns is not None
    assert truth.first_write_ns is not None
    assert truth.last_write_ns is not None
    # Each chunk is about ten pieces of 16 bytes, 4 ms apart; the engine was done before the last ones left.
    assert row.finished_ns - truth.first_write_ns >= TOKENS * 30e6
    assert truth.last_write_ns < row.chunk_ns[-1]


def test_a_buffering_proxy_gives_all_chunks_at_once() -> None:
    with EmbeddedEngine.start("fast?fault=buffering&step_base_us=20000") as engine:
        row = load(engine).only
        (truth,) = engine.ground_truth()
    assert (row.outcome, row.output_tokens) == (Outcome.OK, TOKENS)
    assert len(set(row.chunk_ns)) == 1
    assert row.coalesced_chunks == TOKENS - 1
    assert truth.last_write_ns is not None
    assert truth.last_write_ns - truth.received_ns >= TOKENS * 20e6
    assert row.first_byte_ns is not None
    assert row.first_byte_ns >= truth.last_write_ns


def test_a_share_of_requests_suffers_and_the_same_ones_every_time() -> None:
    scenario = "fast?fault=truncate,in_band_error&fault_rate=0.4&seed=3"
    first, again = (serve_and_load(scenario, count).outcomes for count in (40, 12))
    assert first[:12] == again
    assert {Outcome.OK, Outcome.TRUNCATED, Outcome.IN_BAND_ERROR} == set(first)
    assert 8 <= 40 - first.count(Outcome.OK) <= 24


def test_faults_begin_and_end_where_they_are_told() -> None:
    seen = serve_and_load("fast?fault=http_error&fault_from=2&fault_count=3", 8)
    assert seen.outcomes == [Outcome.OK] * 2 + [Outcome.HTTP_ERROR] * 3 + [Outcome.OK] * 3


def test_a_crash_takes_everyone_and_then_recovers() -> None:
    scenario = "fast?fault=crash&fault_from=3&fault_count=1&step_base_us=30000&recovery_ms=700"
    with EmbeddedEngine.start(scenario) as engine:
        outcomes = load(engine, 4, concurrency=4).outcomes
        health = plain_http.get(engine.url.removesuffix("/v1") + "/health")
        down = load(engine).only
        assert engine.status()["running"] == 0
        wait_for(lambda: plain_http.get(f"{engine.url}/models").status_code == 200)
        assert load(engine).only.outcome is Outcome.OK
    assert outcomes == [Outcome.DISCONNECTED] * 4
    assert health.status_code == 503
    assert (down.outcome, down.http_status) == (Outcome.HTTP_ERROR, 503)


@pytest.mark.parametrize(("fault", "status"), [("rate_limit", 429), ("overloaded", 503)])
def test_retry_after_is_whole_seconds(fault: str, status: int) -> None:
    with EmbeddedEngine.start(f"fast?fault={fault}&retry_after_s=2.5") as engine:
        response = plain_http.post(f"{engine.url}/completions", json={"prompt": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (status, "3")
    error = response.json()["error"]
    assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, status)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("reset", httpx.TransportError),
        ("half_close", httpx.TransportError),
        ("truncate", ValueError),
        ("malformed_json", ValueError),
        ("invalid_utf8", ValueError),
    ],
)
def test_replies_that_are_not_streamed_suffer_too(fault: str, problem: type[Exception]) -> None:
    with EmbeddedEngine.start(f"fast?fault={fault}") as engine, pytest.raises(problem):
        plain_http.post(
            f"{engine.url}/completions", json={"prompt": "x", "max_tokens": 3}, timeout=5.0
        ).json()


def test_an_error_in_a_reply_that_is_not_streamed() -> None:
    with EmbeddedEngine.start("fast?fault=in_band_error") as engine:
        response = plain_http.post(f"{engine.url}/completions", json={"prompt": "x"})
    assert response.status_code == 200
    assert response.json()["error"]["code"] == 500
