"""Result files of other load generators: their figures under our names, and every way in which one cannot
be read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from foreign_files import CANARY, MAKERS, aiperf, guidellm, inference_perf, sglang, text, vllm

from pytest_llmbench.errors import StoreError
from pytest_llmbench.extras.foreign.comparing import read_foreign
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, ForeignRun, ResultFormat
from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.model.plan import ClosedLoop, Load, OpenLoop


def read(folder: Path, *contents: dict[str, Any]) -> tuple[ResultFormat, list[ForeignRun]]:
    path = folder / "file.of-any-name"
    path.write_text(text(*contents))
    found = read_foreign(path)
    assert found is not None
    return found


def only(folder: Path, content: dict[str, Any]) -> ForeignRun:
    (run,) = read(folder, content)[1]
    return run


def refused(folder: Path, *contents: dict[str, Any]) -> str:
    with pytest.raises(StoreError) as raised:
        read(folder, *contents)
    assert "file.of-any-name" in str(raised.value)
    return str(raised.value)


def test_vllm(tmp_path: Path) -> None:
    run = only(tmp_path, vllm())
    assert dict(run.values) == {
        "completion_rate": 0.99,
        "ttft.p50": 30.0, "ttft.p99": 45.0, "ttft.mean": 31.0,
        "tpot.p50": 7.5, "tpot.p99": 12.0, "tpot.mean": 8.0,
        "e2e.p50": 980.0, "e2e.p99": 1500.0, "e2e.mean": 1000.0,
        "output_token_throughput": 2027.52, "request_throughput": 15.84,
    }  # fmt: skip
    assert run.model == "sim-fast"
    assert run.load == ForeignLoad(20.0, "poisson")
    assert (run.mean_input_tokens, run.mean_output_tokens) == (1024.0, 128.0)


def test_sglang(tmp_path: Path) -> None:
    run = only(tmp_path, sglang())
    assert run.values["ttft.p90"] == 56.0
    assert run.values["e2e.p99"] == 800.0
    assert run.values["tpot.mean"] == pytest.approx(4.4)
    assert "completion_rate" not in run.values  # the file does not say how many failed
    assert run.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (run.mean_input_tokens, run.mean_output_tokens) == (500.0, 100.0)


def test_aiperf(tmp_path: Path) -> None:
    made, (run,) = read(tmp_path, aiperf())
    assert (made.tool, run.version) == ("AIPerf", "0.13.0")
    assert run.values["ttft.p99"] == 100.0
    assert run.values["tpot.p50"] == 6.0
    assert run.values["completion_rate"] == 0.95
    assert run.load == ForeignLoad(10.0, "poisson")
    assert run.model == "sim-fast"
    seconds = aiperf(request_latency={"unit": "s", "p99": 1.5})
    assert only(tmp_path, seconds).values["e2e.p99"] == 1500.0


def test_aiperf_before_its_schemas_had_numbers(tmp_path: Path) -> None:
    old = aiperf(
        input_config={
            "endpoint": {"model_names": ["openai/gpt-oss-20b"], "streaming": True},
            "loadgen": {"concurrency": 100, "request_rate_mode": "concurrency_burst"},
        }
    )
    del old["schema_version"], old["aiperf_version"]
    run = only(tmp_path, old)
    assert (run.load, run.model) == (ForeignLoad(concurrency=100), "openai/gpt-oss-20b")
    old["input_config"]["loadgen"] = {"request_rate": 4, "request_rate_mode": "constant"}
    assert only(tmp_path, old).load == ForeignLoad(4.0, "uniform")


def test_guidellm(tmp_path: Path) -> None:
    made, runs = read(tmp_path, guidellm())
    assert {(made.tool, run.version) for run in runs} == {("GuideLLM", "0.8.1")}
    assert [run.load for run in runs] == [ForeignLoad(10.0, "uniform"), ForeignLoad(concurrency=16)]
    values = runs[0].values
    assert values["ttft.p99_9"] == 105.0
    assert values["e2e.p50"] == 900.0  # theirs is in seconds
    assert values["tpot.p50"] == 8.0  # not their time per output token, which includes the first
    assert values["request_throughput"] == pytest.approx(11.0)
    assert values["completion_rate"] == 0.99


def test_a_cap_of_guidellm_is_one_where_it_was_reached(tmp_path: Path) -> None:
    """It writes 10240 without being asked."""
    content = guidellm()
    content["benchmarks"][1]["config"]["strategy"]["max_concurrency"] = 44
    assert read(tmp_path, content)[1][0].load == ForeignLoad(10.0, "uniform", None, 44)
    content["benchmarks"][1]["config"]["strategy"] |= {"max_concurrency": 45, "rampup_duration": 5.0}
    assert [run.load for run in read(tmp_path, content)[1]] == [ForeignLoad(concurrency=16)]


def test_inference_perf(tmp_path: Path) -> None:
    run = only(tmp_path, inference_perf())
    assert run.values["ttft.p99_9"] == pytest.approx(105.0)
    assert run.values["tpot.p50"] == 8.0
    assert run.values["output_token_throughput"] == 495.0
    assert run.values["completion_rate"] == 0.99
    assert run.load == ForeignLoad(5.0)
    assert run.model is None
    slots = inference_perf(load_summary={"count": 9, "requested_rate": 9.0, "concurrency": 32})
    assert only(tmp_path, slots).load == ForeignLoad(concurrency=32)


@pytest.mark.parametrize("tool", MAKERS)
def test_every_figure_is_one_of_ours_and_says_how_it_differs(tmp_path: Path, tool: str) -> None:
    made, runs = read(tmp_path, MAKERS[tool]())
    for run in runs:
        for name in run.values:
            definition(name)
            assert made.difference(name), name
    for name, reason in made.left_out.items():
        assert reason
        assert name not in run.values


@pytest.mark.parametrize("tool", MAKERS)
def test_no_key_of_a_server_is_taken_along(tmp_path: Path, tool: str) -> None:
    assert CANARY not in repr(read(tmp_path, MAKERS[tool]()))


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(vllm()) + json.dumps(vllm(p99_ttft_ms=46.0), indent=1) + "\n\n" + text(vllm()))
    found = read_foreign(path)
    assert found is not None
    assert [run.values["ttft.p99"] for run in found[1]] == [45.0, 46.0, 45.0]


LOADS: list[tuple[dict[str, Any], Load | None, str]] = [
    ({}, OpenLoop(20.0), "open loop, poisson arrivals at 20 req/s"),
    ({"burstiness": math.inf}, OpenLoop(20.0, "uniform"), "open loop, uniform arrivals at 20 req/s"),
    (
        {"burstiness": 0.5},
        OpenLoop(20.0, "gamma", 0.5),
        "open loop, gamma arrivals at 20 req/s, burstiness 0.5",
    ),
    ({"max_concurrency": 8}, None, "open loop, poisson arrivals at 20 req/s, at most 8 in flight"),
    ({"request_rate": "inf", "max_concurrency": 8}, ClosedLoop(8), "closed loop, 8 in flight"),
    ({"request_rate": math.inf}, None, "all requests at once"),
    ({"max_concurrency": 200}, OpenLoop(20.0), "open loop, poisson arrivals at 20 req/s"),
]
OURS: list[Load] = [
    OpenLoop(20.0), OpenLoop(21.0), OpenLoop(20.0, "uniform"), OpenLoop(20.0, "gamma", 0.5), ClosedLoop(8),
    OpenLoop(20.0, "gamma", 0.25), OpenLoop(20.0, "trace", offsets_ns=(0, 50_000_000)), ClosedLoop(20),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "like", "words"), LOADS, ids=[str(changed) for changed, _, _ in LOADS])
def test_the_load_of_a_file_is_like_one_of_ours_or_none(
    tmp_path: Path, changed: dict[str, Any], like: Load | None, words: str
) -> None:
    load = only(tmp_path, vllm(**changed)).load
    assert [own for own in OURS if load.is_like(own)] == ([] if like is None else [like])
    assert load.describe() == words


def test_arrivals_that_a_file_does_not_name_are_like_any_at_its_rate() -> None:
    load = ForeignLoad(20.0)
    assert [own for own in OURS if load.is_like(own)] == [
        OpenLoop(20.0), OpenLoop(20.0, "uniform"), OpenLoop(20.0, "gamma", 0.5), OpenLoop(20.0, "gamma", 0.25)
    ]  # fmt: skip
    assert load.describe() == "open loop, arrivals that the file does not name at 20 req/s"


def test_zero_is_no_latency(tmp_path: Path) -> None:
    """vLLM and SGLang write 0 ms where nothing was streamed."""
    run = only(tmp_path, vllm(median_ttft_ms=0.0, p99_ttft_ms=0, mean_ttft_ms=0.0))
    assert not [name for name in run.values if name.startswith("ttft")]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": (vllm(p99_ttft_ms=math.nan), "p99_ttft_ms is nan: not a finite number"),
    "infinite": (vllm(p99_ttft_ms=math.inf), "p99_ttft_ms is inf: not a finite number"),
    "negative": (vllm(p99_tpot_ms=-1.0), "p99_tpot_ms is -1.0: not a finite number of at least zero"),
    "text": (vllm(output_throughput="12 tok/s"), "output_throughput is '12 tok/s': not a number"),
    "truth": (vllm(completed=True), "completed is True: not a number"),
    "half a request": (vllm(completed=1.5), "completed is 1.5: not a whole number"),
    "all failed": (vllm(completed=0), "no request completed"),
    "too large": (vllm(duration=1.0, p99_ttft_ms=10**400), "too large a number"),
    "model is a list": (vllm(model_id=["a"]), "model_id is ['a']: not text"),
    "embeddings": (vllm(output_throughput=None), "a result of embeddings"),
    "ramp": (vllm(ramp_up_strategy="linear"), "the rate changed while the load ran"),
    "trace": (sglang(request_rate="trace"), "does not say when requests were sent"),
    "server_info": (sglang(server_info="x"), "server_info is 'x': not a JSON object"),
    "no schema of AIPerf": (aiperf(schema_version="2.0"), "'2.0': known are 1.0, 1.1, 1.2, 1.3, 1.4"),
    "cancelled": (aiperf(was_cancelled=True), "was_cancelled is true"),
    "incomplete": (aiperf(is_complete=False), "is_complete is false"),
    "unit": (aiperf(request_latency={"unit": "fortnights", "p50": 1}), "known units are ms"),
    "two phases": (
        aiperf(input_config={"phases": [{"type": "poisson", "rate": 1}] * 2}), "2 measured phases"
    ),
    "user-centric": (
        aiperf(input_config={"phases": [{"type": "user_centric", "rate": 1, "users": 3}]}),
        "type 'user_centric': no load of ours",
    ),
    "another version of GuideLLM": (guidellm(metadata={"version": 3}), "3.0: known are 1, 2"),
    "no benchmarks": (guidellm(benchmarks=[]), "no benchmark in it has a rate"),
    "benchmarks of another shape": (guidellm(benchmarks=[1]), "not a list of JSON objects"),
    "a summary of all stages": (
        inference_perf(load_summary={"count": 300, "schedule_delay": None}),
        "give stage_N_lifecycle_metrics.json",
    ),
    "nothing measured": (
        inference_perf(successes={"count": 3}, failures={}), "no figure in it that can be compared"
    ),
    "nobody's": ({"results": {"p99": 12}, "name": "x"}, "nor a result of vllm bench serve, SGLang"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, case: str) -> None:
    content, told = WRONG[case]
    said = refused(tmp_path, content)
    assert told in said
    assert len(said) < 1500


def test_the_fields_of_an_unknown_file_are_named(tmp_path: Path) -> None:
    said = refused(tmp_path, {f"field {number}": 1 for number in range(50)})
    assert "its fields: 'field 0', 'field 1'" in said
    assert "and 38 more" in said


def test_results_of_two_tools_are_not_one_baseline(tmp_path: Path) -> None:
    assert "several tools in one file: vllm bench serve, SGLang bench_serving" in refused(
        tmp_path, vllm(), sglang()
    )


def test_a_file_that_was_cut_off_is_not_its_first_part(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text(vllm(), vllm())[:-40])
    with pytest.raises(StoreError, match=r"perhaps truncated: object 2 of it"):
        read_foreign(path)


@pytest.mark.parametrize("content", ["", "[]", "[1, 2]", "not JSON", "{", '{"baseline_version": "1.0"}'])
def test_what_is_not_theirs_is_left_to_the_reader_of_ours(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    assert read_foreign(path) is None


def test_ten_megabytes_of_details_are_read(tmp_path: Path) -> None:
    """``--save-detailed`` keeps every gap of every request."""
    path = tmp_path / "detailed.json"
    gaps = json.dumps([0.0125] * 1000)
    path.write_text(f'{json.dumps(vllm())[:-1]}, "itls": [{", ".join([gaps] * 1300)}]}}')
    assert path.stat().st_size > 10_000_000
    found = read_foreign(path)
    assert found is not None
    assert found[1][0].values["ttft.p99"] == 45.0
