"""The amount of warm-up that is done (METHODOLOGY §6). The ``llm_warmup`` fixture returns one of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmupPolicy:
    """The draft's warm-up: both amounts are reached (AMB-02), the queue drains, probes settle.

    A policy below the draft's amounts is allowed, for smoke runs; the compliance audit sees what was done.
    """

    requests: int = 100
    """Successful requests, at least."""
    output_tokens: int = 10_000
    """Output tokens, at least."""
    concurrency: int = 8
    """Requests in flight while warming up."""
    probes: int = 10
    """Probes after the warm-up, at most; they end as soon as the last three agree."""
    tolerance: float = 0.10
    """Consecutive probes agree when they differ by less than this share."""
    max_requests: int = 2_000
    """Give up here, for a server whose replies are too short ever to reach ``output_tokens``."""

    cold_start: bool = False
    """The measurement is about the cold system: no warm-up, and the result says so (AMB-42)."""

    @classmethod
    def none(cls) -> WarmupPolicy:
        """A policy of no warm-up, for experiments: the audit counts its absence as unmet."""
        return cls(requests=0, output_tokens=0, probes=0)

    @classmethod
    def cold(cls) -> WarmupPolicy:
        """A declared cold-start measurement (METHODOLOGY §6): no warm-up, labelled in the title."""
        return cls(requests=0, output_tokens=0, probes=0, cold_start=True)

    @property
    def wanted(self) -> bool:
        return self.requests > 0 or self.output_tokens > 0

    def problems(self) -> list[str]:
        """Every impossible value, in words."""
        found = [
            f"{name} must not be negative, got {getattr(self, name)}"
            for name in ("requests", "output_tokens", "probes")
            if getattr(self, name) < 0
        ]
        if self.concurrency < 1:
            found.append(f"concurrency must be at least 1, got {self.concurrency}")
        if not 0 < self.tolerance < 1:
            found.append(f"tolerance must lie between 0 and 1, got {self.tolerance}")
        if self.cold_start and self.wanted:
            found.append("cold_start excludes a warm-up: use WarmupPolicy.cold()")
        return found
