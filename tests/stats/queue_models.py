"""Series of known truth: AR(1) and the waiting times of an M/M/1 queue; and latencies of larger systems."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]
Services = Callable[[np.random.Generator, int], Series]


def ar1(correlation: float, n: int, random: np.random.Generator) -> Series:
    """Stationary AR(1) with standard normal marginals."""
    from scipy.signal import lfilter

    noise = random.normal(size=n) * math.sqrt(1 - correlation**2)
    noise[0] /= math.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], noise))


def mm1_waits(load: float, n: int, random: np.random.Generator) -> Series:
    """Waiting times of successive customers in a stationary M/M/1 queue, service rate 1 (Lindley)."""
    first = random.exponential(1 / (1 - load)) if random.random() < load else 0.0
    steps = random.exponential(1.0, n - 1) - random.exponential(1 / load, n - 1)
    walk = np.concatenate(([first], first + np.cumsum(steps)))
    return walk - np.minimum(0.0, np.minimum.accumulate(walk))


def mm1_mean(load: float) -> float:
    return load / (1 - load)


def mm1_percentile(load: float, q: float) -> float:
    """P(W > t) = ρ exp(-(1 - ρ) t)."""
    beyond = 1 - q / 100
    return 0.0 if beyond >= load else math.log(load / beyond) / (1 - load)


def mmc_times(slots: int, load: float, qs: tuple[float, ...]) -> tuple[float, ...]:
    """Mean and percentiles of the time in an M/M/c queue, service 1 on average: who waits, with Erlang's C,
    waits exponentially with rate c (1 - ρ)."""
    from scipy.optimize import brentq

    blocked, rate = 1.0, slots * (1 - load)
    for slot in range(1, slots + 1):
        blocked = slots * load * blocked / (slot + slots * load * blocked)
    waits = blocked / (1 - load * (1 - blocked))

    def beyond(t: float) -> float:
        waited = (
            (1 + t) * math.exp(-t)
            if math.isclose(rate, 1)
            else (math.exp(-rate * t) - rate * math.exp(-t)) / (1 - rate)
        )
        return (1 - waits) * math.exp(-t) + waits * waited

    found = (brentq(lambda t, q=q: beyond(t) - (1 - q / 100), 0.0, 50 + 50 / rate) for q in qs)
    return 1 + waits / rate, *map(float, found)


_BURN_IN = 6_000


def standard_exponential(random: np.random.Generator, rows: int) -> Series:
    return random.exponential(size=rows)


def stamps_of_slots(
    slots: int,
    load: float,
    n: int,
    rows: int,
    random: np.random.Generator,
    services: Services = standard_exponential,
) -> tuple[Series, Series]:
    """When customers of an M/M/c queue come and go, those of the burn-in too; one row per replication.
    ``services``: 1 on average."""
    if rows == 1:
        return _stamps_of_one(slots, load, _BURN_IN + n, random, services)
    free, at, every = np.zeros((rows, slots)), np.zeros(rows), np.arange(rows)
    sent, ended = np.empty((2, _BURN_IN + n, rows))
    for customer in range(_BURN_IN + n):
        at += random.exponential(1 / (load * slots), rows)
        first = free.argmin(axis=1)
        end = np.maximum(at, free[every, first]) + services(random, rows)
        free[every, first] = end
        sent[customer], ended[customer] = at, end
    return np.ascontiguousarray(sent.T), np.ascontiguousarray(ended.T)


def _stamps_of_one(
    slots: int, load: float, customers: int, random: np.random.Generator, services: Services
) -> tuple[Series, Series]:
    """The same of one replication, to the last digit: vectors of one number would cost ten times as much."""
    gap = 1 / (load * slots)
    if services is standard_exponential:  # by turns a gap and a service, as they are drawn below
        drawn = random.standard_exponential((customers, 2))
        gaps, lengths = gap * drawn[:, 0], drawn[:, 1].tolist()
    else:
        gaps, lengths = np.empty(customers), []
        for customer in range(customers):
            gaps[customer] = random.exponential(gap)
            lengths.append(float(services(random, 1)[0]))
    sent, free, ended = np.cumsum(gaps), [0.0] * slots, []
    for at, length in zip(sent.tolist(), lengths, strict=True):
        end = max(at, free[0]) + length
        heapq.heapreplace(free, end)
        ended.append(end)
    return sent[np.newaxis], np.array([ended])


def stamps_of_users(
    users: int, slots: int, n: int, rows: int, random: np.random.Generator
) -> tuple[Series, Series]:
    """Times of requests of users who send the next one at once, first come first served, and when each is
    sent; in order sent."""
    queued = users - slots
    free, every = random.exponential(size=(rows, slots)), np.arange(rows)
    ended, found = np.empty((_BURN_IN // 3 + n + queued, rows)), np.empty((n, rows))
    stamps = np.empty((n, rows))
    for place in range(len(ended)):
        first = free.argmin(axis=1)
        now = ended[place] = free[every, first]
        free[every, first] = now + random.exponential(size=rows)
        # The request that starts now was sent when the one ended that was ``queued`` before.
        sent = place - queued
        if sent >= _BURN_IN // 3:
            found[sent - _BURN_IN // 3] = free[every, first] - ended[sent]
            stamps[sent - _BURN_IN // 3] = ended[sent]
    return np.ascontiguousarray(found.T), np.ascontiguousarray(stamps.T)


def stamps_of_bursts(load: float, n: int, rows: int, random: np.random.Generator) -> tuple[Series, Series]:
    """Times in a queue of one server, and when each request comes; arrivals at two rates, 1 : 5, that change
    once in 50 services."""
    rates = np.array([load / 3, 5 * load / 3])
    state, waited, found = random.integers(0, 2, rows), np.zeros(rows), np.empty((n, rows))
    at, sent = np.zeros(rows), np.empty((n, rows))
    for customer in range(-_BURN_IN, n):
        gap = random.exponential(size=rows) / rates[state]
        time = waited + random.exponential(size=rows)
        if customer >= 0:
            found[customer], sent[customer] = time, at
        at = at + gap
        waited = np.maximum(0.0, time - gap)
        state = np.where(random.random(rows) < -np.expm1(-0.02 * gap), 1 - state, state)
    return np.ascontiguousarray(found.T), np.ascontiguousarray(sent.T)
