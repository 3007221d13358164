"""The marker about an earlier state of the same system."""

from __future__ import annotations

from pytest_llmbench.marks.builder import builder_of

NO_REGRESSION = "llmbench_no_regression"
"""Name of its pytest mark: several may be stacked on one test, beside the marker that measures."""


class RegressionMarks:
    """The marker about an earlier state of the same system."""

    @staticmethod
    @builder_of(NO_REGRESSION)
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
