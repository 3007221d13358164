"""The network round trip to the endpoint, measured by TCP connects (section 4.7.3 of the
draft)."""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any

from pytest_llmbench.model.fact_keys import NetworkFact
from pytest_llmbench.model.facts import Facts, Origin

SAMPLES = 11
"""Number of connects: one more than the ten that are required, so that a single failure does not cost the
fact."""


def probe_rtt(
    host: str, port: int, *, samples: int = SAMPLES, timeout_s: float = 2.0, budget_s: float = 10.0
) -> Facts:
    """Fact ``network.rtt_ms``: ``p50``, ``min``, ``max`` in ms, ``n``, ``failed`` and ``method``.

    A sample is the time that ``connect`` takes to one address of the host, resolved beforehand: SYN out,
    SYN-ACK back, answered by the other side's kernel. Nothing is sent and the SUT does no work. Behind a
    gateway or a proxy it is the way to that one. No sample in time, no fact.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return Facts()
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
    return Facts.of(
        Origin.DETECTED, {NetworkFact.RTT_MS: _summary(seen_ms, failed)}, f"TCP connect {host}:{port}"
    )


def _summary(seen_ms: list[float], failed: int) -> dict[str, Any] | None:
    if not seen_ms:
        return None
    return {
        "p50": statistics.median(seen_ms),
        "min": min(seen_ms),
        "max": max(seen_ms),
        "n": len(seen_ms),
        "failed": failed,
        "method": "TCP connect",
    }
