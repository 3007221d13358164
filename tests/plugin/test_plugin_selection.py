"""Finding one's way: ``-m``, ``--markers`` and ``--fixtures``."""

from __future__ import annotations

import pytest
from plugin_suite import Suite

from pytest_llmbench import llmbench, plugin
from pytest_llmbench.plugin import fixtures

SUITE = """
import pytest
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=500)
@llmbench.no_regression("ttft.p99")
def test_a(): ...

@llmbench.itl(p99_ms=50)
class TestB:
    def test_b(self): ...

    @llmbench.ttft(p99_ms=500)
    @llmbench.compare(margin=0.1)
    def test_c(self): ...

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=llmbench.capacity())])
@llmbench.ttft(p99_ms=500)
def test_d(n): ...

def test_plain(): ...
"""


def selected(suite: Suite, expression: str, *arguments: str) -> set[str]:
    result = suite.run("--collect-only", "-q", "-m", expression, *arguments)
    return {line.split("::")[-1] for line in result.outlines if line.startswith("test_suite.py::")}


def test_the_name_of_a_test_selects_it(suite: Suite) -> None:
    suite.write(SUITE)
    strictness = "--strict-markers"
    assert selected(suite, "ttft") == {"test_a", "test_c", "test_d[1]"}
    assert selected(suite, "ttft", strictness) == {"test_a", "test_c", "test_d[1]"}
    assert selected(suite, "itl or capacity", strictness) == {"test_b", "test_d[2]"}
    assert selected(suite, "ttft and not no_regression", strictness) == {"test_c", "test_d[1]"}
    assert selected(suite, "compare", strictness) == {"test_c"}
    assert selected(suite, "not llmbench", strictness) == {"test_plain"}
    assert selected(suite, "llmbench(test='capacity')", strictness) == {"test_d[2]"}


def test_a_suite_may_have_marks_of_such_names(suite: Suite) -> None:
    suite.pytester.makeini(
        "[pytest]\nmarkers = ttft(kind): theirs\nasyncio_default_fixture_loop_scope=function"
    )
    suite.write(SUITE + "\n@pytest.mark.ttft('theirs')\ndef test_theirs(): ...\n")
    assert selected(suite, "ttft", "--strict-markers") == {"test_a", "test_c", "test_d[1]", "test_theirs"}


def test_a_mark_that_measures_nothing_stays_unknown(suite: Suite) -> None:
    suite.write("import pytest\n@pytest.mark.ttft(p99_ms=500)\ndef test_a(): ...\n")
    suite.pytester.makepyfile(test_before=SUITE)
    # In a process of its own: pytest.mark remembers the names of sessions that were in this one.
    result = suite.pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.stdout.fnmatch_lines(["*'ttft' not found in `markers` configuration option*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_every_marker_is_listed_with_its_keywords(suite: Suite) -> None:
    lines = [line for line in suite.run("--markers").outlines if line.startswith("@pytest.mark.llmbench")]
    builders = [name for name in dir(llmbench) if not name.startswith("_")]
    assert len(lines) == len(builders) > 15
    for name in builders:
        (line,) = [line for line in lines if line.endswith(f"; select with -m {name}.")]
        assert f" Write @llmbench.{name}(" in line
        assert "http" not in line
    (ttft,) = [line for line in lines if "test='ttft'" in line]
    assert ttft.startswith(
        "@pytest.mark.llmbench(test='ttft'): Time to First Token (section 5.1 of the draft). "
        "Write @llmbench.ttft(mean_ms=None, p50_ms=None, "
    )
    (sessions,) = [line for line in lines if "test='sessions'" in line]
    assert "workload='session:chat'" in sessions, "as it can be pasted"
    (regression,) = [line for line in lines if "llmbench_no_regression" in line]
    assert regression.startswith("@pytest.mark.llmbench_no_regression: Fail when ")


@pytest.mark.parametrize("name", plugin.__all__)
def test_the_first_line_of_a_fixture_stands_alone(name: str) -> None:
    told = getattr(fixtures, name).__doc__.split("\n\n")[0]
    assert told.endswith(".")
    assert "\n" not in told
    assert ":class:" not in told


def test_fixtures_are_listed(suite: Suite) -> None:
    listed = str(suite.run("--fixtures").stdout)
    for name in plugin.__all__:
        assert getattr(fixtures, name).__doc__.split("\n")[0] in listed
