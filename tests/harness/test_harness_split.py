"""What a change of the latency is made of: the parts add up, and are those that were planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ab_replays import arms_of_a_load

from pytest_llmbench.compare.split import PARTS, parts_of, split
from pytest_llmbench.metrics.latency import e2e_ms
from pytest_llmbench.model.cells import Amount, Figure
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import Table


def changes(table: Table) -> dict[str, float]:
    found = {}
    for name, row in zip((*PARTS, "whole"), table.cells, strict=True):
        figure = row[3]
        assert isinstance(figure, Figure)
        assert figure.estimate is not None
        assert figure.estimate.point is not None
        found[name] = figure.estimate.point
    return found


@pytest.mark.parametrize(
    ("slower", "concurrency", "part"),
    [
        ("prefill_us_per_token=120", 1, "prefill"),
        ("decode_us_per_sequence=900", 8, "decode"),
        ("max_num_seqs=2", 8, "queue"),
        ("input_filter=enabled&input_filter_us=40000", 1, "outside"),
    ],
)
def test_the_planted_part_is_the_largest_and_all_add_up(slower: str, concurrency: int, part: str) -> None:
    baseline, candidate = arms_of_a_load("fast", f"fast?{slower}", concurrency=concurrency)
    table = split(baseline, candidate, 0.95)
    assert isinstance(table, Table)
    found = changes(table)
    assert max(PARTS, key=lambda name: found[name]) == part
    whole = np.mean(
        [
            e2e_ms(b.records).mean() - e2e_ms(a.records).mean()
            for a, b in zip(baseline, candidate, strict=True)
        ]
    )
    assert sum(found[name] for name in PARTS) == pytest.approx(whole, rel=0.02)
    assert found["whole"] == pytest.approx(whole)
    assert all(isinstance(row[1], Amount) for row in table.cells)


def page(seen: Observation, **grown: tuple[float, float]) -> Observation:
    """The load with a page that grew by so many seconds and requests, whose replies tell no parts."""
    after = {
        f"{name}_{what}": value
        for name, own in grown.items()
        for what, value in zip(("s", "count"), own, strict=True)
    }
    readings = EngineReadings(np.array([], np.int64), {}, dict.fromkeys(after, 0.0), after)
    nothing = np.full(len(seen.records), MISSING)
    return replace(
        seen, records=replace(seen.records, queue_wait_ns=nothing, prefill_ns=nothing), engine=readings
    )


def test_the_page_tells_them_where_replies_do_not_and_is_believed_only_for_this_load() -> None:
    (seen, _), _ = arms_of_a_load("fast", "fast")
    count = len(seen.records)
    told = page(
        seen, queue_wait=(0.001 * count, count), prefill=(0.02 * count, count), decode=(0.05 * count, count)
    )
    found = parts_of(told)
    assert isinstance(found, dict)
    assert found["queue"] == pytest.approx(1)
    assert found["prefill"] == pytest.approx(20)
    assert found["decode"] == pytest.approx(50)
    assert sum(found.values()) == pytest.approx(float(e2e_ms(seen.records).mean()))
    others = page(seen, queue_wait=(0.001, 2.0 * count), prefill=(0.02, count))
    assert "counted" in str(parts_of(others))
    assert parts_of(page(seen, queue_wait=(0.1, count))) == "the engine's metrics page has no prefill times"
    longer = page(seen, queue_wait=(1000.0 * count, count), prefill=(0.02, count))
    assert "longer than the latency" in str(parts_of(longer))
    assert parts_of(replace(told, engine=None)) == "there is no metrics page of the engine"


def test_one_pair_and_unlike_loads_are_not_split() -> None:
    baseline, candidate = arms_of_a_load("fast", "fast")
    assert split(baseline[:1], candidate[:1], 0.95) == "2 pairs of runs are needed"
    other = [
        replace(seen, plan=seen.plan.with_(load=replace(seen.plan.load, concurrency=3))) for seen in candidate
    ]
    assert split(baseline, other, 0.95) == "the runs are not of one load"
