"""The ITL procedure (section 5.4): canned streams with known gaps, and the engine's step time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from canned_levels import are_in_the_catalogue, prompts
from canned_streams import StreamServer, streaming_setting
from replayed_sut import ReplayedSUT

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.methodology.sections import itl
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import OVER_TIME, Table, TestResult
from pytest_llmbench.workloads.catalogue import workload

UNIFORM = workload("synthetic-uniform")


def pump(server: StreamServer, scale: Scale = "standard", **given: Any) -> TestResult:
    parameters = build(itl.Parameters, {"capacity_rps": 40, "duration_s": 1.0, **given})
    return drive(itl.TEST.procedure(parameters, streaming_setting(UNIFORM, scale)), server)


def tables(result: TestResult, table_id: str) -> list[Table]:
    return [table for table in result.tables if table.id == table_id]


def cells(result: TestResult, table_id: str = "itl_results") -> dict[str, str]:
    return {row[0]: row[1] for row in tables(result, table_id)[0].rows}


def finding(result: TestResult, check: str) -> Finding:
    return next(finding for finding in result.findings if finding.check == check)


def bumpy(plan: LoadPlan, request: PlannedRequest, n: int) -> list[float]:
    """30 ms and 10 ms by turns, and one pause of 200 ms."""
    gaps = [30.0 if i % 2 else 10.0 for i in range(n)]
    gaps[n // 2] = 200.0
    return gaps


def test_gaps_of_every_level_and_ttft_is_not_among_them() -> None:
    result = pump(StreamServer(ttft_ms=lambda plan, request: 5000.0), levels_percent=(25, 90))
    for name in ("itl", "itl[25%]", "itl[90%]"):
        assert result.metrics[f"{name}.p50"].point == pytest.approx(10.0)
        assert result.metrics[f"{name}.p99_9"].point == pytest.approx(10.0)
        assert result.metrics[f"{name}.mean"].point == pytest.approx(10.0)
        assert result.metrics[f"{name}.std"].point == pytest.approx(0.0, abs=1e-6)
    assert result.metrics["longest_pause[25%].p99"].point == pytest.approx(10.0)
    assert result.metrics["ttft[25%].p50"].point == pytest.approx(5000.0)


def test_jitter_pause_and_tail_of_known_gaps() -> None:
    result = pump(StreamServer(gaps_ms=bumpy), levels_percent=(50,))
    requests = UNIFORM.requests(1000, 42)
    jitter = {len(g): np.std(g, ddof=1) for r in requests for g in [bumpy(None, r, r.max_tokens - 1)]}  # type: ignore[arg-type]
    assert result.metrics["longest_pause[50%].p50"].point == pytest.approx(200.0)
    assert min(jitter.values()) <= (result.metrics["jitter[50%].p50"].point or 0) <= max(jitter.values())
    ratio = result.metrics["itl_tail_ratio[50%]"]
    p50, p99 = (result.metrics[f"itl[50%].{q}"].point or 0 for q in ("p50", "p99"))
    assert ratio.point == pytest.approx(p99 / p50)
    assert result.metrics["itl_modes[50%]"].point == 2
    assert cells(result)["Modality"].startswith("multimodal")


def test_table_six_follows_the_draft_once_per_level() -> None:
    result = pump(StreamServer(gaps_ms=bumpy), levels_percent=(25, 50))
    found = tables(result, "itl_results")
    assert [table.title for table in found] == [
        "ITL Results at 25% of saturation, 10 req/s",
        "ITL Results at 50% of saturation, 20 req/s",
    ]
    names = ("Samples", "P50", "P90", "P95", "P99", "P99.9", "Mean", "Std Dev")
    expected = [*(f"ITL {name}" for name in names), "P99/P50 Ratio"]
    assert [row[0] for row in found[0].rows][: len(expected)] == expected
    assert cells(result)["ITL P90"] == "30 ms"
    assert int(cells(result)["ITL Samples"]) == result.facts.value("itl.levels")[0]["samples"]
    assert [plot.id for plot in result.plots] == ["itl_cdf", "itl_histogram", *OVER_TIME]
    assert list(result.plots[0].series) == ["25%", "50%"]


def test_the_histogram_is_of_the_highest_level_with_its_modes() -> None:
    plot = pump(StreamServer(gaps_ms=bumpy), levels_percent=(25, 50)).plots[1]
    (level, (x, y)), *others = plot.series.items()
    assert (level, others, len(x)) == ("50%", [], len(y))
    assert (y[0], y[-1]) == (0.0, 0.0)
    assert list(plot.marks.values()) == pytest.approx([10.0, 30.0], rel=0.02)
    assert plot.title == "Histogram of ITL at 50% of saturation, 2 modes"
    # A step begins at its x: the bin of each mode holds its share of the gaps.
    shares = [y[max(i for i, start in enumerate(x) if start <= mode)] for mode in plot.marks.values()]
    assert y[-2] == pytest.approx(1 - sum(shares)) == pytest.approx(1 / 164, rel=0.05)  # the pause


def test_a_stream_whose_tokens_come_all_at_once_has_no_histogram() -> None:
    def none(plan: LoadPlan, request: PlannedRequest, n: int) -> list[float]:
        return [0.0] * n

    result = pump(StreamServer(gaps_ms=none), levels_percent=(50,))
    assert "itl_histogram" not in [plot.id for plot in result.plots]


def test_every_level_reaches_both_floors_behind_its_ramp_up() -> None:
    server = StreamServer()
    result = pump(server)
    stated = result.facts.value("itl.levels")
    assert [level["percent_of_capacity"] for level in stated] == [25, 50, 75, 90]
    assert all(level["eligible"] >= 100 and level["samples"] >= 5000 for level in stated)
    rates = [plan.load.rate for plan in server.measured if isinstance(plan.load, OpenLoop)]
    assert rates == [10.0, 20.0, 30.0, 36.0]
    sent = prompts(server.plans)
    assert len(set(sent)) == len(sent)


def test_chunks_of_many_tokens_make_levels_longer() -> None:
    single, grouped = StreamServer(), StreamServer(tokens_per_chunk=10)
    pump(single, levels_percent=(50,))
    result = pump(grouped, levels_percent=(50,))
    assert grouped.measured[-1].requests > 2 * single.measured[-1].requests
    assert result.facts.value("itl.levels")[0]["samples"] >= 5000


def test_more_requests_are_asked_for() -> None:
    server = StreamServer()
    result = pump(server, requests=300, levels_percent=(50,))
    assert result.facts.value("itl.levels")[0]["eligible"] >= 300


def test_short_replies_are_left_out_counted_and_capped() -> None:
    def tokens(request: PlannedRequest) -> int:
        return 30 if request.index % 10 == 0 else request.max_tokens

    def gaps(plan: LoadPlan, request: PlannedRequest, n: int) -> list[float]:
        return [999.0 if request.index % 10 == 0 else 10.0] * n

    result = pump(StreamServer(output_tokens=tokens, gaps_ms=gaps), levels_percent=(50,))
    assert result.metrics["longest_pause[50%].max"].point == pytest.approx(10.0)
    level = result.facts.value("itl.levels")[0]
    assert level["excluded_share"] == pytest.approx(0.1, abs=0.03)
    assert level["eligible"] >= 100
    short = finding(result, "itl_short_replies")
    assert not short.ok
    assert not short.voids
    assert any("ended before 50 output tokens" in note for note in map(str, result.notes))


def test_five_percent_of_short_replies_are_allowed() -> None:
    result = pump(
        StreamServer(output_tokens=lambda r: 30 if r.index % 40 == 0 else r.max_tokens), levels_percent=(50,)
    )
    assert finding(result, "itl_short_replies").ok


def test_several_tokens_per_chunk_are_time_between_chunks_everywhere() -> None:
    result = pump(StreamServer(tokens_per_chunk=4), levels_percent=(25, 50))
    assert result.facts.value("streaming.itl_option") == "A"
    assert result.metrics["itl[50%].p50"].point == pytest.approx(40.0)
    shown = [table for table in result.tables if table.id in ("itl_results", "itl_by_level")]
    words = [
        word for table in shown for word in (table.title, *table.columns, *(row[0] for row in table.rows))
    ]
    assert not [word for word in words if "ITL" in word]
    assert all(table.title.startswith("Time Between Chunks") for table in shown)
    assert result.plots[0].x_label == "Time Between Chunks (ms)"
    assert result.facts.value("streaming.chunk_sizes")["max"] == 4
    assert cells(result, "chunk_sizes")["Tokens per chunk, P50"] == "4"


@pytest.mark.parametrize(("method", "voids"), [(None, False), ("C", True)])
def test_server_instants_that_cannot_be_are_not_believed(method: str | None, voids: bool) -> None:
    server = StreamServer(tokens_per_chunk=4, server_instants=True, server_clock=0.05)
    asked = {} if method is None else {"method": method}
    result = pump(server, levels_percent=(50,), **asked)
    (finding,) = [each for each in result.findings if each.check == "server_clock"]
    assert (finding.ok, finding.voids, finding.value) == (False, voids, 1.0)
    assert result.facts.value("streaming.itl_option") == (method or "A")
    assert result.facts.value("streaming.server_timestamps_available") is False


def test_server_instants_are_taken_where_chunks_hold_several_tokens() -> None:
    result = pump(StreamServer(tokens_per_chunk=4, server_instants=True), levels_percent=(50,))
    assert result.facts.value("streaming.itl_option") == "C"
    assert result.facts.value("streaming.server_timestamps_available") is True
    assert result.metrics["itl[50%].p50"].point == pytest.approx(10.0)


def test_option_b_on_request_has_gaps_of_no_length() -> None:
    result = pump(StreamServer(tokens_per_chunk=4), levels_percent=(50,), method="B")
    level = result.facts.value("itl.levels")[0]
    assert level["zero_gaps"] / level["samples"] == pytest.approx(0.75, abs=0.02)
    assert result.metrics["itl[50%].p50"].point == 0.0
    assert result.metrics["itl_tail_ratio[50%]"].point is None
    assert any("variance comes out too small" in note for note in map(str, result.notes))
    assert result.plots[0].x_log is False


def test_the_method_is_fixed_before_the_levels_by_a_characterisation_run() -> None:
    server = StreamServer()
    result = pump(server, levels_percent=(50,))
    assert [plan.label for plan in server.measured] == ["characterisation", "50% of saturation"]
    assert [level.role for level in result.levels] == ["characterisation", "level"]
    assert result.budgeted == (1,)


def test_levels_whose_streams_differ_from_the_fixed_method_are_told() -> None:
    server = StreamServer()

    def grouped_later(plan: LoadPlan) -> Any:
        server.tokens_per_chunk = 4 if plan.label.startswith("50%") else 1
        return server(plan)

    parameters = itl.Parameters(capacity_rps=40, levels_percent=(50,), duration_s=1.0)
    result = drive(itl.TEST.procedure(parameters, streaming_setting(UNIFORM)), grouped_later)
    assert result.facts.value("streaming.itl_option") == "direct"
    assert any("alone would need method A" in note for note in map(str, result.notes))


def test_a_method_that_the_server_cannot_serve_voids_the_run() -> None:
    result = pump(StreamServer(), levels_percent=(50,), method="C")
    missing = finding(result, "itl_samples")
    assert missing.voids
    assert not missing.ok
    assert "no time stamps" in missing.message


def test_coalesced_reads_are_a_warning() -> None:
    result = pump(StreamServer(coalesced=40), levels_percent=(50,))
    assert not finding(result, "coalesced_chunks").ok
    assert not finding(result, "coalesced_chunks").voids
    assert finding(pump(StreamServer(), levels_percent=(50,)), "coalesced_chunks").ok


def test_plain_names_are_those_of_the_highest_level() -> None:
    def gaps(plan: LoadPlan, request: PlannedRequest, n: int) -> list[float]:
        return [20.0 if plan.label.startswith("90%") else 10.0] * n

    result = pump(StreamServer(gaps_ms=gaps), levels_percent=(25, 90))
    assert result.metrics["itl[25%].p50"].point == pytest.approx(10.0)
    assert result.metrics["itl[90%].p50"].point == pytest.approx(20.0)
    assert result.metrics["itl.p50"].point == pytest.approx(20.0)
    assert result.metrics["jitter.p50"].point == result.metrics["jitter[90%].p50"].point


def test_requests_of_the_ramp_up_are_left_out() -> None:
    def gaps(plan: LoadPlan, request: PlannedRequest, n: int) -> list[float]:
        return [999.0 if request.index < plan.first + 3 else 10.0] * n

    result = pump(StreamServer(gaps_ms=gaps), levels_percent=(50,))
    assert result.metrics["longest_pause[50%].max"].point == pytest.approx(10.0)


def test_limits_hold_for_every_level() -> None:
    parameters = build(
        itl.Parameters,
        {"levels_percent": (25, 90), "p99_ms": 50, "jitter_p99_ms": 5, "max_tail_ratio": 4},
    )
    limited = [(o.metric, o.op, o.limit, o.unit) for o in parameters.objectives]
    assert limited == [
        ("itl[25%].p99", "<=", 50, "ms"),
        ("jitter[25%].p99", "<=", 5, "ms"),
        ("itl_tail_ratio[25%]", "<=", 4, "ratio"),
        ("itl[90%].p99", "<=", 50, "ms"),
        ("jitter[90%].p99", "<=", 5, "ms"),
        ("itl_tail_ratio[90%]", "<=", 4, "ratio"),
    ]
    result = pump(StreamServer(), levels_percent=(25, 90))
    assert {metric for metric, *_ in limited} <= set(result.metrics)


def test_metrics_have_the_units_of_the_catalogue() -> None:
    result = pump(StreamServer(), levels_percent=(50,))
    assert are_in_the_catalogue(result.metrics)


def test_levels_are_percentages_of_a_declared_rate() -> None:
    result = pump(StreamServer(), levels_percent=(25, 90))
    assert result.facts.value("load.capacity_rps") == 40
    assert result.facts.value("load.levels_percent") == [25, 90]
    assert result.facts.value("load.model") == "open"
    assert result.facts.value("load.concurrency") is None
    assert [level.percent_of_capacity for level in result.levels] == [None, 25, 90]
    assert any("declared by the marker" in note for note in map(str, result.notes))


def test_a_server_without_a_sustainable_load_has_no_levels() -> None:
    result = pump(
        StreamServer(fails=lambda plan: plan.phase is Phase.MEASURE), scale="quick", capacity_rps=None
    )
    assert result.metrics["itl.p99"].point is None
    assert not tables(result, "itl_results")
    assert any("found no load" in note for note in map(str, result.notes))


def test_quick_levels_last_seconds() -> None:
    server = StreamServer()
    pump(server, scale="quick", duration_s=2.0)
    levels = [plan for plan in server.measured if isinstance(plan.load, OpenLoop)]
    assert all(plan.duration_s is not None and plan.duration_s <= 2.5 for plan in levels)


def test_plans_are_known_beforehand_with_a_declared_rate() -> None:
    setting = streaming_setting(UNIFORM)
    plans = itl.TEST.plans(itl.Parameters(capacity_rps=40), setting)
    assert [plan.load for plan in plans] == [OpenLoop(rate) for rate in (10.0, 20.0, 30.0, 36.0)]
    offsets = schedule_ns(plans[0].load, plans[0].requests, arrival_seed(42))
    assert offsets[-1] <= (plans[0].duration_s or 0) * 1e9
    assert all(plan.requests >= 100 for plan in itl.TEST.plans(itl.Parameters(), setting))


def test_mistakes_in_the_marker_are_told_together() -> None:
    with pytest.raises(SuiteError) as caught:
        build(itl.Parameters, {"levels_percent": (90, 25), "method": "D", "p99": 3})
    for part in ("levels_percent must ascend", "method must be one of", "unknown parameter 'p99'"):
        assert part in str(caught.value)


def test_at_low_load_itl_is_the_step_time_of_the_engine() -> None:
    """One sequence at a time: step_base_us + decode_us_per_sequence, 1206 µs; kv reading switched off."""
    sut = ReplayedSUT("fast?kv_us_per_token=0")
    result = sut.measure(
        itl.TEST,
        capacity_rps=0.2,
        levels_percent=(25,),
        duration_s=1.0,
    )
    for name in ("itl[25%].p50", "itl[25%].p90"):
        estimate = result.metrics[name]
        assert estimate.lower is not None
        assert estimate.upper is not None
        assert estimate.lower - 1e-6 <= 1.206 <= estimate.upper + 1e-6
        assert estimate.point == pytest.approx(1.206, abs=1e-6)
    assert result.metrics["itl_modes[25%]"].point == 1


def test_the_saturation_rate_is_searched_for_where_none_is_declared() -> None:
    sut = ReplayedSUT("fast?max_num_seqs=4")
    result = sut.measure(itl.TEST, "quick", levels_percent=(25, 75))
    rate = result.facts.value("load.capacity_rps")
    # four sequences of about 160 steps of 1.22 ms, and a prefill of some 4 ms that holds up all: 18.7 req/s
    assert 1 < rate < 18.7
    held = [level.offered_rps for level in result.levels if level.role == "probe" and not level.saturated]
    assert rate == max(held)
    assert [level.role for level in result.levels][-2:] == ["level", "level"]
    assert [level.offered_rps for level in result.levels][-2:] == pytest.approx(
        [0.25 * rate, 0.75 * rate], rel=0.01
    )
    assert not any(plan.label == "characterisation" for plan in sut.plans)
    assert "burst" in result.facts.value("streaming.itl_option_reason")
    low, high = (result.metrics[f"itl[{percent}%].mean"].point or 0 for percent in (25, 75))
    assert high > low
