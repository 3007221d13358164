"""The TTFT test: set-up, procedure, measurements and report (sections 5.1.2 to 5.1.5)."""

from __future__ import annotations

import re

from pytest_llmbench.compliance.checks.levels import warmup_precedes
from pytest_llmbench.compliance.checks.registry import Checks, at_least, figures, one_of, stated, tables
from pytest_llmbench.compliance.checks.workload import custom_fully_specified
from pytest_llmbench.compliance.evidence import (
    Answer,
    EvidenceView,
    NoEvidenceError,
    has,
    has_first_token,
    reported,
)
from pytest_llmbench.metrics.input_lengths import EDGES
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.facts import (
    COLD_START,
    GuardrailFact,
    LoadFact,
    SUTFact,
    TimingFact,
    WarmupFact,
    WorkloadFact,
)
from pytest_llmbench.model.numbers import duration, percentage, trimmed
from pytest_llmbench.model.plan import JUDGED

check = Checks()

P99_REQUESTS, P999_REQUESTS = SAMPLES_REQUIRED["p99"], SAMPLES_REQUIRED["p99_9"]
PERCENTILES = ("p50", "p90", "p95", "p99", "p99_9")
ARRIVALS = ("poisson", "uniform", "bursty")

check("M-5.1.2.2-load-model-defined")(one_of(LoadFact.MODEL, "open", "closed"))
check("M-5.1.3.1-ttft-kind-stated")(one_of(TimingFact.FIRST_TOKEN_KIND, "content", "any"))


@check("M-5.1.2.1-workload-defined")
def workload_defined(view: EvidenceView) -> Answer:
    name, standard = view.need_all(WorkloadFact.NAME, WorkloadFact.STANDARD)
    return view.met(f"reference workload {name}") if standard is True else custom_fully_specified(view)


@check("M-5.1.2.1-request-count-defined")
def request_count_defined(view: EvidenceView) -> Answer:
    wanted, measured = view.need(WorkloadFact.N_REQUESTS), len(view.records)
    view.note("measured_requests", measured)
    return view.answer(
        measured == wanted, f"{wanted} requests", f"{wanted} requests were defined, {measured} measured"
    )


def _measured(view: EvidenceView) -> dict[str, int]:
    view.note("measured_requests", len(view.records))
    return {"": len(view.records)}


def _samples(view: EvidenceView) -> dict[str, int]:
    samples = int(has_first_token(view.records).sum())
    view.note("samples", samples)
    return {"": samples}


check("M-5.1.2.1-request-count-p99")(at_least(P99_REQUESTS, "requests", _measured))
check("M-5.1.2.1-request-count-p999")(at_least(P999_REQUESTS, "requests", _measured))


@check("M-5.1.2.2-open-loop-params")
def open_loop_parameters(view: EvidenceView) -> Answer:
    rate, arrival = view.need_all(LoadFact.RATE_RPS, LoadFact.ARRIVAL)
    if arrival == "bursty":
        view.need(LoadFact.BURSTINESS)
    return view.answer(
        rate > 0 and arrival in ARRIVALS,
        f"{arrival} at {trimmed(rate)} req/s",
        f"{arrival!r} at {trimmed(rate)} req/s is not a load",
    )


@check("M-5.1.2.2-closed-loop-params")
def closed_loop_parameters(view: EvidenceView) -> Answer:
    concurrency = view.need(LoadFact.CONCURRENCY)
    return view.answer(
        concurrency >= 1, f"{concurrency} in flight", f"{concurrency!r} in flight is not a load"
    )


@check("M-5.1.2.2-poisson-required")
def poisson_required(view: EvidenceView) -> Answer:
    """This run has Poisson arrivals, or another result in the report with equal test, SUT, workload and rate
    has (AMB-05)."""
    arrival, rate, name = view.need_all(LoadFact.ARRIVAL, LoadFact.RATE_RPS, WorkloadFact.NAME)
    if arrival == "poisson":
        return view.met("Poisson arrivals")
    wanted = {LoadFact.ARRIVAL: "poisson", LoadFact.RATE_RPS: rate, WorkloadFact.NAME: name}
    same = [
        sibling
        for sibling in view.evidence.others(view.evidence.test)
        if all(sibling.facts.value(key) == value for key, value in wanted.items())
    ]
    return view.answer(
        bool(same),
        "a Poisson run at this rate is in the report",
        f"{arrival} arrivals, and no Poisson run at this rate",
    )


@check("P-5.1.3-run-to-count")
def run_to_count(view: EvidenceView) -> Answer:
    wanted, measured = view.need(WorkloadFact.N_REQUESTS), len(view.records)
    stops = [run.interrupted for run in view.runs if run.interrupted is not None]
    view.note("measured_requests", measured)
    view.note("interrupted", stops)
    if stops:
        return view.unmet(f"cut short: {'; '.join(stops)}")
    if measured < wanted:
        return view.unmet(f"{measured} of {wanted} requests")
    if view.fact(COLD_START) is True:
        return view.met(f"{measured} requests from a cold start")
    return view.answer(
        warmup_precedes(view),
        f"warm-up, then all {measured} requests",
        "the warm-up did not end before the load began",
    )


@check("P-5.1.3.1-first-content-token")
def first_content_token(view: EvidenceView) -> Answer:
    """Proved by a test; a content instant ahead of the first output of any kind contradicts it."""
    proved, kind = view.capability("first_token_kind"), view.need(TimingFact.FIRST_TOKEN_KIND)
    if (proved, kind) != ("content", "content"):
        return view.unmet(f"TTFT runs to the first token of kind {kind!r}, not to the first content token")
    records = view.records
    both = has(records.first_content_ns) & has(records.first_nonempty_ns)
    wrong = both & (records.first_content_ns < records.first_nonempty_ns)
    return view.no_record(wrong, "the first content token", "have content before any output")


@check("M-5.1.3.1-noncontent-noted")
def noncontent_noted(view: EvidenceView) -> Answer:
    noted = view.need(TimingFact.NONCONTENT_SHARE)
    return view.answer(
        noted > 0,
        f"{percentage(noted)} of the requests sent non-content output first",
        "requests sent non-content output first, and none is noted",
    )


@check("M-5.1.4.1-percentiles")
def percentiles(view: EvidenceView) -> Answer:
    """All five, of samples enough to report them (AMB-01)."""
    missing = [name for name in PERCENTILES if not reported(view.result, name)]
    return view.answer(not missing, "all five percentiles reported", f"not reported: {', '.join(missing)}")


check("P-5.1.3-ttft-formula")(figures("ttft.min", "ttft.max"))
check("P-5.1.4.1-mean-min-max")(figures("ttft.mean", "ttft.min", "ttft.max"))


check("P-5.1.4.3-sample-floor")(
    at_least(P999_REQUESTS, f"TTFT samples (P99 alone needs {P99_REQUESTS})", _samples)
)


@check("M-5.1.4.3-sample-count-stated")
def sample_count_stated(view: EvidenceView) -> Answer:
    count = view.metric("ttft.p50").n
    return view.answer(count > 0, f"{count} samples", "the number of samples is not stated")


@check("P-5.1.4.2-queue-and-prefill")
def queue_and_prefill(view: EvidenceView) -> Answer:
    """Components of TTFT that the server exposes are metrics of their own."""
    exposed = [name for name in view.fact(TimingFact.SERVER_SIDE, []) if name in ("queue_wait", "prefill")]
    absent = [
        name
        for name in exposed
        if not any(metric.startswith(f"ttft_{name}.") for metric in view.result.metrics)
    ]
    return view.answer(
        not absent, f"{', '.join(exposed)} reported", f"exposed but not reported: {', '.join(absent)}"
    )


_METRIC = re.compile(r"ttft\[(?P<label>[^\]]+)\]\.(?P<statistic>\w+)")
_LOWER_EDGE = re.compile(r"\D*(\d+)")


def _buckets(view: EvidenceView) -> dict[str, set[str]]:
    """Label of each bucket → the statistics that are defined for it."""
    found: dict[str, set[str]] = {}
    for name, estimate in view.result.metrics.items():
        match = _METRIC.fullmatch(name)
        if match and JUDGED not in match["label"] and estimate.point is not None:
            found.setdefault(match["label"], set()).add(match["statistic"])
    if not found:
        raise NoEvidenceError("TTFT per input-length bucket")
    view.note("buckets", sorted(found, key=_lower_edge))
    return found


def _lower_edge(label: str) -> int:
    match = _LOWER_EDGE.match(label)
    return int(match[1]) if match else -1


@check("P-5.1.4.2-by-input-length")
def by_input_length(view: EvidenceView) -> Answer:
    buckets = _buckets(view)
    poor = [label for label, statistics in buckets.items() if not {"p50", "p95", "p99"} <= statistics]
    return view.answer(not poor, f"{len(buckets)} buckets", f"P50, P95 or P99 missing for {', '.join(poor)}")


@check("S-5.1.4.2-buckets")
def advised_buckets(view: EvidenceView) -> Answer:
    used = {_lower_edge(label) for label in _buckets(view)}
    return view.answer(
        used <= set(EDGES), "the advised buckets", f"buckets start at {sorted(used - set(EDGES))}"
    )


check("M-5.1.5.3-input-length-table")(tables("ttft_by_input_length"))
check("S-5.1.5.2-tabular")(tables("ttft_results"))


# The configuration summary. Its words are made of these facts.

check("M-5.1.5.1-sut-boundary")(stated(SUTFact.BOUNDARY))
check("M-5.1.5.1-prefix-caching")(stated(SUTFact.PREFIX_CACHING))
check("M-5.1.5.1-guardrails")(stated(GuardrailFact.INPUT_FILTER, GuardrailFact.OUTPUT_FILTER))


@check("M-5.1.5.1-model-hardware")
def model_and_hardware(view: EvidenceView) -> Answer:
    undisclosed = view.fact(SUTFact.HARDWARE_DISCLOSED) is False
    hardware = "undisclosed hardware" if undisclosed else view.need(SUTFact.ACCELERATOR_TYPE)
    return view.met(f"{view.need(SUTFact.MODEL_NAME)} on {hardware}")


@check("M-5.1.5.1-workload")
def workload(view: EvidenceView) -> Answer:
    """Name and seed of a reference workload, the length laws of a custom one."""
    name, seed = view.need_all(WorkloadFact.NAME, WorkloadFact.SEED)
    if view.fact(WorkloadFact.STANDARD) is not True:
        view.need_fields(WorkloadFact.INPUT_LENGTH, "type")
    return view.met(f"{name}, seed {seed}")


@check("M-5.1.5.1-load")
def load(view: EvidenceView) -> Answer:
    model = view.need(LoadFact.MODEL)
    amount = view.need(LoadFact.RATE_RPS if model == "open" else LoadFact.CONCURRENCY)
    return view.met(f"{model} loop, {trimmed(amount)}")


@check("M-5.1.5.1-count-duration")
def count_and_duration(view: EvidenceView) -> Answer:
    count, seconds = len(view.records), sum(run.duration_s for run in view.runs)
    return view.answer(seconds > 0, f"{count} requests, {duration(seconds)}", "the runs have no duration")


@check("M-5.1.5.1-warmup")
def warmup(view: EvidenceView) -> Answer:
    """Requests, output tokens, drain and probes; a cold start has none."""
    if view.fact(WarmupFact.PERFORMED) is False:
        return view.met("no warm-up")
    requests, tokens, *_ = view.need_all(
        WarmupFact.REQUESTS_OK, WarmupFact.OUTPUT_TOKENS, WarmupFact.DRAINED, WarmupFact.PROBES_AFTER_MS
    )
    return view.met(f"{requests} requests, {tokens} output tokens")


@check("S-5.1.5.4-distribution-plot")
def distribution_plot(view: EvidenceView) -> Answer:
    return view.curve("ttft_cdf", "ttft_histogram")
