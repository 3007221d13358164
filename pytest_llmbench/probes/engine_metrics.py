"""The serving engine's own metrics page, read around and during a run (section 5.8, AMB-14).

Of a page the figures are kept, not the text: an hour of load is as long in memory as a minute, but for four
numbers a second.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from pytest_llmbench.errors import SUTError
from pytest_llmbench.http_client import http_beside
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.observation import ACCEPTED_AT, GAUGES, EngineReadings, is_total, of_label
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import Answer, Closing, ControlPlane, without_query
from pytest_llmbench.probes.model_list import below

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

PATHS = ("/metrics", "/metrics/", "/prometheus/metrics")
"""Paths of metrics pages below the root of the server: most engines; those that redirect there;
TensorRT-LLM."""
PATIENCE_S = 5.0
"""Longest wait for one page, in seconds."""

_MOST_BYTES = 512 * 1024
"""Size of a page from which on it counts as incomplete: the control plane reads no more of an answer."""
_MOST_PARTS = 64
"""Most values of a label that are told apart; a server may have as many as requests."""
_SHARDS = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
"""Labels of the parts of one engine, each of which repeats the figure of all of them together."""
_MAX_NUM_SEQS = "max_num_seqs"


def _histogram(name: str, series: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}_s": (f"{series}_sum",), f"{name}_count": (f"{series}_count",)}


Series = Mapping[str, tuple[str, ...]]
ENGINES: Mapping[str, Series] = {
    "vLLM": {
        "running": ("vllm_num_requests_running",),
        "waiting": ("vllm_num_requests_waiting",),
        "kv_use": ("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc"),
        "preemptions": ("vllm_num_preemptions",),
        "critical_evictions": ("vllm_critical_evictions",),  # of the embedded engine; vLLM knows no phases
        "prefix_queries_tokens": ("vllm_prefix_cache_queries",),
        "prefix_hits_tokens": ("vllm_prefix_cache_hits",),
        "prompt_tokens": ("vllm_prompt_tokens",),
        "generated_tokens": ("vllm_generation_tokens",),
        "requests_finished": ("vllm_request_success",),
        **_histogram("queue_wait", "vllm_request_queue_time_seconds"),
        **_histogram("prefill", "vllm_request_prefill_time_seconds"),
        **_histogram("decode", "vllm_request_decode_time_seconds"),
        **_histogram("kv_transfer", "vllm_nixl_xfer_time_seconds"),
        "drafts": ("vllm_spec_decode_num_drafts",),
        "draft_tokens": ("vllm_spec_decode_num_draft_tokens",),
        "accepted_draft_tokens": ("vllm_spec_decode_num_accepted_tokens",),
        ACCEPTED_AT: ("vllm_spec_decode_num_accepted_tokens_per_pos{position}",),
        # vLLM itself has no such series for its batch; the embedded engine adds one.
        _MAX_NUM_SEQS: (f"vllm_scheduler_config_info{{{_MAX_NUM_SEQS}}}",),
    },
    "SGLang": {
        "running": ("sglang_num_running_reqs",),
        "waiting": ("sglang_num_queue_reqs",),
        "kv_use": ("sglang_token_usage",),
        # Not num_retracted_reqs, which is a gauge of the last batch.
        "preemptions": ("sglang_num_retracted_requests",),
        "prefix_queries_tokens": ("sglang_prompt_tokens",),
        "prefix_hits_tokens": ("sglang_cached_tokens",),
        "prompt_tokens": ("sglang_prompt_tokens",),
        "generated_tokens": ("sglang_generation_tokens",),
        "requests_finished": ("sglang_num_requests",),
        **_histogram("queue_wait", "sglang_queue_time_seconds"),
        "drafts": ("sglang_spec_verify_calls",),
        "acceptance_length": ("sglang_spec_accept_length",),
        # The whole prefill: it begins as a request is first scheduled. chunked_prefill, which is counted at
        # the end of each chunk but the last, lies within it.
        "prefill_s": ("sglang_per_stage_req_latency_seconds_sum{stage}prefill_forward",),
        "prefill_count": ("sglang_per_stage_req_latency_seconds_count{stage}prefill_forward",),
    },
    "TensorRT-LLM": {
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        "kv_use": ("trtllm_kv_cache_utilization",),
        "prefix_queries_tokens": ("trtllm_prompt_tokens",),
        "prefix_hits_tokens": ("trtllm_prompt_cached_tokens",),
        "prompt_tokens": ("trtllm_prompt_tokens",),
        "generated_tokens": ("trtllm_generation_tokens",),
        "requests_finished": ("trtllm_request_success",),
        _MAX_NUM_SEQS: ("trtllm_max_num_active_requests",),
        **_histogram("queue_wait", "trtllm_request_queue_time_seconds"),
        **_histogram("prefill", "trtllm_request_prefill_time_seconds"),
        # Those by place, counted as a request ends, are of the same drafts as the number of drafts; else of
        # each iteration.
        "draft_tokens": ("trtllm_spec_decode_drafted_tokens", "trtllm_spec_decode_num_draft_tokens"),
        "accepted_draft_tokens": (
            "trtllm_spec_decode_accepted_tokens",
            "trtllm_spec_decode_num_accepted_tokens",
        ),
        # The latter is 0 in the PyTorch backend.
        "acceptance_length": ("trtllm_spec_decode_acceptance_length", "trtllm_avg_decoded_tokens_per_iter"),
        ACCEPTED_AT: ("trtllm_spec_decode_accepted_tokens{token_position}",),
        "drafts": ("trtllm_spec_decode_drafted_tokens{token_position}0",),  # each has a first token
    },
    "llama.cpp": {
        "running": ("llamacpp_requests_processing",),
        "waiting": ("llamacpp_requests_deferred",),
        "kv_use": ("llamacpp_kv_cache_usage_ratio",),
        "prompt_tokens": ("llamacpp_prompt_tokens",),
        "generated_tokens": ("llamacpp_tokens_predicted",),
        "prefill_s": ("llamacpp_prompt_seconds",),
        "decode_s": ("llamacpp_tokens_predicted_seconds",),
        "drafts": ("llamacpp_spec_decode_num_drafts",),
        "draft_tokens": ("llamacpp_spec_decode_num_draft_tokens",),
        "accepted_draft_tokens": ("llamacpp_spec_decode_num_accepted_tokens",),
        ACCEPTED_AT: ("llamacpp_spec_decode_num_accepted_tokens_per_pos{position}",),
    },
}
"""Engine → our name → its series, of which the first that exists counts. Keys as :func:`series_key` makes
them; of ``series{label}`` each value of the label is a part of its own, of ``series{label}value`` that one is
meant."""

_MEANS = ("kv_use", "acceptance_length")
"""Gauges of which the engines of a page have a mean, not a sum."""

_KEYS = {
    name: {series.partition("{")[0] for several in table.values() for series in several}
    for name, table in ENGINES.items()
}
_ALL_KEYS = frozenset[str]().union(*_KEYS.values())


def series_key(name: str) -> str:
    """The name of a series without what exporters and relays change: ``vllm:x_total`` → ``vllm_x``."""
    return name.replace(":", "_").removesuffix("_total")


def server_root(base_url: str) -> str:
    """The HTTP root of the server, ``base_url`` without the API's version: where engines have pages that are
    not of the API."""
    parts = urlsplit(http_beside(base_url.strip()))
    path = parts.path.rstrip("/")
    root, _, last = path.rpartition("/")
    versioned = last.startswith("v") and last[1:2].isdigit()
    return parts._replace(path=root if versioned else path, fragment="").geturl()


def page_urls(base_url: str) -> list[str]:
    """The URLs that the metrics page of an API at ``base_url`` (``…/v1``) may have, most likely first."""
    return [below(server_root(base_url), path) for path in PATHS]


def read_page(text: str, declared: Mapping[str, str] | None = None) -> dict[str, float]:
    """The known series of a page in Prometheus's text format, by our names; empty if it has none of them.

    ``declared``: further series of this page, by our names; of ``series{label}`` each value of the label is a
    part of its own (:func:`of_label`).
    Of several label sets (replicas of the engine, finish reasons) counters and gauges are summed; a share in
    use is averaged. Raises ValueError for a known series that cannot be read.
    """
    samples: dict[str, list[Sample]] = {}
    own_keys = {}
    for name, declaration in (declared or {}).items():
        series, brace, label = declaration.partition("{")
        own_keys[name] = series_key(series), brace + label
    for sample in samples_of(text, _ALL_KEYS | {key for key, _ in own_keys.values()}):
        samples.setdefault(series_key(sample.name), []).append(sample)
    engine = next((name for name in ENGINES if _KEYS[name] & samples.keys()), None)
    values: dict[str, float] = {}
    for name, several in ENGINES[engine].items() if engine is not None else ():
        values |= next(filter(None, (_values(name, series, samples) for series in several)), {})
    for name, (key, label) in own_keys.items():
        values.pop(name, None)
        values |= _values(name, key + label, samples)
    return values


def _values(name: str, series: str, samples: Mapping[str, Sequence[Sample]]) -> dict[str, float]:
    """The figure of a series, or one for each value of its label; empty where the page has none."""
    key, _, rest = series.partition("{")
    label, _, meant = rest.partition("}")
    held = samples.get(key, ())
    if name == label == _MAX_NUM_SEQS:  # a setting stands in a label of a series whose value is always 1
        told = [sample.labels[label] for sample in held if label in sample.labels]
        return {name: math.fsum(map(float, told))} if told else {}
    parts: dict[str, list[Sample]] = {}
    for sample in held:
        value = sample.labels.get(label, "")
        if not label or (value and meant in ("", value)):
            part = of_label(name, value) if label and not meant else name
            parts.setdefault(part, []).append(sample)
    found = {}
    for part, own in islice(parts.items(), _MOST_PARTS):
        each = _one_per_engine(own)
        found[part] = math.fsum(each) / len(each) if name in _MEANS else math.fsum(each)
    return found


def samples_of(text: str, keys: Set[str]) -> Iterator[Sample]:
    """The samples of the series with these :func:`series_key`. Pages are long and mostly buckets, so only the
    lines of these are parsed. Raises ValueError for one that cannot be read."""
    # Imported here: the first request does not wait for it.
    from prometheus_client.parser import text_string_to_metric_families

    for line in text.splitlines():
        key = series_key(line.partition("{")[0].partition(" ")[0])
        if line[:1] != "#" and key in keys:
            for family in text_string_to_metric_families(f"{line}\n"):
                yield from family.samples


def _one_per_engine(samples: Sequence[Sample]) -> list[float]:
    """One value per engine; for engines that are split over devices that of the first part."""
    first: dict[tuple[tuple[str, str], ...], tuple[list[str], float]] = {}
    for sample in samples:
        engine = tuple(sorted(item for item in sample.labels.items() if item[0] not in _SHARDS))
        part = [sample.labels.get(label, "").rjust(8) for label in _SHARDS]
        if engine not in first or part < first[engine][0]:
            first[engine] = (part, sample.value)
    return [value for _, value in first.values()]


class _Kept:
    """The figures from the pages, and how many pages did not come."""

    def __init__(self) -> None:
        self.at_ns = array("q")
        self.gauges = {name: array("d") for name in GAUGES}
        """Gauge → its values; NaN where a page lacked it."""
        self.served: set[str] = set()
        """Gauges that at least one page had."""
        self.first: Mapping[str, float] = {}
        self.last: Mapping[str, float] = {}
        self.missed = 0
        self.first_missed: tuple[int, str] | None = None
        """The instant of the first page that did not come, and the reason; None if all came."""

    def take(self, at_ns: int, values: Mapping[str, float]) -> None:
        self.first, self.last = self.first or values, values
        self.at_ns.append(at_ns)
        self.served.update(name for name in GAUGES if name in values)
        for name, series in self.gauges.items():
            series.append(values.get(name, math.nan))

    def miss(self, at_ns: int, reason: str) -> None:
        self.missed += 1
        self.first_missed = self.first_missed or (at_ns, reason)


class EngineMetricsProbe(Closing):
    """Watches one metrics page: :meth:`before` the load, :meth:`start`, and :meth:`stop` after it; again for
    the next load.

    ``url`` is the page, or several that it may be at (:func:`page_urls`). ``declared`` names further series,
    by our names. ``monotonic_ns`` is the clock of the records: the instant of a page is halfway between the
    question and the answer.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        access: Access | None = None,
        *,
        interval_s: float = 1.0,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        access = Access() if access is None else access
        connect_s, answer_s = min(PATIENCE_S, access.connect_s), min(PATIENCE_S, access.answer_s)
        self._urls = [url] if isinstance(url, str) else list(url)
        self._control = ControlPlane(self._urls[0], replace(access, connect_s=connect_s, answer_s=answer_s))
        self._declared = dict(declared or {})
        self._interval_ns = round(interval_s * 1e9)
        self._now = monotonic_ns
        self._page_url: str | None = None
        self._kept = _Kept()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.absent: str | None = None
        """Why there is nothing to read, found by :meth:`before`, for ``not measurable``; None if there is a
        page."""

    def close(self) -> None:
        self._end_thread()
        self._control.close()

    def before(self) -> str | None:
        """Read the counters before the load. Returns why there is no page; ``None`` if there is one."""
        self._end_thread()
        self._page_url, self.absent = None, None
        reasons = []
        for url in self._urls:
            self._kept = _Kept()
            reason = self._fetch(url)
            if reason is None:
                self._page_url = url
                return None
            reasons.append(f"{without_query(url)}: {reason}")
        self.absent = "no metrics page of the engine: " + "; ".join(reasons)
        return self.absent

    def start(self) -> None:
        """Start to watch the page in a thread; does nothing where there is no page."""
        if self._page_url is None or self._thread is not None:
            return
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._watch, args=[self._page_url], name="llmbench-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> EngineReadings | None:
        """End the watching and read the counters once more; returns the readings, ``None`` without a page."""
        self._end_thread()
        url = self._page_url
        if url is None:
            return None
        at_the_end = self._fetch(url)
        self._page_url = None
        return _readings(self._kept, without_query(url), at_the_end)

    def _watch(self, url: str) -> None:
        due_ns = self._now()
        while not self._stopping.wait(max(0, due_ns - self._now()) / 1e9):
            self._fetch(url)
            due_ns = max(due_ns + self._interval_ns, self._now())

    def _fetch(self, url: str) -> str | None:
        """Read a page and keep its figures. Returns why there is none; ``None`` if there is one."""
        asked_ns = self._now()
        answer: Answer | SUTError
        try:
            answer = self._control.get(url)
        except SUTError as error:
            answer = error
        now_ns = self._now()
        values, reason = _read(answer, self._declared)
        if reason is None:
            self._kept.take((asked_ns + now_ns) // 2, values)
        else:
            self._kept.miss(now_ns, reason)
        return reason

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None


def _read(answer: Answer | SUTError, declared: Mapping[str, str]) -> tuple[Mapping[str, float], str | None]:
    """The values of a page, and why it has none."""
    if isinstance(answer, SUTError):
        return {}, answer.what
    if answer.status != 200:
        return {}, f"HTTP {answer.status}"
    if len(answer.body) > _MOST_BYTES:
        return {}, f"a page of more than {_MOST_BYTES // 1024} KiB"
    try:
        values = read_page(answer.body.decode(errors="replace"), declared)
    except (ValueError, OverflowError) as error:  # sums of infinite and of enormous numbers are among them
        return {}, f"a page that cannot be read: {error}"
    return values, None if values else f"no known series of {', '.join(ENGINES)}"


def _readings(kept: _Kept, source: str, at_the_end: str | None) -> EngineReadings:
    """The readings from the pages, from the one before the load to the one after it."""
    first, last = kept.first, kept.last if at_the_end is None else {}
    before, after = _totals(first), _totals(last)
    if after:  # a counter that shows up when it first counts began at 0
        before = dict.fromkeys(after, 0.0) | before
    limit = last.get(_MAX_NUM_SEQS, first.get(_MAX_NUM_SEQS))
    return EngineReadings(
        at_ns=np.array(kept.at_ns, dtype=np.int64),
        gauges={
            name: np.array(kept.gauges[name], dtype=np.float64) for name in GAUGES if name in kept.served
        },
        totals_before=before,
        totals_after=after,
        max_num_seqs=round(limit) if limit is not None and math.isfinite(limit) else None,
        source=source,
        gap="; ".join(_gaps(kept, at_the_end, before, after)) or None,
    )


def _totals(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if is_total(name) and math.isfinite(value)}


def _gaps(
    kept: _Kept, at_the_end: str | None, before: Mapping[str, float], after: Mapping[str, float]
) -> Iterator[str]:
    if kept.first_missed is not None:
        at_ns, reason = kept.first_missed
        read = len(kept.at_ns)
        yield (
            f"{kept.missed} of {kept.missed + read} readings of the metrics page are missing, the first"
            f" {quantity((at_ns - kept.at_ns[0]) / 1e9, 's')} after the one before the load: {reason}"
        )
    if at_the_end is not None:
        yield f"no reading after the load: {at_the_end}"
    fell = [name for name in after if after[name] < before[name]]
    if fell:
        yield f"the engine was restarted during the load: {', '.join(fell)} fell"
