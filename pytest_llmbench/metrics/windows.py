"""The window of a load level: which part of a run counts, and which requests are latency samples (AMB-16)."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import OpenLoop, SessionSlots
from pytest_llmbench.model.records import MISSING, Records

RAMP_UP_SHARE = 0.1
"""The share of a level's duration that is ramp-up; the rest is the window."""


def load_end_ns(seen: Observation) -> int:
    """End of the load: its nominal end, or the last submission if that came first or there is no nominal
    end."""
    end_ns = seen.load_ended_ns
    if end_ns is None and seen.plan.duration_s is not None and isinstance(seen.plan.load, OpenLoop):
        end_ns = seen.started_ns + round(seen.plan.duration_s * 1e9)
    if end_ns is None or seen.stopped is not None or seen.interrupted is not None:
        sent = seen.records.submitted_ns[seen.records.submitted_ns != MISSING]
        end_ns = int(sent.max()) if len(sent) else seen.ended_ns
    return end_ns


def window_of(seen: Observation) -> Window:
    """The window of a run: the duration of the load, or of the sending where it has none, without its first
    tenth.

    Tokens and completions count by their arrival inside it, whatever comes in the drain does not.
    """
    end_ns = load_end_ns(seen)
    duration_ns = max(end_ns - seen.started_ns, 0)
    return Window(seen.records, seen.started_ns + round(RAMP_UP_SHARE * duration_ns), end_ns)


def level_window(seen: Observation) -> Window:
    """The window of a level. For a closed loop of sessions, the time while every slot has one, without its
    first tenth."""
    load = seen.plan.load
    if not isinstance(load, SessionSlots):
        return window_of(seen)
    end_ns = _not_replaced_ns(seen, load.sessions)
    duration_ns = max(end_ns - seen.started_ns, 0)
    return Window(seen.records, seen.started_ns + round(RAMP_UP_SHARE * duration_ns), end_ns)


def _not_replaced_ns(seen: Observation, slots: int) -> int:
    """The instant of the first session end that no other session followed: as many ends are left as there are
    slots."""
    number, inverse = np.unique(seen.records.session, return_inverse=True)
    if len(number) < slots:
        return seen.ended_ns
    ended_ns = np.full(len(number), MISSING)
    np.maximum.at(ended_ns, inverse, seen.records.finished_ns)
    return int(np.sort(ended_ns)[len(number) - slots])


def submitted_inside(window: Window) -> Records:
    """The latency samples: requests submitted inside the window, drained to their end."""
    at_ns = window.records.submitted_ns
    return window.records.select((at_ns != MISSING) & (at_ns > window.start_ns) & (at_ns <= window.end_ns))
