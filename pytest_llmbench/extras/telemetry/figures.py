"""The result of a test with what its machine told: metrics, tables, pictures, and what is missing.

Over which time: of one load the time of its throughput (of a steady state without the first wave and the
drain), of levels their windows. A test with levels has the plain names of those that it reports, else of all
levels together; a sweep has each level's alone, in brackets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_llmbench.extras.telemetry.metrics import (
    ENERGY_PER_OUTPUT_TOKEN,
    ENERGY_PER_REQUEST,
    GIB,
    MEAN_POWER,
    TOKENS_PER_JOULE,
    Stretch,
    machine_metrics,
)
from pytest_llmbench.methodology.given import BY_LEVEL
from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters
from pytest_llmbench.methodology.measuring.job_figures import spreads_of, steady_middle
from pytest_llmbench.methodology.measuring.levels import qualified
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics.definitions import METRICS, of_the_machine
from pytest_llmbench.metrics.jobs import job_metrics
from pytest_llmbench.metrics.throughput import Window, level_window
from pytest_llmbench.model.estimate import Estimate, Reason, by_run
from pytest_llmbench.model.numbers import Amount, Row, cells
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import PROBE, REQUESTS_OVER_TIME, Level, Plot, Table, TestResult
from pytest_llmbench.model.sentences import Note, Parameter
from pytest_llmbench.model.telemetry import THROTTLES, DeviceSeries

Metrics = dict[str, Estimate]
_AFTER = ("throughput_load", "throughput_latency", REQUESTS_OVER_TIME)
"""Pictures behind which those of power stand, the first that there is."""
_MOST_LINES = 8
_COLUMNS = ("Power", "Energy", "Utilisation", "Peak memory", "Hottest", "Throttled", "Energy by")
_BY_LEVEL = (MEAN_POWER, ENERGY_PER_OUTPUT_TOKEN, ENERGY_PER_REQUEST, TOKENS_PER_JOULE)


def with_figures(parameters: TestParameters, setting: Setting, result: TestResult) -> TestResult:
    """The result with the figures of its machine. A limit on one that nobody sampled makes it undefined, and
    is told."""
    measured = [run for run in result.observations if run.plan.phase is Phase.MEASURE]
    if all(run.telemetry is None for run in measured):
        lacking = _not_sampled(result, {})
        notes = (Note.of("machine_not_sampled", metrics=tuple(lacking)),) if lacking else ()
        return replace(result, metrics={**result.metrics, **lacking}, notes=(*result.notes, *notes))
    levels = tuple(_with_own(level, result, setting) for level in result.levels)
    result = replace(result, levels=levels)
    windows = list(_windows(parameters, result))
    found: Metrics = {}
    runs: dict[str, tuple[float | None, ...]] = {}
    stretches = Stretch.all_of(windows)
    if result.test in BY_LEVEL:
        for level in _held(levels):
            own = {name: each for name, each in level.metrics.items() if name in of_the_machine()}
            found |= qualified(own, level.label)
    elif windows:
        found = machine_metrics(stretches, seed=setting.seed)
        if len(windows) > 1:
            runs = dict(by_run([machine_metrics((each,), seed=setting.seed) for each in stretches]))
        if parameters.is_job:
            found = job_metrics(found, runs, spreads_of(setting, measured))
    ids = [each.id for each in result.plots]
    place = next((ids.index(name) + 1 for name in _AFTER if name in ids), len(ids))
    return replace(
        result,
        metrics={**result.metrics, **found, **_not_sampled(result, found)},
        by_run={**result.by_run, **(runs if result.by_run else {})},
        tables=(*result.tables, *_tables(levels, stretches)),
        plots=(*result.plots[:place], *_plots(levels, measured), *result.plots[place:]),
        notes=tuple(dict.fromkeys((*result.notes, *_missing(measured, stretches)))),
    )


def _not_sampled(result: TestResult, found: Metrics) -> Metrics:
    """Undefined estimates of what limits name and nothing told."""
    names = of_the_machine()
    asked = [each.metric for each in result.objectives if each.metric.partition("[")[0] in names]
    why = "the machine of the system was not sampled, or does not report it"
    return {
        name: Estimate.undefined(
            unit=METRICS[name.partition("[")[0]].unit, method=why, reason=Reason.NOT_MEASURABLE
        )
        for name in asked
        if name not in found
    }


def _with_own(level: Level, result: TestResult, setting: Setting) -> Level:
    """A level with the figures of its own window."""
    if level.observation is None or level.is_burst:
        return level
    run = result.observations[level.observation]
    if run.telemetry is None:
        return level
    own = Stretch.all_of([(level_window(run, level.role), run.telemetry)])
    return replace(level, metrics={**level.metrics, **machine_metrics(own, seed=setting.seed)})


def _windows(parameters: TestParameters, result: TestResult) -> Iterator[tuple[Window, Any]]:
    """The windows that the plain names are over."""
    if result.levels:
        offered = [each for each in result.levels if is_offered(each) and each.observation is not None]
        reported = [each for each in offered if each.role == "reported"]
        for level in reported or _held(offered):
            run = result.observations[level.observation or 0]
            yield level_window(run, level.role), run.telemetry
        return
    adaptive = isinstance(parameters, AdaptiveParameters) and not parameters.is_job
    slots = parameters.load.in_flight if adaptive and isinstance(parameters, AdaptiveParameters) else None
    for run in result.observations:
        if run.plan.phase is Phase.MEASURE:
            counted = run if slots is None else steady_middle(run, slots)
            yield Window.of_load(counted), run.telemetry


def _held(levels: Sequence[Level]) -> list[Level]:
    """The levels that the test is about: neither bursts nor probes before them."""
    return [each for each in levels if not each.is_burst and each.role != PROBE]


def _missing(measured: Sequence[Observation], stretches: Sequence[Stretch]) -> Iterator[Note]:
    """Notes on sources and devices without figures."""
    for run in measured:
        for lost in () if run.telemetry is None else run.telemetry.lost:
            after_s = None if lost.at_ns is None else round((lost.at_ns - run.started_ns) / 1e9, 1)
            detail = lost.detail or None
            why = {lost.why: True}
            yield Note.of("telemetry_lost", source=lost.source, detail=detail, after_s=after_s, **why)
    for each in stretches:
        for series, own in each.energies.values():
            if own.why is not None:
                told: dict[str, Parameter] = {"device": _called(series), own.why: True}
                if own.joules is None:
                    yield Note.of("energy_void", **told)
                else:
                    yield Note.of("energy_by_power", **told)


def _called(series: DeviceSeries) -> str:
    return f"{series.name} ({series.id})" if series.name != series.id else series.id


def _tables(levels: Sequence[Level], stretches: Sequence[Stretch]) -> Iterator[Table]:
    told = [each for each in levels if MEAN_POWER.name in each.metrics]
    if len(told) > 1:
        titles = ("Load", "Output tokens/s", *(row.title for row in _BY_LEVEL))
        names = ("output_token_throughput", *(row.name for row in _BY_LEVEL))
        rows: tuple[Row, ...] = tuple((each.label, *cells(each.metrics, names)) for each in told)
        yield Table("energy_by_level", "Energy by Load", titles, rows)
    devices = {series.id: series for each in stretches for series in each.devices}
    if devices:
        own = tuple(_device_row(series, stretches) for series in devices.values())
        yield Table("machine", "The Machine during the Load", ("Device", *_COLUMNS), own)


def _device_row(device: DeviceSeries, stretches: Sequence[Stretch]) -> Row:
    there = [(each, series) for each in stretches for series in each.devices if series.id == device.id]
    energies = [each.energies[device.id][1] for each, _ in there if device.id in each.energies]
    joules = [own.total_j for own in energies]
    total_j = sum(own for own in joules if own is not None) if joules and None not in joules else None
    lasted_s = sum(each.window.duration_s for each, _ in there)

    def readings(quantity: Any) -> Any:
        return np.concatenate([each.inside(series, quantity) for each, series in there])

    used, memory, heat = (readings(name) for name in ("utilisation", "memory_bytes", "temperature_c"))
    bits = np.bitwise_or.reduce(readings("throttled").astype(np.int64), initial=0)
    throttled = "throttled" in device.values
    why = ", ".join(name for name, bit in THROTTLES.items() if bits & bit) or "no"
    return (
        f"{_called(device)}, {device.kind}",
        Amount(None if total_j is None or lasted_s <= 0 else total_j / lasted_s, "W"),
        Amount(total_j, "J"),
        Amount(float(used.mean()) if len(used) else None, "ratio"),
        Amount(float(memory.max()) / GIB if len(memory) else None, "GiB"),
        Amount(float(heat.max()) if len(heat) else None, "°C"),
        why if throttled else "not told",
        "; ".join(dict.fromkeys(own.by for own in energies if own.by)) or "none",
    )


def _plots(levels: Sequence[Level], measured: Sequence[Observation]) -> Iterator[Plot]:
    found = [
        (at, own.point)
        for each in _held(levels)
        if (at := each.concurrency if each.offered_rps is None else each.offered_rps) is not None
        and (own := each.metrics.get(ENERGY_PER_OUTPUT_TOKEN.name)) is not None
        and own.point is not None
    ]
    if len({at for at, _ in found}) > 1:
        x, y = zip(*sorted(found), strict=True)
        offered = any(each.offered_rps is not None for each in levels)
        label = "offered load (req/s)" if offered else "requests in flight"
        line = {"J per output token": (tuple(map(float, x)), tuple(map(float, y)))}
        yield Plot("energy_load", "Energy per Output Token over Load", label, "J per output token", line)
    run = next((run for run in reversed(measured) if run.telemetry is not None), None)
    lines = {} if run is None else _power_lines(run)
    if lines:
        of = f" ({run.plan.title})" if run is not None and len(measured) > 1 else ""
        title, label = f"Power over time{of}", "seconds from the start of the load"
        yield Plot("power_over_time", title, label, "W", lines)


def _power_lines(run: Observation) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Power of each device that tells it during the load; of a counter alone the slope between readings."""
    assert run.telemetry is not None
    found: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for series in run.telemetry.devices:
        at_ns, power_w = series.at_ns, series.values.get("power_w")
        counted = series.values.get("energy_j")
        if power_w is None and counted is not None and len(at_ns) > 1:
            power_w, at_ns = np.diff(counted) / np.diff(at_ns) * 1e9, at_ns[1:]
        if power_w is None:
            continue
        shown = (at_ns >= run.started_ns) & (at_ns <= run.ended_ns) & np.isfinite(power_w) & (power_w >= 0)
        if shown.any() and len(found) < _MOST_LINES:
            seconds = (at_ns[shown] - run.started_ns) / 1e9
            found[series.id] = (tuple(seconds.tolist()), tuple(power_w[shown].tolist()))
    return found
