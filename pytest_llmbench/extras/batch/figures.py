"""What a batch is measured by, beside the figures of a job.

Each is of one run; several runs have its mean, the spread of the sends the largest one. Only requests that
ended well count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pytest_llmbench.metrics.definitions import SPREAD as SPREAD_STATISTICS
from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.latency import tpot_ms
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import Window, output_token_throughput
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.stats.latencies import streamed_tokens
from pytest_llmbench.stats.runs import FloatArray

SPREAD: Final = MetricDefinition(
    "send_spread", "Spread of the sends", "ms", "lower", "last T_submit - first T_submit of a run", "batch"
)
COMMON: Final = MetricDefinition(
    "common_generation_rate",
    "Generation rate while all generate",
    "tok/s",
    "higher",
    "output tokens between the last first token and the first last token / that time",
    "batch",
)
FASTEST: Final = MetricDefinition(
    "fastest_rate_times_prompts",
    "Rate of the fastest request × requests",
    "tok/s",
    "higher",
    "most generated tokens per second of a request x requests of the batch (exo's aggregate rate)",
    "batch",
)
SERVER_PREFILL: Final = MetricDefinition(
    "server_prefill_rate",
    "Prefill rate of a request by the server",
    "tok/s",
    "higher",
    "server: (input tokens - cached ones) / its prefill time",
    "batch",
    SPREAD_STATISTICS,
)
SERVER_GENERATION: Final = MetricDefinition(
    "server_generation_rate",
    "Generation rate of a request by the server",
    "tok/s",
    "higher",
    "server: output tokens / its generation time",
    "batch",
    SPREAD_STATISTICS,
)


def send_spread(seen: Sequence[Observation]) -> Estimate:
    """The largest of the runs, over all requests that were sent, whatever became of them."""
    sent = [run.records.submitted_ns[run.records.submitted_ns != MISSING] for run in seen]
    if not sent or not all(map(len, sent)):
        return Estimate.undefined(unit="ms", method="a run without a request that was sent")
    worst = max(float(np.ptp(each)) for each in sent) / 1e6
    count = sum(map(len, sent))
    return Estimate(worst, worst, worst, 0.95, count, "the largest of a run", "ms", runs=len(seen))


def rates_of(seen: Sequence[Observation], seed: int) -> dict[str, Estimate]:
    """The rates of the runs together."""
    records = [run.records for run in seen]
    windows = [window for run in records if (window := _all_generate(run)) is not None]
    if windows and len(windows) == len(records):
        common = output_token_throughput(windows, seed=seed)
    else:
        why = "no stretch of time in which all requests of a run generate"
        common = Estimate.undefined(unit="tok/s", method=why)
    found = {COMMON.name: common, FASTEST.name: _fastest(records)}
    for row, values in ((SERVER_PREFILL, prefill_rates), (SERVER_GENERATION, generation_rates)):
        found |= distribution(row.name, [values(run) for run in records], unit="tok/s")
    return found


def prefill_rates(records: Records) -> FloatArray:
    """Tokens per second of each request whose prefill the server tells. One that had nothing to read has no
    rate."""
    read = records.input_tokens - np.maximum(records.cached_tokens, 0)
    return _per_second(records, np.where(records.input_tokens == MISSING, 0, read), records.prefill_ns)


def generation_rates(records: Records) -> FloatArray:
    """Tokens per second of each request whose generation the server tells."""
    return _per_second(records, records.output_tokens, records.generation_ns)


def _per_second(records: Records, tokens: IntColumn, times_ns: IntColumn) -> FloatArray:
    known = records.ok & (tokens > 0) & (times_ns > 0)
    return np.asarray(1e9 * tokens[known] / times_ns[known], dtype=np.float64)


def _all_generate(records: Records) -> Window | None:
    ended = records.select(records.ok & (records.first_nonempty_ns != MISSING))
    if not len(ended):
        return None
    start_ns, end_ns = int(ended.first_nonempty_ns.max()), int(ended.last_content_ns.min())
    return Window(ended, start_ns, end_ns) if end_ns > start_ns else None


def _fastest(runs: Sequence[Records]) -> Estimate:
    """The rate by the server's own times where it tells them all, as exo takes it, else by TPOT."""
    told = [generation_rates(run) for run in runs]
    by_server = all(
        len(rates) == int((run.ok & (streamed_tokens(run) > 0)).sum())
        for run, rates in zip(runs, told, strict=True)
    )
    rates = told
    if not by_server or not all(map(len, told)):
        rates = [1000.0 / tpot[tpot > 0] for tpot in map(tpot_ms, runs)]
    if not rates or not all(map(len, rates)):
        return Estimate.undefined(unit="tok/s", method="no request has a rate", reason=Reason.NO_SAMPLES)
    points = [float(own.max()) * len(run) for own, run in zip(rates, runs, strict=True)]
    method = "largest rate of the server" if rates is told else "1000 / smallest TPOT in ms"
    return Estimate(
        float(np.mean(points)), None, None, 0.95, sum(map(len, runs)), f"{method} x requests", "tok/s"
    )
