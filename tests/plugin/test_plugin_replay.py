"""Whole runs in virtual time: ``--llm-endpoint=replay``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plugin_suite import Suite, stored_lines

from pytest_llmbench.store.records_file import read_runs

QUICKSTART = Path(__file__).parents[2] / "example_suites" / "quickstart" / "test_first_token.py"
ONE = """
@llmbench.ttft(p50_ms=500, rate=20)
def test_first_token(): ...
"""


@pytest.mark.parametrize(
    "name", ["test_first_token_is_quick", pytest.param("test_four_users_at_once", marks=pytest.mark.slow)]
)
def test_the_quickstart_at_full_scale(suite: Suite, name: str) -> None:
    suite.write(QUICKSTART.read_text("utf-8"))
    suite.measure("replay", "-k", name, scale="full").assert_outcomes(passed=1, deselected=1)
    (entry,) = suite.report["tests"]
    assert entry["validity"]["verdict"] == "valid"
    assert entry["counts"]["submitted"] == entry["counts"]["ok"] == 10_102
    assert entry["metrics"]["ttft.p99_9"]["point"] > entry["metrics"]["ttft.p99"]["point"]
    assert entry["metrics"]["ttft.p99_9"]["lower"] is not None
    assert entry["metrics"]["ttft.p99_9"]["n"] == 10_102
    compliance = entry["compliance"]
    assert compliance["verdict"] == "unconditional"
    assert compliance["next_class"] is None


def test_a_replay_says_that_it_is_one(suite: Suite) -> None:
    suite.write(ONE)
    result = suite.measure("replay:h100-8b?max_num_seqs=96", "--llm-inconclusive=pass", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*replay: preset h100-8b in virtual time*"])
    (entry,) = suite.report["tests"]
    assert entry["facts"]["sut.simulated"] == {
        "value": "replay",
        "origin": "simulated",
        "source": "replay in virtual time",
    }
    for key in ("streaming.protocol", "clock.topology", "timing.submit_point", "sut.model.name"):
        assert entry["facts"][key]["origin"] == "simulated"
    assert entry["notes"][0].startswith("replay: preset h100-8b")
    assert suite.report["sut"]["endpoint"] == "replay:h100-8b?max_num_seqs=96"
    assert "virtual time" in (suite.path / "out" / "report.html").read_text("utf-8")
    assert "replay:h100-8b" in (suite.path / "out" / "summary.md").read_text("utf-8")


LOOSER = "empty_slot_share 1, usually 0.05"


def test_looser_limits_of_this_machine_are_in_every_report(suite: Suite) -> None:
    """Of a test of the draft and of one beyond it, which has no clauses."""
    beyond = "@llmbench.goodput(ttft_ms=5000, concurrency=4)\ndef test_goodput(): ...\n"
    suite.write(ONE + beyond)
    result = suite.measure("replay", "--llm-inconclusive=pass", "--llm-host-limits=empty_slot_share=1")
    result.assert_outcomes(passed=2)
    (warning,) = re.findall(r"warning: host_limits: .*?\(2 tests\)", " ".join(result.stdout.str().split()))
    assert LOOSER in warning
    for entry in suite.report["tests"]:
        (told,) = [one for one in entry["validity"]["findings"] if one["check"] == "host_limits"]
        assert not told["ok"]
        assert LOOSER in told["message"]
    clauses = {one["id"]: one for one in suite.report["tests"][0]["compliance"]["requirements"]}
    assert clauses["M-4.2.5-request-isolation"]["status"] == "unmet"
    for file in ("minimum.txt", "summary.md", "report.html"):
        text = (suite.path / "out" / file).read_text("utf-8").replace("\\", "")
        assert LOOSER in text, file
    minimum = (suite.path / "out" / "minimum.txt").read_text("utf-8").splitlines()
    (line,) = [line for line in minimum if "were looser than usual" in line]
    assert line.startswith("  - test_first_token, test_goodput: ")


def test_records_of_all_phases_are_written_and_the_same_again(suite: Suite) -> None:
    suite.write(ONE)
    contents = []
    for name in ("first", "second"):
        suite.run("--llm-endpoint=replay", "--llm-scale=quick", f"--llm-report={name}").assert_outcomes(
            passed=1
        )
        (path,) = (suite.path / name / "records").glob("*.jsonl.gz")
        contents.append(stored_lines(path))
        runs = read_runs(path).runs
        assert [run.label for run in runs][:2] == ["probe", "warm-up"]
        assert sum(len(run.records) for run in runs if run.label == "measure") == 50
    assert contents[0] == contents[1]


def test_the_bench_fixture_replays_as_well(suite: Suite) -> None:
    suite.write("""
        from pytest_llmbench import ClosedLoop, LoadPlan

        def test_by_hand(llm_bench, llm_workload):
            plan = LoadPlan("by hand", llm_workload("synthetic-uniform"), ClosedLoop(3), 30, seed=1)
            assert llm_bench.run(plan).records.counts()["ok"] == 30
            assert llm_bench.measure("ttft", concurrency=2).completion_rate.point == 1.0
    """)
    suite.measure("replay").assert_outcomes(passed=1)


def test_wrong_scenarios_are_said_once_and_plainly(suite: Suite) -> None:
    suite.write(ONE)
    result = suite.measure("replay:fsat?max_num_seq=3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown option 'max_num_seq'; did you mean 'max_num_seqs'*"])
    result.stderr.fnmatch_lines(["*unknown preset 'fsat'; did you mean 'fast'*"])


def test_what_a_replay_cannot_do_is_refused(suite: Suite) -> None:
    suite.write(ONE)
    suite.measure("replay:fast?fault=drip").stdout.fnmatch_lines(["*the fault drip changes the bytes*"])
    suite.measure("replay", "--llm-model=other").stdout.fnmatch_lines(["*serves sim-fast, not other*"])
    suite.write(
        ONE,
        conftest="""
        import pytest
        from pytest_llmbench import SUT

        @pytest.fixture(scope="session")
        def llm_sut():
            return SUT("replay", extra_body={"top_k": 1})
        """,
    )
    suite.run("--llm-scale=quick").stdout.fnmatch_lines(["*extra_body (top_k) would have no effect*"])


def test_a_fault_rate_voids_a_replayed_run(suite: Suite) -> None:
    suite.write(ONE)
    result = suite.measure("replay:fast?fault=reset&fault_rate=0.2")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*INVALID*", "*requests failed*"])
