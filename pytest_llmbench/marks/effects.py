"""Markers of the tests about what schedulers, caches and guardrails do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload
    from pytest_llmbench.workloads.classes import RequestClass


class EffectMarks:
    """Markers of the tests about what schedulers, caches and guardrails do."""

    @staticmethod
    @builder
    def fairness(
        *,
        classes: Sequence[RequestClass] | None = None,
        load_percent: float = 80.0,
        capacity_rps: float | None = None,
        requests_per_class: int | None = None,
        duration_s: float | None = None,
        equal_load: Literal["tokens", "requests"] = "tokens",
        min_jain: float | None = None,
        min_class_jain: float | None = None,
        max_starvation: float | Mapping[str, float] | None = None,
        max_inflation: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, float] = "synthetic-skewed",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Scheduling Fairness (section 5.6 of the draft).

        A mix of request classes against each class alone at equal load.

        :param classes: default: the draft's short and long requests, mixed 80 to 20.
        :param load_percent: of the saturation rate of the mix; the draft advises 70 to 90.
        :param capacity_rps: the saturation rate of the mix, where it is known: no search is made.
        :param requests_per_class: at least, in the mix and alone; the length of the load follows from the
            rarest class.
        :param duration_s: shortest duration of the mix.
        :param equal_load: what a class alone has in common with the mix: ``tokens`` per second, or
            ``requests`` per second.
        :param max_starvation: share of starved requests, of all classes or by class.
        :param max_inflation: of the median TTFT, mix over alone; for all classes or by class.
        :param ttft_p99_ms: in the mix, for all classes or by class.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """

    @staticmethod
    @builder
    def prefix_cache(
        *,
        rate: float | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | None = None,
        burstiness: float | None = None,
        concurrency: int | None = None,
        requests: int | None = None,
        disabled: str = "cache_disabled",
        enabled: str = "cache_enabled",
        min_ttft_reduction: float | None = None,
        min_ttft_reduction_p95: float | None = None,
        min_ttft_reduction_p99: float | None = None,
        min_hit_rate: float | None = None,
        min_throughput_improvement: float | None = None,
        workload: str | Workload | Mapping[str, float] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Prefix Cache Effectiveness (section 5.7 of the draft).

        The identical requests with the prefix cache off, on and empty, on and filled: three SUT variants.

        :param rate: open loop: requests per second.
        :param arrival: open loop: ``poisson`` (default), ``uniform`` or ``gamma``; ``trace``: when the trace
            of the workload says.
        :param burstiness: shape of gamma arrivals; coefficient of variation 1/√burstiness.
        :param concurrency: closed loop: requests in flight.
        :param disabled: SUT variant with the prefix cache switched off.
        :param enabled: SUT variant with the prefix cache switched on.
        :param min_ttft_reduction: at P50.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """

    @staticmethod
    @builder
    def guardrail(
        *,
        baseline: str = "guardrails_baseline",
        input_filter: str | None = "guardrails_input",
        output_filter: str | None = "guardrails_output",
        full: str = "guardrails_full",
        without: str | None = None,
        capacity_rps: float | None = None,
        levels_percent: Sequence[float] = (25, 50, 75),
        duration_s: float | None = None,
        max_overhead_ms: float | None = None,
        max_overhead_p95_ms: float | None = None,
        max_input_overhead_ms: float | None = None,
        max_throughput_loss: float | None = None,
        workload: str | Workload | Mapping[str, float] = "synthetic-uniform",
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Guardrail Overhead (section 5.10 of the draft).

        The same requests without guardrails, with each filter and with all: four SUT variants.

        :param baseline: SUT variant with all guardrails off; so on for the other three.
        :param without: why the single-filter configurations cannot be run; they are left out then
            (AMB-20).
        :param capacity_rps: capacity of the baseline, requests per second, where it is known; else it is
            searched for.
        :param max_overhead_ms: total: E2E with all guardrails less that of the baseline, at P50.
        :param max_input_overhead_ms: TTFT with the input filter less that of the baseline, at P50.
        :param max_throughput_loss: of maximum output throughput, with all guardrails.
        :param workload: name of a workload, a workload object, or weights by name.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """
