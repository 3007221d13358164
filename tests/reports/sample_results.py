"""Results of tests with several levels, made by hand: the shapes that the other tests of the draft have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Gate
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.result import Level, Plot, Table, TestResult

OTHER_TEST = "gates/test_capacity.py::test_maximum"
_SECTIONS = {
    "throughput": ("5.2", "Output Token Throughput"),
    "tradeoff": ("5.3", "Throughput-Latency Tradeoff"),
    "itl": ("5.4", "Inter-Token Latency Distribution"),
    "capacity": ("5.5", "Concurrent Request Capacity"),
    "fairness": ("5.6", "Scheduling Fairness"),
    "prefix_cache": ("5.7", "Prefix Cache Effectiveness"),
    "memory_pressure": ("5.8", "Memory Pressure Behavior"),
    "long_context": ("5.9", "Long Context Scaling"),
    "guardrail": ("5.10", "Guardrail Overhead"),
}


def number(point: float | None, unit: str, n: int = 400, spread: float = 0.04) -> Estimate:
    if point is None:
        return Estimate.undefined(
            unit=unit, method="the engine gives no such data", reason=Reason.NOT_MEASURABLE
        )
    if spread == 0:
        return Estimate(point, None, None, 0.95, n, "search", unit, kind=EstimateKind.OBSERVED)
    return Estimate(point, point * (1 - spread), point * (1 + spread), 0.95, n, "block bootstrap", unit)


def latencies(p50: float, p99: float, tpot: float, throughput: float, n: int = 400) -> dict[str, Estimate]:
    return {
        "ttft.p50": number(p50, "ms", n),
        "ttft.p99": number(p99, "ms", n),
        "tpot.p50": number(tpot, "ms", n),
        "tpot.p99": number(tpot * 1.6, "ms", n),
        "output_token_throughput": number(throughput, "tok/s", n),
    }


def level(label: str, metrics: Mapping[str, Estimate], **more: Any) -> Level:
    values: dict[str, Any] = {
        "load_model": "closed" if "concurrency" in more else "open",
        "duration_s": 60.0,
        "window_s": 54.0,
        "n_submitted": 400,
        "n_ok": 400,
        "n_failed": 0,
        "completion_ratio": 1.0,
        "queue_growing": False,
        "saturated": False,
        "in_flight_means": (3.1, 3.2, 3.1, 3.3, 3.2),
        "queue_source": "requests in flight",
    }
    return Level(label=label, metrics=metrics, **(values | more))


def readings() -> EngineReadings:
    at = np.array([0, 10, 20_000, 60_000], dtype=np.int64) * 1_000_000
    return EngineReadings(
        at_ns=at,
        gauges={
            "running": np.array([0.0, 10.0, 30.0, 2.0]),
            "waiting": np.array([0.0, np.nan, 4.0, 0.0]),
            "kv_use": np.array([0.0, 0.25, 0.75, 0.0]),
        },
        totals_before={"preemptions": 2.0, "prompt_tokens": 50.0, "generated_tokens": 9.0},
        totals_after={"preemptions": 5.0, "prompt_tokens": 10.0, "generated_tokens": 9.0},
        source="http://user:hunter2-secret@host:8000/metrics?api_key=hunter2-secret",
        gap="the page did not answer for 2 s",
    )


def run(base: Observation, load: OpenLoop | ClosedLoop, **more: Any) -> Observation:
    plan: LoadPlan = replace(base.plan, load=load, duration_s=60.0, variant=more.pop("variant", ""))
    return replace(base, plan=plan, **more)


def result_like(base: TestResult, test: str, **parts: Any) -> TestResult:
    section, title = _SECTIONS[test]
    emptied: dict[str, Any] = {"tables": (), "plots": (), "notes": (), "objectives": (), "gate": Gate()}
    return replace(base, test=test, section=section, title=title, **(emptied | parts))


def throughput(base: TestResult, slo: Mapping[str, float] | None = None) -> TestResult:
    name = "max_output_token_throughput" if slo is None else "constrained_output_token_throughput"
    metrics = {
        name: number(2847.3, "tok/s"),
        "max_request_throughput": number(18.2, "req/s"),
        "sustainable_rate": number(20.0, "req/s", spread=0),
        "output_tokens_per_gpu_second": number(355.9, "tok/s"),
        "batch_utilisation": number(None, "ratio"),
        **latencies(312, 1124, 42, 2847.3),
    }
    rates = (5.0, 40.0, 22.5, 20.0)
    levels = tuple(
        level(f"{rate:g} req/s", latencies(60 * rate, 90 * rate, 2 * rate, 140 * rate), offered_rps=rate,
              saturated=rate > 20, queue_growing=rate > 20, role="reported" if rate == 20 else "probe",
              saturation_reasons=("the queue grows",) if rate > 20 else (), observation=i,
              shared_from=OTHER_TEST if i < 2 else None)
        for i, rate in enumerate(rates)
    )  # fmt: skip
    tables = (
        Table("throughput_summary", "Throughput Summary", ("Metric", "Value"),
              (("Max Output Throughput", "2847 tok/s"), ("Sustainable Load", "20 req/s (offered)"))),
        Table("latency_at_max", "Latency at Maximum Throughput", ("Metric", "P50", "P95", "P99"),
              (("TTFT", "312 ms", "687 ms", "1124 ms"), ("TPOT", "42 ms", "78 ms", "134 ms"))),
    )  # fmt: skip
    runs = tuple(
        run(base.observations[0], OpenLoop(rate), shared_from=level_.shared_from, engine=readings(),
            stopped="the queue grew for 20 s" if rate == 40 else None)
        for rate, level_ in zip(rates, levels, strict=True)
    )  # fmt: skip
    facts = base.facts | Facts.of(Origin.DECLARED, {} if slo is None else {"load.slo": dict(slo)})
    return result_like(
        base, "throughput", metrics=metrics, levels=levels, tables=tables, observations=runs, facts=facts
    )


def tradeoff(base: TestResult) -> TestResult:
    rates = [2.0 * i for i in range(1, 13)]
    achieved = [142 * rate if rate < 20 else 2750 - 30 * (rate - 20) for rate in rates]
    p50 = [90 + 0.35 * rate**2.3 for rate in rates]
    p99 = [140 + 0.02 * rate**4 for rate in rates]
    tpot = [32 + 0.14 * rate**2 for rate in rates]
    rows = tuple(
        (f"{r:g}", f"{a:.0f}", f"{x:.0f}", f"{y:.0f}", f"{t:.0f}", f"{t * 1.6:.0f}", "100%")
        for r, a, x, y, t in zip(rates, achieved, p50, p99, tpot, strict=True)
    )
    columns = ("Offered (r/s)", "Achieved (tok/s)", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "Success")
    x = tuple(achieved)
    plot = Plot(
        id="throughput_latency",
        title="Throughput and latency",
        x_label="achieved output tokens per second",
        y_label="latency (ms)",
        series={"TTFT P50": (x, tuple(p50)), "TTFT P99": (x, tuple(p99)), "TPOT P50": (x, tuple(tpot))},
        bands={"TTFT P99": (x, tuple(0.9 * y for y in p99), tuple(1.2 * y for y in p99))},
        marks={"knee": achieved[4], "saturation": achieved[10]},
        y_log=True,
    )
    levels = tuple(
        level(f"{10 * (i + 1)}%", latencies(p50[i], p99[i], tpot[i], achieved[i], 120 * (i + 1)),
              offered_rps=rate, percent_of_capacity=10.0 * (i + 1), observation=0)
        for i, rate in enumerate(rates)
    )  # fmt: skip
    metrics = {
        "knee_rate": number(14.0, "req/s", spread=0),
        "saturation_rate": number(22.0, "req/s", spread=0),
        "operating_point_rate": Estimate.undefined(unit="req/s", method="no level meets the objectives"),
    }
    table = Table("tradeoff_levels", "Throughput-Latency Table", columns, rows)
    runs = tuple(run(base.observations[0], OpenLoop(rate)) for rate in rates)
    return result_like(
        base, "tradeoff", metrics=metrics, levels=levels, tables=(table,), plots=(plot,), observations=runs
    )


def itl(base: TestResult) -> TestResult:
    metrics: dict[str, Estimate] = {}
    series, tables = {}, []
    for share in ("25%", "50%", "75%", "90%"):
        scale = float(share[:-1]) / 25
        for statistic, value in (("p50", 38), ("p99", 124), ("mean", 42)):
            metrics[f"itl[{share}].{statistic}"] = number(value * scale, "ms", 15_234)
        metrics[f"itl_tail_ratio[{share}]"] = number(3.26 * scale, "ratio")
        metrics[f"itl_modes[{share}]"] = number(2.0, "count", spread=0)
        x = np.linspace(20, 160, 57) * scale
        y = np.exp(-(((x / scale - 40) / 12) ** 2)) + 0.2 * np.exp(-(((x / scale - 110) / 15) ** 2))
        series[share] = (tuple(x.tolist()), tuple(y.tolist()))
        cells = (("ITL Samples", "15234"), ("ITL P50", f"{38 * scale:.0f} ms"))
        tables.append(
            Table(f"itl_results_{share[:-1]}", f"ITL Results at {share}", ("Metric", "Value"), cells)
        )
    histogram = Plot(
        "itl_histogram", "Distribution of ITL", "ITL (ms)", "share", {"25%": series["25%"]}, step=True
    )
    return result_like(base, "itl", metrics=metrics, tables=tuple(tables), plots=(histogram,))


def capacity(base: TestResult) -> TestResult:
    slots = (8, 16, 32, 64, 128, 96)
    completion = (1.0, 1.0, 1.0, 0.997, 0.972, 0.984)
    levels = tuple(
        level(f"{count} in flight", latencies(60 + count, 130 + 6 * count, 30 + count / 4, 40.0 * count),
              concurrency=count, completion_ratio=share, passed=share >= 0.99, n_ok=round(400 * share),
              fail_reasons=() if share >= 0.99 else (f"completion {share:.1%} is under 99 %",),
              errors={} if share >= 0.99 else {"timeout": 3}, role="reported" if count == 64 else "probe")
        for count, share in zip(slots, completion, strict=True)
    )  # fmt: skip
    metrics = {
        "max_concurrency": number(64.0, "count", spread=0),
        "output_token_throughput": number(2560.0, "tok/s"),
        "tokens_in_flight": number(31_204.5, "tokens"),
    }
    x = tuple(float(count) for count in sorted(slots))
    y = tuple(share for _, share in sorted(zip(slots, completion, strict=True)))
    plot = Plot(
        id="capacity_completion",
        title="Completion by concurrency",
        x_label="requests in flight",
        y_label="completion rate",
        series={"completion": (x, y)},
        bands={"completion": (x, tuple(v - 0.01 for v in y), tuple(min(v + 0.005, 1.0) for v in y))},
        marks={"limit": 64.0},
        x_log=True,
    )
    runs = tuple(run(base.observations[0], ClosedLoop(count)) for count in slots)
    return result_like(base, "capacity", metrics=metrics, levels=levels, plots=(plot,), observations=runs)


def fairness(base: TestResult) -> TestResult:
    metrics = {
        "jain_index": number(0.8712, "ratio"),
        "starvation_rate[short]": number(0.003, "ratio"),
        "starvation_rate[long]": number(0.0, "ratio"),
        "ttft_inflation[short].p50": number(1.84, "ratio"),
        "ttft[short].p99": number(234.0, "ms", 4012),
        "ttft[long].p99": number(1234.0, "ms", 988),
    }
    return result_like(base, "fairness", metrics=metrics)


def memory_pressure(base: TestResult) -> TestResult:
    metrics = {
        "fail_rate[110%]": number(0.018, "ratio"),
        "preemption_rate[110%]": number(None, "ratio"),
        "recovery_time": number(12.4, "s"),
    }
    return result_like(base, "memory_pressure", metrics=metrics)


def long_context(base: TestResult) -> TestResult:
    lengths = [1024.0 * 2**i for i in range(8)]
    means = [20 + 0.068 * length for length in lengths]
    plot = Plot(
        id="context_scaling",
        title="TTFT by context length",
        x_label="input tokens",
        y_label="TTFT (ms)",
        series={
            "TTFT mean": (tuple(lengths), tuple(means)),
            "fit: 68 µs/token": (tuple(lengths), tuple(0.0685 * length for length in lengths)),
        },
        bands={"TTFT mean": (tuple(lengths), tuple(0.93 * m for m in means), tuple(1.08 * m for m in means))},
        x_log=True,
        y_log=True,
    )
    metrics = {
        "prefill_exponent": number(1.021, "ratio"),
        "prefill_exponent_fit": number(0.99996, "ratio", spread=0),
        "prefill_slope": number(68.2, "us/token"),
        "prefill_linear_fit": number(0.9987, "ratio", spread=0),
    }
    for length, mean in zip(lengths, means, strict=True):
        metrics[f"ttft[{length:.0f}].mean"] = number(mean, "ms", 20)
        metrics[f"ttft[{length:.0f}].p95"] = number(1.2 * mean, "ms", 20)
    return result_like(base, "long_context", metrics=metrics, plots=(plot,))


def guardrail(base: TestResult) -> TestResult:
    metrics = {
        "input_filter_overhead[50%].p50": number(14.0, "ms"),
        "guardrail_overhead[50%].p50": number(802.0, "ms"),
        "throughput_reduction[full]": number(0.202, "ratio"),
        "e2e[full@50%].p99": number(10_200.0, "ms"),
    }
    loads = [
        run(base.observations[0], OpenLoop(5.0), variant=f"guardrails_{kind}")
        for kind in ("baseline", "full")
    ]
    return result_like(base, "guardrail", metrics=metrics, observations=tuple(loads))


def all_of_them(base: TestResult) -> Sequence[TestResult]:
    """One per test that is not ``ttft``, prefix_cache left out."""
    makers = (throughput, tradeoff, itl, capacity, fairness, memory_pressure, long_context, guardrail)
    return [make(base) for make in makers]
