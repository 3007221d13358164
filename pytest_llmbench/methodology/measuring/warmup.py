"""Warm-up, section 4.5: load until both amounts are reached, then probe until it settles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pytest_llmbench.errors import SUTError
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.metrics.latency import e2e_ms, request_latency_ms
from pytest_llmbench.metrics.server_side import cached_input, cold_starts
from pytest_llmbench.model.draft import STEADY_PROBES
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount, number
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import WarmupReport
from pytest_llmbench.workloads.adapted import WithoutOutput, highest_id
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import HIGHEST_CL100K_ID, SyntheticWorkload

_PROBE_OUTPUT_TOKENS = 64
_NUMBER = re.compile(r"\d+")


def warm_up(
    setting: Setting,
    *,
    concurrency: int | None = None,
    variant: str = "",
    fresh_state: bool = False,
    workload: Workload | None = None,
) -> Procedure[WarmupReport]:
    """Warm up: probe, load, probe again. Returns a report on what was done.

    The load has the shape of the measured workload (or of ``workload``) and is a part of its own, so that no
    measured prompt is already in a prefix cache. ``variant``: the SUT variant to warm up;
    ``fresh_state``: after its restart or flush. Raises :class:`SUTError` when not one request succeeds.
    """
    setting = setting if workload is None else replace(setting, workload=workload)
    policy = setting.warmup
    if not policy.wanted:
        return WarmupReport()
    before = yield _probe(setting, 0, variant).with_(fresh_state=fresh_state)
    loads: list[Observation] = []
    planned = 0
    in_flight = concurrency or policy.concurrency
    asked = {"requests": policy.requests, "concurrency": in_flight, "variant": variant}
    part = part_of(setting, setting.workload, "warm-up", **asked)
    requests_ok = output_tokens = 0
    while (requests_ok < policy.requests or output_tokens < policy.output_tokens) and (
        planned < policy.max_requests
    ):
        count = max(policy.requests if planned == 0 else policy.requests // 4, 1)
        load, own = ClosedLoop(in_flight), {"phase": Phase.WARMUP, "first": planned, "variant": variant}
        plan = part.plan(setting, "warm-up", load, count, **own)
        loads.append((yield plan))
        requests_ok, output_tokens = _volume(loads)
        planned += plan.requests
        _give_up_on_a_dead_server(loads)
    probes: list[Observation] = []
    while len(probes) < policy.probes and not _settled(probes, policy.tolerance):
        probes.append((yield _probe(setting, len(probes) + 1, variant)))
    return _report(setting, before, loads, probes)


def _probe(setting: Setting, number: int, variant: str) -> LoadPlan:
    # Every probe has the same lengths and another text: equal work, and no help from a prefix cache.
    (model,) = drawn(setting.workload, 0, 1, setting.seed)
    output_tokens = min(model.max_tokens, _PROBE_OUTPUT_TOKENS)
    highest = min(highest_id(setting.workload), HIGHEST_CL100K_ID)  # ids may go to a smaller vocabulary
    inputs = Fixed(model.input_tokens)
    workload: Workload = SyntheticWorkload("probe", inputs, Fixed(max(output_tokens, 1)), highest)
    if not output_tokens:
        workload = WithoutOutput(workload)
    deviations = setting.workload.specification().get("deviations")  # the salt of one arm of a comparison
    part = part_of(setting, workload, "probe", variant=variant, deviations=deviations)
    label = "probe" if number == 0 else f"probe {number}"
    own = {"workload": workload, "phase": Phase.PROBE, "first": number, "variant": variant}
    return part.plan(setting, label, ClosedLoop(1), 1, **own)


def _volume(loads: Sequence[Observation]) -> tuple[int, int]:
    """Successful requests, and their output tokens as far as they were counted."""
    every = [load.records for load in loads]
    known = (each.output_tokens[each.ok & (each.output_tokens != MISSING)] for each in every)
    return sum(int(each.ok.sum()) for each in every), sum(int(tokens.sum()) for tokens in known)


def _give_up_on_a_dead_server(loads: Sequence[Observation]) -> None:
    if not all(load.records.failed.all() for load in loads):
        return
    errors = [error or "no reason given" for error in loads[-1].records.error]
    if not errors and loads[-1].interrupted is not None:
        raise SUTError(f"no warm-up request was sent: {loads[-1].interrupted}")
    # Texts that differ in a number alone (of tokens, of a request) tell of one reason.
    reasons = Counter(_NUMBER.sub("#", error) for error in errors)
    reason, count = reasons.most_common(1)[0] if reasons else ("nothing was sent", 0)
    shown = next((error for error in errors if _NUMBER.sub("#", error) == reason), reason)
    remedy = "send one such request by hand, and read the server's log"
    raise SUTError(
        f"none of {len(errors)} warm-up requests succeeded; {count} of them ended with: {shown}",
        remedy=TOO_LONG_REMEDY if is_beyond_context(shown) else remedy,
    )


def _latencies(probes: Sequence[Observation]) -> list[float | None]:
    """End-to-end latency of each probe in ms; for one that generates nothing that to its last byte; None for
    one that failed."""
    every = [(e2e_ms(probe.records), request_latency_ms(probe.records)) for probe in probes]
    values = [to_content if len(to_content) else to_the_end for to_content, to_the_end in every]
    return [float(value[0]) if len(value) else None for value in values]


def _settled(probes: Sequence[Observation], tolerance: float) -> bool:
    latest = _latencies(probes)[-STEADY_PROBES:]
    if len(latest) < STEADY_PROBES:
        return False
    return all(
        a is not None and b is not None and a > 0 and abs(b - a) / a < tolerance for a, b in pairwise(latest)
    )


def _report(
    setting: Setting, before: Observation, loads: Sequence[Observation], probes: Sequence[Observation]
) -> WarmupReport:
    requests_ok, output_tokens = _volume(loads)
    every = [before, *loads, *probes]
    settled = _settled(probes, setting.warmup.tolerance)
    after = _latencies(probes)
    drained = all(part.in_flight_at_end == 0 for part in every)
    shown = ", ".join("failed" if value is None else number(value) for value in after[-STEADY_PROBES:])
    # None were wanted and none came in a test that generates nothing.
    tokens = f"{output_tokens} output tokens, " if output_tokens or setting.warmup.output_tokens else ""
    return WarmupReport(
        performed=True,
        requests_ok=requests_ok,
        output_tokens=output_tokens,
        drained=drained,
        probe_before_ms=_latencies([before])[0],
        probes_after_ms=tuple(after),
        stabilised=settled,
        duration_s=sum(part.duration_s for part in every),
        description=(
            f"{requests_ok} requests, {tokens}"
            f"{'drained' if drained else 'NOT drained'}, {len(after)} probes "
            f"({'settled' if settled else 'not settled'}; last: {shown or 'none'} ms)"
        ),
        last_finished_ns=max(part.ended_ns for part in every),
    )


def joined(reports: Sequence[WarmupReport], when: str) -> WarmupReport:
    """One report for the warm-ups of several configurations, with the least that each of them reached.

    ``when``, for the description: ``one per configuration``.
    """
    last = reports[-1]
    if not last.performed:
        return last
    return replace(
        last,
        performed=all(report.performed for report in reports),
        requests_ok=min(report.requests_ok for report in reports),
        output_tokens=min(report.output_tokens for report in reports),
        drained=all(report.drained for report in reports),
        stabilised=all(report.stabilised for report in reports),
        duration_s=sum(report.duration_s for report in reports),
        description=f"{len(reports)} warm-ups, {when}; the last: {last.description}",
        # The first has to lie before the first measured request; the others lie between configurations.
        last_finished_ns=reports[0].last_finished_ns,
    )


CACHED_WARNING_SHARE = 0.05
LONG_WAIT_NS, LONG_WAIT_OF_TTFT, LONG_WAITS_SHARE = 10_000_000, 0.1, 0.01
"""The time until a request has left that is no long one, in nanoseconds and as a share of its own TTFT; and
the largest share of the requests that may take longer without a warning: beyond it P99 is another one."""
MOST_OF_OTHERS = 0.05
"""The share of the requests that the server finished during the loads that may be others' without a warning:
the end of what was sent before falls into a load, too."""

_REFUSED = re.compile(
    # llama.cpp; OpenAI and gateways that have its code; Anthropic; TensorRT-LLM; TGI
    r"exceed_context_size|context_length_exceeded|prompt is too long|exceeds max(?:imum)? input length"
    r"|inputs.{0,40}must be <= \d+"
    # vLLM, the embedded engine; SGLang; others that say it in words
    r"|maximum context length|longer than the model's context"
    r"|exceeds? the.{0,30}context (?:size|length|window)",
    re.IGNORECASE,
)
"""Pattern of the error texts of engines for it, as of 2026."""
TOO_LONG_REMEDY = "use a workload with shorter prompts, or start the server with a longer context"


def is_beyond_context(error: str | None) -> bool:
    """Whether the error text of a request says that it was longer than the context."""
    return bool(error and _REFUSED.search(error))


def beyond_context(records: Records) -> Finding | None:
    """The finding on requests refused for their length; None where none was."""
    refused = records.has_outcome(Outcome.HTTP_ERROR) | records.has_outcome(Outcome.IN_BAND_ERROR)
    if not refused.any():
        return None
    found = sum(is_beyond_context(error) for error, bad in zip(records.error, refused, strict=True) if bad)
    if not found:
        return None
    return Finding.of("beyond_context", value=found, limit=0, requests=len(records))


def prefix_cache_hits(seen: Sequence[Observation]) -> Finding | None:
    """The finding on input tokens that came from the prefix cache; None where nothing tells. Not of turns:
    they are to find their history there."""
    found = cached_input(seen, of_turns=False)
    if found is None or not found.asked:
        return None
    ok = found.share <= CACHED_WARNING_SHARE
    return Finding.of(
        "prefix_cache_hits", ok, found.share, CACHED_WARNING_SHARE, by_page=not found.by_replies
    )


def others_served(seen: Sequence[Observation]) -> Finding | None:
    """The finding on requests of others that the server finished during the loads, by the counter of its
    metrics page; None where it does not count, or they were few. Not of replies without output: engines count
    each text of a request."""
    finished = sent = 0.0
    for run in seen:
        counted = None if run.engine is None else run.engine.grown("requests_finished")
        if counted is not None and (run.records.output_tokens != MISSING).any():
            finished, sent = finished + counted, sent + len(run.records)
    others = finished - sent
    if others <= MOST_OF_OTHERS * finished:
        return None
    share = others / finished
    return Finding.of(
        "others_served", value=share, limit=MOST_OF_OTHERS, finished=int(finished), sent=int(sent)
    )


def model_loaded(records: Records) -> Finding | None:
    """How many requests waited for the model to be loaded; None where the server does not tell."""
    told = records.model_load_ns != MISSING
    if not told.any():
        return None
    cold = int(cold_starts(records).sum())
    longest_ms = int(records.model_load_ns.max()) / 1e6
    told_of, most = int(told.sum()), Amount(longest_ms, "ms")
    return Finding.of("model_loaded", cold == 0, cold, 0, requests=told_of, longest=most)


def taken_late(records: Records) -> Finding | None:
    """The finding on requests that waited long until their last byte had left: TTFT and E2E, which begin
    there (B.1), lack it. A server that is busy lets new connections and TLS wait first. None where they were
    few."""
    sent = (records.dispatched_ns != MISSING) & (records.submitted_ns != MISSING)
    waits_ns = np.where(sent, records.submitted_ns - records.dispatched_ns, 0)
    known = sent & (records.first_content_ns != MISSING)
    ttft_ns = np.where(known, records.first_content_ns - records.submitted_ns, 0)
    long = waits_ns > np.maximum(LONG_WAIT_NS, LONG_WAIT_OF_TTFT * ttft_ns)
    count = int(long.sum())
    share = count / len(records) if len(records) else 0.0
    if share <= LONG_WAITS_SHARE:
        return None
    return Finding.of(
        "taken_late",
        value=share,
        limit=LONG_WAITS_SHARE,
        count=count,
        requests=len(records),
        median=Amount(float(np.median(waits_ns[long])) / 1e6, "ms"),
        most=Amount(float(waits_ns.max()) / 1e6, "ms"),
    )
