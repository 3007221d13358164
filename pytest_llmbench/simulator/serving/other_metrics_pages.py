"""The metrics page as SGLang, TensorRT-LLM and llama.cpp have it: the same counts under their series names.

Only what readers of these engines look for; histograms have no bounds. Several engines are added up.
Sources: SGLang's ``srt/observability/metrics_collector.py``, TensorRT-LLM's
``tensorrt_llm/metrics/collector.py``, llama.cpp's ``tools/server/README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pytest_llmbench.simulator.engine.faults import MetricsForm
from pytest_llmbench.simulator.serving.metrics_page import Engines


class _Form(NamedTuple):
    """The page of one engine: its series by what they count, names of counters without ``_total``."""

    counters: Mapping[str, str]
    gauges: Mapping[str, str]
    places: Mapping[str, str] = MappingProxyType({})
    """Counters by place in the draft."""
    place: str = ""
    """Their label."""
    times: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType({})
    """Histograms of seconds: series, and labels beside those of all."""
    labels: Mapping[str, str] = MappingProxyType({})
    """Labels of all series, beside the name of the model where there are any."""


_FORMS: Mapping[MetricsForm, _Form] = {
    "sglang": _Form(
        {
            "prompt_tokens": "sglang:prompt_tokens",
            "generated_tokens": "sglang:generation_tokens",
            "prefix_hits_tokens": "sglang:cached_tokens",
            "ended": "sglang:num_requests",
            "preemptions": "sglang:num_retracted_requests",
            "drafts": "sglang:spec_verify_calls",
        },
        {
            "running": "sglang:num_running_reqs",
            "waiting": "sglang:num_queue_reqs",
            "kv_use": "sglang:token_usage",
            "acceptance_length": "sglang:spec_accept_length",
            "acceptance_rate": "sglang:spec_accept_rate",
        },
        times={
            "queue": ("sglang:queue_time_seconds", {}),
            "prefill": ("sglang:per_stage_req_latency_seconds", {"stage": "prefill_forward"}),
        },
        labels={"engine_type": "unified", "tp_rank": "0", "pp_rank": "0"},
    ),
    "tensorrt-llm": _Form(
        {
            "prompt_tokens": "trtllm_prompt_tokens",
            "generated_tokens": "trtllm_generation_tokens",
            "prefix_hits_tokens": "trtllm_prompt_cached_tokens",
            "ended": "trtllm_request_success",
            "draft_tokens": "trtllm_spec_decode_num_draft_tokens",
            "accepted_draft_tokens": "trtllm_spec_decode_num_accepted_tokens",
        },
        {
            "running": "trtllm_num_requests_running",
            "waiting": "trtllm_num_requests_waiting",
            "kv_use": "trtllm_kv_cache_utilization",
            "max_num_seqs": "trtllm_max_num_active_requests",
            "acceptance_length": "trtllm_spec_decode_acceptance_length",
            "tokens_per_step": "trtllm_avg_decoded_tokens_per_iter",
        },
        {
            "guessed": "trtllm_spec_decode_drafted_tokens",
            "accepted": "trtllm_spec_decode_accepted_tokens",
        },
        "token_position",
        {
            "queue": ("trtllm_request_queue_time_seconds", {}),
            "prefill": ("trtllm_request_prefill_time_seconds", {}),
        },
        {"engine_type": "trtllm"},
    ),
    "llama.cpp": _Form(
        {
            "prompt_tokens": "llamacpp:prompt_tokens",
            "generated_tokens": "llamacpp:tokens_predicted",
            "prefill_seconds": "llamacpp:prompt_seconds",
            "decode_seconds": "llamacpp:tokens_predicted_seconds",
            "drafts": "llamacpp:spec_decode_num_drafts",
            "draft_tokens": "llamacpp:spec_decode_num_draft_tokens",
            "accepted_draft_tokens": "llamacpp:spec_decode_num_accepted_tokens",
        },
        {"running": "llamacpp:requests_processing", "waiting": "llamacpp:requests_deferred"},
        {"accepted": "llamacpp:spec_decode_num_accepted_tokens_per_pos"},
        "position",
    ),
}


def page_in_form(form: MetricsForm, engines: Engines) -> bytes:
    """The page of the engine ``form``, in Prometheus's text format; not of vLLM."""
    registry = CollectorRegistry()
    registry.register(_Page(_FORMS[form], engines))
    return generate_latest(registry)


class _Page:
    def __init__(self, form: _Form, engines: Engines) -> None:
        self._form, self._engines = form, engines
        config = engines[0][0].config
        named = {"model_name": config.model, **form.labels} if form.labels else {}
        self._labels, self._values = tuple(named), tuple(named.values())
        self._guessed = config.speculative_tokens

    def collect(self) -> list[Metric]:
        counters, gauges = self._counters(), self._gauges()
        families: list[Metric] = []
        for name, series in self._form.counters.items():
            if name in counters:
                counter = CounterMetricFamily(series, name.replace("_", " "), labels=self._labels)
                counter.add_metric(self._values, counters[name])
                families.append(counter)
        for name, series in self._form.gauges.items():
            if name in gauges:
                gauge = GaugeMetricFamily(series, name.replace("_", " "), labels=self._labels)
                gauge.add_metric(self._values, gauges[name])
                families.append(gauge)
        count = sum(metrics.timed for metrics, _ in self._engines)
        for name, (series, labels) in self._form.times.items():
            times = HistogramMetricFamily(series, f"seconds of {name}", labels=(*self._labels, *labels))
            spent = sum(metrics.seconds[name] for metrics, _ in self._engines)
            times.add_metric((*self._values, *labels.values()), [("+Inf", count)], spent)
            families.append(times)
        return [*families, *self._by_place(counters)]

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for metrics, engine in self._engines:
            own: dict[str, float] = {**engine.totals.counted(metrics.config)}
            own["ended"] = sum(metrics.ended.values())
            own |= {f"{name}_seconds": spent for name, spent in metrics.seconds.items()}
            for name, count in own.items():
                found[name] = found.get(name, 0.0) + count
        return found

    def _gauges(self) -> dict[str, float]:
        engines = [engine for _, engine in self._engines]
        found: dict[str, float] = {
            "running": sum(engine.running for engine in engines),
            "waiting": sum(engine.waiting for engine in engines),
            "kv_use": sum(engine.kv_usage for engine in engines) / len(engines),
            "max_num_seqs": sum(metrics.config.max_num_seqs for metrics, _ in self._engines),
        }
        counters = self._counters()
        if drafts := counters.get("drafts"):
            accepted = counters["accepted_draft_tokens"]
            found["acceptance_length"] = 1 + accepted / drafts
            found["acceptance_rate"] = accepted / (drafts * self._guessed)
        if tokens := counters.get("generated_tokens"):
            steps = tokens - counters.get("accepted_draft_tokens", 0.0)
            # What is beyond the end of a reply counts too.
            found["tokens_per_step"] = tokens / max(steps, 1.0)
        return found

    def _by_place(self, counters: Mapping[str, float]) -> list[Metric]:
        """The counters by place in the draft; one shows up when it first counts, as in the engines."""
        own = [engine.totals.accepted_at(self._guessed) for _, engine in self._engines]
        accepted = [sum(counts) for counts in zip(*own, strict=True)]
        guessed = [counters.get("drafts", 0.0)] * self._guessed
        families: list[Metric] = []
        for name, series in self._form.places.items():
            family = CounterMetricFamily(
                series, f"{name} tokens by place in the draft", labels=(*self._labels, self._form.place)
            )
            for place, count in enumerate(accepted if name == "accepted" else guessed):
                if count:
                    family.add_metric((*self._values, str(place)), count)
            families.append(family)
        return families
