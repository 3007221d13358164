"""Several arms in one picture: what is set together, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmbench.compare.systems import overlaid
from pytest_llmbench.model.result import Plot

Line = tuple[tuple[float, ...], tuple[float, ...]]
OURS: Line = ((1.0, 2.0), (0.5, 1.0))
THEIRS: Line = ((3.0, 4.0), (0.5, 1.0))
NOTHING: Line = ((), ())


def cdf(*lines: tuple[str, Line], id_: str = "ttft_cdf", of: str = "TTFT") -> Plot:
    return Plot(
        id_,
        "CDF",
        f"{of} (ms)",
        "share",
        dict(lines),
        marks={"limit P99": 9.0},
        step=True,
        x_log=True,
    )


def test_one_series_becomes_one_of_each_arm_with_the_limit_of_the_first() -> None:
    other = replace(cdf(("TTFT", THEIRS)), marks={})
    (plot,) = overlaid({"candidate": [cdf(("TTFT", OURS))], "baseline": [other]})
    assert (plot.id, plot.title) == ("ttft_cdf", "Distribution of TTFT by system")
    assert list(plot.series.items()) == [("candidate", OURS), ("baseline", THEIRS)]
    assert plot.marks == {"limit P99": 9.0}
    assert plot.x_log


def test_of_several_levels_the_last_is_set_together_in_a_plot_of_its_own() -> None:
    levels = cdf(("25%", THEIRS), ("90%", OURS), id_="itl_cdf", of="ITL")
    lower = cdf(("25%", THEIRS), id_="itl_cdf", of="ITL")
    own, together = overlaid({"a": [levels], "b": [lower], "c": [levels]})
    assert own is levels
    assert (together.id, together.title) == (
        "itl_cdf_by_system",
        "Distribution of ITL by system, at level 90%",
    )
    assert dict(together.series) == {"a": OURS, "c": OURS}


def test_what_cannot_be_set_together_stays_as_it_is() -> None:
    plots = [
        cdf(("TTFT", OURS)),
        cdf(("90%", OURS), id_="itl_cdf", of="ITL"),
        cdf(("curve", OURS), id_="throughput_latency"),
    ]
    others = [
        cdf(("TTFT", NOTHING)),
        cdf(("90%", THEIRS), id_="itl_cdf", of="Time Between Chunks"),
        cdf(("curve", THEIRS), id_="throughput_latency"),
    ]
    assert list(overlaid({"a": plots, "b": others})) == plots
    assert list(overlaid({"a": others, "b": plots})) == others
