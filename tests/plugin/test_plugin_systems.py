"""Several systems in one session: ``--llm-endpoint`` more than once, and ``llmbench.compare``."""

from __future__ import annotations

import pytest
from plugin_suite import Suite

FAST, SLOW = "ours=replay:fast", "theirs=replay:fast?step_base_us=2400"
BODY = """
@llmbench.ttft(rate=20, requests=30)
@llmbench.compare(metrics=["tpot.p50", "output_token_throughput"], production_configuration="as deployed")
def test_side_by_side(llm_result):
    (table,) = [table for table in llm_result.tables if table.id == "systems_comparison"]
    rows = {row[0]: row for row in table.rows}
    assert rows["tpot.p50"][4] == "regressed"
    assert "tokens per GPU-second" in rows
    assert [each.metric for each in llm_result.comparisons] == ["tpot.p50", "output_token_throughput"]
    told = {entry.id: entry.status for entry in llm_result.compliance.requirements}
    for clause in ("M-6.1-identical-workload", "M-6.1-same-load", "P-6.3-three-runs"):
        assert told[clause] == told["P-6.3-statistical-test"] == "met", clause
    assert llm_result.facts.value("comparison.runs") == {"ours": 3, "theirs": 3}
    answers = llm_result.facts.value("comparison.checklist")
    assert all(answers.values()) and answers["production_configuration"] == "as deployed"
    assert {f.check: f.ok for f in llm_result.findings}["same_requests"]
"""


def systems(suite: Suite, *more: str) -> pytest.RunResult:
    return suite.run(f"--llm-endpoint={FAST}", f"--llm-endpoint={SLOW}", "--llm-scale=quick", *more)


def test_systems_side_by_side(suite: Suite) -> None:
    suite.write(BODY)
    result = systems(suite, "--llm-report=out")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*llmbench: ours=replay:fast, theirs=*", "*theirs against ours*"])
    (entry,) = suite.report["tests"]
    assert "systems_comparison" in entry["tables"]
    assert list(entry["plots"]["ttft_cdf"]["series"]) == ["ours", "theirs"]
    assert entry["facts"]["comparison.normalisation"]["value"].startswith("output tokens per second over")
    names = sorted(path.name for path in (suite.path / "out" / "records").glob("*.jsonl.gz"))
    assert len(names) == 2
    assert sum("theirs" in name for name in names) == 1


def test_the_option_alone_compares_every_test_with_prices_of_its_files(suite: Suite) -> None:
    for name, price in (("ours", 2.0), ("theirs", 1.0)):
        (suite.path / f"{name}.toml").write_text(
            f'[prices]\nper_hour = {price}\ndate = "2026-03-02"\n[sut.hardware]\naccelerator_count = 2\n'
        )
    suite.write("""
        @llmbench.ttft(rate=20, requests=30)
        def test_it(llm_result):
            priced = llm_result.facts.value("comparison.tokens_per_dollar_hour")
            per_gpu = llm_result.facts.value("comparison.tokens_per_gpu_second")
            assert [entry["dollars_per_hour"] for entry in priced.values()] == [2.0, 1.0]
            assert priced["ours"]["value"] == per_gpu["ours"], "two accelerators, two dollars"
            assert priced["theirs"]["date"] == "2026-03-02"
    """)
    systems(suite, "--llm-sut=ours=ours.toml", "--llm-sut=theirs=theirs.toml").assert_outcomes(passed=1)


def test_a_system_that_fails_voids_the_comparison(suite: Suite) -> None:
    suite.write("@llmbench.ttft(rate=20)\ndef test_it(): ...")
    failing = "--llm-endpoint=theirs=replay:fast?fault=reset&fault_rate=0.3"
    result = suite.run(f"--llm-endpoint={FAST}", failing, "--llm-scale=quick")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*INVALID*", "*theirs, run 1:*requests failed*"])


def test_one_system_is_no_comparison(suite: Suite) -> None:
    suite.write(BODY)
    result = suite.run("--llm-endpoint=replay", "--llm-scale=quick")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*llmbench.compare needs at least two systems*"])


def test_names_that_are_not_clear_are_refused(suite: Suite) -> None:
    suite.write("@llmbench.ttft(rate=20)\ndef test_it(): ...")
    twice = suite.run("--llm-endpoint=a=replay", "--llm-endpoint=a=replay:h100-8b", "--llm-scale=quick")
    twice.assert_outcomes(errors=1)
    twice.stdout.fnmatch_lines(["*two systems have the name 'a'*"])
    (suite.path / "x.toml").write_text("")
    systems(suite, "--llm-sut=other=x.toml").stdout.fnmatch_lines(
        ["*there is no system 'other'*ours, theirs*"]
    )


def test_mistakes_of_the_marker_are_told_at_collection(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(rate=20)
        @llmbench.compare(metrics=["tfft.p50"], margin=5)
        def test_it(): ...

        @llmbench.compare()
        def test_nothing(): ...
    """)
    result = systems(suite)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines_random(
        ["*compare on test_it*", "*no metric is called 'tfft.p50'*", "*margin must be a share*"]
    )
    result.stderr.fnmatch_lines(["*compare measures nothing alone*"])
