"""Marker of the test of goodput, which is beyond the ten of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload


class GoodputMarks:
    """Marker of the test of goodput."""

    @staticmethod
    @builder
    def goodput(
        *,
        ttft_ms: float | None = None,
        tpot_ms: float | None = None,
        e2e_ms: float | None = None,
        min_share: float = 0.99,
        max_schema_violation_rate: float | None = None,
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
        max_error_share: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        """Goodput: the requests that meet every limit at once. No test of the draft.

        A request is good when it ends well and keeps ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``, as far as they
        are given.

        :param min_share: of good requests among all, judged on the whole confidence interval.
        :param max_schema_violation_rate: limit on the share of replies that break the schema they were asked
            to keep to (tool calls, JSON), among those that were asked.
        :param rate: open loop, requests per second; with ``arrival`` (default ``poisson``).
        :param burstiness: shape of ``arrival="gamma"``; coefficient of variation 1/√burstiness.
        :param concurrency: closed loop, requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000), or ``"auto"``: until the limits are decided.
        :param max_requests: with ``requests="auto"``: never more (default 5000).
        :param max_seconds: with ``requests="auto"``: never longer.
        :param failures: ``"over_limit"``: in limits of ``slo`` a failed request is slower than the limit.
        :param workload: name of a workload, a workload object, or weights by name.
        :param runs: repetitions of the measured load.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: not for this test.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """
