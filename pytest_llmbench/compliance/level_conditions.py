"""Conditions about what a test with several levels, chunks or systems has in front of it.

As in :mod:`~pytest_llmbench.compliance.conditions`, a condition holds where the fact that decides is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pytest_llmbench.compliance.checks.comparison import hardware_differs, tokenizers_differ
from pytest_llmbench.compliance.look import Look
from pytest_llmbench.compliance.stored import chunk_sizes, has
from pytest_llmbench.model.level import BURST, Level
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records

FEWEST_LENGTHS = 3


def _levels(look: Look) -> tuple[Level, ...]:
    return tuple(level for level in look.result.levels if level.role != BURST)


def _open_loop(look: Look) -> bool:
    levels = _levels(look)
    return not levels or any(level.load_model == "open" for level in levels)


def _queue_seen(look: Look) -> bool:
    return _open_loop(look) or any(_gauge(run, "waiting") for run in look.evidence.runs)


def _gauge(run: Observation, name: str) -> bool:
    return run.engine is not None and name in run.engine.gauges


def _lower_level(look: Look) -> bool:
    levels = _levels(look)
    return not levels or len({(level.offered_rps, level.concurrency) for level in levels}) > 1


def _reported(look: Look) -> bool:
    levels = _levels(look)
    return not levels or any(level.role == "reported" for level in levels)


def _batch_size(look: Look) -> bool:
    runs = look.evidence.runs
    return any(_gauge(run, "running") and run.engine and run.engine.max_num_seqs for run in runs)


def _latency_limits(look: Look) -> bool:
    return not {"ttft_p99_ms", "tpot_p99_ms"}.isdisjoint(look.fact("load.slo", {}))


def _accelerators(look: Look) -> bool:
    count = look.fact("sut.hardware.accelerator_count")
    return isinstance(count, int) and not isinstance(count, bool) and count >= 1


def _several_tokens(records: Records) -> bool:
    """A chunk of a success held several tokens, or nobody knows how many."""
    sizes = chunk_sizes(records)
    return sizes.several > 0 or sizes.known < sizes.chunks or sizes.chunks == 0


def _client_side(look: Look) -> bool:
    return bool(look.fact("streaming.itl_option") != "C")


def _option_due(look: Look) -> bool:
    return not _client_side(look) or _several_tokens(look.evidence.records)


def _server_instants(look: Look) -> bool:
    available = look.fact("streaming.server_timestamps_available")
    if available is None:
        available = len(look.evidence.records.server_token_ns) > 0
    return available is True and _several_tokens(look.evidence.records)


def _option(name: str) -> Callable[[Look], bool]:
    return lambda look: bool(look.fact("streaming.itl_option") == name)


def _cache_on(look: Look) -> bool:
    return bool(look.fact("sut.prefix_caching") != "disabled")


def _cached_counts(look: Look) -> bool:
    return bool(has(look.evidence.records.cached_tokens).any())


def _preemptions(look: Look) -> bool:
    return _preemptions_by_request(look) or any(
        run.engine is not None and "preemptions" in run.engine.totals_after for run in look.evidence.runs
    )


def _preemptions_by_request(look: Look) -> bool:
    return bool(has(look.evidence.records.preemptions).any())


def _discarded_tokens(look: Look) -> bool:
    return bool(has(look.evidence.records.preempted_tokens).any())


def _three_lengths(look: Look) -> bool:
    levels = _levels(look)
    return not levels or sum(level.n_ok > 0 for level in levels) >= FEWEST_LENGTHS


def _baseline(look: Look) -> bool:
    levels = _levels(look)
    return not levels or any(level.role == "baseline" for level in levels)


def _compared(look: Look) -> bool:
    return look.evidence.systems > 1


def _always(_: Look) -> bool:
    return True


LEVEL_CONDITIONS: Mapping[str, Callable[[Look], bool]] = MappingProxyType(
    {
        "ITL is measured on the client (manifest.streaming.itl_option is A, B or direct)": _client_side,
        "at least one content chunk held more than one token, or option C is used": _option_due,
        "streaming.server_timestamps_available is true and chunks held more than one token": _server_instants,
        "itl_option == A": _option("A"),
        "itl_option == B": _option("B"),
        "SSE delivery": lambda look: bool(look.fact("streaming.protocol", "sse") == "sse"),
        "load.slo has ttft_p99_ms or tpot_p99_ms": _latency_limits,
        "an SLO is configured": _latency_limits,
        "open-loop level, or server queue gauge available": _queue_seen,
        "open-loop level": _open_loop,
        "a lower level was measured": _lower_level,
        "the level is reported as sustainable": _reported,
        "accelerator count is known": _accelerators,
        "server exposes batch size": _batch_size,
        "prefix caching is enabled and is what the test examines": _cache_on,
        "cache enabled": _cache_on,
        "baseline and Cache (Cold) configurations": _always,
        "server reports cached token counts": _cached_counts,
        "server exposes preemption data": _preemptions,
        "server exposes preemption data per request": _preemptions_by_request,
        "server exposes discarded token counts": _discarded_tokens,
        "at least three lengths": _three_lengths,
        "baseline ran": _baseline,
        "two or more SUTs compared": _compared,
        "systems with different tokenizers are compared": tokenizers_differ,
        "hardware differs": hardware_differs,
        "a comparative claim is made": lambda look: look.fact("comparison.claim") is not False,
        "comparative results are published": lambda look: look.fact("publication.intended") is True,
    }
)
"""Condition text → predicate, letter for letter those of the catalogue."""

__all__ = ["LEVEL_CONDITIONS"]
