"""Numbers as text."""

from __future__ import annotations

import pytest

from pytest_llmbench.reports import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not measured"),
        (0.0, "0"),
        (0.01234, "0.0123"),
        (0.5, "0.50"),
        (9.876, "9.88"),
        (87.654, "87.7"),
        (524.04, "524.0"),
        (500.0, "500"),
        (1243.4, "1243"),
        (-3.21, "-3.21"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert numbers.number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"),
        (0.998, "99.8 %"),
        (0.99999, "> 99.99 %"),
        (0.0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.5, "50 %"),
    ],
)
def test_percentage_never_rounds_to_all_or_nothing(share: float, text: str) -> None:
    assert numbers.percentage(share) == text


@pytest.mark.parametrize(
    ("lower", "upper", "unit", "text"),
    [
        (498.2, 561.7, "ms", "[498.2, 561.7]"),
        (498.0, None, "ms", "> 498 ms"),
        (None, 561.0, "ms", "< 561 ms"),
        (None, None, "ms", "open"),
        (0.0, 1.0, "tok/s", "[0, 1]"),
        (0.992, 1.0, "ratio", "[99.2, 100]"),
        (0.992, None, "ratio", "> 99.2 %"),
    ],
)
def test_interval(lower: float | None, upper: float | None, unit: str, text: str) -> None:
    assert numbers.interval(lower, upper, unit) == text


@pytest.mark.parametrize(
    ("point", "lower", "upper", "text"),
    [
        (524.0, 498.0, 561.0, "524 ms [498, 561]"),
        (524.0, 498.0, None, "524 ms (> 498 ms)"),
        (524.0, None, None, "524 ms (open)"),
        (None, None, None, "not measured"),
    ],
)
def test_estimate(point: float | None, lower: float | None, upper: float | None, text: str) -> None:
    assert numbers.estimate({"point": point, "lower": lower, "upper": upper, "unit": "ms"}) == text


def test_no_metric_is_not_measured() -> None:
    assert numbers.estimate(None) == "not measured"


@pytest.mark.parametrize(
    ("value", "limit", "unit", "text"),
    [
        (500.04, 500.0, "ms", "500.04 ms"),
        (1000.2, 1000.0, "ms", "1000.2 ms"),
        (500.0, 500.0, "ms", "500 ms"),
        (0.99996, 1.0, "ratio", "> 99.99 %"),
        (0.98996, 0.99, "ratio", "98.996 %"),
        (3.0, 500.0, "ms", "3 ms"),
    ],
)
def test_a_value_is_told_from_its_limit(value: float, limit: float, unit: str, text: str) -> None:
    assert numbers.against(value, limit, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(51.2, "51.2 s"), (303.2, "5 min 3 s"), (None, "not measured"), (0.0, "0 s")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert numbers.duration(seconds) == text
