"""What of a report becomes points for a collector."""

from __future__ import annotations

from typing import Any

from pytest_llmbench.extras.otlp import points


def _entry(
    validity: str = "valid", **metrics: tuple[float | None, float | None, float | None]
) -> dict[str, Any]:
    return {
        "nodeid": "a.py::t",
        "outcome": "passed",
        "validity": {"verdict": validity},
        "gate": {"verdict": "pass"},
        "identity": {"model": "tiny-7b"},
        "metrics": {
            name.replace("__", "."): dict(zip(("point", "lower", "upper"), ends, strict=True))
            | {"unit": "ms"}
            for name, ends in metrics.items()
        },
    }


def test_each_end_of_an_interval_is_a_point_and_what_is_open_is_none() -> None:
    found = list(points([_entry(ttft__p99=(400.0, 380.0, None))]))
    assert [(each.name, each.unit, each.value) for each in found] == [
        ("llmbench.ttft", "ms", 400.0),
        ("llmbench.ttft", "ms", 380.0),
    ]
    assert found[0].attributes == {
        "llmbench.test": "a.py::t",
        "llmbench.outcome": "passed",
        "llmbench.validity": "valid",
        "llmbench.gate": "pass",
        "gen_ai.request.model": "tiny-7b",
        "llmbench.metric": "ttft.p99",
        "llmbench.end": "point",
    }


def test_what_is_undefined_is_no_zero_and_what_is_void_says_so() -> None:
    assert list(points([_entry(ttft__p99=(None, None, None))])) == []
    (point, *_) = points([_entry("invalid", goodput=(0.0, 0.0, 0.0))])
    assert (point.value, point.attributes["llmbench.validity"]) == (0.0, "invalid")


def test_buckets_are_points_of_their_family() -> None:
    (point,) = points(
        [
            {
                **_entry(),
                "metrics": {"itl[90%].p99": {"point": 1.0, "lower": None, "upper": None, "unit": "ms"}},
            }
        ]
    )
    assert (point.name, point.attributes["llmbench.metric"]) == ("llmbench.itl", "itl[90%].p99")
