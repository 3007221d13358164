"""The engine against queueing theory: with one place and fixed lengths it is a server with a queue."""

from __future__ import annotations

import random
from statistics import fmean, stdev

import pytest
from engine_runs import A, B, config, drive, us

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence

SERVICE_NS = us(A + B * 100)


def waits_ns(utilisation: float, count: int, seed: int) -> list[int]:
    """Time from arrival to admission of Poisson arrivals that take one step each."""
    draw = random.Random(seed)
    at_ns, arrivals = 0.0, []
    for i in range(count):
        at_ns += draw.expovariate(utilisation / SERVICE_NS)
        arrivals.append((round(at_ns), EngineSequence(str(i), 100, 1)))
    run = drive(Engine(config(max_num_seqs=1)), arrivals)
    return [run.admitted_ns[sequence] - arrived for arrived, sequence in arrivals]


@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.85])
def test_the_mean_wait_is_that_of_an_m_d_1_queue(utilisation: float) -> None:
    """Pollaczek and Khinchin: W = ρ / (2(1 - ρ)) · S, inside the 99 % interval of batch means."""
    waits = waits_ns(utilisation, 20_000, seed=5)[2000:]
    batches = [fmean(waits[begin : begin + 900]) for begin in range(0, 18_000, 900)]
    expected = utilisation / (2 * (1 - utilisation)) * SERVICE_NS
    half_width = 2.861 * stdev(batches) / len(batches) ** 0.5  # Student's t, 19 degrees of freedom
    assert fmean(batches) == pytest.approx(expected, abs=half_width)
    assert half_width < 0.3 * expected  # an interval that could be missed


def test_an_overloaded_queue_grows_without_end() -> None:
    """At twice the capacity the n-th arrival waits for about n/2 services."""
    waits = waits_ns(2.0, 4000, seed=5)
    assert waits[-1] == pytest.approx(2000 * SERVICE_NS, rel=0.1)
