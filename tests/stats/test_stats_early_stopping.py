"""Loads that may end early are judged wrongly no more often than one interval of 95 %, however dependent."""

from __future__ import annotations

import pytest
from loaded_script import loaded

NOMINAL = 0.05


bench = loaded("benchmarks/bench_early_stopping.py")


def test_independent_requests_are_judged_rightly_and_soon() -> None:
    law = bench.LAWS[0]
    at_the_limit = bench.rates(law, 95.0, runs=60, most=2_000)
    assert at_the_limit.passed + at_the_limit.failed <= NOMINAL
    clear = bench.rates(law, 95.0, 3.0, runs=5, most=5_000)
    assert clear.passed == 1.0
    assert clear.requests < 2_500


def test_looking_at_plain_intervals_would_be_wrong_far_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same simulation sees an error where there is one: every look at 95 %, none of them cautious."""
    from pytest_llmbench.stats import looks
    from pytest_llmbench.stats.looks import PlannedLook, estimate

    plain = tuple(PlannedLook(n, 0.025) for n in range(100, 2_001, 100))
    monkeypatch.setattr(looks, "planned_looks", lambda *_args, **_more: plain)
    monkeypatch.setattr(looks, "is_enough", lambda *_: True)
    monkeypatch.setattr(looks, "batch_size", lambda series, _tail: float(len(series)))
    careful = estimate

    def plainly(watched: object, values: object, tail: float, _: object = None, **_more: object) -> object:
        return careful(watched, values, tail, lambda series, _: float(len(series)))  # type: ignore[arg-type]

    monkeypatch.setattr(looks, "estimate", plainly)
    found = bench.rates(bench.LAWS[0], 95.0, runs=60, most=2_000)
    assert found.passed + found.failed > 2 * NOMINAL


@pytest.mark.slow
@pytest.mark.parametrize("law", bench.LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0, None])
def test_false_passes_and_false_failures_are_at_most_nominal(law: object, percentile: float | None) -> None:
    found = bench.rates(law, percentile, runs=200)
    spread = 2 * (NOMINAL * (1 - NOMINAL) / 200) ** 0.5
    assert found.passed <= NOMINAL + spread
    assert found.failed <= NOMINAL + spread
