"""Markers of the tests about what one user waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload


class LatencyMarks:
    """Markers of the tests about what one user waits for."""

    @staticmethod
    @builder
    def ttft(
        *,
        mean_ms: float | None = None,
        p50_ms: float | None = None,
        p90_ms: float | None = None,
        p95_ms: float | None = None,
        p99_ms: float | None = None,
        p99_9_ms: float | None = None,
        bucket_limits: Mapping[str, Mapping[str, float]] | None = None,
        rate: float | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | None = None,
        burstiness: float | None = None,
        concurrency: int | None = None,
        requests: int | Literal["auto"] | None = None,
        max_requests: int | None = None,
        max_seconds: float | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        workload: str | Workload | Mapping[str, float] = "synthetic-uniform",
        seed: int | None = None,
        runs: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Time to First Token (section 5.1 of the draft).

        Limits (``*_ms``) are ceilings in milliseconds, judged on the whole confidence interval.

        :param bucket_limits: limits per input-length bucket, ``{"0-256": {"p95_ms": 300}}``.
        :param rate: open loop, requests per second; with ``arrival`` (default ``poisson``).
        :param burstiness: shape of ``arrival="gamma"``; coefficient of variation 1/√burstiness.
        :param concurrency: closed loop, requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000, the draft's minimum for P99), or ``"auto"``: until
            the limits are decided.
        :param max_requests: with ``requests="auto"``: never more (default 5000).
        :param max_seconds: with ``requests="auto"``: never longer.
        :param failures: ``"over_limit"``: a failed request is slower than the limit; else it is left out.
        :param workload: name of a workload, a workload object, or weights by name.
        :param runs: repetitions of the measured load.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """

    @staticmethod
    @builder
    def itl(
        *,
        levels_percent: Sequence[float] = (25, 50, 75, 90),
        capacity_rps: float | None = None,
        method: Literal["direct", "A", "B", "C"] | None = None,
        requests: int | None = None,
        duration_s: float | None = None,
        p50_ms: float | None = None,
        p90_ms: float | None = None,
        p95_ms: float | None = None,
        p99_ms: float | None = None,
        p99_9_ms: float | None = None,
        jitter_p99_ms: float | None = None,
        longest_pause_p99_ms: float | None = None,
        max_tail_ratio: float | None = None,
        workload: str | Workload | Mapping[str, float] = "synthetic-uniform",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Inter-Token Latency Distribution (section 5.4 of the draft).

        Inter-token latency, jitter and pauses at shares of the saturation rate. Ceilings hold at every level.

        :param levels_percent: loads, in percent of the saturation rate.
        :param capacity_rps: the saturation rate, where it is known: no search is made.
        :param method: how tokens are timed: ``direct``, ``A``, ``B``, ``C`` (section 4.6.3); AMB-13
            decides if not given.
        :param requests: requests of at least 50 output tokens per level; the length of the schedule
            follows.
        :param duration_s: shortest duration of a level.
        :param max_tail_ratio: of P99 / P50.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """

    @staticmethod
    @builder
    def long_context(
        *,
        lengths: Sequence[int] | None = None,
        concurrency: int = 1,
        requests: int | None = None,
        output_tokens: int = 256,
        max_exponent: float | None = None,
        max_slope_us: float | None = None,
        ttft_p95_ms: Mapping[int, float] | None = None,
        workload: str | Workload | Mapping[str, float] = "long-context",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Long Context Scaling (section 5.9 of the draft).

        TTFT against input length: scaling exponent and straight line.

        :param lengths: input lengths in tokens; default: the powers of two from 1024 to 131072. What does
            not fit the model's context together with the output is left out.
        :param concurrency: requests in flight, 1 to 4.
        :param requests: per length; 20 support a mean and a median. A limit on P95 needs more: about 80.
        :param max_exponent: of k in TTFT ∝ length^k.
        :param max_slope_us: of the straight line, in µs per input token.
        :param ttft_p95_ms: limits by length: ``{8192: 1500}``.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """
