"""What a change of the latency is made of: the parts add up, and are those that were planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ab_replays import arms_of_a_load
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.compare.split import WHOLES, Parts, parts_by_run, parts_of, saved_parts, split
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.metrics.latency import e2e_ms, ttft_any_ms
from pytest_llmbench.model.numbers import Amount, Figure
from pytest_llmbench.model.observation import EngineReadings, Observation, is_total
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import Table
from pytest_llmbench.probes.engine_metrics import EngineMetricsProbe, page_urls, read_page
from pytest_llmbench.simulator.engine.faults import MetricsForm
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

MEASURE = {"e2e": e2e_ms, "ttft": ttft_any_ms}


def changes(table: Table | str) -> dict[str, float]:
    """The change of each part, and of the whole, which is the last."""
    assert isinstance(table, Table), table
    found = {}
    for row in table.cells:
        figure = row[3]
        assert isinstance(figure, Figure)
        assert figure.estimate is not None
        assert figure.estimate.point is not None
        assert isinstance(row[1], Amount)
        found[str(row[0])] = figure.estimate.point
    return found


def of_arms(whole: str, arms: tuple[list[Observation], list[Observation]], *, paired: bool) -> Table | str:
    return split(whole, parts_by_run(arms[0]), parts_by_run(arms[1]), paired=paired, level=0.95)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    ("whole", "slower", "concurrency", "part"),
    [
        ("e2e", "prefill_us_per_token=120", 1, "Prefill"),
        ("e2e", "decode_us_per_sequence=900", 8, "Decode"),
        ("e2e", "max_num_seqs=2", 8, "Queue"),
        ("e2e", "input_filter=enabled&input_filter_us=40000", 1, "Outside"),
        ("ttft", "prefill_us_per_token=120", 1, "Prefill"),
        ("ttft", "max_num_seqs=2", 8, "Queue"),
        ("ttft", "input_filter=enabled&input_filter_us=40000", 1, "Outside"),
    ],
)
def test_the_planted_part_is_the_largest_and_all_add_up(
    whole: str, slower: str, concurrency: int, part: str, paired: bool
) -> None:
    arms = arms_of_a_load("fast", f"fast?{slower}", concurrency=concurrency)
    found = changes(of_arms(whole, arms, paired=paired))
    *parts, mean = found
    assert max(parts, key=lambda name: found[name]) == part
    means = [np.mean([MEASURE[whole](run.records).mean() for run in side]) for side in arms]
    assert found[mean] == pytest.approx(means[1] - means[0])
    assert sum(found[name] for name in parts) == pytest.approx(means[1] - means[0], rel=0.02)


FINITE = st.floats(0, 1e5)
ROW = st.tuples(st.none() | FINITE, FINITE, FINITE, FINITE, FINITE)
"""Queue, prefill, decode, and what is outside before and after the first output."""


def whole_run(run: tuple[float | None, ...]) -> tuple[float | None, ...]:
    queue, prefill, decode, first, rest = run
    ttft = sum(value or 0.0 for value in (queue, prefill, first))
    return queue, prefill, decode, ttft, ttft + (decode or 0.0) + (rest or 0.0)


@given(st.lists(ROW, min_size=2, max_size=5), st.lists(ROW, min_size=2, max_size=5), st.booleans())
@settings(max_examples=60)
def test_parts_add_up_whatever_the_runs_and_whatever_is_not_told(
    before: list[tuple[float | None, ...]], now: list[tuple[float | None, ...]], paired: bool
) -> None:
    names = ("queue", "prefill", "decode", "ttft", "e2e")
    sides: list[Parts] = [
        dict(zip(names, map(list, zip(*map(whole_run, side), strict=True)), strict=True))
        for side in (before, now)
    ]
    for whole in WHOLES:
        found = changes(split(whole, sides[0], sides[1], paired=paired, level=0.95))
        *parts, mean = found
        scale = sum(abs(value or 0) for run in (*before, *now) for value in run)
        assert sum(found[name] for name in parts) == pytest.approx(found[mean], abs=1e-9 * (1 + scale))


def page(seen: Observation, **grown: tuple[float, float]) -> Observation:
    """The load with a page that grew by so many seconds and requests, whose replies tell no parts."""
    after = {
        f"{name}_{what}": value
        for name, own in grown.items()
        for what, value in zip(("s", "count"), own, strict=True)
    }
    readings = EngineReadings(np.array([], np.int64), {}, dict.fromkeys(after, 0.0), after)
    nothing = np.full(len(seen.records), MISSING)
    return replace(
        seen, records=replace(seen.records, queue_wait_ns=nothing, prefill_ns=nothing), engine=readings
    )


def test_the_page_tells_them_where_replies_do_not_and_is_believed_only_for_this_load() -> None:
    (seen, _), _ = arms_of_a_load("fast", "fast")
    count = len(seen.records)
    told = page(
        seen, queue_wait=(0.001 * count, count), prefill=(0.02 * count, count), decode=(0.05 * count, count)
    )
    found = parts_of(told)
    assert isinstance(found, dict)
    assert found["queue"] == pytest.approx(1)
    assert found["prefill"] == pytest.approx(20)
    assert found["decode"] == pytest.approx(50)
    assert found["e2e"] == pytest.approx(float(e2e_ms(seen.records).mean()))
    others = page(seen, queue_wait=(0.001, 2.0 * count), prefill=(0.02, count))
    assert "counted" in str(parts_of(others))
    queue_alone = parts_of(page(seen, queue_wait=(0.001 * count, count)))
    assert isinstance(queue_alone, dict)
    assert queue_alone["prefill"] is None
    neither = "the engine tells neither queue nor prefill times"
    assert parts_of(page(seen, decode=(0.1, count))) == neither
    longer = page(seen, queue_wait=(1000.0 * count, count), prefill=(0.02, count))
    told_twice = parts_by_run([longer, longer])
    beyond = split("e2e", told_twice, told_twice, paired=True, level=0.95)
    assert "longer than the latency" in str(beyond)
    assert parts_of(replace(told, engine=None)) == "there is no metrics page of the engine"


SGLANG = """
sglang:num_requests_total {requests}
sglang:queue_time_seconds_sum {queue}
sglang:queue_time_seconds_count {requests}
sglang:per_stage_req_latency_seconds_sum{{stage="prefill_forward",tp_rank="0"}} {prefill}
sglang:per_stage_req_latency_seconds_sum{{stage="prefill_forward",tp_rank="1"}} {prefill}
sglang:per_stage_req_latency_seconds_count{{stage="prefill_forward",tp_rank="0"}} {requests}
sglang:per_stage_req_latency_seconds_count{{stage="prefill_forward",tp_rank="1"}} {requests}
sglang:per_stage_req_latency_seconds_sum{{stage="chunked_prefill",tp_rank="0"}} {chunks}
sglang:per_stage_req_latency_seconds_count{{stage="chunked_prefill",tp_rank="0"}} {requests}
sglang:per_stage_req_latency_seconds_sum{{stage="request_process",tp_rank="0"}} 99
sglang:per_stage_req_latency_seconds_count{{stage="request_process",tp_rank="0"}} {requests}
"""
LLAMA_CPP = """
llamacpp:prompt_seconds_total {prefill}
llamacpp:tokens_predicted_total {tokens}
llamacpp:tokens_predicted_seconds_total {decode}
"""
VLLM = """
vllm:request_queue_time_seconds_sum {queue}
vllm:request_queue_time_seconds_count {requests}
vllm:request_prefill_time_seconds_sum {prefill}
vllm:request_prefill_time_seconds_count {requests}
vllm:request_decode_time_seconds_sum {decode}
vllm:request_decode_time_seconds_count {requests}
"""
TENSORRT_LLM = """
trtllm_request_queue_time_seconds_sum {queue}
trtllm_request_queue_time_seconds_count {requests}
trtllm_request_prefill_time_seconds_sum {prefill}
trtllm_request_prefill_time_seconds_count {requests}
"""


def with_canned(seen: Observation, text: str, *, tokens: float = 1.0) -> Observation:
    """The load beside a page that counted it: queue 0.5 ms, prefill 2 ms and decode 30 ms a request.

    SGLang's chunks of a prompt lie within its prefill, and are not added to it."""
    count = len(seen.records)
    values = read_page(
        text.format(
            requests=count,
            queue=0.0005 * count,
            prefill=0.002 * count,
            chunks=0.0015 * count,
            decode=0.03 * count,
            tokens=tokens * float(seen.records.output_tokens.sum()),
        )
    )
    totals = {name: value for name, value in values.items() if is_total(name)}
    readings = EngineReadings(np.array([], np.int64), {}, dict.fromkeys(totals, 0.0), totals)
    return replace(page(seen), engine=readings)


@pytest.mark.parametrize(
    ("text", "queue", "decode"),
    [(VLLM, 0.5, 30.0), (TENSORRT_LLM, 0.5, None), (SGLANG, 0.5, None), (LLAMA_CPP, None, 30.0)],
    ids=["vllm", "tensorrt-llm", "sglang", "llama.cpp"],
)
def test_the_pages_of_four_engines_tell_what_they_do(
    text: str, queue: float | None, decode: float | None
) -> None:
    (seen, again), _ = arms_of_a_load("fast", "fast")
    told = with_canned(seen, text)
    found = parts_of(told)
    assert isinstance(found, dict), found
    arrived = float(e2e_ms(seen.records).mean() - ttft_any_ms(seen.records).mean())
    assert found["queue"] == (None if queue is None else pytest.approx(queue))
    assert found["prefill"] == pytest.approx(2.0)
    assert found["decode"] == pytest.approx(arrived if decode is None else decode)
    runs = [told, with_canned(again, text)]
    titles = list(changes(of_arms("ttft", (runs, runs), paired=True)))
    outside = "Outside, and queue, which the engine does not tell" if queue is None else "Outside"
    assert titles[-2] == outside


SHORT = SyntheticWorkload("short", Fixed(400), Fixed(20))


def served_loads(scenario: str) -> tuple[list[Observation], dict[str, float]]:
    """Two loads on a served engine, whose page alone tells times, and the mean parts by the engine's own log,
    in ms."""
    seen = []
    with EmbeddedEngine.start(scenario) as served:
        target = Target.parse(served.url)
        with LoadGenerator(target, dialect("openai-chat"), model=served.model) as generator:
            for seed in (1, 2):
                plan = LoadPlan("work", SHORT, ClosedLoop(6), 24, seed=seed)
                with EngineMetricsProbe(page_urls(served.url)) as probe:
                    assert probe.before() is None
                    run = generator.run(plan)
                    seen.append(replace(run, engine=probe.stop()))
        log = served.ground_truth()
    assert len(log) == 48
    instants = [(each.queued_ns, each.admitted_ns, each.first_token_ns, each.last_token_ns) for each in log]
    true = np.diff(np.array(instants, dtype=np.float64), axis=1).mean(axis=0) / 1e6
    return seen, dict(zip(("Queue", "Prefill", "Decode"), true.tolist(), strict=True))


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("vllm", ("Queue", "Prefill", "Decode")),
        ("tensorrt-llm", ("Queue", "Prefill")),
        ("sglang", ("Queue", "Prefill")),
        ("llama.cpp", ("Prefill", "Decode")),
    ],
)
def test_a_change_on_each_engine_s_page_is_that_of_the_served_engine(
    form: MetricsForm, told: tuple[str, ...]
) -> None:
    """A smaller batch and dearer prompts, in chunks."""
    quiet = f"server_timings=off&max_num_batched_tokens=256&metrics={form}"
    before, true_before = served_loads(f"fast?{quiet}&max_num_seqs=6")
    now, true_now = served_loads(f"fast?{quiet}&max_num_seqs=3&prefill_us_per_token=60")
    found = changes(of_arms("e2e", (before, now), paired=True))
    for name in told:
        true = true_now[name] - true_before[name]
        assert found[name] == pytest.approx(true, abs=1e-6), name
    assert found["Queue" if "Queue" in told else "Prefill"] > 1
    mean = float(np.mean([e2e_ms(run.records).mean() for run in now]))
    mean -= float(np.mean([e2e_ms(run.records).mean() for run in before]))
    *parts, _ = found.values()
    assert sum(parts) == pytest.approx(mean, rel=0.02)


def test_a_page_that_counts_no_requests_is_believed_by_its_tokens() -> None:
    (seen, _), _ = arms_of_a_load("fast", "fast")
    assert "tokens, and this load had" in str(parts_of(with_canned(seen, LLAMA_CPP, tokens=1.1)))


def test_old_and_silent_baselines_say_so_in_a_line() -> None:
    now, _ = arms_of_a_load("fast", "fast")
    old = saved_parts([None, None])
    assert split("e2e", old, parts_by_run(now), paired=False, level=0.95) == (
        "the baseline is of a version that kept no parts: save it again"
    )
    assert saved_parts([None, {}]) == "the engine told no parts when the baseline was saved"
    parts = {"queue": [1.0], "prefill": [1.0], "decode": [1.0], "ttft": [3.0], "e2e": [4.0]}
    assert saved_parts([None, parts, parts]) == {name: [*own, *own] for name, own in parts.items()}


def test_one_pair_and_unlike_loads_are_not_split() -> None:
    baseline, candidate = arms_of_a_load("fast", "fast")
    assert of_arms("e2e", (baseline[:1], candidate[:1]), paired=True) == "2 runs of each side are needed"
    other = replace(
        candidate[1], plan=candidate[1].plan.with_(load=replace(candidate[1].plan.load, concurrency=3))
    )
    assert parts_by_run([candidate[0], other]) == "the runs are not of one load"
