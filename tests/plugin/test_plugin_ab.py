"""``--llm-baseline-endpoint``: both arms in one session, on engines whose difference is known."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest
from plugin_suite import Suite, stored_lines

from pytest_llmbench.store.records_file import read_runs

FASTER = "replay"
SLOWER = "replay:fast?" + "&".join(
    ["step_base_us=1260", "prefill_us_per_token=10.5", "decode_us_per_sequence=6.3", "kv_us_per_token=0.0105"]
)
"""Every step of the preset ``fast`` takes 5 % longer."""
FEWEST_RUNS = "--llm-runs=3"
"""Of each arm that tell a change from noise: enough where there is none, or none is looked for."""
ONE = """
from pytest_llmbench import llmbench

@llmbench.ttft(rate=20)
def test_first_token(llm_result):
    found = {each.metric: each for each in llm_result.comparisons}
"""


def told(body: str) -> str:
    return ONE + "".join(f"    {line}\n" for line in body.strip().splitlines())


def ab(suite: Suite, candidate: str, baseline: str, *more: str) -> pytest.RunResult:
    given = (f"--llm-endpoint={candidate}", f"--llm-baseline-endpoint={baseline}", "--llm-scale=quick")
    return suite.run(*given, *more)


def warnings_of(entry: dict[str, Any]) -> list[str]:
    return [found["check"] for found in entry["validity"]["findings"] if not found["ok"]]


def test_five_percent_are_found_and_measured(suite: Suite) -> None:
    suite.write(
        told(
            """
            change = found["tpot.p50"].change
            # A slower step has a larger batch, which is slower still.
            assert 0.03 < change.lower <= 0.056 and 0.05 < change.upper < 0.08
            assert found["tpot.p50"].paired and len(found["tpot.p50"].candidate) == 6
            assert [f.ok for f in llm_result.findings if f.check == "output_lengths"] == [True]
            """.replace("            ", "")
        )
    )
    ab(suite, SLOWER, FASTER).assert_outcomes(passed=1)


GATED = """
@llmbench.ttft(rate=20)
@llmbench.no_regression("tpot.p50", max_slowdown=0.03)
def test_gate(): ...
"""


@pytest.mark.slow
def test_a_gate_fails_for_five_percent_and_passes_for_none(suite: Suite) -> None:
    suite.write(GATED)
    result = ab(suite, SLOWER, FASTER)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*REGRESSED tpot.p50 +5*against +3 % allowed*"])
    ab(suite, FASTER, FASTER, FEWEST_RUNS).assert_outcomes(passed=1)


def test_an_arm_against_itself_is_equivalent_in_everything(suite: Suite) -> None:
    suite.write(told('assert found\nassert {each.verdict for each in found.values()} == {"equivalent"}'))
    ab(suite, FASTER, FASTER, FEWEST_RUNS).assert_outcomes(passed=1)


def test_both_arms_are_sent_the_same_and_keep_their_records_apart(suite: Suite) -> None:
    suite.write(ONE)
    ab(suite, SLOWER, FASTER, "--llm-report=out").assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    assert any("A/B: 6 runs of each arm" in note for note in entry["notes"])
    assert len(entry["by_run"]["ttft.p50"]) == 6
    paths = sorted((suite.path / "out" / "records").glob("*.jsonl.gz"))
    assert len(paths) == 2
    (theirs,) = [path for path in paths if "baseline" in path.name]
    (ours,) = [path for path in paths if path != theirs]
    assert entry["records_file"] == f"records/{ours.name}"
    runs = [read_runs(path).runs for path in (ours, theirs)]
    labels = [Counter({run.label: len(run.records) for run in each}) for each in runs]
    assert [count[f"run {number} of 6"] for count in labels for number in range(1, 7)] == [50] * 12
    assert entry["counts"]["submitted"] == 300
    assert list(entry["plots"]["ttft_cdf"]["series"]) == ["candidate", "baseline"]
    requested = [[run.records.requested_input_tokens.tolist() for run in each[-6:]] for each in runs]
    assert requested[0] == requested[1]


def test_a_variant_may_be_the_baseline(suite: Suite) -> None:
    suite.write(told('assert found["tpot.p50"].verdict == "equivalent"'))
    ab(suite, FASTER, "variant:cache_disabled", FEWEST_RUNS).assert_outcomes(passed=1)
    result = ab(suite, FASTER, "variant:cache_of")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*--llm-baseline-endpoint: the SUT has no variant 'cache_of'*cache_disabled*"]
    )


def test_a_test_of_variants_cannot_have_one_as_its_baseline(suite: Suite) -> None:
    suite.write("@llmbench.prefix_cache()\ndef test_it(): ...")
    result = ab(suite, FASTER, "variant:guardrails_full")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*measures variants itself (cache_*so a variant cannot be its baseline*"])


def test_a_test_that_does_not_repeat_its_load_is_run_as_a_whole(suite: Suite) -> None:
    suite.write("""
        @llmbench.itl(capacity_rps=40, levels_percent=(50,), requests=30, duration_s=1)
        def test_gaps(llm_result):
            (change,) = [e.change for e in llm_result.comparisons if e.metric.startswith("itl.p50")] or [None]
            assert len(llm_result.by_run["itl[50%].p50"]) == 6
            assert len(set(llm_result.by_run["itl[50%].p50"])) > 1, "each run has a seed of its own"
            assert any("first of 6 runs" in note for note in map(str, llm_result.notes))
            series = {plot.id: list(plot.series) for plot in llm_result.plots}
            assert series["itl_cdf"] == ["candidate", "baseline"]
    """)
    ab(suite, SLOWER, FASTER).assert_outcomes(passed=1)


def test_a_budget_that_ends_one_of_the_runs_leaves_those_before_it(suite: Suite) -> None:
    suite.write("@llmbench.capacity(maximum=16)\ndef test_it(): ...")
    ab(suite, FASTER, SLOWER, "--llm-caps=requests=1200", "--llm-report=out")
    (entry,) = suite.report["tests"]
    assert {len(values) for values in entry["by_run"].values()} <= {2, 3, 4, 5}
    assert entry["metrics"]["max_concurrency"]["point"] == 16
    assert "--llm-caps=requests=1200 allows" in str(entry["validity"])


@pytest.mark.slow
def test_tests_share_the_runs_of_each_arm_and_never_mix_them(suite: Suite) -> None:
    both = told('assert found["tpot.p50"].change.lower > 0.04')
    again = both.replace("from pytest_llmbench import llmbench", "").replace("first_token", "again")
    suite.write(both + again + '    assert llm_result.observations[0].shared_from.endswith("first_token")\n')
    ab(suite, SLOWER, FASTER).assert_outcomes(passed=2)
    suite.write(both.replace("> 0.04", "== 0.0") + again.replace("> 0.04", "== 0.0"))
    ab(suite, FASTER, FASTER, FEWEST_RUNS).assert_outcomes(passed=2)


def test_a_baseline_that_answers_otherwise_is_a_warning(suite: Suite) -> None:
    suite.write(ONE)
    result = ab(suite, "replay:fast?eos_mean_tokens=60", FASTER, "--llm-report=out", FEWEST_RUNS)
    result.assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    assert "output_lengths" in warnings_of(entry)


def test_nothing_is_compared_with_a_baseline_that_fails(suite: Suite) -> None:
    suite.write(told("assert not found\nassert llm_result.findings"))
    result = ab(suite, FASTER, "replay:fast?fault=reset&fault_rate=0.3")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*baseline_valid: the baseline is void*"])


def test_an_unreachable_baseline_is_named(suite: Suite) -> None:
    suite.write(ONE)
    result = ab(suite, FASTER, "http://127.0.0.1:9/v1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*127.0.0.1:9*"])


INTERRUPTED = """
from pytest_llmbench import WarmupPolicy, llmbench
import pytest

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=5, output_tokens=0, probes=0)

@llmbench.ttft(rate=20, requests=40)
def test_long(): ...
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_both_arms_saw(suite: Suite) -> None:
    suite.write(INTERRUPTED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--llm-report=out", "--llm-runs=30"]
    command += ["--llm-endpoint=sim", "--llm-baseline-endpoint=sim"]
    run = subprocess.Popen(
        command, cwd=suite.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    records = suite.path / "out" / "records"
    try:
        deadline = time.monotonic() + 90
        while sum('"run ' in line for path in records.glob("*.gz") for line in stored_lines(path)) < 140:
            assert time.monotonic() < deadline, "the arms did not get to their second pair"
            time.sleep(0.2)
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, text
    (entry,) = suite.report["tests"]
    assert entry["validity"]["verdict"] == "invalid"
    assert any("Ctrl-C" in finding["message"] for finding in entry["validity"]["findings"])
    assert entry["counts"]["ok"] >= 40, "the candidate's first run"
    assert len(list(records.glob("*baseline*.jsonl.gz"))) == 1
