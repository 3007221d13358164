"""``--llm-save``, ``--llm-compare`` and ``no_regression``, in virtual time."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from plugin_suite import SMALL_WARMUP, Suite, refused

from pytest_llmbench.harness.comparison.baselines import automatic_name
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.store.baselines import Commit
from pytest_llmbench.store.files import machine_id

ONE = """
from pytest_llmbench import llmbench

@llmbench.ttft(rate=20)
@llmbench.no_regression("tpot.p50", max_slowdown=0.05)
def test_first_token(): ...
"""
UNGUARDED = ONE.replace('@llmbench.no_regression("tpot.p50", max_slowdown=0.05)\n', "")
SLOWER = "replay:fast?step_base_us=2400&decode_us_per_sequence=40"
"""Another speed, and so another version of the simulated model."""
NIGHTLY = ("--llm-save=main", "--llm-compare=main")
WAIVED = "--llm-waive=sut.model.version=the other engine is what is compared@2999-12-31"


def measure(suite: Suite, *arguments: str, endpoint: str = "replay") -> pytest.RunResult:
    return suite.measure(endpoint, "--llm-runs=3", *arguments)


MAIN: dict[str, str] = {}
"""The baseline of the first test that made it: the same for every body with that load."""


def saved(suite: Suite) -> Path:
    """A baseline ``main`` of the test in ``ONE``."""
    path = suite.path / ".llmbench" / machine_id() / "0001_main.json"
    if not MAIN:
        suite.write(ONE)
        measure(suite, "--llm-save=main").assert_outcomes(passed=1)
        MAIN["text"] = path.read_text("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MAIN["text"], "utf-8")
    return path


def test_a_baseline_is_saved_and_the_same_again_is_no_regression(suite: Suite) -> None:
    suite.write(ONE)
    path = saved(suite)
    assert path.name == "0001_main.json"
    document = json.loads(path.read_text("utf-8"))
    (test,) = document["tests"]
    assert test["runs"] == len(test["by_run"]["tpot.p50"]) == 3
    assert test["identity"]["model"] == "sim-fast"
    assert test["identity"]["seed"] == 42
    assert sum(test["output_lengths"]["requests"]) == 150
    result = measure(suite, "--llm-compare=main")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*compared with the baseline 0001_main of *, 3 runs"])
    (entry,) = suite.report["tests"]
    (gated,) = [found for found in entry["comparisons"] if found["gated"]]
    assert (gated["metric"], gated["verdict"]) == ("tpot.p50", "equivalent")
    assert gated["change"]["upper"] == 0  # the same lengths, in virtual time
    assert (gated["paired"], gated["unit_of_replication"]) == (True, "run")
    assert any(found["metric"] == "ttft.p99" for found in entry["comparisons"])
    lengths = next(f for f in entry["validity"]["findings"] if f["check"] == "output_lengths")
    assert lengths["ok"]


def test_saving_again_makes_another_file(suite: Suite) -> None:
    suite.write(ONE)
    first = saved(suite)
    content = first.read_bytes()
    result = measure(suite, "--llm-save=main")
    result.stdout.fnmatch_lines(
        ["baseline saved: *0002_main.json (1 test)", "*nothing to compare with yet*"][:1]
    )
    assert first.read_bytes() == content
    assert sorted(path.name for path in first.parent.iterdir()) == ["0001_main.json", "0002_main.json"]


def test_a_session_saves_by_itself_under_a_name_of_its_own(suite: Suite) -> None:
    suite.write(UNGUARDED)
    result = measure(suite, "--llm-autosave")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["baseline saved: *0001_2*T*Z.json (1 test)"])  # no repository here
    (path,) = (suite.path / ".llmbench" / machine_id()).iterdir()
    document = json.loads(path.read_text("utf-8"))
    assert document["name"] == re.sub(r"[-:]|\.\d+", "", document["saved"])
    assert document["commit"] is None


def test_a_guarded_test_is_not_content_with_a_session_that_saves_by_itself(suite: Suite) -> None:
    suite.write(ONE)
    result = measure(suite, "--llm-autosave")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no_regression(tpot.p50) has nothing to compare with*"])


@pytest.mark.parametrize(
    ("commit", "name"),
    [
        (None, "20260120T093000Z"),
        (Commit(id="3f2a1c9b04de" + "0" * 28, uncommitted=False), "3f2a1c9b04de"),
        (Commit(id="3f2a1c9b04de" + "0" * 28, uncommitted=True), "3f2a1c9b04de-uncommitted"),
    ],
)
def test_names_that_nobody_gave(commit: Commit | None, name: str) -> None:
    assert automatic_name(commit, "2026-01-20T09:30:00.125Z") == name


def test_a_slower_engine_is_a_regression_in_words_everywhere(suite: Suite) -> None:
    suite.write(ONE)
    saved(suite)
    result = measure(suite, "--llm-compare=main", WAIVED, "--junitxml=junit.xml", endpoint=SLOWER)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAIL: ttft on 1 of 1 comparisons"])
    result.stdout.fnmatch_lines(
        ["*REGRESSED tpot.p50 +*against +5 % allowed; main*minimum detectable effect +*"]
    )
    assert "is waived until 2999-12-31: the other engine" in " ".join(result.stdout.str().split())
    (entry,) = suite.report["tests"]
    assert entry["gate"]["verdict"] == "fail"
    assert "llmbench.tpot.p50.regression" in (suite.path / "junit.xml").read_text("utf-8")
    for name in ("report.html", "summary.md"):
        text = (suite.path / "out" / name).read_text("utf-8")
        assert "regressed" in text
        assert "the other engine is what is compared" in text


def test_a_regression_against_a_baseline_is_split_and_an_old_baseline_says_that_it_cannot(
    suite: Suite,
) -> None:
    suite.write(ONE)
    path = saved(suite)
    measure(suite, "--llm-compare=main", WAIVED, endpoint=SLOWER)
    (entry,) = suite.report["tests"]
    assert [row[0] for row in entry["tables"]["change_split"]["rows"]] == [
        "Queue", "Prefill", "Decode", "Outside", "End-to-end latency, mean",
    ]  # fmt: skip
    assert suite.recomputed() == 1
    document = json.loads(path.read_text("utf-8"))
    parts = document["tests"][0].pop("latency_parts_ms")
    assert {name: len(values) for name, values in parts.items()} == dict.fromkeys(
        ("queue", "prefill", "decode", "ttft", "e2e"), 3
    )
    path.write_text(json.dumps(document), "utf-8")
    measure(suite, "--llm-compare=main", WAIVED, endpoint=SLOWER)
    (entry,) = suite.report["tests"]
    why = "the baseline is of a version that kept no parts: save it again"
    assert f"the parts of the change are unknown: {why}" in entry["notes"]
    assert "change_split" not in entry["tables"]


def test_another_system_is_refused_with_both_values(suite: Suite) -> None:
    suite.write(ONE)
    saved(suite)
    result = measure(suite, "--llm-compare=main", "--llm-seed=7", endpoint=SLOWER)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*the baseline measured something else: seed was 42, now it is 7",
            "*the baseline measured something else: sut.model.version was figures *, now it is figures *",
        ]
    )
    result.stdout.no_fnmatch_line("*sut.software.version*")


@pytest.mark.usefixtures("however_late")
def test_what_is_known_of_a_server_is_kept(suite: Suite, engine: EmbeddedEngine) -> None:
    body = "@llmbench.ttft(rate=40, requests=10)\ndef test_one(): ...\n"
    suite.write(body, SMALL_WARMUP)
    (suite.path / "sut.toml").write_text('[request]\nextra_body = { effort = "low" }\n', "utf-8")
    options = ("--llm-sut=sut.toml", "--llm-save=served", "--llm-inconclusive=pass")
    suite.measure(engine.url, *options).assert_outcomes(passed=1)
    (file,) = (suite.path / ".llmbench").rglob("*_served.json")
    identity = json.loads(file.read_text("utf-8"))["tests"][0]["identity"]
    assert identity["request.extra_body"] == {"effort": "low"}
    assert identity["endpoint.answered_by"] == identity["model"] == "sim-fast"


def test_a_baseline_of_another_machine_is_refused(suite: Suite) -> None:
    suite.write(ONE)
    path = saved(suite)
    document = json.loads(path.read_text("utf-8"))
    document["tests"][0]["identity"] |= {"host.cpu": "Cortex-A72", "host.machine": "aarch64"}
    other = suite.path / "other.json"
    other.write_text(json.dumps(document))
    result = measure(suite, f"--llm-compare={other}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*host.machine was aarch64, now it is not known"])
    result.stdout.fnmatch_lines(["*host.cpu was Cortex-A72, now it is not known"])


def test_without_a_limit_a_comparison_is_shown_and_not_judged(suite: Suite) -> None:
    saved(suite)
    suite.write(UNGUARDED)
    result = measure(suite, "--llm-compare=0001", WAIVED, endpoint=SLOWER)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*regressed*tpot.p50 (shown only) +*"])


def test_a_limit_of_the_command_line_decides(suite: Suite) -> None:
    saved(suite)
    suite.write(UNGUARDED)
    limits = "--llm-compare-fail=tpot.p50:5%,jain_index:1%"
    result = measure(suite, "--llm-compare=main", limits, WAIVED, endpoint=SLOWER)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this test has no metric jain_index"])
    result = measure(suite, "--llm-compare=main", "--llm-compare-fail=jain_index:5%")
    result.stdout.fnmatch_lines(["*warning: nothing_compared: the test has no jain_index*"])


def test_a_session_of_another_name_is_saved_whatever_it_was_compared_with(suite: Suite) -> None:
    saved(suite)
    suite.write(UNGUARDED)
    limits = ("--llm-compare=main", "--llm-compare-fail=tpot.p50:50%", WAIVED)
    for name in ("--llm-save=branch", "--llm-autosave"):
        result = measure(suite, *limits, name, endpoint=SLOWER)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["baseline saved: *"])


def test_an_inconclusive_comparison_follows_the_policy(suite: Suite) -> None:
    saved(suite)
    suite.write(ONE.replace("tpot.p50", "ttft.p99"))
    given: dict[str, str] = {"endpoint": "replay:fast?eos_mean_tokens=60&seed=5"}
    result = measure(suite, "--llm-compare=main", WAIVED, **given)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INCONCLUSIVE ttft.p99 *"])
    passing = "--llm-inconclusive=pass"
    measure(suite, "--llm-compare=main", WAIVED, passing, **given).assert_outcomes(passed=1)


def test_a_search_is_repeated_as_a_whole(suite: Suite) -> None:
    suite.write("""
        @llmbench.throughput(min_concurrency=1, max_concurrency=4, concurrency_step=1)
        @llmbench.no_regression("max_output_token_throughput", max_slowdown=0.2)
        def test_throughput(): ...
    """)
    measure(suite, "--llm-save=main").assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    values = entry["by_run"]["max_output_token_throughput"]
    assert len(values) == len(set(values)) == 3
    assert values[0] == entry["metrics"]["max_output_token_throughput"]["point"]
    assert any("of the first of 3 runs" in note for note in entry["notes"])
    assert len(entry["by_run"]["sustainable_concurrency"]) == 3


def test_nothing_to_compare_with_names_the_options(suite: Suite) -> None:
    suite.write(ONE)
    result = measure(suite)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no_regression(tpot.p50) has nothing to compare with*"])
    result.stdout.fnmatch_lines(["*--llm-compare NAME*"])


LAUNCHING = """
import pytest

@pytest.fixture(scope="session")
def llm_sut():
    print("here it is")
    return "replay"
"""


def test_nothing_to_compare_with_is_said_before_a_server_is_launched(suite: Suite) -> None:
    skipped = ONE.replace("from pytest", "import pytest\nfrom pytest", 1).replace(
        "@", "@pytest.mark.skip\n@", 1
    )
    suite.write(ONE + skipped.replace("first", "second"), LAUNCHING)
    result = suite.run("-rA")
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["*no_regression(tpot.p50) has nothing to compare with*"])
    result.stdout.no_fnmatch_line("*here it is*")
    suite.run("-rA", "--llm-save=main").stdout.fnmatch_lines(["*here it is*"])


def test_fewer_than_three_runs_are_refused_on_either_side(suite: Suite) -> None:
    suite.write(ONE)
    result = suite.measure("replay", "--llm-save=single")
    result.stdout.fnmatch_lines(["*fewer than 3 runs, too few to compare with*"])
    measure(suite, "--llm-compare=single").stdout.fnmatch_lines(["*the baseline has 1 run of this test*"])
    saved(suite)
    suite.measure("replay", "--llm-compare=main", "--llm-runs=2").stdout.fnmatch_lines(
        ["*this session has 2 runs of this test: each side needs at least 3*"]
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--llm-compare=mian"], "*no baseline 'mian' in .llmbench*there are: 0001_main*"),
        (["--llm-compare=some/file.json"], "*no such file*"),
        (["--llm-compare=main", "--llm-compare-fail=ttft.p99:5"], "*ttft.p99:5' lacks a unit*"),
        (["--llm-compare=main", "--llm-compare-fail=ttft.p99"], "*needs a limit: write for example*"),
        (["--llm-compare=main", "--llm-compare-fail=ttft.p98:5%"], "*no metric is called*did you mean*"),
        (["--llm-compare=main", "--llm-compare-fail=ttft.p99:x%"], "*'x' for a limit*"),
        (["--llm-compare=main", "--llm-waive=seed=why not@2020-01-01"], "*expired on 2020-01-01*"),
        (["--llm-compare=main", "--llm-waive=sede=why@2999-01-01"], "*did you mean seed*"),
        (["--llm-compare=main", "--llm-waive=seed@2999-01-01"], "*needs a field, a reason and*"),
        (["--llm-compare=main", "--llm-waive=seed=why@soon"], "*'soon' for its last day*"),
        (["--llm-compare-fail=ttft.p99:5%"], "*nothing to compare with*"),
        (["--llm-waive=seed=why@2999-01-01"], "*name one with --llm-compare*"),
        (["--llm-save=a/b"], "*not a name for a baseline*"),
        (["--llm-accept=why"], "*nothing to accept: this session is not saved*"),
        (["--llm-save=main", "--llm-compare-confirm=2/3"], "*with the same name*"),
        ([*NIGHTLY, "--llm-compare-confirm=4/3"], "*'4/3' is no number of*"),
        ([*NIGHTLY, "--llm-compare-confirm=two"], "*'two' is no number of*"),
    ],
)
def test_wrong_options_are_said_before_anything_runs(suite: Suite, arguments: list[str], said: str) -> None:
    suite.write(ONE)
    folder = suite.path / ".llmbench" / machine_id()
    folder.mkdir(parents=True)
    empty = {"baseline_version": "1.0", "name": "main", "saved": "2026-01-20T09:30:00.125Z"}
    (folder / "0001_main.json").write_text(
        json.dumps(empty | {"generator_version": "1", "machine": "here", "tests": []})
    )
    result = measure(suite, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = " ".join((result.stderr.str() + result.stdout.str()).split())
    assert fnmatchcase(text, said.replace("[", "[[]")), text


def test_a_guarded_test_that_the_baseline_lacks_is_an_error(suite: Suite) -> None:
    suite.write(ONE)
    saved(suite)
    suite.write(ONE.replace("test_first_token", "test_renamed"))
    result = measure(suite, "--llm-compare=main")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no results of test_suite.py::test_renamed; it has *test_first_token*"])
    suite.write(UNGUARDED.replace("test_first_token", "test_renamed"))
    measure(suite, "--llm-compare=main").assert_outcomes(passed=1)
    result = measure(suite, "--llm-compare=main", "--llm-compare-fail=tpot.p50:5%")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*warning: nothing_compared: 0001_main.json has no results of this test*"])


def test_all_mistakes_of_the_marker_are_said_at_collection(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(rate=20)
        @llmbench.no_regression("ttft.p98", max_slowdown=5)
        @llmbench.no_regression("tokens_in_flight")
        def test_wrong(): ...

        @llmbench.no_regression("ttft.p99")
        def test_measures_nothing(): ...
    """)
    refused(measure(suite)).fnmatch_lines_random(
        [
            "*no metric is called 'ttft.p98'; did you mean *ttft.p99*",
            "*must be a share from 0 to below 1 (0.05 is 5 %), got 5*",
            "*tokens_in_flight: neither more nor less of it is better*",
            "*no_regression measures nothing alone*",
        ]
    )


def test_options_may_stand_in_the_ini_file(suite: Suite) -> None:
    saved(suite)
    suite.pytester.makeini(
        """
        [pytest]
        asyncio_default_fixture_loop_scope = function
        llm_compare = main
        llm_storage = elsewhere
        llm_compare_fail =
            tpot.p50:5%
            ttft.p50:400%
        """
    )
    (suite.path / ".llmbench").rename(suite.path / "elsewhere")
    suite.write(UNGUARDED)
    refused(measure(suite)).fnmatch_lines(["*'ttft.p50:400%' must lie from 0 % to below 100 %, got 400%*"])
    result = measure(suite, "--llm-compare-fail=tpot.p50:5%")
    result.assert_outcomes(passed=1)
    (found,) = [each for each in suite.report["tests"][0]["comparisons"] if each["gated"]]
    assert found["metric"] == "tpot.p50"


def test_from_three_sessions_on_days_are_what_is_compared(suite: Suite) -> None:
    first = saved(suite)
    for number, level in ((2, 1.03), (3, 0.97)):
        document = json.loads(MAIN["text"])
        by_run = document["tests"][0]["by_run"]
        by_run["tpot.p50"] = [level * value for value in by_run["tpot.p50"]]
        first.with_name(f"000{number}_main.json").write_text(json.dumps(document), "utf-8")
    suite.write(ONE)
    one_run = suite.measure("replay", "--llm-compare=main")
    one_run.assert_outcomes(failed=1)  # days 3 % apart: 5 % are not told from them
    one_run.stdout.fnmatch_lines(["*INCONCLUSIVE tpot.p50 *main * (3 sessions), this session * (1 session)*"])
    (entry,) = suite.report["tests"]
    (gated,) = [found for found in entry["comparisons"] if found["gated"]]
    assert gated["unit_of_replication"] == "session"
    assert len(gated["baseline"]) == 3
    assert len(gated["candidate"]) == 1
    assert any("last 3 sessions of 'main'" in note for note in entry["notes"])
    measure(suite, "--llm-compare=0001").assert_outcomes(passed=1)  # one session, as alike as runs are
