"""How fast and how exact is the load generator, beside the usual script?

    python benchmarks/bench_generator.py http://127.0.0.1:8000/v1 [--model NAME] [--rounds 3]

Two clients take turns against the endpoint: ours, and ``naive``, the script one would write with httpx
(``AsyncClient.stream``, ``aiter_lines``, ``json.loads`` for each event). Per round:

* **capacity**: closed loop, 64 in flight; requests and chunks per second;
* **open loop**: Poisson arrivals; lateness of sends against the schedule, and TTFT as each client sees it.

Absolute figures belong to the machine, the endpoint and the hour; the ratios of one run are what to compare,
so the last lines give ours over naive as the median of the rounds. A capacity is only that of the client when
the endpoint is much faster than both (a C server that answers at once), and a TTFT difference is only an
error of the client when the endpoint answers after a known time. Closed loop: use an endpoint that answers at
once. Open loop: one with a fixed time to first token; ``--open-model`` may name it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.openai_chat import OpenAIChat

CONCURRENCY = 64
PROMPT = "Say something about the weather in twenty words. " * 4


@dataclass(frozen=True)
class FixedWorkload:
    """The same short prompt again and again: the client is measured here, not the server."""

    output_tokens: int
    name: str = "fixed"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        prompt = f"{PROMPT}{seed}"
        return [PlannedRequest(index, self.output_tokens, 40, text=prompt) for index in range(count)]

    def specification(self) -> Mapping[str, Any]:
        return {}


@dataclass
class Figures:
    """What one client did in one round."""

    requests_per_s: float = 0.0
    chunks_per_s: float = 0.0
    cpu_us_per_request: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)
    send_lag_ms: list[float] = field(default_factory=list)


def ours(options: argparse.Namespace) -> Figures:
    figures = Figures()
    target, dialect = Target.parse(options.url), OpenAIChat()
    workload = FixedWorkload(options.tokens)
    kernel = options.stamps == "kernel"
    with LoadGenerator(target, dialect, model=options.model, kernel_stamps=kernel) as generator:
        closed = ClosedLoop(CONCURRENCY)
        generator.run(LoadPlan("warm-up", workload, closed, CONCURRENCY * 2, seed=1))
        cpu = time.process_time()
        seen = generator.run(LoadPlan("capacity", workload, closed, options.requests, seed=2))
        figures.cpu_us_per_request = (time.process_time() - cpu) / options.requests * 1e6
        _all_ok(seen.records.counts())
        figures.requests_per_s = options.requests / seen.duration_s
        figures.chunks_per_s = len(seen.records.chunk_ns) / seen.duration_s
    workload = FixedWorkload(options.open_tokens)
    model = options.open_model or options.model
    with LoadGenerator(target, dialect, model=model, kernel_stamps=kernel) as generator:
        load = OpenLoop(options.rate)
        seen = generator.run(LoadPlan("open", workload, load, options.open_requests, seed=3))
    records = seen.records
    _all_ok(records.counts())
    figures.ttft_ms = ((records.first_content_ns - records.submitted_ns) / 1e6).tolist()
    figures.send_lag_ms = ((records.dispatched_ns - records.scheduled_ns) / 1e6).tolist()
    return figures


def _all_ok(counts: Mapping[str, int]) -> None:
    if counts["ok"] != counts["submitted"]:
        raise SystemExit(f"the endpoint failed some requests, so there is nothing to compare: {counts}")


def naive(options: argparse.Namespace) -> Figures:
    return asyncio.run(_naive(options))


async def _naive(options: argparse.Namespace) -> Figures:
    figures = Figures()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=options.url, limits=limits, timeout=120.0) as client:
        count = max(CONCURRENCY, options.requests // 20)  # it is that much slower
        gate = asyncio.Semaphore(CONCURRENCY)
        chunks: list[int] = []

        async def gated() -> None:
            async with gate:
                chunks.append((await _ask(client, options.model, options.tokens))[1])

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(gated() for _ in range(count)))
        took = time.perf_counter() - began
        figures.cpu_us_per_request = (time.process_time() - cpu) / count * 1e6
        figures.requests_per_s, figures.chunks_per_s = count / took, sum(chunks) / took
        await _naive_open_loop(client, options, figures)
    return figures


async def _naive_open_loop(client: httpx.AsyncClient, options: argparse.Namespace, figures: Figures) -> None:
    offsets = schedule_ns(OpenLoop(options.rate), options.open_requests, arrival_seed(3)) / 1e9
    model = options.open_model or options.model
    began = time.perf_counter()

    async def one(due: float) -> None:
        figures.send_lag_ms.append((time.perf_counter() - due) * 1e3)
        figures.ttft_ms.append((await _ask(client, model, options.open_tokens))[0] * 1e3)

    running = []
    for offset in offsets.tolist():
        await asyncio.sleep(max(0.0, began + offset - time.perf_counter()))
        running.append(asyncio.create_task(one(began + offset)))
    await asyncio.gather(*running)


async def _ask(client: httpx.AsyncClient, model: str, tokens: int) -> tuple[float, int]:
    """TTFT in seconds and the number of content chunks."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "max_tokens": tokens,
    }
    began, first, chunks = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                first = first or time.perf_counter()
                chunks += 1
    return first - began, chunks


def report(rounds: Sequence[tuple[Figures, Figures]]) -> None:
    """One line per figure: ours, naive, and the median over the rounds of ours / naive."""
    rows = {
        "capacity, req/s": lambda f: f.requests_per_s,
        "capacity, chunks/s": lambda f: f.chunks_per_s,
        "CPU µs per request": lambda f: f.cpu_us_per_request,
        "TTFT p50, ms": lambda f: float(np.percentile(f.ttft_ms, 50)),
        "TTFT p99, ms": lambda f: float(np.percentile(f.ttft_ms, 99)),
        "send lag p50, ms": lambda f: float(np.percentile(f.send_lag_ms, 50)),
        "send lag p99, ms": lambda f: float(np.percentile(f.send_lag_ms, 99)),
    }
    print(f"{'':22}{'ours':>12}{'naive':>12}{'ratio':>10}")
    for name, figure in rows.items():
        mine = [figure(one) for one, _ in rounds]
        other = [figure(two) for _, two in rounds]
        ratio = statistics.median(a / b for a, b in zip(mine, other, strict=True))
        print(f"{name:22}{statistics.median(mine):12.4g}{statistics.median(other):12.4g}{ratio:10.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="base URL of an OpenAI-compatible endpoint, http://host:port/v1")
    parser.add_argument("--model", default="default")
    parser.add_argument("--open-model", help="another model name for the open loop")
    parser.add_argument("--tokens", type=int, default=16, help="output tokens, closed loop")
    parser.add_argument("--open-tokens", type=int, default=64, help="output tokens, open loop")
    parser.add_argument("--requests", type=int, default=10_000, help="closed loop; naive does 1/20")
    parser.add_argument("--open-requests", type=int, default=500)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second, open loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stamps", choices=("kernel", "user"), default="kernel", help="of our reads")
    options = parser.parse_args()
    rounds = [(ours(options), naive(options)) for _ in range(options.rounds)]
    report(rounds)


if __name__ == "__main__":
    main()
