"""Entries of a report as they are after other outcomes: a broken limit, a void run, a regression."""

from __future__ import annotations

import copy
from typing import Any

from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.store.objects import plain_object

Entry = dict[str, Any]


def failed(entry: Entry, limit: float = 300.0, nodeid: str = "gates/test_chat.py::test_quick") -> Entry:
    """A limit of 300 ms on TTFT P99, which is at 468.3 ms; the second limit stays undecided."""
    found = copy.deepcopy(entry)
    found["gate"]["objectives"][0] |= {
        "limit": limit, "verdict": "fail", "reason": "the whole interval lies beyond the limit",
    }  # fmt: skip
    found["gate"]["verdict"] = "fail"
    return found | {"nodeid": nodeid, "outcome": "failed"}


def void(entry: Entry) -> Entry:
    """The load generator was late, so that nothing of the run is judged."""
    found = copy.deepcopy(entry)
    found["validity"]["verdict"] = "invalid"
    found["validity"]["findings"][0] |= {"ok": False, "message": "sends were late by 62 ms at P99"}
    found["gate"]["verdict"] = "inconclusive"
    return found | {"nodeid": "gates/test_chat.py::test_void", "outcome": "error"}


def regressed(entry: Entry) -> Entry:
    """Against ``main`` TTFT P99 is 20 % worse, which decides; three other metrics decide nothing."""
    before = {
        "ttft.p99": (100.0, 101.0, 99.0),
        "request_throughput": (10.0, 10.1, 9.9),
        "tpot.p99": (20.0, 20.1, 19.9),
    }
    after = before | {"ttft.p99": (120.0, 121.0, 119.0), "tpot.p99": (10.0, 10.1, 9.9)}
    made = comparisons(
        before, after, [RegressionLimit("ttft.p99", 0.05, "t")], names=("main", "now"), paired=False
    )
    told = [plain_object(each) for each in made]
    return copy.deepcopy(entry) | {"comparisons": told, "nodeid": "gates/test_chat.py::test_no_worse"}
