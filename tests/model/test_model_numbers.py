"""Numbers as text."""

from __future__ import annotations

import pytest

from pytest_llmbench.model import numbers


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
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert numbers.number(value) == text


def test_things_money_factors_and_levels() -> None:
    assert [numbers.counted(count, "run") for count in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [numbers.money(amount, "USD") for amount in (1234.5, 0.0, 0.0032)] == [
        "1,234.50 USD", "0.00 USD", "0.003 USD",
    ]  # fmt: skip
    assert [numbers.trimmed(value) for value in (0.50, 512.35, 0.00005)] == [
        "0.5",
        "512.35",
        "5e-05",
    ]
    assert [numbers.percent_label(percent) for percent in (80.0, 12.5)] == ["80%", "12.5%"]


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
        (None, None, "ms", "no interval"),
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
        (524.0, None, None, "524 ms (no interval)"),
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


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (64.0, "count", "64"),
        (63.6, "count", "64"),
        (0.0, "count", "0"),
        (0.4, "count", "0.40"),
        (31_204.5, "tokens", "31204 tokens"),
        (12.44, "s", "12.4 s"),
        (68.24, "us/token", "68.2 µs/token"),
        (0.003, "ratio", "0.3 %"),
        (-0.2023, "ratio", "-20.23 %"),
        (-0.00001, "ratio", "> -0.01 %"),
        (0.87123, numbers.PLAIN, "0.8712"),
        (0.99996, numbers.PLAIN, "0.99996"),
        (1.00002, numbers.PLAIN, "1.00002"),
        (1.0, numbers.PLAIN, "1"),
        (3.26, numbers.PLAIN, "3.26"),
    ],
)
def test_each_unit_in_its_own_form(value: float, unit: str, text: str) -> None:
    assert numbers.quantity(value, unit) == text


def test_intervals_in_the_form_of_their_unit() -> None:
    assert numbers.interval(59.7, 70.2, "count") == "[60, 70]"
    assert numbers.interval(60.0, None, "count") == "> 60"
    assert numbers.interval(0.97, 1.06, numbers.PLAIN) == "[0.97, 1.06]"
    assert numbers.interval(None, 70.0, "us/token") == "< 70 µs/token"


def test_a_count_is_told_from_its_limit() -> None:
    assert numbers.against(63.6, 64.0, "count") == "63.6"
    assert numbers.against(64.0, 64.0, "count") == "64"


def test_what_has_no_interval_by_nature_shows_none() -> None:
    metric = {"point": 64.0, "lower": None, "upper": None, "unit": "count", "kind": "observed"}
    assert numbers.estimate(metric) == "64"
    assert numbers.estimate(metric | {"kind": "sample"}) == "64 (no interval)"
    assert numbers.estimate(metric | {"kind": "bound", "lower": 64.0}) == "at least 64 (> 64)"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("not_measurable", "not measurable: why"),
        ("not_reached", "not reached: why"),
        ("no_level", "not measured: why"),
        (None, "not measured"),
    ],
)
def test_an_undefined_number_says_why(reason: str | None, text: str) -> None:
    ends = {"point": None, "lower": None, "upper": None}
    metric = {**ends, "unit": "ratio", "method": "why", "reason": reason}
    assert numbers.estimate(metric) == numbers.undefined(metric) == text


@pytest.mark.parametrize(
    ("high", "low", "text"),
    [
        (0.0, 0.0, ""),
        (0.99, 0.0, ""),
        (5.1, 0.0, ", by the machine up to 5.10 ms too high"),
        (0.2, 7.0, ", by the machine up to 7 ms too low"),
        (5.0, 7.0, ", by the machine up to 5 ms too high or 7 ms too low"),
    ],
)
def test_what_the_machine_may_have_added_is_told_from_a_hundredth_on(
    high: float, low: float, text: str
) -> None:
    metric = {"point": 100.0, "lower": 90.0, "upper": 120.0, "unit": "ms"}
    metric |= {"too_high_by": high, "too_low_by": low}
    assert numbers.estimate(metric) == f"100 ms [90, 120]{text}"
    assert numbers.estimate(metric | {"lower": None, "upper": None}) == f"100 ms (no interval){text}"
