"""The benefit of a prefix cache for sessions, by the number of the turn: the same sessions with the cache off
and on.

The first turn of a session finds at most the beginning that sessions share; each later one finds its own
history, as far as the cache still has it. What could be cached is known before anything is sent, in closed
form: the tokens that an earlier prompt began with. What was cached is what the server says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.metrics.differences import in_both
from pytest_llmbench.metrics.kv_cache import ttft_reductions, with_zeros
from pytest_llmbench.metrics.session_figures import (
    cached_share,
    hit_rate,
    latencies,
    turn_latencies,
    turn_shares,
)
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Amount, Figure, Row, cells
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import USUAL, TurnClass
from pytest_llmbench.model.result import Plot, Table

_TURNS_SHOWN = 12
"""Number of turns that the table shows one by one."""
_COLUMNS = (
    "Turn", "Turns", "Input Tokens, Mean", "Could be Cached", "Cached", "Hit Rate",
    "TTFT P50, Cache Disabled", "TTFT P50, Cache Enabled", "TTFT Reduction P50",
)  # fmt: skip


def effect_on_sessions(
    without: Seen, with_cache: Seen, classes: Sequence[TurnClass], seed: int
) -> dict[str, Estimate]:
    """``ttft_reduction`` and ``turn_ttft_reduction[c]`` of the turns that ended well inside the window of
    both, ``cache_hit_rate`` and ``cached_input_share`` of all turns. The unit is the session."""
    before, after = in_both(without.inside, with_cache.inside)
    told = _told(with_cache)
    return ttft_reductions(before, after, classes) | {
        "cache_hit_rate": hit_rate([told], seed=seed),
        "cached_input_share": cached_share([told], seed=seed),
    }


def figures_by_turn(with_cache: Seen, classes: Sequence[TurnClass], seed: int) -> dict[str, Estimate]:
    """Latencies of the turns inside the window, and cache shares of all turns that ended well."""
    return turn_latencies([with_cache.inside], classes) | turn_shares([_told(with_cache)], classes, seed=seed)


def _told(seen: Seen) -> Records:
    records = with_zeros(seen.records)
    return records.select(records.ok)


def cache_by_turn_table(without: Seen, with_cache: Seen, seed: int) -> Table:
    """A table of first turns and later ones with intervals, then of the later ones one by one."""
    highest = int(with_cache.records.turn.max(initial=0))
    single = [TurnClass(number) for number in range(2, min(highest, _TURNS_SHOWN) + 1)]
    classes = (*USUAL, *(single if len(single) > 1 else ()))
    before, after = in_both(without.inside, with_cache.inside)
    told = _told(with_cache)
    shares = turn_shares([told], classes, seed=seed)
    reductions = ttft_reductions(before, after, classes)
    rows: list[Row] = []
    for each in classes:
        own = told.select(each.holds(told.turn))
        part: Literal["value", "both"] = "both" if each in USUAL else "value"
        shared = (f"turn_cached_share[{each}]", f"turn_cache_hit_rate[{each}]")
        rows.append(
            (
                str(each),
                len(own),
                Amount(float(np.mean(own.requested_input_tokens)), "count") if len(own) else "",
                *cells(shares, (f"turn_cacheable_share[{each}]",)),
                *cells(shares, shared, part),
                *(_median(arm, each) for arm in (before, after)),
                *cells(reductions, (f"turn_ttft_reduction[{each}].p50",), part),
            )
        )
    return Table("prefix_cache_by_turn", "Cache Effectiveness by Turn", _COLUMNS, tuple(rows))


def _median(arm: Records, turns: TurnClass) -> Figure:
    name = f"turn_ttft[{turns}].p50"
    return Figure(name, latencies([arm], "ttft", turns)[name])


def cache_by_turn_plots(without: Seen, with_cache: Seen) -> tuple[Plot, ...]:
    """Plots of TTFT by turn with the cache off and on, and of cached beside cacheable input."""
    before, after = in_both(without.inside, with_cache.inside)
    medians = {"cache off": _medians(before), "cache on": _medians(after)}
    told = _told(with_cache)
    counted = bool((told.input_tokens > 0).all())
    named = (("could be cached", "shared_prefix_tokens"), ("cached", "cached_tokens"))
    shares = {
        name: _shares(told, column)
        for name, column in named
        if counted and not bool((getattr(told, column) < 0).any())
    }
    x = "turn of the session"
    found = (
        Plot("prefix_cache_ttft_by_turn", "TTFT by turn", x, "TTFT P50 (ms)", medians),
        Plot("prefix_cache_share_by_turn", "Cached share by turn", x, "share of the input (%)", shares),
    )
    return tuple(plot for plot in found if any(line[0] for line in plot.series.values()))


def _medians(arm: Records) -> tuple[tuple[float, ...], tuple[float, ...]]:
    waits = (arm.first_content_ns - arm.submitted_ns) / 1e6
    return _by_number(arm, (float(np.median(waits[arm.turn == number])) for number in np.unique(arm.turn)))


def _shares(told: Records, column: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    counted = getattr(told, column)
    turns = [told.turn == number for number in np.unique(told.turn)]
    return _by_number(told, (100 * float(counted[own].sum() / told.input_tokens[own].sum()) for own in turns))


def _by_number(records: Records, values: Iterable[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(map(float, np.unique(records.turn))), tuple(values)
