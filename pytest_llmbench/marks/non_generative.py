"""Marker of the test of embeddings, reranking, scores and log-probabilities, beyond the ten of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload


class NonGenerativeMarks:
    """Marker of the test of endpoints that generate nothing."""

    @staticmethod
    @builder
    def non_generative(
        *,
        latency_p50_ms: float | None = None,
        latency_p95_ms: float | None = None,
        latency_p99_ms: float | None = None,
        latency_mean_ms: float | None = None,
        min_requests_per_s: float | None = None,
        min_input_tokens_per_s: float | None = None,
        rate: float | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | None = None,
        burstiness: float | None = None,
        concurrency: int | None = None,
        requests: int | Literal["auto"] | None = None,
        max_requests: int | None = None,
        max_seconds: float | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        workload: str | Workload | Mapping[str, float] = "profile:EMBED",
        seed: int | None = None,
        runs: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Embeddings, reranking and scores: how long a document takes, and how many there are. No test of
        the draft.

        It needs ``--llm-api=openai-embeddings``, ``rerank``, ``score`` or ``logprobs``. Nothing is generated,
        so there is no TTFT, no ITL and no output token. Limits are judged on the whole confidence interval.

        :param latency_p95_ms: of the time from the last byte of the request to the last byte of the reply.
        :param min_requests_per_s: of requests that ended well.
        :param min_input_tokens_per_s: of the input of requests that ended well.
        :param rate: open loop, requests per second; with ``arrival`` (default ``poisson``).
        :param burstiness: shape of ``arrival="gamma"``; coefficient of variation 1/√burstiness.
        :param concurrency: closed loop, requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000), or ``"auto"``: until the limits are decided.
        :param max_requests: with ``requests="auto"``: never more (default 5000).
        :param max_seconds: with ``requests="auto"``: never longer.
        :param failures: ``"over_limit"``: a failed request is slower than the limit; else it is left out.
        :param workload: name of a workload, a workload object, or weights by name; of one that asks for
            outputs the inputs alone.
        :param runs: repetitions of the measured load.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: not for this test.
        :param slo: further objectives, ``[metric("latency_scheduled.p99", "ms") <= 300 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply.
        """
