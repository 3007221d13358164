"""How the faults of a scenario show in records. Faults in the bytes of a stream cannot be replayed."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import IntColumn
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.faults import REFUSALS, FaultKind, FaultOptions, StreamOptions
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.scenario.scenario import Scenario

STRIKES: dict[FaultKind, tuple[Outcome, str]] = {
    "in_band_error": (Outcome.IN_BAND_ERROR, "an error inside the stream (a fault of the scenario)"),
    "reset": (Outcome.DISCONNECTED, "the connection was reset (a fault of the scenario)"),
    "half_close": (Outcome.DISCONNECTED, "the connection was closed (a fault of the scenario)"),
    "crash": (Outcome.DISCONNECTED, "the connection was reset (a fault of the scenario: crash)"),
    "truncate": (Outcome.TRUNCATED, "the stream ended without a terminal event (a fault of the scenario)"),
}
"""Faults that end a reply in mid-stream, with the outcome and the error that the client records."""
DELAYS: frozenset[FaultKind] = frozenset({"stall", "buffering"})
"""Faults that only hold chunks back."""
_SHOWN = {*REFUSALS, *STRIKES, *DELAYS}

_TIMELESS = {
    "tokens_per_chunk", "draft_tokens", "draft_acceptance", "done_marker", "line_end",
    "writes_per_event", "reasoning_place", "token_times", "server_timings",
    "server_timestamps", "trace",
}  # fmt: skip
"""Options of the stream that a replay carries out, or that change nothing in the records."""


def require_replayable(scenario: Scenario) -> None:
    """Raise SuiteError, naming them all, for options that a replay would silently leave out."""
    asked, plain = scenario.stream, StreamOptions()
    names = [
        each.name
        for each in fields(StreamOptions)
        if each.name not in _TIMELESS and getattr(asked, each.name) != getattr(plain, each.name)
    ]
    mistakes = [f"{name} changes the bytes of the stream, and a replay has none" for name in names]
    mistakes += [
        f"the fault {kind} lives in the bytes of the stream, and a replay has none"
        for kind in scenario.faults.fault
        if kind not in _SHOWN
    ]
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes, where="replay", remedy="measure sim:… with these options, or leave them out"
        )


def refusal_of(kind: FaultKind, options: FaultOptions) -> RefusalError:
    """The error response of a fault that refuses the request."""
    if kind == "http_error":
        return RefusalError(options.fault_status, f"a fault of the scenario: {kind}")
    status, why = (429, "rate limit exceeded") if kind == "rate_limit" else (503, "the server is overloaded")
    return RefusalError(status, f"{why} (a fault of the scenario)", None, options.retry_after_s)


def queue_full(config: EngineConfig, options: FaultOptions) -> RefusalError:
    """The error response of an engine whose queue is full."""
    why = f"the queue is full: {config.max_waiting} requests wait already"
    return RefusalError(options.full_status, why, None, options.retry_after_s)


def input_refused() -> RefusalError:
    """The error response to a prompt that the input filter refuses."""
    why = "the prompt was refused by the input filter"
    return RefusalError(400, why, "prompt", code="content_filter")


def delayed(read_ns: IntColumn, kind: FaultKind, options: FaultOptions) -> IntColumn:
    """The instants at which the chunks of a reply are read if its stream stalls or goes through a buffering
    proxy."""
    if kind == "buffering":
        return np.full_like(read_ns, read_ns[-1])
    after = min(options.fault_after_tokens, len(read_ns))
    since_ns = read_ns[max(after - 1, 0)]
    late = np.maximum(read_ns[after:], since_ns + round(options.stall_ms * 1e6))
    return np.concatenate((read_ns[:after], late))
