"""``--llm-compare FILE`` with a result of another load generator, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from extended import distribution, python
from foreign_files import CANARY, aiperf, sglang, text, vllm
from plugin_suite import Suite

SHOWN = """
from pytest_llmbench import llmbench

@llmbench.ttft(rate=20)
def test_first_token(): ...
"""
GUARDED = SHOWN.replace("def test", '@llmbench.no_regression("tpot.p50", max_slowdown=0.05)\ndef test')
WAIVED = (
    "--llm-waive=definitions=we know how they differ@2999-12-31",
    "--llm-waive=workload=the same prompts by another tool@2999-12-31",
)


def compare(
    suite: Suite, body: str, *contents: dict[str, Any], more: tuple[str, ...] = ()
) -> pytest.RunResult:
    suite.write(body)
    (suite.path / "theirs.jsonl").write_text(text(*contents))
    return suite.measure("replay", "--llm-compare=theirs.jsonl", *more)


def row(suite: Suite, metric: str) -> dict[str, Any]:
    (found,) = [each for each in suite.entry["comparisons"] if each["metric"] == metric]
    assert isinstance(found, dict)
    return found


def test_one_run_is_shown_beside_ours_and_decides_nothing(suite: Suite) -> None:
    compare(suite, SHOWN, vllm()).assert_outcomes(passed=1)
    found = row(suite, "ttft.p99")
    assert (found["baseline"], found["baseline_name"]) == ([45.0], "vllm bench serve")
    assert len(found["candidate"]) == 1
    assert (found["verdict"], found["gated"], found["change"]["point"]) == ("inconclusive", False, None)
    assert "vllm bench serve has 1 run and this session has 1 run: at least 3 of each" in found["reason"]
    assert "defined differently: theirs runs from before the client's call" in found["reason"]
    notes = " ".join(suite.entry["notes"])
    assert "next to theirs.jsonl, a result of vllm bench serve: 1 run, which does not show the noise" in notes
    assert "left out of that file: itl (gaps between chunks" in notes
    assert "mean lengths: 1024 input tokens a request there, " in notes
    assert "that file does not state workload, seed, hosts" in notes
    assert notes.count("ttft of vllm bench serve has another definition: theirs runs from before") == 1


def test_the_version_of_the_tool_is_told(suite: Suite) -> None:
    compare(suite, SHOWN, aiperf(input_config={"phases": [{"type": "poisson", "rate": 20.0}]}))
    assert "a result of AIPerf 0.13.0: 1 run" in " ".join(suite.entry["notes"])


def test_runs_of_another_definition_have_a_change_and_no_verdict(suite: Suite) -> None:
    runs = [vllm(median_tpot_ms=value) for value in (30.0, 30.1, 30.2)]
    compare(suite, SHOWN, *runs, more=("--llm-runs=3",)).assert_outcomes(passed=1)
    found = row(suite, "tpot.p50")
    assert found["change"]["upper"] < -0.5  # replay is far faster
    assert found["verdict"] == "inconclusive"
    assert found["reason"].startswith("no verdict, since its definition differs: theirs begins at")


REFUSED: dict[str, tuple[str, list[dict[str, Any]], tuple[str, ...], list[str]]] = {
    "one run, whatever is waived": (
        GUARDED, [vllm()], ("--llm-runs=3", *WAIVED),
        ["*the baseline has 1 run of this test: each side needs at least 3*"],
    ),
    "nobody answers for the differences": (
        GUARDED, [vllm()] * 3, ("--llm-runs=3",),
        ["*the baseline measured something else: workload was not known, now it is *",
         "*the baseline measured something else: definitions was that of vllm bench serve, now it is that *"],
    ),
    "a limit of the command line is a gate too": (
        SHOWN, [vllm()], ("--llm-compare-fail=tpot.p50:5%",), ["*definitions was that of vllm bench serve*"],
    ),
    "a metric that the file lacks": (
        GUARDED.replace("tpot.p50", "ttft.p99_9"), [vllm()], (),
        ["*vllm bench serve has no ttft.p99_9; taken over are completion_rate,*"],
    ),
    "another model": (
        SHOWN, [vllm(model_id="another")], (),
        ["*the baseline measured something else: model was another, now it is sim-fast"],
    ),
    "runs of different things": (
        SHOWN, [vllm(label="a"), vllm(label="b")], (), ["*its 2 runs at this load differ in label: a, b"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(suite: Suite, case: str) -> None:
    body, contents, more, told = REFUSED[case]
    result = compare(suite, body, *contents, more=more)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(told)


def test_runs_that_somebody_answers_for_decide(suite: Suite) -> None:
    runs = [vllm(median_tpot_ms=0.1 * noise) for noise in (1.0, 1.001, 1.002)]
    compare(suite, GUARDED, *runs, more=("--llm-runs=3", *WAIVED)).assert_outcomes(failed=1)
    found = row(suite, "tpot.p50")
    assert (found["verdict"], found["gated"]) == ("regressed", True)
    assert "defined differently: theirs begins at" in found["reason"]
    messages = " ".join(each["message"] for each in suite.entry["validity"]["findings"])
    assert "definitions is waived until 2999-12-31: we know how they differ" in messages


def test_another_load_is_not_compared(suite: Suite) -> None:
    compare(suite, SHOWN, sglang()).assert_outcomes(passed=1)
    assert suite.entry["comparisons"] == []
    notes = " ".join(suite.entry["notes"])
    assert "nothing is compared with theirs.jsonl: SGLang bench_serving has no run with the load of" in notes
    assert "it has open loop, poisson arrivals at 8 req/s" in notes
    result = compare(suite, GUARDED, sglang())
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*SGLang bench_serving has no run with the load of this test; it has open*"])


def test_a_test_that_searches_is_not_compared(suite: Suite) -> None:
    search = SHOWN.replace("ttft(rate=20)", "capacity(initial=2, maximum=4)")
    compare(suite, search, vllm(), more=("--llm-inconclusive=pass",)).assert_outcomes(passed=1)
    assert suite.entry["comparisons"] == []
    notes = " ".join(suite.entry["notes"])
    assert "theirs.jsonl: this test finds its loads itself, and vllm bench serve was given its own" in notes
    guarded = search.replace(
        "def test", '@llmbench.no_regression("output_token_throughput", max_slowdown=0.05)\ndef test'
    )
    result = compare(suite, guarded, vllm())
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*this test finds its loads itself*", "*guard a test with one of these loads*"]
    )


def test_an_unknown_file_ends_the_session_before_anything_runs(suite: Suite) -> None:
    result = compare(suite, SHOWN, {"p99": 1})
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "neither a baseline of pytest-llmbench nor a result of vllm bench serve" in result.stderr.str()


def test_a_file_without_a_model_and_no_key_that_leaves(suite: Suite) -> None:
    compare(suite, SHOWN, sglang(request_rate=20.0, server_info={"api_key": CANARY})).assert_outcomes(
        passed=1
    )
    assert "that file does not state model, workload" in " ".join(suite.entry["notes"])
    assert row(suite, "ttft.p50")["baseline"] == [40.0]
    for path in (suite.path / "out").rglob("*.*"):
        assert CANARY.encode() not in path.read_bytes()


def test_the_format_of_another_distribution(tmp_path: Path) -> None:
    folder = distribution(tmp_path)
    (folder / "theirs.json").write_text('{"acme_rate": 20, "ttft_ms": 30.5, "model": "sim-fast"}')
    (folder / "test_acme.py").write_text(SHOWN)
    options = ("-p", "no:cacheprovider", "--llm-endpoint=replay", "--llm-scale=quick", "--llm-report=out")
    run = python("-m", "pytest", "test_acme.py", *options, "--llm-compare=theirs.json", path=folder)
    (entry,) = json.loads((folder / "out" / "report.json").read_text("utf-8"))["tests"]
    (found,) = (row for row in entry["comparisons"] if row["metric"] == "ttft.p50")
    assert found["baseline"] == [30.5], run.stdout
    assert "theirs begins at the client's call" in found["reason"]
