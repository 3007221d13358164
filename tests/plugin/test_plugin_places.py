"""Limits of a place, and limits that only advise."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
from plugin_suite import Suite, refused

BY_PLACE = """
    @llmbench.job(prompts=40, concurrency=4, min_output_tok_s={"h100": 1, "mi300": 10_000_000})
    def test_job(): ...
"""


def test_the_accelerator_of_the_sut_file_or_the_option_chooses(suite: Suite) -> None:
    suite.write(BY_PLACE)
    (suite.path / "sut.toml").write_text('[sut.hardware]\naccelerator_type = "AMD Instinct MI300X"\n')
    suite.measure("replay", "--llm-sut=sut.toml").assert_outcomes(failed=1)
    suite.measure("replay", "--llm-sut=sut.toml", "--llm-place=h100,nightly").assert_outcomes(passed=1)


def test_an_unknown_place_is_an_error_before_anything_is_sent(suite: Suite) -> None:
    suite.write(BY_PLACE)
    refused(suite.measure("replay", "--llm-place=l4")).fnmatch_lines(
        ["*min_output_tok_s: numbers for h100, mi300*--llm-place=l4, *name no accelerator*"]
    )


LAUNCHED = """
    import pytest
    from pytest_llmbench import SUT

    @pytest.fixture(scope="session")
    def llm_sut():
        return SUT("replay")
"""


def test_a_suite_that_opens_its_own_system_must_say_where_it_is(suite: Suite) -> None:
    """Else it would be judged by the numbers of the first place."""
    suite.write(BY_PLACE, LAUNCHED)
    refused(suite.run()).fnmatch_lines(["*numbers for h100, mi300*--llm-place is not given*"])
    suite.run("--llm-place=h100").assert_outcomes(passed=1)
    assert suite.run("--llm-plan").ret == suite.run("--collect-only").ret == 0


def test_a_margin_by_place(suite: Suite) -> None:
    suite.write("""
        @llmbench.job(prompts=40, concurrency=4)
        @llmbench.no_regression("tpot.p50", max_slowdown={"pre-merge": 0.5, "post-merge": 0.01})
        def test_job(): ...
    """)
    slower = ("--llm-baseline-endpoint=replay:h100-8b", "--llm-runs=4")
    for place, outcome in (("pre-merge", {"passed": 1}), ("post-merge", {"failed": 1})):
        result = suite.measure("replay:h100-8b?step_base_us=7200", f"--llm-place={place}", *slower)
        result.assert_outcomes(**outcome)


def test_an_advisory_limit_is_judged_and_told_and_fails_nothing(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")
    suite.write("""
        from pytest_llmbench import llmbench, ms, tpot

        @llmbench.job(
            prompts=40, concurrency=4, advisory=[tpot.p50 <= 0.001 * ms, tpot.p50 <= 1000 * ms]
        )
        def test_job(llm_result):
            assert [each.verdict for each in llm_result.gate.advisory] == ["fail", "pass"]
            assert llm_result.gate.verdict == "pass"
    """)
    result = suite.measure("replay")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*warning: test_job: advisory limit tpot.p50 <= 0.001 ms is broken, *"])
    gate = suite.report["tests"][0]["gate"]
    assert [one["verdict"] for one in gate["advisory"]] == ["fail", "pass"]
    assert gate["objectives"] == []
    told = (suite.path / "out" / "ci" / "github-annotations.txt").read_text()
    assert told.startswith("::notice file=")
    assert "advisory limit" in (suite.path / "out" / "summary.md").read_text()
    page = (suite.path / "out" / "report.html").read_text()
    assert page.count("advisory ") >= 2


def test_an_advisory_limit_must_be_one(suite: Suite) -> None:
    suite.write("""
        from pytest_llmbench import goodput, llmbench, req_s

        @llmbench.ttft(advisory=[goodput >= 5 * req_s])
        def test_first_token(): ...
    """)
    refused(suite.measure("replay")).fnmatch_lines(["*goodput*"])


LIMITED = """
    @llmbench.job(prompts=40, concurrency=4, limits_file="limits.toml")
    def test_job(): ...
"""


def test_a_calibration_writes_the_limits_and_the_gate_reads_them(suite: Suite) -> None:
    suite.write(LIMITED)
    path = suite.path / "limits.toml"
    assert suite.measure("replay").ret == 4  # without the file there would be no limits
    suite.measure("replay", "--llm-calibrate", "--llm-runs=3").assert_outcomes(passed=1)
    first = tomllib.loads(path.read_text())["test_job"]
    assert first["tpot.p50"] > 0
    suite.measure("replay").assert_outcomes(passed=1)
    judged = {one["metric"]: one["limit"] for one in suite.report["tests"][0]["gate"]["objectives"]}
    assert judged == first

    path.write_text('[test_other]\ne2e.p50 = 3\n[test_job]\n"tpot.p50" = 0.001\n')
    suite.measure("replay").assert_outcomes(failed=1)
    for place in ("h100", "mi300"):
        suite.measure("replay", "--llm-calibrate", "--llm-runs=3", f"--llm-place={place}")
    kept = tomllib.loads(path.read_text())
    assert kept["test_job"] == {"tpot.p50": dict.fromkeys(("h100", "mi300"), first["tpot.p50"])}
    assert "test_other" in kept
    suite.measure("replay", "--llm-place=mi300").assert_outcomes(passed=1)
    assert suite.measure("replay").ret == 4  # which of the two is not known


def test_a_limit_that_no_calibration_proposes_is_named(suite: Suite) -> None:
    """No request failed, and of 0 no noise is known."""
    suite.write(LIMITED)
    path = suite.path / "limits.toml"
    path.write_text('[test_job]\n"tpot.p50" = { h100 = 9.0 }\nfail_rate = { h100 = 0.1 }\n')
    result = suite.measure("replay", "--llm-calibrate", "--llm-runs=3", "--llm-place=l4")
    result.assert_outcomes(passed=1)
    assert "tpot.p50; none for fail_rate: it was 0 or unknown" in " ".join(result.outlines).replace("  ", "")
    assert set(tomllib.loads(path.read_text())["test_job"]["tpot.p50"]) == {"h100", "l4"}
    refused(suite.measure("replay", "--llm-place=l4")).fnmatch_lines(
        ["*fail_rate: numbers for h100*: add a number, by hand or with --llm-cal*"]
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[test_other]\n", "*limits.toml has no limits of test_job*--llm-calibrate*"),
        ("[test_job]\ntpot = [\n", "*limits limits.toml*cannot be read*"),
        ("x = 1\n", "*x must be inside a table*"),
        ('[test_job]\n"tpto.p50" = 1\n', "*tpto.p50*did you mean*tpot.p50*"),
        ('[test_job]\n"tpot.p50" = "9 ms"\n', "*tpot.p50 is limited by a number of its unit, got '9 ms'*"),
        ("[test_job]\ngoodput = 3\n", "*goodput*"),
    ],
)
def test_a_file_that_limits_nothing_of_the_test_is_a_mistake(suite: Suite, text: str, told: str) -> None:
    suite.write(LIMITED)
    (suite.path / "limits.toml").write_text(text)
    assert fnmatch.fnmatch(" ".join(refused(suite.measure("replay")).lines), told)


HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "calibrate-a-gate.md"
BATCH = """
    @llmbench.job(prompts=40, concurrency=4)
    def test_batch(): ...
"""


def limits_of_the_page(accelerator: str) -> str:
    """The SUT file of the how-to, for a machine with this accelerator."""
    (found,) = re.findall(r"```toml\n(\[sut.hardware\].*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    return str(found).replace("NVIDIA H100 SXM", accelerator)


@pytest.mark.parametrize(("accelerator", "limit"), [("NVIDIA H100 SXM", 12.0), ("AMD Instinct MI300X", 14.5)])
def test_the_sut_file_limits_a_test_at_its_accelerator(suite: Suite, accelerator: str, limit: float) -> None:
    suite.write(BATCH)
    (suite.path / "sut.toml").write_text(limits_of_the_page(accelerator))
    suite.measure("replay:h100-8b", "--llm-sut=sut.toml").assert_outcomes(passed=1)
    gate = suite.report["tests"][0]["gate"]["objectives"]
    assert [(one["metric"], one["limit"]) for one in gate] == [("tpot.p50", limit)]
    suite.measure("replay:h100-8b?step_base_us=20000", "--llm-sut=sut.toml").assert_outcomes(failed=1)


def test_limits_for_no_known_place_are_an_error_before_anything_is_sent(suite: Suite) -> None:
    suite.write(BATCH)
    (suite.path / "sut.toml").write_text(limits_of_the_page("NVIDIA L4"))
    refused(suite.measure("replay", "--llm-sut=sut.toml")).fnmatch_lines(
        ["*limits of test_batch: numbers for h100, mi300*, the SUT file names NVIDIA L4*--llm-place*"]
    )


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ('[limits.l4.test_batch]\n"tpto.p50" = 1', "*tpto.p50*did you mean*tpot.p50*"),
        ('[limits.l4.test_batch]\n"tpot.p50" = "9 ms"', "*limits.l4.test_batch.tpot.p50*give a number*"),
        ('[limits.l4.test_batch]\n"request_rate" = 1', "*request_rate*"),
        ('[limits.l4.test_batch]\n"acceptance_length" = 2', "*acceptance_length*"),
        ('[limits.l4]\n"tpot.p50" = 1', "*limits.l4.tpot.p50*give a table*"),
        ("limits = 3", "*limits*give a table*"),
    ],
)
def test_limits_of_a_sut_file_that_cannot_be_judged_are_mistakes(
    suite: Suite, limits: str, told: str
) -> None:
    suite.write(BATCH)
    text = limits + '\n[sut.hardware]\naccelerator_type = "NVIDIA L4"\n'
    (suite.path / "sut.toml").write_text(text)
    assert fnmatch.fnmatch(" ".join(refused(suite.measure("replay", "--llm-sut=sut.toml")).lines), told)


def test_a_limit_of_a_name_that_no_test_has_is_a_warning(suite: Suite) -> None:
    suite.write(BATCH)
    (suite.path / "sut.toml").write_text('[limits.l4.test_btach]\n"tpot.p50" = 1\n')
    result = suite.measure("replay", "--llm-sut=sut.toml")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*limits.l4.test_btach in sut.toml: *did you mean test_batch?*"])
