"""Figures that were made by two definitions are not compared, wherever figures are compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from plugin_suite import Suite

from pytest_llmbench.harness.history.comparing import main as compare

GAPS = """
from pytest_llmbench import itl, llmbench, ms

@llmbench.ttft(rate=20, slo=[itl.p50 <= 5000 * ms])
{guard}
def test_gaps(): ...
"""
GUARD = '@llmbench.no_regression("{metric}", max_slowdown=0.05)'
CHUNKS = "replay:fast?tokens_per_chunk=4"
"""Four tokens to a chunk: what is timed is the time between chunks."""
WORDS = "itl.method was ITL, method direct, now it is Time Between Chunks, method A"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store with the session ``main`` is kept, once there is one."""
    return tmp_path_factory.mktemp("saved") / ".llmbench"


@pytest.fixture
def saved(suite: Suite, store: Path) -> Suite:
    """``main`` is measured once for all: each has a copy of the store."""
    if not store.exists():
        suite.write(GAPS.format(guard=""))
        suite.measure("replay", "--llm-runs=3", "--llm-save=main").assert_outcomes(passed=1)
        shutil.copytree(suite.path / ".llmbench", store)
    else:
        shutil.copytree(store, suite.path / ".llmbench")
    return suite


def _verdict(suite: Suite, metric: str) -> str:
    (test,) = suite.report["tests"]
    return str(next(each["verdict"] for each in test["comparisons"] if each["metric"] == metric))


WAIVED = "--llm-waive=sut.model.version=other chunks@2999-12-31"


def test_a_guarded_metric_that_was_made_otherwise_is_an_error_with_both_values(saved: Suite) -> None:
    saved.write(GAPS.format(guard=GUARD.format(metric="itl.p50")))
    result = saved.measure(CHUNKS, "--llm-runs=3", "--llm-compare=main", "--llm-inconclusive=pass", WAIVED)
    result.assert_outcomes(errors=1)
    assert WORDS in " ".join(result.stdout.str().split())
    for name in ("report.html", "summary.md"):
        assert WORDS in (saved.path / "out" / name).read_text("utf-8")


def test_a_metric_beside_it_is_compared_and_the_other_one_is_told(saved: Suite) -> None:
    saved.write(GAPS.format(guard=GUARD.format(metric="ttft.p50")))
    result = saved.measure(CHUNKS, "--llm-runs=3", "--llm-compare=main", "--llm-save=chunks", WAIVED)
    result.assert_outcomes(passed=1)
    assert WORDS in " ".join(result.stdout.str().split())
    assert _verdict(saved, "ttft.p50") == "equivalent"
    assert _verdict(saved, "itl.p50") == "inconclusive"


def test_a_waiver_is_told_with_what_it_answers_for(saved: Suite) -> None:
    saved.write(GAPS.format(guard=GUARD.format(metric="itl.p50")))
    waiver = "--llm-waive=itl.method=chunks are what users see@2999-12-31"
    result = saved.measure(CHUNKS, "--llm-runs=3", "--llm-compare=main", WAIVED, waiver)
    result.assert_outcomes(failed=1)
    assert "chunks are what users see" in " ".join(result.stdout.str().split())
    assert _verdict(saved, "itl.p50") == "regressed"


def test_saved_sessions_are_compared_by_the_same_rule(
    saved: Suite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.write(GAPS.format(guard=""))
    saved.measure(CHUNKS, "--llm-runs=3", "--llm-save=chunks").assert_outcomes(passed=1)
    monkeypatch.chdir(saved.path)
    waived = ["--waive", "sut.model.version=other chunks@2999-12-31"]
    assert compare(["main", "chunks", *waived, "--fail", "itl.p50:5%"]) == 1
    assert WORDS in " ".join(capsys.readouterr().out.split())


def test_both_arms_of_an_ab_have_to_be_made_alike(suite: Suite) -> None:
    suite.write(GAPS.format(guard=GUARD.format(metric="itl.p50")))
    result = suite.measure(
        CHUNKS, "--llm-runs=4", "--llm-baseline-endpoint=replay", "--llm-inconclusive=pass"
    )
    result.assert_outcomes(errors=1)
    assert WORDS in " ".join(result.stdout.str().split())


def test_systems_are_set_side_by_side_in_what_was_made_alike(suite: Suite) -> None:
    suite.write(GAPS.format(guard='@llmbench.compare(metrics=["ttft.p50", "itl.p50"])'))
    result = suite.run(
        "--llm-endpoint=one=replay", f"--llm-endpoint=four={CHUNKS}", "--llm-scale=quick", "--llm-report=out"
    )
    result.assert_outcomes(passed=1)
    assert WORDS in (suite.path / "out" / "summary.md").read_text("utf-8")
    assert _verdict(suite, "itl.p50") == "inconclusive"


@pytest.mark.parametrize("policy", ["none()", "cold()", "(requests=3, output_tokens=10)"])
def test_a_cold_load_is_not_compared_with_a_warmed_one(saved: Suite, policy: str) -> None:
    saved.write(GAPS.format(guard=""))
    saved.pytester.makeconftest(
        f"""
        import pytest
        from pytest_llmbench import WarmupPolicy

        @pytest.fixture(scope="session")
        def llm_warmup():
            return WarmupPolicy{"" if policy.startswith("(") else "."}{policy}
        """
    )
    result = saved.measure("replay", "--llm-runs=3", "--llm-compare=main")
    result.assert_outcomes(errors=1)
    result.stdout.re_match_lines(
        [r".*the baseline measured something else: warmup was .+, now it is (none|3 requests)"]
    )


def test_a_goodput_under_other_limits_is_another_goodput(suite: Suite) -> None:
    body = """
    @llmbench.goodput(rate=20, ttft_ms={limit}, min_share=0.01)
    @llmbench.no_regression("{metric}", max_slowdown=0.05)
    def test_good(): ...
    """
    suite.write(body.format(limit=50, metric="goodput"))
    suite.measure("replay", "--llm-runs=3", "--llm-save=main").assert_outcomes(passed=1)
    suite.write(body.format(limit=5000, metric="goodput"))
    result = suite.measure("replay", "--llm-runs=3", "--llm-compare=main")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*goodput.limits was *50*now it is *5000*"])
    suite.write(body.format(limit=5000, metric="ttft.p50"))
    suite.measure("replay", "--llm-runs=3", "--llm-compare=main").assert_outcomes(passed=1)
