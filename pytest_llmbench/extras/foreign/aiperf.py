"""``profile_export_aiperf.json`` of NVIDIA's AIPerf.

Format: ``JsonExportData`` of ``aiperf/common/models/export_models.py``, schemas 1.0 to 1.3 and the one
before them without a number; load: ``input_config``, as ``aiperf/config/phases.py`` has it and, before 1.0,
as ``docs/tutorials/working-with-profile-exports.md`` shows it; definitions: ``aiperf/metrics/types/`` (ai-
dynamo/aiperf, wheel 0.13.0). Percentiles are linear, as ours are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.errors import shown
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, completion_rate, rates
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, ForeignRun, ResultFormat

KNOWN: Final = ("1.0", "1.1", "1.2", "1.3", "1.4")

DIFFERENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ttft": "theirs runs from just before the request, connecting included, to the first content or "
        "reasoning, white space included",
        "tpot": "theirs, called inter-token latency, begins at that first content, and counts tokens with "
        "the client's tokenizer unless set otherwise",
        "e2e": "theirs runs from just before the request, connecting included",
        "output_token_throughput": "theirs counts with the client's tokenizer unless set otherwise, from "
        "the first request to the last response",
        "request_throughput": "theirs counts from the first request to the last response",
        "completion_rate": "what counts as completed is decided by the reader of its replies",
    }
)
LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "inter_chunk_latency": "gaps between chunks, whatever number of tokens is in a chunk",
        "time_to_second_token": "no metric here",
        "goodput": "its limits are not compared with those of a test",
    }
)
_STATISTICS = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "mean": "avg"}
_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
_ARRIVALS = {"poisson": "poisson", "constant": "uniform", "gamma": "gamma"}


def recognised(content: Mapping[str, Any]) -> bool:
    return "request_latency" in content and "input_config" in content and "request_throughput" in content


def runs(content: Mapping[str, Any]) -> list[ForeignRun]:
    """The one run of a file. WrongShapeError for another schema, a cancelled run, and an unknown load."""
    fields = Fields(content)
    schema = fields.text("schema_version")
    if schema not in (None, *KNOWN):
        raise WrongShapeError(
            f"schema_version is {shown(schema)}: known are {', '.join(KNOWN)} and files without one"
        )
    if fields.flag("was_cancelled"):
        raise WrongShapeError("was_cancelled is true: these are the figures of a part of a run")
    if fields.flag("is_complete", of=False):
        raise WrongShapeError("is_complete is false: these are the figures of a part of a run")
    values: dict[str, float] = {}
    for family, name in _LATENCIES.items():
        values |= _latencies(fields.section(name), family)
    values |= rates({ours: fields.section(their).number("avg") for ours, their in _RATES.items()})
    completed = fields.section("request_count").count("avg")
    failed = fields.section("error_request_count").count("avg")
    values |= completion_rate(completed, failed or 0)
    config = fields.section("input_config")
    return [
        ForeignRun(
            _load(config),
            values,
            model=_model(config),
            version=fields.text("aiperf_version"),
            mean_input_tokens=fields.section("input_sequence_length").number("avg"),
            mean_output_tokens=fields.section("output_sequence_length").number("avg"),
        )
    ]


_RATES = {"output_token_throughput": "output_token_throughput", "request_throughput": "request_throughput"}


def _latencies(found: Fields, family: str) -> dict[str, float]:
    unit = found.text("unit") or "ms"
    if unit not in _MS:
        raise WrongShapeError(f"{family} is in {unit!r}: known units are {', '.join(_MS)}")
    return found.latencies(family, _STATISTICS, _MS[unit])


def _load(config: Fields) -> ForeignLoad:
    measured = [phase for phase in config.sections("phases") if not _is_warm_up(phase)]
    if len(measured) == 1:
        return _of_phase(measured[0])
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


def _is_warm_up(phase: Fields) -> bool:
    return phase.flag("exclude_from_results") or "warmup" in (phase.text("name"), phase.text("kind"))


def _of_phase(phase: Fields) -> ForeignLoad:
    kind, concurrency = phase.text("type"), phase.count("concurrency")
    if kind == "concurrency":
        return ForeignLoad(concurrency=concurrency or 1)
    rate = phase.number("rate")
    if kind in _ARRIVALS and rate is not None and "rate_ramp" not in phase:
        return ForeignLoad(rate, _ARRIVALS[kind], phase.number("smoothness"), concurrency)
    raise WrongShapeError(f"the load is of type {kind!r}: no load of ours is like it")


def _model(config: Fields) -> str | None:
    """The model, if there is only one; else None."""
    if "models" in config:
        names = [item.text("name") for item in config.section("models").sections("items")]
    else:
        names = list(config.section("endpoint").texts("model_names"))
    return names[0] if len(names) == 1 else None


FORMAT: Final = ResultFormat("AIPerf", recognised, runs, DIFFERENCES, LEFT_OUT)
