"""The marker about other systems."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.marks.builder import builder_of

COMPARE = "llmbench_compare"
"""Name of its pytest mark; one per test, beside the marker that measures."""


class ComparingMarks:
    """The marker about other systems."""

    @staticmethod
    @builder_of(COMPARE)
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
