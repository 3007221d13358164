"""The levels of a test as a table."""

from __future__ import annotations

import copy
from typing import Any

from pytest_llmbench.reports.summaries import level_name, level_table, load_text, offered

Entry = dict[str, Any]


def test_a_search_over_rates(every_entry: dict[str, Entry]) -> None:
    table = level_table(every_entry["throughput"]["levels"])
    assert table.columns == [
        "Offered", "Achieved", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "Completion", "Queue",
        "Saturated", "Measured by",
    ]  # fmt: skip
    assert list(table.rows[1]) == [
        "40 req/s (probe)", "5600 tok/s", "2400 ms", "3600 ms, indicative", "80 ms",
        "128 ms, indicative", "100 %", "growing",
        "yes: the queue grows", "gates/test_capacity.py::test_maximum",
    ]  # fmt: skip
    assert (table.rows[3][0], table.rows[3][-1]) == ("20 req/s (reported)", "this test")


def test_a_search_over_slots_has_criteria(every_entry: dict[str, Entry]) -> None:
    table = level_table(every_entry["capacity"]["levels"])
    assert table.columns[-1] == "Criteria"
    assert [row[-1] for row in table.rows][3:5] == ["met", "not met: completion 97.2% is under 99 %"]
    assert table.rows[4][table.columns.index("Completion")] == "97.2 %; 3 timeout"


def test_enough_samples_need_no_mark(every_entry: dict[str, Entry]) -> None:
    table = level_table(every_entry["tradeoff"]["levels"][8:])
    assert (table.columns[:2], table.rows[0][:2]) == (["Level", "Offered"], ["90%", "18 req/s"])
    assert not any("indicative" in cell for row in table.rows for cell in row)


def test_what_is_not_known_is_said(every_entry: dict[str, Entry]) -> None:
    level = copy.deepcopy(every_entry["throughput"]["levels"][0])
    level |= {"queue_growing": None, "saturated": None, "completion_ratio": None, "offered_rps": None}
    del level["metrics"]["ttft.p50"]
    undefined = {"point": None, "method": "no tokens", "reason": "not_measurable", "unit": "ms", "n": 0}
    level["metrics"]["tpot.p50"] = level["metrics"]["tpot.p50"] | undefined
    row = dict(zip(level_table([level]).columns, level_table([level]).rows[0], strict=True))
    assert row["Offered"] == "not known"
    assert (row["TTFT P50"], row["TPOT P50"]) == ("not measured", "not measurable: no tokens")
    assert (row["Completion"], row["Queue"], row["Saturated"]) == ("not measured", "not known", "not known")


def test_names_of_levels(every_entry: dict[str, Entry]) -> None:
    level = every_entry["capacity"]["levels"][0]
    assert (offered(level), load_text(level)) == ("8 in flight", "closed loop, 8 in flight")
    named = level | {"label": "cold", "variant": "cache_enabled", "class_label": "short", "role": "cold"}
    assert level_name(named) == "cold, variant cache_enabled, class short"
    assert offered(level | {"percent_of_capacity": 125.0}) == "8 in flight, 125 %"
