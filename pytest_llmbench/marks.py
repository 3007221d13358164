"""`llmbench`: one typed marker builder per test.

    from pytest_llmbench import llmbench

    @llmbench.ttft(p99_ms=500, rate=20)
    def test_first_token_is_quick(): ...

A builder makes an ordinary pytest mark, ``pytest.mark.llmbench(test="ttft", p99_ms=500, rate=20)``, and never
raises: what is wrong with its arguments is said at collection, all mistakes at once and with the test's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload

P = ParamSpec("P")

MARK = "llmbench"
POSITIONAL = "__positional__"
"""Keyword under which stray positional arguments travel to collection, where they are refused."""


def _builder(declared: Callable[P, None]) -> Callable[P, pytest.MarkDecorator]:
    """A mark builder with the signature and docstring of ``declared``, whose body is never run."""
    test = declared.__name__

    def build(*args: P.args, **kwargs: P.kwargs) -> pytest.MarkDecorator:
        given: dict[str, Any] = dict(kwargs)
        if args:
            given[POSITIONAL] = args
        mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)
        return mark(test=test, **given)

    build.__name__ = test
    build.__qualname__ = f"llmbench.{test}"
    build.__doc__ = declared.__doc__
    build.__wrapped__ = declared  # type: ignore[attr-defined]  # help() and inspect.signature show the parameters
    return build


class LLMBench:
    """The namespace of the markers. Unknown names say which tests there are."""

    @staticmethod
    @_builder
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
        arrival: Literal["poisson", "uniform", "gamma"] | None = None,
        burstiness: float | None = None,
        concurrency: int | None = None,
        requests: int | None = None,
        workload: str | Workload = "synthetic-uniform",
        seed: int | None = None,
        runs: int | None = None,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
    ) -> None:
        """Time to First Token (section 5.1 of the draft).

        Limits (``*_ms``) are ceilings in milliseconds, judged on the whole confidence interval.

        :param bucket_limits: limits per input-length bucket, ``{"0-256": {"p95_ms": 300}}``.
        :param rate: open loop, requests per second; with ``arrival`` (default ``poisson``).
        :param burstiness: shape of ``arrival="gamma"``; coefficient of variation 1/√burstiness.
        :param concurrency: closed loop, requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000, the draft's minimum for P99).
        :param workload: name of a workload, or a workload object.
        :param runs: repetitions of the measured load.
        :param compliance: fail the test unless the run is at least this compliant.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = [test for test in vars(type(self)) if not test.startswith("_")]
        raise AttributeError(f"llmbench has no test {name!r}; this version has: {', '.join(known)}")


llmbench = LLMBench()

__all__ = ["MARK", "POSITIONAL", "LLMBench", "llmbench"]
