"""Marker of the test of reasoning, which is beyond the ten of the draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload


class ReasoningMarks:
    """Marker of the test of reasoning."""

    @staticmethod
    @builder
    def reasoning(
        *,
        ttot_p50_ms: float | None = None,
        ttot_p95_ms: float | None = None,
        ttot_p99_ms: float | None = None,
        ttfo_p50_ms: float | None = None,
        ttfo_p95_ms: float | None = None,
        ttfo_p99_ms: float | None = None,
        output_itl_p50_ms: float | None = None,
        output_itl_p95_ms: float | None = None,
        output_itl_p99_ms: float | None = None,
        max_think_tokens_mean: float | None = None,
        max_think_tokens_p95: float | None = None,
        max_think_share: float | None = None,
        max_budget_force_rate: float | None = None,
        max_critical_evictions: int | None = None,
        rate: float | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | None = None,
        burstiness: float | None = None,
        concurrency: int | None = None,
        requests: int | Literal["auto"] | None = None,
        max_requests: int | None = None,
        max_seconds: float | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        workload: str | Workload = "chat-and-reasoning",
        seed: int | None = None,
        runs: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Reasoning: what a user of a model that thinks first waits for, and why. No test of the draft.

        Limits (``*_ms``, ``max_*``) are ceilings, judged on the whole confidence interval.

        :param ttot_p95_ms: of the time from the end of thinking to the first visible content.
        :param ttfo_p95_ms: of the time from submission to the first visible content.
        :param output_itl_p99_ms: of the gaps between tokens from the first visible content on.
        :param max_think_tokens_mean: of the reasoning tokens of a reply that reasoned.
        :param max_think_share: of reasoning tokens among all output tokens.
        :param max_budget_force_rate: of replies whose reasoning the server ended.
        :param max_critical_evictions: of requests in their output phase, as the server counts them; 0 for
            none at all.
        :param rate: open loop, requests per second (default 1); with ``arrival`` (default ``poisson``).
        :param burstiness: shape of ``arrival="gamma"``; coefficient of variation 1/√burstiness.
        :param concurrency: closed loop, requests in flight, instead of ``rate``.
        :param requests: measured requests (default 1000), or ``"auto"``: until limits of ``slo`` are decided.
        :param max_requests: with ``requests="auto"``: never more (default 5000).
        :param max_seconds: with ``requests="auto"``: never longer.
        :param failures: ``"over_limit"``: in limits of ``slo`` a failed request is slower than the limit.
        :param workload: name of a workload, or a workload object; limits on a class of a mix go into ``slo``.
        :param runs: repetitions of the measured load.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: not for this test.
        :param slo: further objectives, ``[metric("ttot[chat].p95", "ms") <= 300 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """
