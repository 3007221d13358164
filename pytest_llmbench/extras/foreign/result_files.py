"""The result files of other load generators, a format for each. Percentiles are linear, as ours are, unless
its differences say otherwise.

vLLM, ``vllm bench serve --save-result`` and ``--append-result``: the dictionary that
``vllm/benchmarks/serve.py`` writes (vllm-project/vllm at 009e6d4, ``main_async`` and ``benchmark``);
definitions: ``calculate_metrics`` there and ``vllm/benchmarks/lib/endpoint_request_func.py`` (at 02cfb53).
The file states no version.

SGLang, ``bench_serving``, one line a run: ``benchmark`` and ``calculate_metrics`` of
``python/sglang/benchmark/serving.py`` (sgl-project/sglang at 00f9ec4). The file states no version, no
failures and, unless the server is SGLang, no model. Nothing is read of ``server_info`` but the model's path:
it holds the arguments of the server, its key among them.

AIPerf of NVIDIA, ``profile_export_aiperf.json``: ``JsonExportData`` of
``aiperf/common/models/export_models.py``, schemas 1.0 to 1.4 and the one before them without a number; load:
``input_config``, as ``aiperf/config/phases.py`` has it and, before 1.0, as
``docs/tutorials/working-with-profile-exports.md`` shows it; definitions: ``aiperf/metrics/types/``
(ai-dynamo/aiperf, wheel 0.13.0).

GuideLLM, ``benchmarks.json``, a benchmark for each load: ``GenerativeBenchmarksReport`` of
``guidellm/benchmark/schemas/report.py``, versions 1 and 2 of its metadata, loads as
``guidellm/scheduler/strategies.py`` has them; definitions: ``guidellm/schemas/base/request_stats.py`` and
``statistics.py`` (vllm-project/guidellm, wheel 0.8.1).

inference-perf, ``stage_N_lifecycle_metrics.json``: ``summarize_requests`` and
``compute_request_latency_metrics`` of ``inference_perf/reportgen/base.py`` (kubernetes-sigs/inference-perf at
010d12f). The file states neither version nor model; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pytest_llmbench.errors import shown
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, completion_rate, mean
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, ForeignRun, ResultFormat, open_loop_of

_TAILS = {"p90": "p90", "p95": "p95", "p99": "p99"}
_OF_NUMPY = {"p50": "median", **_TAILS, "p99_9": "p99.9", "mean": "mean"}
"""Our statistic → how a key of theirs begins; those that were not asked for are not in a file."""
_TIME_THERE = "theirs divides by the time from the first task to the last return"
_SERVER_INFO = f"{_TIME_THERE} and one request for server information"
_COUNTED_THERE = "theirs counts with the client's tokenizer unless set otherwise"


def _has(*names: str, absent: str | None = None) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an object has all fields of these names, and not the one that is ``absent``."""
    return lambda content: all(name in content for name in names) and absent not in content


def _of_serving(fields: Fields, e2e: str, load: ForeignLoad, failed: int | None, **more: Any) -> ForeignRun:
    """The run of a benchmark that descends from vLLM's. ``e2e``: its name of the end-to-end latency."""
    completed = fields.count("completed")
    values = completion_rate(completed, failed)
    for family, key in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", e2e)):
        named = {ours: f"{their}_{key}_ms" for ours, their in _OF_NUMPY.items()}
        values |= fields.latencies(family, named)
    rates = {"output_token_throughput": "output_throughput", "request_throughput": "request_throughput"}
    return ForeignRun(
        load,
        values | fields.figures(rates),
        mean_input_tokens=mean(fields.number("total_input_tokens"), completed),
        mean_output_tokens=mean(fields.number("total_output_tokens"), completed),
        **more,
    )


def _vllm(content: Mapping[str, Any]) -> list[ForeignRun]:
    """WrongShapeError for embeddings, and for a file that is not as vLLM writes it."""
    fields = Fields(content)
    if "output_throughput" not in fields:
        raise WrongShapeError(
            "output_throughput is missing: a result of embeddings, which have no tokens to wait for"
        )
    rate = fields.number("request_rate", endless=True)
    if rate is None or "ramp_up_strategy" in fields:
        raise WrongShapeError(
            "the rate changed while the load ran, or is missing: no load of ours matches it"
        )
    most, sent = fields.count("max_concurrency"), fields.count("num_prompts")
    if most is not None and sent is not None and most >= sent:
        most = None  # a cap that holds nothing back, as vLLM's own scripts give it
    load = open_loop_of(rate, fields.number("burstiness", endless=True), most)
    setup = fields.as_text(("backend", "label", "tokenizer_id", "num_prompts", "ramp_up_strategy"))
    model = fields.text("model_id")
    return [_of_serving(fields, "e2el", load, fields.count("failed"), model=model, setup=setup)]


VLLM: Final = ResultFormat(
    "vllm bench serve",
    _has("model_id", "num_prompts", "request_rate", "completed", "duration"),
    _vllm,
    differences={
        "ttft": "theirs runs from before the client's call, connecting included, to the first chunk with "
        "choices, which over the chat API may hold a role and no text",
        "tpot": "theirs begins at that first chunk and ends at the last chunk with choices",
        "e2e": "theirs runs from before the client's call to the last chunk with choices",
        "output_token_throughput": _TIME_THERE,
        "request_throughput": _TIME_THERE,
        "completion_rate": "theirs counts as completed what ended early, or with an error in its stream",
    },
    left_out={
        "itl": "gaps between chunks of all requests pooled, whatever number of tokens is in a chunk",
        "request_goodput": "the file does not say for which limits",
        "max_output_tokens_per_s": "the busiest second, not a rate over the load",
    },
)


def _sglang(content: Mapping[str, Any]) -> list[ForeignRun]:
    """WrongShapeError for a trace, and for a line that is not as SGLang writes it."""
    fields = Fields(content)
    if content["request_rate"] == "trace":
        raise WrongShapeError("request_rate is 'trace': the file does not say when requests were sent")
    rate = fields.number("request_rate", endless=True)
    if rate is None:
        raise WrongShapeError("request_rate is missing")
    load = open_loop_of(rate, None, fields.count("max_concurrency"))
    setup = fields.as_text(
        (
            "backend", "tag", "dataset_name", "sharegpt_output_len", "random_input_len", "random_output_len",
            "random_range_ratio",
        )
    )  # fmt: skip
    model = fields.section("server_info").text("model_path")
    return [_of_serving(fields, "e2e_latency", load, None, model=model, setup=setup)]


SGLANG: Final = ResultFormat(
    "SGLang bench_serving",
    _has(
        "backend", "request_rate", "completed", "duration", "mean_e2e_latency_ms", "output_throughput",
        absent="model_id",
    ),
    _sglang,
    differences={
        "ttft": "theirs runs from before the client's call, with a new connection for each request, to the "
        "first chunk with text or reasoning, white space included",
        "tpot": "theirs begins at that first chunk, ends with the stream, and takes the length that was "
        "asked for where the server tells none",
        "e2e": "theirs runs from before the client's call, with a new connection for each request, to the "
        "end of the stream",
        "output_token_throughput": _SERVER_INFO,
        "request_throughput": _SERVER_INFO,
    },
    left_out={
        "itl": "gaps between chunks, or shares of them, depending on the backend",
        "input_throughput": "counts the prompts of all requests over the whole time, ours those in the "
        "window",
        "concurrency": "a mean over the time, not the requested load",
    },
)  # fmt: skip

_AIPERF_SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_ARRIVALS = {"poisson": "poisson", "constant": "uniform", "gamma": "gamma"}


def _aiperf(content: Mapping[str, Any]) -> list[ForeignRun]:
    """WrongShapeError for another schema, a cancelled run, and an unknown load."""
    fields = Fields(content)
    schema = fields.text("schema_version")
    if schema not in (None, *_AIPERF_SCHEMAS):
        known = ", ".join(_AIPERF_SCHEMAS)
        raise WrongShapeError(f"schema_version is {shown(schema)}: known are {known} and files without one")
    for name, of in (("was_cancelled", True), ("is_complete", False)):
        if fields.flag(name, of=of):
            raise WrongShapeError(f"{name} is {str(of).lower()}: these are the figures of a part of a run")
    values: dict[str, float] = {}
    named = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
    for family, name in named.items():
        found = fields.section(name)
        unit = found.text("unit") or "ms"
        if unit not in _MS:
            raise WrongShapeError(f"{family} is in {unit!r}: known units are {', '.join(_MS)}")
        values |= found.latencies(family, {"p50": "p50", **_TAILS, "mean": "avg"}, _MS[unit])
    for rate in ("output_token_throughput", "request_throughput"):
        values |= fields.section(rate).figures({rate: "avg"})
    completed = fields.section("request_count").count("avg")
    values |= completion_rate(completed, fields.section("error_request_count").count("avg") or 0)
    config = fields.section("input_config")
    if "models" in config:
        models = [item.text("name") for item in config.section("models").sections("items")]
    else:
        models = list(config.section("endpoint").texts("model_names"))
    return [
        ForeignRun(
            _load_of_aiperf(config),
            values,
            model=models[0] if len(models) == 1 else None,
            version=fields.text("aiperf_version"),
            mean_input_tokens=fields.section("input_sequence_length").number("avg"),
            mean_output_tokens=fields.section("output_sequence_length").number("avg"),
        )
    ]


def _load_of_aiperf(config: Fields) -> ForeignLoad:
    measured = [
        phase
        for phase in config.sections("phases")
        if not phase.flag("exclude_from_results") and "warmup" not in (phase.text("name"), phase.text("kind"))
    ]
    if len(measured) == 1:
        (phase,) = measured
        kind, concurrency = phase.text("type"), phase.count("concurrency")
        if kind == "concurrency":
            return ForeignLoad(concurrency=concurrency or 1)
        rate = phase.number("rate")
        if kind in _ARRIVALS and rate is not None and "rate_ramp" not in phase:
            return ForeignLoad(rate, _ARRIVALS[kind], phase.number("smoothness"), concurrency)
        raise WrongShapeError(f"the load is of type {kind!r}: no load of ours is like it")
    if "loadgen" in config:
        options = config.section("loadgen")
        rate, concurrency = options.number("request_rate"), options.count("concurrency")
        if rate is None:
            return ForeignLoad(concurrency=concurrency or 1)
        mode = options.text("request_rate_mode") or "poisson"
        return ForeignLoad(rate, _ARRIVALS.get(mode), options.number("arrival_smoothness"), concurrency)
    raise WrongShapeError(
        f"input_config has {len(measured)} measured phases: a file with one says what its figures are of"
    )


AIPERF: Final = ResultFormat(
    "AIPerf",
    _has("request_latency", "input_config", "request_throughput"),
    _aiperf,
    differences={
        "ttft": "theirs runs from just before the request, connecting included, to the first content or "
        "reasoning, white space included",
        "tpot": "theirs, called inter-token latency, begins at that first content, and counts tokens with "
        "the client's tokenizer unless set otherwise",
        "e2e": "theirs runs from just before the request, connecting included",
        "output_token_throughput": f"{_COUNTED_THERE}, from the first request to the last response",
        "request_throughput": "theirs counts from the first request to the last response",
        "completion_rate": "what counts as completed is decided by the reader of its replies",
    },
    left_out={
        "inter_chunk_latency": "gaps between chunks, whatever number of tokens is in a chunk",
        "time_to_second_token": "no metric here",
        "goodput": "its limits are not compared with those of a test",
    },
)

_GUIDELLM_VERSIONS = (1, 2)


def _guidellm(content: Mapping[str, Any]) -> list[ForeignRun]:
    """A run for each benchmark whose load is a rate or a number of streams; the others are left out.

    WrongShapeError for another version, and where no benchmark is left.
    """
    fields = Fields(content)
    metadata = fields.section("metadata")
    known = metadata.number("version")
    if known not in _GUIDELLM_VERSIONS:
        versions = ", ".join(map(str, _GUIDELLM_VERSIONS))
        raise WrongShapeError(f"metadata.version is {known!r}: known are {versions}")
    found = [(benchmark, _load_of_guidellm(benchmark)) for benchmark in fields.sections("benchmarks")]
    version = metadata.text("guidellm_version")
    made = [_run_of_guidellm(benchmark, load, version) for benchmark, load in found if load is not None]
    if not made:
        raise WrongShapeError("no benchmark in it has a rate or a number of streams")
    return made


def _load_of_guidellm(benchmark: Fields) -> ForeignLoad | None:
    strategy = benchmark.section("config").section("strategy")
    kind, rate = strategy.text("type_"), strategy.number("rate")
    if kind == "synchronous":
        return ForeignLoad(concurrency=1)
    if kind == "concurrent":
        return ForeignLoad(concurrency=strategy.count("streams"))
    if rate is None or kind not in ("constant", "poisson") or strategy.number("rampup_duration"):
        return None
    most = strategy.count("max_concurrency")
    seen = benchmark.section("metrics").section("request_concurrency").section("total").number("max")
    if most is not None and seen is not None and seen < most:
        most = None  # GuideLLM always writes one, 10240 by default: a cap that was not reached is none
    return ForeignLoad(rate, _ARRIVALS[kind], None, most)


def _run_of_guidellm(benchmark: Fields, load: ForeignLoad, version: str | None) -> ForeignRun:
    metrics = benchmark.section("metrics")

    def of(name: str) -> Fields:
        return metrics.section(name).section("successful")

    values: dict[str, float] = {}
    for family, name, factor in (
        ("ttft", "time_to_first_token_ms", 1.0),
        ("tpot", "inter_token_latency_ms", 1.0),
        ("e2e", "request_latency", 1e3),
    ):
        percentiles = of(name).section("percentiles")
        values |= percentiles.latencies(family, {"p50": "p50", **_TAILS, "p99_9": "p999"}, factor)
        values |= of(name).latencies(family, {"mean": "mean"}, factor)
    values |= of("output_tokens_per_second").figures({"output_token_throughput": "mean"})
    values |= of("requests_per_second").figures({"request_throughput": "mean"})
    totals = metrics.section("request_totals")
    values |= completion_rate(totals.count("successful"), totals.count("errored"))
    return ForeignRun(
        load,
        values,
        model=benchmark.section("config").section("backend").text("model"),
        version=version,
        mean_input_tokens=of("prompt_token_count").number("mean"),
        mean_output_tokens=of("output_token_count").number("mean"),
    )


_OBSERVED = "percentiles are observed values, ours lie between them"
GUIDELLM: Final = ResultFormat(
    "GuideLLM",
    _has("benchmarks", "metadata"),
    _guidellm,
    differences={
        "ttft": f"theirs runs from the head of the request to the first content or reasoning, white space "
        f"included, by the wall clock, and is 0 for a request without one; {_OBSERVED}",
        "tpot": f"theirs, called inter-token latency, weights each request by its tokens; {_OBSERVED}",
        "e2e": f"theirs runs from the head of the request to the end of its stream, by the wall clock; "
        f"{_OBSERVED}",
        "output_token_throughput": "theirs spreads the tokens of a request evenly over it, between warm-up "
        "and cool-down",
        "request_throughput": "theirs counts between warm-up and cool-down",
        "completion_rate": "theirs leaves out what had not ended when the benchmark did",
    },
    left_out={
        "time_per_output_token_ms": "includes the time to the first token",
        "output_tokens_per_iteration": "describes chunks",
        "slo_attainment": "its limits are not compared with those of a test",
    },
)


def _inference_perf(content: Mapping[str, Any]) -> list[ForeignRun]:
    """WrongShapeError for a summary of several stages, which does not say its load."""
    fields = Fields(content)
    successes, summary = fields.section("successes"), fields.section("load_summary")
    values: dict[str, float] = {}
    named = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency"}
    for family, name in named.items():
        values |= successes.section("latency").section(name).latencies(family, _OF_NUMPY, 1e3)
    values |= successes.section("throughput").figures(
        {"output_token_throughput": "output_tokens_per_sec", "request_throughput": "requests_per_sec"}
    )
    completed = successes.count("count")
    values |= completion_rate(completed, fields.section("failures").count("count"))
    concurrency, rate = summary.count("concurrency"), summary.number("requested_rate")
    if not concurrency and not rate:
        raise WrongShapeError(
            "load_summary.requested_rate is missing, as in a summary of all stages: give "
            "stage_N_lifecycle_metrics.json"
        )
    return [
        ForeignRun(
            # With slots the rate is none that was asked for. The file does not say how requests arrive.
            ForeignLoad(concurrency=concurrency) if concurrency else ForeignLoad(rate),
            values,
            mean_input_tokens=mean(successes.section("prompt_tokens").number("total"), completed),
            mean_output_tokens=successes.section("output_len").number("mean"),
        )
    ]


INFERENCE_PERF: Final = ResultFormat(
    "inference-perf",
    _has("load_summary", "successes"),
    _inference_perf,
    differences={
        "ttft": "theirs runs from before the client's call to the first content, white space included, and "
        "leaves out replies of a single token",
        "tpot": "theirs counts tokens with the client's tokenizer unless set otherwise",
        "e2e": "theirs runs from before the client's call to the end of the stream",
        "output_token_throughput": f"{_COUNTED_THERE}, from the first start to the last end",
        "request_throughput": "theirs counts from the first start to the last end",
        "completion_rate": "theirs counts as completed what ended without an error that the client noticed",
    },
    left_out={
        "inter_token_latency": "zero between the tokens of a chunk, by the client's tokenizer",
        "normalized_time_per_output_token": "includes the time to the first token",
        "goodput_metrics": "its limits are not compared with those of a test",
    },
)
