"""--llm-exit-codes: 10 a limit is broken, 11 undecided, 12 not judged, and pytest's own for all else."""

from __future__ import annotations

import pytest
from plugin_suite import Suite
from pytest_apart import WITHOUT_OTHERS

# What raises in a test of each kind: the verdicts themselves, so that nothing has to be measured.
SUITE = """
import pytest
from pytest_llmbench.errors import StoreError, SuiteError, SUTError
from pytest_llmbench.plugin.failures import (
    ComplianceFailure, GateFailure, GateInconclusive, InvalidRun, NotMeasured
)

RAISED = {
    "broken": GateFailure("FAIL: ttft", "ttft.p99 412 ms"),
    "not_compliant": ComplianceFailure("NOT COMPLIANT ENOUGH", "NOT COMPLIANT ENOUGH"),
    "undecided": GateInconclusive("INCONCLUSIVE: ttft", "ttft.p99"),
    "void": InvalidRun("INVALID", "INVALID"),
    "unreachable": NotMeasured(SUTError("nobody answers")),
    "unreachable_by_hand": SUTError("nobody answers"),
    "mistake": NotMeasured(SuiteError("lacks a variant")),
    "mistake_by_hand": SuiteError("no such test"),
    "ordinary": AssertionError("theirs"),
}

@pytest.fixture
def measured(kind):
    if kind in ("void", "unreachable", "mistake"):
        raise RAISED[kind]

@pytest.fixture
def broken_teardown():
    yield
    raise RuntimeError("theirs")

@pytest.mark.parametrize("kind", KINDS)
def test_x(kind, measured):
    if kind in RAISED:
        raise RAISED[kind]

@pytest.mark.xfail(strict=False)
def test_expected():
    raise RAISED["broken"]
"""

ONE_KIND = {
    "broken": 10,
    "not_compliant": 10,
    "undecided": 11,
    "void": 12,
    "unreachable": 12,
    "unreachable_by_hand": 12,
    "mistake": 1,
    "mistake_by_hand": 1,
    "ordinary": 1,
    "passed": 0,
}
MIXED = {
    ("void", "undecided", "broken", "passed"): 10,
    ("undecided", "void", "passed"): 11,
    ("void", "void", "passed"): 12,
    ("broken", "ordinary"): 1,
    ("void", "mistake"): 1,
}


def run(suite: Suite, kinds: tuple[str, ...], *arguments: str, more: str = "") -> pytest.RunResult:
    suite.write(f"KINDS = {list(kinds)!r}\n{SUITE}\n{more}")
    return suite.pytester.runpytest_inprocess(
        *("-p", "no:cacheprovider", *WITHOUT_OTHERS, "--llm-exit-codes"), *arguments, no_reraise_ctrlc=True
    )


@pytest.mark.parametrize(
    ("kinds", "status"), [*(((kind,), status) for kind, status in ONE_KIND.items()), *MIXED.items()]
)
def test_status(suite: Suite, kinds: tuple[str, ...], status: int) -> None:
    result = run(suite, kinds)
    assert result.ret == status
    assert ("llmbench: exit status" in str(result.stdout)) == (status >= 10)


def test_the_status_is_explained(suite: Suite) -> None:
    result = run(suite, ("undecided",))
    result.stdout.fnmatch_lines(["llmbench: exit status 11: no limit is broken, some are undecided"])


def test_without_the_option_all_failures_are_one(suite: Suite) -> None:
    suite.write(f"KINDS = ['undecided']\n{SUITE}")
    assert suite.run().ret == pytest.ExitCode.TESTS_FAILED
    suite.pytester.makeini("[pytest]\nllm_exit_codes = true\nasyncio_default_fixture_loop_scope = function\n")
    assert suite.run().ret == 11


def test_stopping_at_the_first_failure(suite: Suite) -> None:
    assert run(suite, ("undecided", "ordinary"), "-x").ret == 11


def test_a_failing_teardown_is_an_ordinary_failure(suite: Suite) -> None:
    assert run(suite, ("broken",), more="def test_t(broken_teardown): ...").ret == 1


def test_a_failed_collection_is_an_ordinary_failure(suite: Suite) -> None:
    suite.pytester.makepyfile(test_broken="import no_such_module")
    assert run(suite, ("broken",), "--continue-on-collection-errors").ret == 1
    assert run(suite, ("broken",)).ret == pytest.ExitCode.INTERRUPTED


def test_what_ends_a_session_otherwise_keeps_the_status_of_pytest(suite: Suite) -> None:
    interrupted = "def test_z(): raise KeyboardInterrupt"
    assert run(suite, ("broken",), more=interrupted).ret == pytest.ExitCode.INTERRUPTED
    theirs = run(suite, ("broken",), more="def test_z(): pytest.exit('theirs', 12)")
    assert theirs.ret == 12
    assert "llmbench: exit status" not in str(theirs.stdout)
    assert run(suite, ("broken",), "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert run(suite, ("broken",), "--llm-scale=quick", "--llm-seed=-1").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
def test_with_workers(suite: Suite) -> None:
    """The controller decides: each worker sees one of the failures only."""
    pytest.importorskip("xdist")
    assert run(suite, ("void", "undecided", "broken", "passed"), "-n2").ret == 10
    # That pytest-xdist ends so at the first failure is its own way.
    assert run(suite, ("void", "broken", "passed"), "-n1", "-x").ret == pytest.ExitCode.INTERRUPTED


MEASURED = """
@llmbench.ttft(p50_ms=0.001, rate=20, requests=20)
def test_broken(): ...

@llmbench.ttft(p50_ms=60_000, rate=20, requests=20)
def test_undecided(): ...

@llmbench.ttft(rate=20, requests=20, timeout_s=0.0001)
def test_void(): ...
"""


@pytest.mark.parametrize(
    ("chosen", "status"), [("broken or undecided or void", 10), ("undecided or void", 11), ("void", 12)]
)
def test_of_what_is_measured(suite: Suite, chosen: str, status: int) -> None:
    suite.write(MEASURED)
    result = suite.run("--llm-exit-codes", "--llm-endpoint=replay", "--llm-scale=quick", "-k", chosen)
    assert result.ret == status, result.stdout


def test_a_report_that_is_lost_is_an_ordinary_failure(suite: Suite) -> None:
    suite.write(MEASURED)
    (suite.path / "out" / "report.html").mkdir(parents=True)
    result = suite.measure("replay", "--llm-exit-codes", "-k", "undecided")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["llmbench: ERROR: *report.html*"])
