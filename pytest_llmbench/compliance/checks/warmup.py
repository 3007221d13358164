"""Warm-up and cold start (section 4.5)."""

from __future__ import annotations

import statistics
from itertools import pairwise

from pytest_llmbench.compliance.checks.registry import Checks
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.metrics.server_side import cold_starts
from pytest_llmbench.model.draft import STEADY_PROBES, WARMUP_OUTPUT_TOKENS, WARMUP_REQUESTS
from pytest_llmbench.model.facts import COLD_START, WarmupFact
from pytest_llmbench.model.observation import Observation

check = Checks()

TOLERANCE = 0.10
SLOW_PROBE = 10.0
"""A probe slower than this many times the median probe speaks against a loaded model."""


@check("M-4.5.1-model-loaded")
def model_loaded(view: EvidenceView) -> Answer:
    loaded, requests_ok = view.need_all(WarmupFact.MODEL_LOADED, WarmupFact.REQUESTS_OK)
    cold = int(cold_starts(view.evidence.records).sum())
    if cold:
        view.note("cold_starts", cold)
        return view.unmet(f"the server says that {cold} measured requests waited for the model to be loaded")
    probes = [probe for probe in view.fact(WarmupFact.PROBES_AFTER_MS, []) if probe is not None]
    if probes and max(probes) > SLOW_PROBE * statistics.median(probes):
        return view.unmet(
            f"a probe took {max(probes):g} ms, ten times the median: the model was still loading"
        )
    return view.answer(
        loaded is True and requests_ok > 0,
        f"declared loaded, and {requests_ok} warm-up requests succeeded",
        "the model was not loaded" if loaded is not True else "no warm-up request succeeded",
    )


@check("M-4.5.1-warmup-volume")
def volume(view: EvidenceView) -> Answer:
    requests_ok, output_tokens = view.need_all(WarmupFact.REQUESTS_OK, WarmupFact.OUTPUT_TOKENS)
    done = f"{requests_ok} requests and {output_tokens} output tokens"
    return view.answer(
        requests_ok >= WARMUP_REQUESTS and output_tokens >= WARMUP_OUTPUT_TOKENS,
        done,
        f"{done}; both {WARMUP_REQUESTS} and {WARMUP_OUTPUT_TOKENS} have to be reached (AMB-02)",
    )


@check("M-4.5.1-queue-drained")
def queue_drained(view: EvidenceView) -> Answer:
    if view.need(WarmupFact.DRAINED) is not True:
        return view.unmet("warm-up requests were cut off, not drained")
    open_at_start = view.runs[0].in_flight_at_start
    view.note("in_flight_at_start", open_at_start)
    if open_at_start:
        return view.unmet(f"{open_at_start} requests were in flight when measuring began")
    return view.answer(
        warmup_precedes(view),
        "every warm-up request had ended before the first measured one",
        "warm-up was still running when measuring began",
    )


def warmup_precedes(view: EvidenceView) -> bool:
    """The last warm-up or probe response ended before the first measured submission.

    A shared run was measured by another test on this SUT, after the warm-up of that one.
    """
    own = _first_submitted_ns([run for run in view.runs if run.shared_from is None])
    shared = _first_submitted_ns([run for run in view.runs if run.shared_from is not None])
    stored = view.evidence.unmeasured.finished_ns
    ends = [view.result.warmup.last_finished_ns, int(stored.max()) if len(stored) else None]
    known = [end for end in ends if end is not None]
    if not known or (own is None and shared is None):
        raise NoEvidenceError("the end of the warm-up" if not known else "record.submitted_ns")
    view.note("warmup_last_finished_ns", max(known))
    view.note("first_submitted_ns", own)
    if shared is not None and not _warmed_up_by_owner(view, shared):
        return False
    return own is None or max(known) < own


def _first_submitted_ns(runs: list[Observation]) -> int | None:
    columns = [run.records.submitted_ns[has(run.records.submitted_ns)] for run in runs]
    return min((int(column.min()) for column in columns if len(column)), default=None)


def _warmed_up_by_owner(view: EvidenceView, first_ns: int) -> bool:
    ends = [sibling.warmup.last_finished_ns for sibling in view.evidence.same_system]
    view.note("first_submitted_of_shared_runs_ns", first_ns)
    return any(end is not None and end < first_ns for end in ends)


@check("S-4.5.2-probe-before-after")
def probe_before_and_after(view: EvidenceView) -> Answer:
    before, after = view.need_all(WarmupFact.PROBE_BEFORE_MS, WarmupFact.PROBES_AFTER_MS)
    timed = [probe for probe in after if probe is not None]
    return view.answer(
        bool(timed),
        f"probes took {before:g} ms before and {timed[-1] if timed else 0:g} ms after",
        "no probe after",
    )


@check("S-4.5.2-stabilised")
def stabilised(view: EvidenceView) -> Answer:
    last = view.need(WarmupFact.PROBES_AFTER_MS)[-STEADY_PROBES:]
    if len(last) < STEADY_PROBES or any(probe is None for probe in last):
        return view.unmet(f"fewer than {STEADY_PROBES} successful probes at the end")
    steps = [abs(b - a) / a for a, b in pairwise(last)]
    view.note("steps", steps)
    return view.answer(
        max(steps) < TOLERANCE,
        f"the last {STEADY_PROBES} probes vary by {max(steps):.1%} at most",
        f"the last {STEADY_PROBES} probes vary by {max(steps):.1%}",
    )


@check("M-4.5.3-cold-start-no-warmup")
def cold_start_without_warmup(view: EvidenceView) -> Answer:
    performed, sent = view.need(WarmupFact.PERFORMED), len(view.evidence.unmeasured)
    view.note("warmup_records", sent)
    return view.answer(performed is False and sent == 0, "no warm-up", "a cold start must not be warmed up")


@check("M-4.5.3-cold-start-indicated")
def cold_start_indicated(view: EvidenceView) -> Answer:
    """A run in which measured requests waited for the model to be loaded is a cold start, whatever it is
    called."""
    cold = int(cold_starts(view.evidence.records).sum())
    view.note("cold_starts", cold)
    return view.answer(
        view.fact(COLD_START) is True,
        "the results are marked as a cold start",
        f"{cold} measured requests waited for the model to be loaded, and nothing marks a cold start",
    )
