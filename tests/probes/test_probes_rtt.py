"""Round trips to an endpoint: at once, and around a load."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from pytest_llmbench.model.facts import Origin
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.rtt import (
    REQUESTS_AROUND,
    SAMPLES,
    SAMPLES_AROUND,
    RoundTripProbe,
    RoundTrips,
    facts_around,
    probe_rtt,
)


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()


def test_rtt_of_a_listening_port(listener):
    host, port = listener
    facts = probe_rtt(host, port)
    rtt = facts.value("network.rtt_ms")
    assert rtt["n"] == SAMPLES >= 10
    assert rtt["failed"] == 0
    assert 0 < rtt["min"] <= rtt["p50"] <= rtt["max"] < 1000
    assert facts["network.rtt_ms"].origin is Origin.DETECTED
    assert f"{host}:{port}" in facts["network.rtt_ms"].source


def test_rtt_keeps_to_its_number_of_samples(listener):
    assert probe_rtt(*listener, samples=3).value("network.rtt_ms")["n"] == 3


def test_no_rtt_where_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
    assert len(probe_rtt(*address)) == 0
    assert len(probe_rtt("no-such-host.invalid", 80)) == 0


def test_rtt_ends_with_its_budget():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for extra in waiting:
            extra.setblocking(False)
            extra.connect_ex(full.getsockname())
        facts = probe_rtt(*full.getsockname(), timeout_s=5.0, budget_s=0.3)
        for extra in waiting:
            extra.close()
    assert len(facts) == 0


@pytest.fixture
def page() -> Iterator[tuple[str, int]]:
    """A server that answers 404 to everything, and keeps its connections."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield ("127.0.0.1", server.server_address[1])
        server.shutdown()
        serving.join()


def test_handshakes_and_small_requests_whatever_the_answer(page: tuple[str, int]) -> None:
    url = f"http://{page[0]}:{page[1]}/v1/models"
    with RoundTripProbe(page, url, Access()) as probe:
        trips = probe.take()
    assert (len(trips.connect_ms), trips.failed) == (SAMPLES_AROUND, 0)
    assert len(trips.request_ms) == REQUESTS_AROUND
    assert min(trips.connect_ms + trips.request_ms) > 0
    with RoundTripProbe(page, None, Access()) as probe:
        assert probe.take().request_ms == ()


def test_a_server_that_has_gone_costs_no_more_than_its_handshakes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = taken.getsockname()
    with RoundTripProbe(gone, f"http://127.0.0.1:{gone[1]}/v1/models", Access()) as probe:
        trips = probe.take()
    assert trips == RoundTrips(failed=SAMPLES_AROUND)
    assert len(facts_around(trips, trips, adjusts=True)) == 0


def test_the_round_trips_around_a_load_and_what_they_take_off() -> None:
    before = RoundTrips((1.0, 1.1, 1.2, 1.3, 1.4, 1.5), 0, (4.0, 5.0, 6.0))
    after = RoundTrips((1.6, 1.7, 1.8, 1.9, 2.0), 1, (7.0,))
    found = facts_around(before, after, adjusts=True)
    assert found.value("network.rtt_ms") == {
        "p50": 1.5,
        "min": 1.0,
        "max": 2.0,
        "n": 11,
        "failed": 1,
        "method": "TCP connect",
        "before_p50": 1.25,
        "after_p50": 1.8,
        "request_p50": 5.5,
    }
    assert found["network.rtt_ms"].origin is Origin.MEASURED
    # Of 11 samples the 2nd and the 10th bound the median: 1 - 2 · 12 / 2048 = 98.8 %; the 3rd and 9th 93.5 %.
    assert found.value("network.ttft_adjustment") == {
        "applied": True,
        "amount_ms": 1.5,
        "lower_ms": 1.1,
        "upper_ms": 1.9,
        "method": "median of 11 TCP handshakes before and after the load",
    }
    assert "network.ttft_adjustment" not in facts_around(before, after, adjusts=False)


def test_too_few_round_trips_take_nothing_off() -> None:
    found = facts_around(RoundTrips((1.0, 1.1, 1.2)), RoundTrips((1.3,) * 6), adjusts=True)
    assert found.value("network.rtt_ms")["n"] == 9
    assert "network.ttft_adjustment" not in found


def test_a_way_that_changed_makes_the_interval_wide() -> None:
    found = facts_around(RoundTrips((1.0,) * 6), RoundTrips((9.0,) * 6), adjusts=True)
    adjustment = found.value("network.ttft_adjustment")
    assert (adjustment["lower_ms"], adjustment["upper_ms"]) == (1.0, 9.0)
