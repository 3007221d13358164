"""Markers of the tests about how much a system can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload


class CapacityMarks:
    """Markers of the tests about how much a system can do."""

    @staticmethod
    @builder
    def throughput(
        *,
        load_model: Literal["open", "closed"] | None = None,
        min_rate: float | None = None,
        max_rate: float | None = None,
        rate_step: float | None = None,
        arrival: Literal["poisson", "uniform", "gamma"] | None = None,
        burstiness: float | None = None,
        min_concurrency: int | None = None,
        max_concurrency: int | None = None,
        concurrency_step: int | None = None,
        duration_s: float | None = None,
        probe_s: float | None = None,
        ttft_p99_ms: float | None = None,
        tpot_p99_ms: float | None = None,
        min_output_tok_s: float | None = None,
        min_request_s: float | None = None,
        min_input_tok_s: float | None = None,
        min_constrained_tok_s: float | None = None,
        min_tokens_per_gpu_s: float | None = None,
        workload: str | Workload | Mapping[str, float] = "synthetic-uniform",
        seed: int | None = None,
        runs: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Output Token Throughput (section 5.2 of the draft).

        Search for the highest sustainable load, open loop unless a concurrency range is given; then measure
        there. Without a range it is found by short bursts.

        :param load_model: ``open`` (default), or ``closed``; a concurrency range makes it closed.
        :param rate_step: open loop: the search between ``min_rate`` and ``max_rate`` ends when they are this
            close, in requests per second.
        :param concurrency_step: closed loop: the same in requests in flight, between ``min_concurrency`` and
            ``max_concurrency``.
        :param duration_s: of the reported level, ramp-up included.
        :param probe_s: of a level of the search.
        :param tpot_p99_ms: with ``ttft_p99_ms``: objectives on latency; the constrained throughput is the
            highest that meets them.
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
    def tradeoff(
        *,
        capacity_rps: float | None = None,
        levels_percent: Sequence[float] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120),
        duration_s: float | None = None,
        ttft_p99_ms: float | None = None,
        tpot_p99_ms: float | None = None,
        min_knee_rate: float | None = None,
        min_saturation_rate: float | None = None,
        min_operating_tok_s: float | None = None,
        workload: str | Workload | Mapping[str, float] = "synthetic-uniform",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Throughput-Latency Tradeoff (section 5.3 of the draft).

        Levels from 10 to 120 % of capacity, and on until saturation: knee, saturation and operating point.

        :param capacity_rps: capacity in requests per second, from published figures or an earlier test;
            else found by a search.
        :param duration_s: of a level, ramp-up included.
        :param tpot_p99_ms: objectives on latency that the operating point has to meet.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """

    @staticmethod
    @builder
    def capacity(
        *,
        ttft_p99_ms: float | None = None,
        min_completion: float = 0.99,
        initial: int = 8,
        maximum: int = 512,
        output_tokens: int = 256,
        duration_s: float | None = None,
        min_concurrency: int | None = None,
        min_output_tok_s: float | None = None,
        workload: str | Workload | Mapping[str, float] = "synthetic-uniform",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Concurrent Request Capacity (section 5.5 of the draft).

        Double, then bisect, the requests in flight: the most that meet the criteria.

        :param ttft_p99_ms: criterion: a level passes only while TTFT P99 is at or under it. The draft
            wants one to be chosen.
        :param min_completion: criterion: share of requests that complete.
        :param initial: requests in flight of the first level.
        :param maximum: the upper bound of the search.
        :param output_tokens: output limit of every request, in place of the workload's own (AMB-11).
        :param duration_s: of a level, at least.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """

    @staticmethod
    @builder
    def memory_pressure(
        *,
        capacity: int | None = None,
        ttft_p99_ms: float | None = None,
        levels_percent: Sequence[float] = (100, 110, 125, 150),
        duration_s: float | None = None,
        min_completion: float | None = None,
        max_preemption_rate: float | None = None,
        max_recovery_s: float | None = None,
        workload: str | Workload | Mapping[str, float] = "long-context",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Memory Pressure Behavior (section 5.8 of the draft).

        Levels beyond capacity, up to failure: needs ``--llm-allow-overload`` and an isolated system.

        :param capacity: requests in flight that are 100 %, where it is known; else found by the search of
            test 5.5.
        :param ttft_p99_ms: criterion of the capacity search; else from the TTFT of one request at a time.
        :param levels_percent: of capacity; 100 is the base.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """
