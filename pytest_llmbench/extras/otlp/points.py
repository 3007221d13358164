"""What of a report becomes points of a gauge: each metric with its interval, and what it is of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_ENDS = ("point", "lower", "upper")
_FAMILY = re.compile(r"[A-Za-z0-9_]+")


class Point(NamedTuple):
    name: str
    """The name of the gauge, ``llmbench.ttft``: one of a family, as a name may hold no ``[90%]``."""
    unit: str
    value: float
    attributes: Mapping[str, str]


def points(entries: Sequence[Mapping[str, Any]]) -> Iterator[Point]:
    """The points of the metrics of all tests. What is undefined, and an end that is open, has none; figures
    of a void test say that they are."""
    for entry in entries:
        of_test = {
            "llmbench.test": entry["nodeid"],
            "llmbench.outcome": entry["outcome"],
            "llmbench.validity": entry["validity"]["verdict"],
            "llmbench.gate": entry["gate"]["verdict"],
        }
        if model := (entry["identity"] or {}).get("model"):
            of_test["gen_ai.request.model"] = str(model)
        for metric, estimate in entry["metrics"].items():
            family = _FAMILY.match(metric)
            for end in _ENDS:
                if family is not None and estimate[end] is not None:
                    about = {"llmbench.metric": metric, "llmbench.end": end}
                    yield Point(f"llmbench.{family[0]}", estimate["unit"], estimate[end], of_test | about)
