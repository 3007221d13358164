"""The distributions of several arms in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.model.result import Plot

_DISTRIBUTIONS = ("ttft_cdf", "itl_cdf")


def overlaid(plots: Mapping[str, Sequence[Plot]]) -> tuple[Plot, ...]:
    """The plots of the first arm, with the distributions of the others in them; ``plots`` by arm.

    A distribution of one series becomes a series for each arm. One of several, the levels of a test, stays
    as it is, and a plot of its last level follows: ``itl_cdf_by_system``. An arm is left out whose series is
    missing or empty, or counts something else (chunks for tokens).
    """
    found: list[Plot] = []
    for plot in next(iter(plots.values())):
        together = _together(plot, plots) if plot.id in _DISTRIBUTIONS else None
        if together is None or len(plot.series) > 1:
            found.append(plot)
        if together is not None:
            found.append(together)
    return tuple(found)


def _together(plot: Plot, plots: Mapping[str, Sequence[Plot]]) -> Plot | None:
    """The last distribution of ``plot`` with one series for each arm; None where no other arm has such a
    series."""
    last = list(plot.series)[-1]
    series = {
        arm: own.series[last]
        for arm, every in plots.items()
        for own in every
        if own.id == plot.id and own.x_label == plot.x_label and last in own.series and own.series[last][0]
    }
    if len(series) < 2 or next(iter(plots)) not in series:
        return None
    several = len(plot.series) > 1
    what = plot.x_label.partition(" (")[0]
    return replace(
        plot,
        id=f"{plot.id}_by_system" if several else plot.id,
        title=f"Distribution of {what} by system" + (f", at level {last}" if several else ""),
        series=series,
    )
