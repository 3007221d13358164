"""The TTFT test: set-up, procedure, measurements and report (sections 5.1.2 to 5.1.5)."""

from __future__ import annotations

import re

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks, one_of
from pytest_llmbench.compliance.checks.warmup import warmup_precedes
from pytest_llmbench.compliance.checks.workload import custom_fully_specified
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.stored import (
    first_output_before_content,
    has,
    has_first_token,
    reported,
    row_of,
)
from pytest_llmbench.model.plan import JUDGED

check = Checks()

P99_REQUESTS, P999_REQUESTS = 1_000, 10_000
PERCENTILES = ("p50", "p90", "p95", "p99", "p99_9")
ARRIVALS = ("poisson", "uniform", "bursty")
SHARE_TOLERANCE = 0.005
FORMULA_TOLERANCE_MS = 1e-3

check("M-5.1.2.2-load-model-defined")(one_of("load.model", "open", "closed"))
check("M-5.1.3.1-ttft-kind-stated")(one_of("timing.first_token_kind", "content", "any"))


@check("M-5.1.2.1-workload-defined")
def workload_defined(view: EvidenceView) -> Answer:
    name, standard = view.need_all("workload.name", "workload.standard")
    return view.met(f"reference workload {name}") if standard is True else custom_fully_specified(view)


@check("M-5.1.2.1-request-count-defined")
def request_count_defined(view: EvidenceView) -> Answer:
    wanted, measured = view.need("workload.n_requests"), len(view.records)
    view.note("measured_requests", measured)
    return view.answer(
        measured == wanted, f"{wanted} requests", f"{wanted} requests were defined, {measured} measured"
    )


def _enough_requests(view: EvidenceView, needed: int) -> Answer:
    measured = len(view.records)
    view.note("measured_requests", measured)
    return view.answer(
        measured >= needed, f"{measured} requests", f"{measured} requests, {needed} are needed"
    )


@check("M-5.1.2.1-request-count-p99")
def requests_for_p99(view: EvidenceView) -> Answer:
    return _enough_requests(view, P99_REQUESTS)


@check("M-5.1.2.1-request-count-p999")
def requests_for_p999(view: EvidenceView) -> Answer:
    return _enough_requests(view, P999_REQUESTS)


@check("M-5.1.2.2-open-loop-params")
def open_loop_parameters(view: EvidenceView) -> Answer:
    rate, arrival = view.need_all("load.rate_rps", "load.arrival")
    if arrival == "bursty":
        view.need("load.burstiness")
    return view.answer(
        rate > 0 and arrival in ARRIVALS,
        f"{arrival} at {rate:g} req/s",
        f"{arrival!r} at {rate!r} req/s is no load",
    )


@check("M-5.1.2.2-closed-loop-params")
def closed_loop_parameters(view: EvidenceView) -> Answer:
    concurrency = view.need("load.concurrency")
    return view.answer(concurrency >= 1, f"{concurrency} in flight", f"{concurrency!r} in flight is no load")


@check("M-5.1.2.2-poisson-required")
def poisson_required(view: EvidenceView) -> Answer:
    """This run has Poisson arrivals, or another result in the report with equal test, SUT, workload and rate
    has (AMB-05)."""
    arrival, rate, name = view.need_all("load.arrival", "load.rate_rps", "workload.name")
    if arrival == "poisson":
        return view.met("Poisson arrivals")
    wanted = {"load.arrival": "poisson", "load.rate_rps": rate, "workload.name": name}
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


@check("P-5.1.3-ttft-formula")
def ttft_formula(view: EvidenceView) -> Answer:
    """Smallest and largest TTFT are computed once more from the stored instants."""
    records = view.records
    valid = has_first_token(records)
    ttft_ms = (records.first_content_ns - records.submitted_ns)[valid] / 1e6
    if not len(ttft_ms):
        return view.unmet("no evidence: a request with T_submit and T_first")
    for name, again in (("ttft.min", float(ttft_ms.min())), ("ttft.max", float(ttft_ms.max()))):
        point = view.metric(name).point
        view.note(f"{name}.from_records", again)
        if again < 0 or point is None or abs(point - again) > FORMULA_TOLERANCE_MS:
            return view.unmet(f"{name} is {point} ms, T_first - T_submit gives {again} ms")
    return view.met(f"T_first - T_submit of {len(ttft_ms)} requests")


@check("P-5.1.3-run-to-count")
def run_to_count(view: EvidenceView) -> Answer:
    wanted, measured = view.need("workload.n_requests"), len(view.records)
    stops = [run.interrupted for run in view.runs if run.interrupted is not None]
    view.note("measured_requests", measured)
    view.note("interrupted", stops)
    if stops:
        return view.unmet(f"cut short: {'; '.join(stops)}")
    if measured < wanted:
        return view.unmet(f"{measured} of {wanted} requests")
    if view.fact("cold_start") is True:
        return view.met(f"{measured} requests from a cold start")
    return view.answer(
        warmup_precedes(view),
        f"warm-up, then all {measured} requests",
        "the warm-up did not end before the load began",
    )


@check("P-5.1.3.1-first-content-token")
def first_content_token(view: EvidenceView) -> Answer:
    """Proved by a test; a content instant ahead of the first output of any kind contradicts it."""
    proved, kind = view.capability("first_token_kind"), view.need("timing.first_token_kind")
    if (proved, kind) != ("content", "content"):
        return view.unmet(f"TTFT runs to the first token of kind {kind!r}, not to the first content token")
    records = view.records
    both = has(records.first_content_ns) & has(records.first_nonempty_ns)
    wrong = int((both & (records.first_content_ns < records.first_nonempty_ns)).sum())
    view.note("contradicting_records", wrong)
    return view.answer(
        wrong == 0, "the first content token", f"{wrong} records have content before any output"
    )


@check("M-5.1.3.1-noncontent-noted")
def noncontent_noted(view: EvidenceView) -> Answer:
    noted = view.need("timing.noncontent_share")
    records = view.records
    affected = int(first_output_before_content(records).sum())
    share = affected / max(int(has_first_token(records).sum()), 1)
    view.note("share_from_records", share)
    return view.answer(
        abs(noted - share) <= SHARE_TOLERANCE,
        f"{share:.1%} of the requests sent non-content output first, as noted",
        f"{share:.1%} of the requests sent non-content output first, the report says {noted:.1%}",
    )


@check("M-5.1.4.1-percentiles")
def percentiles(view: EvidenceView) -> Answer:
    """All five, defined and shown as numbers (AMB-01)."""
    missing = [name for name in PERCENTILES if not reported(view.result, name)]
    for name in PERCENTILES:
        view.note(
            f"ttft.{name}",
            row_of(view.result, name) or getattr(view.result.metrics.get(f"ttft.{name}"), "point", None),
        )
    return view.answer(not missing, "all five percentiles reported", f"not reported: {', '.join(missing)}")


@check("P-5.1.4.1-mean-min-max")
def mean_min_max(view: EvidenceView) -> Answer:
    mean, low, high = (view.metric(f"ttft.{name}").point for name in ("mean", "min", "max"))
    return view.met(f"mean {mean:.3f} ms, {low:.3f} to {high:.3f} ms")


@check("P-5.1.4.3-sample-floor")
def sample_floor(view: EvidenceView) -> Answer:
    samples = int(has_first_token(view.records).sum())
    view.note("samples", samples)
    return view.answer(
        samples >= P999_REQUESTS,
        f"{samples} samples",
        f"{samples} samples; P99 needs {P99_REQUESTS}, P99.9 needs {P999_REQUESTS}",
    )


@check("M-5.1.4.3-sample-count-stated")
def sample_count_stated(view: EvidenceView) -> Answer:
    stated, samples = view.metric("ttft.p50").n, int(has_first_token(view.records).sum())
    view.note("stated", stated)
    view.note("samples", samples)
    return view.answer(
        stated == samples, f"{stated} samples", f"{stated} samples stated, {samples} in the records"
    )


@check("P-5.1.4.2-queue-and-prefill")
def queue_and_prefill(view: EvidenceView) -> Answer:
    """Components of TTFT that the server exposes are metrics of their own, or said not to be measurable."""
    exposed = [name for name in view.fact("timing.server_side", []) if name in ("queue_wait", "prefill")]
    absent = [
        name
        for name in exposed
        if not any(metric.startswith(f"ttft_{name}.") for metric in view.result.metrics)
    ]
    said = [note for note in view.result.notes if "not measurable" in note]
    return view.answer(
        not absent or bool(said),
        f"{', '.join(exposed)} reported",
        f"exposed but not reported: {', '.join(absent)}",
    )


EDGES = (0, 256, 512, 1024, 2048, 4096)
"""Half-open buckets, the last one open-ended; empty ones are omitted (AMB-04)."""
_METRIC = re.compile(r"ttft\[(?P<label>[^\]]+)\]\.(?P<statistic>\w+)")
_LOWER_EDGE = re.compile(r"\D*(\d+)")
_COLUMNS = ("Input Tokens", "P50", "P95", "P99")


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
    if poor:
        return view.unmet(f"P50, P95 or P99 missing for {', '.join(poor)}")
    counted = sum(view.result.metrics[f"ttft[{label}].p50"].n for label in buckets)
    samples = int((has_first_token(view.records) & has(view.records.input_tokens)).sum())
    view.note("samples_in_buckets", counted)
    return view.answer(
        counted == samples,
        f"{len(buckets)} buckets",
        f"the buckets hold {counted} samples, the records {samples}: a bucket is missing",
    )


@check("S-5.1.4.2-buckets")
def advised_buckets(view: EvidenceView) -> Answer:
    records = view.records
    lengths = records.input_tokens[has_first_token(records) & has(records.input_tokens)]
    advised = {EDGES[i] for i in np.searchsorted(EDGES, lengths, side="right") - 1}
    used = {_lower_edge(label) for label in _buckets(view)}
    return view.answer(
        used == advised,
        "the advised buckets",
        f"buckets start at {sorted(used)}, the advised ones that are not empty at {sorted(advised)}",
    )


@check("M-5.1.5.3-input-length-table")
def input_length_table(view: EvidenceView) -> Answer:
    table = view.table("ttft_by_input_length")
    missing = [name for name in _COLUMNS if not any(column.startswith(name) for column in table.columns)]
    return view.answer(
        not missing and bool(table.rows),
        f"{len(table.rows)} rows",
        f"the table lacks {', '.join(missing) or 'rows'}",
    )


_ROWS = ("Requests", "p50", "p90", "p95", "p99", "p99_9", "mean", "min", "max")
_SEPARATOR = re.compile("(?<=\\d)[,_ '\u00a0\u202f](?=\\d{3})")
_DURATION = re.compile(r"\d\s*(s|min|h)\b")


def _shows(view: EvidenceView, item: str, *wanted: object) -> Answer:
    """The summary's item names every one of the wanted values, numbers as whole numbers."""
    text = _SEPARATOR.sub("", view.configuration(item)).lower()
    absent = [str(value) for value in wanted if not re.search(_as_word(str(value).lower()), text)]
    return view.answer(
        not absent, f"the summary shows: {item}", f"{item}: the summary does not show {', '.join(absent)}"
    )


def _as_word(value: str) -> str:
    return rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)"


@check("M-5.1.5.1-sut-boundary")
def boundary(view: EvidenceView) -> Answer:
    components = view.fact("sut.components", [])
    words = (
        str(view.need("sut.boundary")).removesuffix("_system").removeprefix("application_").replace("_", " ")
    )
    return _shows(view, "SUT configuration and boundary", words, *components)


@check("M-5.1.5.1-model-hardware")
def model_and_hardware(view: EvidenceView) -> Answer:
    undisclosed = view.fact("sut.hardware.disclosed") is False
    hardware = "undisclosed" if undisclosed else view.need("sut.hardware.accelerator_type")
    return _shows(view, "Model and hardware", view.need("sut.model.name"), hardware)


@check("M-5.1.5.1-workload")
def workload(view: EvidenceView) -> Answer:
    """Name and seed of a reference workload, the length laws of a custom one."""
    wanted = [view.need("workload.name")]
    if view.fact("workload.standard") is not True:
        (kind,) = view.need_fields("workload.input_length", "type")
        wanted.append(kind)
    return _shows(view, "Workload", *wanted)


@check("M-5.1.5.1-load")
def load(view: EvidenceView) -> Answer:
    model = view.need("load.model")
    if model == "open":
        return _shows(view, "Load model", "open", f"{view.need('load.rate_rps'):g}")
    return _shows(view, "Load model", model, view.need("load.concurrency"))


@check("M-5.1.5.1-count-duration")
def count_and_duration(view: EvidenceView) -> Answer:
    item = "Request count and test duration"
    if not _DURATION.search(view.configuration(item)):
        return view.unmet("the summary shows no duration")
    return _shows(view, item, len(view.records))


@check("M-5.1.5.1-warmup")
def warmup(view: EvidenceView) -> Answer:
    """Requests, output tokens, drain and probes; a cold start says that there was none."""
    if view.fact("warmup.performed") is False:
        return _shows(view, "Warm-up", "no warm-up")
    requests_ok, output_tokens = view.need_all("warmup.requests_ok", "warmup.output_tokens")
    return _shows(view, "Warm-up", requests_ok, output_tokens, "drained", "probes")


@check("M-5.1.5.1-prefix-caching")
def prefix_caching(view: EvidenceView) -> Answer:
    return _shows(view, "Prefix caching", view.need("sut.prefix_caching"))


@check("M-5.1.5.1-guardrails")
def guardrails(view: EvidenceView) -> Answer:
    input_filter, output_filter = view.need_all("guardrails.input_filter", "guardrails.output_filter")
    return _shows(view, "Guardrails", f"input filter {input_filter}", f"output filter {output_filter}")


@check("S-5.1.5.2-tabular")
def tabular(view: EvidenceView) -> Answer:
    view.table("ttft_results")
    missing = [name for name in _ROWS if row_of(view.result, name) is None]
    return view.answer(not missing, "results as a table", f"rows missing: {', '.join(missing)}")


@check("S-5.1.5.4-distribution-plot")
def distribution_plot(view: EvidenceView) -> Answer:
    plot = view.plot("ttft_cdf", "ttft_histogram")
    points = max((len(x) for x, _ in plot.series.values()), default=0)
    return view.answer(points > 1, f"{plot.id} with {points} points", f"{plot.id} has no points")
