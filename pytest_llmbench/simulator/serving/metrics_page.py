"""The metrics page: the engines' counters and histograms under vLLM's series names, in Prometheus's text
format. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.scheduling import EngineTotals
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


class Histogram:
    """A histogram as Prometheus has it: cumulative buckets, sum and count."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def note(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_count{{{labels}}} {total}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


def _token_bounds(most: int) -> Iterator[float]:
    """Bucket bounds for token counts: 1, 2, 5, 10, … up to ``most``."""
    power = 1
    while power <= most:
        yield from (float(step * power) for step in (1, 2, 5) if step * power <= most)
        power *= 10


@dataclass(frozen=True, slots=True)
class EngineState:
    """The current state of the engine, for its gauges."""

    running: int
    waiting: int
    kv_cache_usage: float
    """Share of the KV cache in use, 0 to 1."""
    totals: EngineTotals


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family: the samples of one name."""

    name: str
    kind: str
    help_text: str
    samples: list[str]


class EngineMetrics:
    """Counts what happens in one engine, and renders it."""

    def __init__(self, config: EngineConfig, number: int = 0, *, transfers: bool = False) -> None:
        """``number``: number of the engine among several, for the label by which vLLM tells them apart.

        ``transfers``: prefill and decode are apart, so KV caches are sent.
        """
        self._labels = f'engine="{number}",model_name="{_escape(config.model)}"'
        self._config = config
        self._ended = dict.fromkeys(_REASONS, 0)
        self._thinking_ended: dict[str, int] = {}
        self._rejected = 0
        self._counters = {"prompt_tokens": 0, "generation_tokens": 0}
        tokens = tuple(_token_bounds(config.context_limit_tokens))
        self._histograms = {
            "time_to_first_token_seconds": Histogram(_FIRST_TOKEN_S),
            "inter_token_latency_seconds": Histogram(_PER_TOKEN_S),
            "request_time_per_output_token_seconds": Histogram(_PER_TOKEN_S),
            "e2e_request_latency_seconds": Histogram(_LATENCY_S),
            "request_queue_time_seconds": Histogram(_LATENCY_S),
            "request_prefill_time_seconds": Histogram(_LATENCY_S),
            "request_decode_time_seconds": Histogram(_LATENCY_S),
            "request_inference_time_seconds": Histogram(_LATENCY_S),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "iteration_tokens_total": Histogram(_STEP_TOKENS),
        }
        if transfers:
            self._histograms["nixl_xfer_time_seconds"] = Histogram(_TRANSFER_S)

    def note_rejection(self) -> None:
        """Count a request that was refused because the queue is full."""
        self._rejected += 1

    def note_step(self, prefill_tokens: int, output_tokens: int) -> None:
        self._counters["prompt_tokens"] += prefill_tokens
        self._counters["generation_tokens"] += output_tokens
        self._histograms["iteration_tokens_total"].note(prefill_tokens + output_tokens)

    def note_token_gap(self, gap_ns: int) -> None:
        self._histograms["inter_token_latency_seconds"].note(gap_ns / 1e9)

    def note_transfer(self, took_ns: int) -> None:
        """Count the KV cache of a prompt that has come from another engine."""
        self._histograms["nixl_xfer_time_seconds"].note(took_ns / 1e9)

    def note_end(self, truth: GroundTruth) -> None:
        """Count a request that has ended; only whole ones enter the histograms, as in vLLM."""
        reason = truth.finish_reason
        if truth.aborted or reason is None:
            self._ended["abort"] += 1
            return
        self._ended[reason if reason in self._ended else "error"] += 1
        if truth.think_reason is not None:
            count = self._thinking_ended.get(truth.think_reason, 0)
            self._thinking_ended[truth.think_reason] = count + 1
        if truth.admitted_ns is None or truth.first_token_ns is None or truth.last_token_ns is None:
            return
        decode_s = (truth.last_token_ns - truth.first_token_ns) / 1e9
        prefill_s = (truth.first_token_ns - truth.admitted_ns) / 1e9
        seconds = {
            "time_to_first_token_seconds": (truth.first_token_ns - truth.received_ns) / 1e9,
            "e2e_request_latency_seconds": (truth.last_token_ns - truth.received_ns) / 1e9,
            "request_queue_time_seconds": (truth.admitted_ns - (truth.queued_ns or truth.received_ns)) / 1e9,
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
            self._histograms[name].note(value)

    def families(self, state: EngineState) -> Iterator[Family]:
        """All metric families of this engine."""
        yield from self._gauges(state)
        yield from self._info()
        yield from self._counted(state.totals)
        for name, histogram in self._histograms.items():
            samples = list(histogram.lines(f"vllm:{name}", self._labels))
            yield Family(name, "histogram", f"Histogram of {name.replace('_', ' ')}.", samples)

    def _gauges(self, state: EngineState) -> Iterator[Family]:
        gauges = {
            "num_requests_running": state.running,
            "num_requests_waiting": state.waiting,
            "kv_cache_usage_perc": state.kv_cache_usage,
        }
        for name, value in gauges.items():
            yield self._family(name, "gauge", _GAUGES[name], {"": value})

    def _counted(self, totals: EngineTotals) -> Iterator[Family]:
        counters = self._counters | {
            "num_preemptions": totals.preemptions,
            "prefix_cache_queries": totals.prefix_query_tokens,
            "prefix_cache_hits": totals.prefix_hit_tokens,
            "prompt_tokens_cached": totals.prefix_hit_tokens,
        }
        for name, help_text in _COUNTERS.items():
            yield self._counter(name, help_text, {"": counters[name]})
        if self._config.scheduler == "phase":
            evictions = {"": totals.critical_evictions}
            yield self._counter("critical_evictions", "Preemptions of sequences that answer.", evictions)
        if self._thinking_ended:
            ended = {f',reason="{reason}"': count for reason, count in self._thinking_ended.items()}
            yield self._counter("thinking_ended", "Replies whose thoughts have ended, by why.", ended)
        ended = {f',finished_reason="{reason}"': count for reason, count in self._ended.items()}
        yield self._counter("request_success", "Requests that have ended, by finish reason.", ended)
        rejected = {',reason="max_num_queued_reqs"': self._rejected}
        yield self._counter("admission_rejections", "Requests refused because the queue was full.", rejected)

    def _info(self) -> Iterator[Family]:
        """Settings, as labels of series that are always 1. vLLM has no second one: its page does not state
        the size of its batch."""
        config = self._config
        series: dict[str, dict[str, object]] = {
            "cache_config_info": {
                "block_size": config.kv_block_tokens,
                "enable_prefix_caching": config.prefix_caching,
                "num_gpu_blocks": config.kv_blocks,
            },
            "scheduler_config_info": {
                "max_num_seqs": config.max_num_seqs,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "enable_chunked_prefill": config.chunked_prefill,
                "policy": config.scheduler,
            },
        }
        for name, settings in series.items():
            labels = "".join(f',{key}="{value}"' for key, value in settings.items())
            yield self._family(name, "gauge", _INFO[name], {labels: 1.0})

    def _counter(self, name: str, help_text: str, values: Mapping[str, float]) -> Family:
        return self._family(f"{name}_total", "counter", help_text, values)

    def _family(self, name: str, kind: str, help_text: str, values: Mapping[str, float]) -> Family:
        """A metric family with one sample for each of ``values``, by the labels beside those that all series
        have."""
        samples = [f"vllm:{name}{{{self._labels}{labels}}} {value}" for labels, value in values.items()]
        return Family(name, kind, help_text, samples)


def metrics_page(engines: Iterable[tuple[EngineMetrics, EngineState]]) -> bytes:
    """The metrics of all engines in Prometheus's text exposition format.

    Several engines are told apart by the label ``engine``, as vLLM does with data parallelism.
    """
    families: dict[str, Family] = {}
    for metrics, state in engines:
        for family in metrics.families(state):
            families.setdefault(family.name, replace(family, samples=[])).samples.extend(family.samples)
    lines = (line for family in families.values() for line in _printed(family))
    return ("\n".join(lines) + "\n").encode()


def _printed(family: Family) -> Iterator[str]:
    yield f"# HELP vllm:{family.name} {family.help_text}"
    yield f"# TYPE vllm:{family.name} {family.kind}"
    yield from family.samples


_INFO = {
    "cache_config_info": "Settings of the KV cache, as labels.",
    "scheduler_config_info": "Settings of the scheduler, as labels (a series of this server's own).",
}
_GAUGES = {
    "num_requests_running": "Requests in the batch.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Share of the KV cache in use; 1 is all of it.",
}
_OF_OUTPUT = ("time_to_first_token_seconds", "request_decode_time_seconds", "request_generation_tokens")
"""Metrics to which a request of prefill alone contributes nothing."""
_COUNTERS = {
    "prompt_tokens": "Prompt tokens processed.",
    "generation_tokens": "Tokens generated, those for clients that have gone included.",
    "num_preemptions": "Requests thrown out of the batch.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "prompt_tokens_cached": "Prompt tokens that were not computed because they were cached.",
}


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
