"""The law of output lengths."""

from __future__ import annotations

import statistics

from pytest_llmbench.simulator.engine.sequence import OutputLengthLaw


def test_without_a_mean_every_sequence_runs_to_its_ceiling() -> None:
    law = OutputLengthLaw(None, seed=1)
    assert [law.draw(n, 0, False) for n in (1, 160)] == [(1, "length"), (160, "length")]


def test_the_geometric_law_has_its_mean_and_no_memory() -> None:
    law = OutputLengthLaw(25.0, seed=1)
    drawn = [law.draw(10_000, 0, False)[0] for _ in range(20_000)]
    # Standard deviation of a geometric law is about its mean: standard error 25 / √20000 = 0.18.
    assert abs(statistics.fmean(drawn) - 25.0) < 0.7
    beyond = [length - 20 for length in drawn if length > 20]
    assert abs(statistics.fmean(beyond) - 25.0) < 1.0
    assert min(drawn) == 1


def test_ignore_eos_and_min_tokens_bind() -> None:
    law = OutputLengthLaw(2.0, seed=1)
    assert all(law.draw(50, 0, True) == (50, "length") for _ in range(20))
    drawn = [law.draw(50, 20, False) for _ in range(200)]
    assert all(20 <= length <= 50 for length, _ in drawn)
    assert (20, "stop") in drawn


def test_a_draw_does_not_depend_on_what_others_asked() -> None:
    one, other = OutputLengthLaw(30.0, seed=5), OutputLengthLaw(30.0, seed=5)
    one.draw(10, 0, False)
    other.draw(999, 5, True)
    assert one.draw(500, 0, False) == other.draw(500, 0, False)
