"""Numbers by place: which entry is meant, and what is told where none is."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.places import Place
from pytest_llmbench.methodology.sections.ttft import Parameters

LIMITS = {"h100": 500, "h100 sxm": 400, "mi300": 700, "a100": 900}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(accelerator="NVIDIA H100 80GB HBM3"), "h100"),
        (Place(accelerator="NVIDIA H100-SXM5"), "h100 sxm"),
        (Place(accelerator="AMD Instinct MI300X"), "mi300"),
        (Place(accelerator="NVIDIA RTX A1000"), None),
        (Place(accelerator="NVIDIA GH100"), None),
        (Place(("mi300",), "NVIDIA H100"), "mi300"),
        (Place(("MI300", "nightly")), "mi300"),
        (Place(("h100", "a100")), None),
        (Place(("nightly",), "NVIDIA H100"), "h100"),
        (Place(), None),
    ],
)
def test_a_name_stands_before_the_accelerator_and_the_longest_key_fits(
    place: Place, expected: str | None
) -> None:
    assert place.key_of(LIMITS) == expected


def test_a_marker_takes_the_number_of_its_place() -> None:
    given = {"p50_ms": LIMITS, "rate": {"h100": 40, "mi300": 30}, "requests": 300}
    made = build(Parameters, given, place=lambda: Place(("mi300",)))
    assert (made.p50_ms, made.rate, made.requests) == (700, 30, 300)


def test_the_numbers_of_other_places_are_checked_too() -> None:
    given = {"p50_ms": {"h100": 500, "mi300": -1}, "requests": {"h100": 100, "mi300": 1.5}}
    with pytest.raises(SuiteError) as caught:
        build(Parameters, given, place=lambda: Place(("h100",)))
    assert "p50_ms must be greater than zero, got -1" in str(caught.value)
    assert "requests must be a whole number" in str(caught.value)


@pytest.mark.parametrize("values", [{}, {3: 500}, {"": 500}])
def test_a_mapping_is_of_names(values: dict[object, int]) -> None:
    with pytest.raises(SuiteError, match="p50_ms must map names of places to numbers"):
        build(Parameters, {"p50_ms": values}, place=lambda: Place(("h100",)))


def test_a_place_without_a_number_is_told_with_what_is_known_of_it() -> None:
    given = {"p50_ms": {"h100": 500, "mi300": 700}, "p99_ms": {"h100": 900}}
    with pytest.raises(SuiteError) as caught:
        build(Parameters, given, place=lambda: Place((), "NVIDIA L4"))
    told = str(caught.value)
    assert "p50_ms: numbers for h100, mi300" in told
    assert "p99_ms: numbers for h100," in told
    assert "(--llm-place is not given, the SUT file names NVIDIA L4)" in told


def test_where_nothing_is_measured_any_number_will_do() -> None:
    assert build(Parameters, {"p50_ms": {"h100": 500, "mi300": 700}}).p50_ms == 500
