"""The gate: its load and its limits, for the test that guards and for the tests of that test."""

from pytest_llmbench import completion_rate, ms, percent, tpot

GATE = {
    "rate": 6,
    "requests": 1000,
    "p50_ms": 100,
    "p99_ms": 600,
    "slo": [tpot.p99 <= 40 * ms, completion_rate >= 99 * percent],
}
