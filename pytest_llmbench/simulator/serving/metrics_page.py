"""The metrics page: the engines' counters and histograms under vLLM's series names, in Prometheus's text
format. And what their accelerators tell of their power, as the page of NVIDIA's DCGM exporter."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.power import ACCELERATOR, DeviceReading, PowerMeter, read_devices
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

# The bucket bounds are those of vLLM, so that dashboards and alert rules made for it fit.
_LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_STEP_TOKENS = tuple(float(2**power) for power in (0, *range(3, 15)))
_REASONS = ("stop", "length", "abort", "error")
_LABELS = ("engine", "model_name")
"""Labels of all series; vLLM tells the engines of data parallelism apart by the first."""
_OF_OUTPUT = ("time_to_first_token_seconds", "request_decode_time_seconds", "request_generation_tokens")
"""Metrics to which a request of prefill alone contributes nothing."""


class EngineMetrics:
    """Counts what happens in one engine."""

    def __init__(self, config: EngineConfig, number: int, histograms: Mapping[str, Histogram]) -> None:
        self.config = config
        self.labels = (str(number), config.model)
        self.ended = dict.fromkeys(_REASONS, 0)
        self.thinking_ended: dict[str, int] = {}
        self.rejected = 0
        self.seconds = dict.fromkeys(("queue", "prefill", "decode"), 0.0)
        """Sums over all whole requests, ``timed`` of them."""
        self.timed = 0
        self._histograms = {name: each.labels(*self.labels) for name, each in histograms.items()}

    def note_rejection(self) -> None:
        """Count a request that was refused because the queue is full."""
        self.rejected += 1

    def note_step(self, prefill_tokens: int, output_tokens: int) -> None:
        self._histograms["iteration_tokens_total"].observe(prefill_tokens + output_tokens)

    def note_token_gap(self, gap_ns: int) -> None:
        self._histograms["inter_token_latency_seconds"].observe(gap_ns / 1e9)

    def note_transfer(self, took_ns: int) -> None:
        """Count the KV cache of a prompt that has come from another engine."""
        self._histograms["nixl_xfer_time_seconds"].observe(took_ns / 1e9)

    def note_end(self, truth: GroundTruth) -> None:
        """Count a request that has ended; only whole ones enter the histograms, as in vLLM."""
        reason = truth.finish_reason
        if truth.aborted or reason is None:
            self.ended["abort"] += 1
            return
        self.ended[reason if reason in self.ended else "error"] += 1
        if truth.think_reason is not None:
            count = self.thinking_ended.get(truth.think_reason, 0)
            self.thinking_ended[truth.think_reason] = count + 1
        if truth.admitted_ns is None or truth.first_token_ns is None or truth.last_token_ns is None:
            return
        queue_s = (truth.admitted_ns - (truth.queued_ns or truth.received_ns)) / 1e9
        decode_s = (truth.last_token_ns - truth.first_token_ns) / 1e9
        prefill_s = (truth.first_token_ns - truth.admitted_ns) / 1e9
        seconds = {
            "time_to_first_token_seconds": (truth.first_token_ns - truth.received_ns) / 1e9,
            "e2e_request_latency_seconds": (truth.last_token_ns - truth.received_ns) / 1e9,
            "request_queue_time_seconds": queue_s,
            "request_prefill_time_seconds": prefill_s,
            "request_decode_time_seconds": decode_s,
            "request_inference_time_seconds": prefill_s + decode_s,
            "request_prompt_tokens": truth.prompt_tokens,
            "request_generation_tokens": truth.output_tokens,
        }
        if not truth.generates:
            for name in _OF_OUTPUT:
                del seconds[name]
        if truth.output_tokens > 1:
            seconds["request_time_per_output_token_seconds"] = decode_s / (truth.output_tokens - 1)
        for name, value in seconds.items():
            self._histograms[name].observe(value)
        self.timed += 1
        for name, value in (("queue", queue_s), ("prefill", prefill_s), ("decode", decode_s)):
            self.seconds[name] += value


Engines = Sequence[tuple[EngineMetrics, Engine]]


class MetricsPage:
    """The metrics of all engines of a server."""

    def __init__(self, config: EngineConfig, *, transfers: bool = False) -> None:
        """``transfers``: prefill and decode are apart, so KV caches are sent."""
        most = config.context_limit_tokens
        steps = (float(step * 10**power) for power in range(len(str(most))) for step in (1, 2, 5))
        tokens = tuple(step for step in steps if step <= most)
        bounds: dict[str, Sequence[float]] = {
            "time_to_first_token_seconds": _FIRST_TOKEN_S,
            "inter_token_latency_seconds": _PER_TOKEN_S,
            "request_time_per_output_token_seconds": _PER_TOKEN_S,
            "e2e_request_latency_seconds": _LATENCY_S,
            "request_queue_time_seconds": _LATENCY_S,
            "request_prefill_time_seconds": _LATENCY_S,
            "request_decode_time_seconds": _LATENCY_S,
            "request_inference_time_seconds": _LATENCY_S,
            "request_prompt_tokens": tokens,
            "request_generation_tokens": tokens,
            "iteration_tokens_total": _STEP_TOKENS,
        }
        if transfers:
            bounds["nixl_xfer_time_seconds"] = _TRANSFER_S
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", name.replace("_", " "), _LABELS, buckets=own, registry=self._registry
            )
            for name, own in bounds.items()
        }
        self._registry.register(self)
        self._engines: Engines = ()

    def engine(self, config: EngineConfig, number: int) -> EngineMetrics:
        """The counts of a further engine."""
        return EngineMetrics(config, number, self._histograms)

    def rendered(self, engines: Engines) -> bytes:
        """The page in Prometheus's text exposition format, with the present state of these engines."""
        self._engines = engines
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The families that are no histograms; the registry asks for them."""
        gauges: tuple[tuple[str, str, Callable[[Engine], float]], ...] = (
            ("num_requests_running", "Requests in the batch.", lambda engine: engine.running),
            ("num_requests_waiting", "Requests in the queue.", lambda engine: engine.waiting),
            ("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", lambda e: e.kv_usage),
        )
        for name, help_text, value in gauges:
            family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=_LABELS)
            for each, engine in self._engines:
                family.add_metric(each.labels, value(engine))
            yield family
        cache = {
            "block_size": "kv_block_tokens",
            "enable_prefix_caching": "prefix_caching",
            "num_gpu_blocks": "kv_blocks",
        }
        yield self._settings("cache_config_info", "Settings of the KV cache, as labels.", cache)
        # vLLM has no such series: its page does not state the size of its batch.
        scheduler = {
            "max_num_seqs": "max_num_seqs",
            "max_num_batched_tokens": "max_num_batched_tokens",
            "enable_chunked_prefill": "chunked_prefill",
            "policy": "scheduler",
        }
        yield self._settings("scheduler_config_info", "Settings of the scheduler, as labels.", scheduler)
        for name, (count, help_text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", help_text, labels=_LABELS)
            for each, engine in self._engines:
                if count in (counted := engine.totals.counted(each.config)):
                    counter.add_metric(each.labels, counted[count])
            yield counter
        ended, thoughts = "Requests that have ended.", "Replies whose thoughts have ended, by why."
        yield self._by("finished_reason", "request_success", ended, lambda each, _: each.ended)
        yield self._by("reason", "thinking_ended", thoughts, lambda each, _: each.thinking_ended)
        rejected, full = "Requests refused because the queue was full.", "max_num_queued_reqs"
        yield self._by("reason", "admission_rejections", rejected, lambda each, _: {full: each.rejected})
        yield self._by(
            "position",
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by place.",
            lambda each, engine: dict(enumerate(engine.totals.accepted_at(each.config.speculative_tokens))),
        )

    def _settings(self, name: str, help_text: str, settings: Mapping[str, str]) -> Metric:
        """A series for each engine that is always 1, with settings (label → name) as further labels."""
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=(*_LABELS, *settings))
        for each, _ in self._engines:
            values = (str(getattr(each.config, own)) for own in settings.values())
            family.add_metric((*each.labels, *values), 1.0)
        return family

    def _by(
        self,
        label: str,
        name: str,
        help_text: str,
        counts: Callable[[EngineMetrics, Engine], Mapping[Any, int]],
    ) -> Metric:
        """A counter for each value of a further label."""
        family = CounterMetricFamily(f"vllm:{name}", help_text, labels=(*_LABELS, label))
        for each, engine in self._engines:
            for value, count in counts(each, engine).items():
                family.add_metric((*each.labels, str(value)), count)
        return family


_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens processed."),
    "generation_tokens": (
        "generated_tokens",
        "Tokens generated, those for clients that have gone included.",
    ),
    "num_preemptions": ("preemptions", "Requests thrown out of the batch."),
    "prefix_cache_queries": ("prefix_queries_tokens", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_hits_tokens", "Prompt tokens found in the prefix cache."),
    "prompt_tokens_cached": (
        "prefix_hits_tokens",
        "Prompt tokens that were not computed because they were cached.",
    ),
    "critical_evictions": ("critical_evictions", "Preemptions of sequences that answer."),
    "spec_decode_num_drafts": ("drafts", "Drafts that were verified."),
    "spec_decode_num_draft_tokens": ("draft_tokens", "Tokens of these drafts."),
    "spec_decode_num_accepted_tokens": (
        "accepted_draft_tokens",
        "Tokens of these drafts that were accepted.",
    ),
}


PATH = "/sim/dcgm/metrics"

# Names, types and sentences of the exporter. It gives the counter without Prometheus's suffix _total, which a
# client library would add.
_FAMILIES: Sequence[tuple[str, str, str, Callable[[DeviceReading], float]]] = (
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda each: round(each.temperature_c)),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda each: round(each.power_w, 3)),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda each: round(each.energy_j * 1e3),
    ),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda each: round(each.utilisation * 100)),
    (
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda each: each.memory_bytes // 2**20,
    ),
)


def dcgm_page(meters: Sequence[PowerMeter], now_ns: int) -> bytes | None:
    """The page in Prometheus's text format. None: it does not answer."""
    devices = read_devices(meters, now_ns)
    if devices is None:
        return None
    host = socket.gethostname()
    lines = []
    for name, kind, meaning, value in _FAMILIES:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{gpu="{each.number}",UUID="{each.uuid}",device="nvidia{each.number}",'
            f'modelName="{ACCELERATOR}",Hostname="{host}"}} {value(each)}'
            for each in devices
        ]
    return "\n".join([*lines, ""]).encode()
