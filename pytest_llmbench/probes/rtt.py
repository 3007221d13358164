"""The network round trip to the endpoint, by TCP handshakes and by small requests (section 4.7.3 of the
draft)."""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_llmbench.errors import SUTError
from pytest_llmbench.model.facts import Facts, NetworkFact, Origin
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import Closing, ControlPlane
from pytest_llmbench.stats.percentiles import ordered_percentile_interval

SAMPLES = 11
"""Number of connects: one more than the ten that are required, so that a single failure does not cost the
fact."""
SAMPLES_AROUND = 6
"""Number of connects before a load, and as many after it."""
REQUESTS_AROUND = 3
"""Number of small requests before a load, and as many after it."""
_REQUIRED = 10


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Round trips of one moment, in milliseconds."""

    connect_ms: tuple[float, ...] = ()
    """TCP handshakes: SYN out, SYN-ACK back, answered by the other side's kernel."""
    failed: int = 0
    """Number of handshakes that did not come about."""
    request_ms: tuple[float, ...] = ()
    """Small requests on a connection that is open, with the server's work on them."""

    def __add__(self, later: RoundTrips) -> RoundTrips:
        return RoundTrips(
            self.connect_ms + later.connect_ms,
            self.failed + later.failed,
            self.request_ms + later.request_ms,
        )


def probe_rtt(
    host: str, port: int, *, samples: int = SAMPLES, timeout_s: float = 2.0, budget_s: float = 10.0
) -> Facts:
    """Fact ``network.rtt_ms``: ``p50``, ``min``, ``max`` in ms, ``n``, ``failed`` and ``method``.

    Nothing is sent and the SUT does no work. Behind a gateway or a proxy it is the way to that one. No sample
    in time, no fact.
    """
    trips = handshakes(host, port, samples=samples, timeout_s=timeout_s, budget_s=budget_s)
    return Facts.of(Origin.DETECTED, {NetworkFact.RTT_MS: _summary(trips)}, f"TCP connect {host}:{port}")


def handshakes(host: str, port: int, *, samples: int, timeout_s: float, budget_s: float) -> RoundTrips:
    """Time ``connect`` to one address of the host, resolved beforehand."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return RoundTrips()
    deadline = time.monotonic() + budget_s
    seen_ms: list[float] = []
    failed = 0
    while len(seen_ms) + failed < samples and time.monotonic() < deadline:
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(min(timeout_s, max(deadline - time.monotonic(), 0.001)))
            started_ns = time.perf_counter_ns()
            try:
                connection.connect(address)
            except OSError:
                failed += 1
            else:
                seen_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
    return RoundTrips(tuple(seen_ms), failed)


def _summary(trips: RoundTrips) -> dict[str, Any] | None:
    seen_ms = trips.connect_ms
    if not seen_ms:
        return None
    return {
        "p50": statistics.median(seen_ms),
        "min": min(seen_ms),
        "max": max(seen_ms),
        "n": len(seen_ms),
        "failed": trips.failed,
        "method": "TCP connect",
    }


class RoundTripProbe(Closing):
    """Takes round trips before and after loads."""

    def __init__(self, peer: tuple[str, int], url: str | None, access: Access) -> None:
        """``peer``: where connections go to. ``url``: a page that costs the server next to nothing, whatever
        it answers; None: no small requests."""
        self._peer, self._url = peer, url
        self._control = None if url is None else ControlPlane(url, access)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()

    def take(self) -> RoundTrips:
        """The round trips of now."""
        trips = handshakes(*self._peer, samples=SAMPLES_AROUND, timeout_s=1.0, budget_s=2.0)
        return trips + RoundTrips(request_ms=self._requests() if trips.connect_ms else ())

    def _requests(self) -> tuple[float, ...]:
        if self._control is None or self._url is None:
            return ()
        seen_ms = []
        try:
            for _ in range(1 + REQUESTS_AROUND):
                started_ns = time.perf_counter_ns()
                self._control.get(self._url)
                seen_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
        except SUTError:  # the load tells of a server that does not answer
            return ()
        return tuple(seen_ms[1:])  # the first may have opened the connection


def facts_around(before: RoundTrips, after: RoundTrips, *, adjusts: bool) -> Facts:
    """Fact ``network.rtt_ms`` of a load, with the medians before and after it and that of small requests.

    ``adjusts``: also ``network.ttft_adjustment`` where the ten round trips are there that are required. Its
    amount is their median, as a TTFT has one round trip in it; ``lower_ms`` and ``upper_ms`` are the interval
    of the median at 95 %, of the times before and after together, so a way that changed makes it wide.
    """
    both = before + after
    summary = _summary(both)
    if summary is None:
        return Facts()
    parts = {
        "before_p50": before.connect_ms,
        "after_p50": after.connect_ms,
        "request_p50": both.request_ms,
    }
    summary |= {name: statistics.median(seen) for name, seen in parts.items() if seen}
    found = Facts.of(Origin.MEASURED, {NetworkFact.RTT_MS: summary}, "TCP connects before and after the load")
    if not adjusts or summary["n"] < _REQUIRED:
        return found
    ordered = np.sort(np.array(both.connect_ms))
    lower, upper = ordered_percentile_interval(ordered, 50.0, level=0.95, effective_n=len(ordered))
    assert lower is not None, "ten samples bound a median"
    assert upper is not None
    adjustment = {
        "applied": True,
        "amount_ms": summary["p50"],
        "lower_ms": lower,
        "upper_ms": upper,
        "method": f"median of {summary['n']} TCP handshakes before and after the load",
    }
    return found | Facts.of(Origin.MEASURED, {NetworkFact.TTFT_ADJUSTMENT: adjustment}, "round trips")
