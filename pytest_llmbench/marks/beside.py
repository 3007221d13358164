"""The markers that measure nothing: each stands beside one that does."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.marks.builder import of_function

COMPARE = "llmbench_compare"
"""Name of the pytest mark of ``compare``; one per test."""
NO_REGRESSION = "llmbench_no_regression"
"""Name of the pytest mark of ``no_regression``: several may be stacked on one test."""


@of_function(COMPARE)
def compare(
    *,
    metrics: Sequence[str] | None = None,
    margin: float = 0.05,
    claim: bool = True,
    normalisation: str | None = None,
    production_configuration: str | None = None,
    same_time: str | None = None,
    differences: str | None = None,
) -> None:
    """Compare several systems (section 6 of the draft); stands beside a marker that measures::

        @llmbench.ttft(rate=20)
        @llmbench.compare(metrics=["ttft.p50", "output_token_throughput"])
        def test_side_by_side(): ...

    The systems are those of ``--llm-endpoint NAME=URL``, given once for each. Without this marker such a
    session compares all the same, with these defaults. Differences are shown and fail nothing.

    :param metrics: those that are compared; default: middle and tail of the test's latencies, its rates.
    :param margin: change up to which systems are called equivalent, as a share.
    :param claim: False where the systems are shown without saying which one is better.
    :param normalisation: how other hardware was put on one scale, if not per accelerator and per price.
    :param production_configuration: checklist of section 6.4: how the configurations stand to production.
    :param same_time: checklist: when they were measured; default: in turns, in one session.
    :param differences: checklist: how they differ; default: what was declared and detected.
    """


@of_function(NO_REGRESSION)
def no_regression(metric: str, *, max_slowdown: float = 0.0) -> None:
    """Fail when a metric got worse than a baseline; stands on a test beside a marker that measures::

        @llmbench.ttft(rate=20, runs=3)
        @llmbench.no_regression("ttft.p99", max_slowdown=0.05)
        def test_no_slower_than_main(): ...

    The baseline is a saved one (``--llm-compare``), or another system in the same session
    (``--llm-baseline-endpoint``). Judged on the whole interval of the change between runs, at least three
    of each side.

    :param metric: full name, ``ttft.p99``, ``itl[90%].p99``, ``output_token_throughput``.
    :param max_slowdown: worsening that is allowed, as a share of the baseline: 0.05 is 5 % more of a
        latency, 5 % less of a throughput.
    """
