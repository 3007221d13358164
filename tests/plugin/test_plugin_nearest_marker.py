"""Which of several markers counts, and that none is dropped: on classes, their bases, modules, by hooks."""

from __future__ import annotations

import pytest
from plugin_suite import Suite, refused

NEAREST = """
pytestmark = llmbench.ttft(rate=10, requests=40)

@llmbench.ttft(rate=20, requests=40)
class Base:
    wanted = 20

    def test_it(self, llm_result):
        assert llm_result.facts.value("load.rate_rps") == self.wanted

class TestInherited(Base): ...

@llmbench.ttft(rate=30, requests=40)
class TestOwn(Base):
    wanted = 30

class TestOfOwn(TestOwn): ...

class Other:
    pytestmark = [llmbench.ttft(rate=50, requests=40)]

class TestTwoBases(Base, Other): ...

@llmbench.ttft(rate=20, requests=40)
class TestMethod:
    @llmbench.ttft(rate=40, requests=40)
    def test_it(self, llm_result):
        assert llm_result.facts.value("load.rate_rps") == 40

def test_of_the_module(llm_result):
    assert llm_result.facts.value("load.rate_rps") == 10
"""
TWO_IN_ONE_PLACE = {
    "module": """
        pytestmark = [llmbench.ttft(p99_ms=1), llmbench.itl(p99_ms=1)]
        def test_a(): ...
        def test_b(): ...
        """,
    "class": """
        @llmbench.ttft(p99_ms=1)
        @llmbench.itl(p99_ms=1)
        class TestIt:
            def test_a(self): ...
        """,
    "pytestmark of a class": """
        class TestIt:
            pytestmark = [llmbench.ttft(p99_ms=1), llmbench.itl(p99_ms=1)]
            def test_a(self): ...
        """,
    "base": """
        class Base:
            pytestmark = [llmbench.ttft(p99_ms=1), llmbench.itl(p99_ms=1)]
            def test_a(self): ...
        class TestIt(Base): ...
        """,
    "function": """
        @llmbench.ttft(p99_ms=1)
        @llmbench.itl(p99_ms=1)
        def test_a(): ...
        """,
    "compare": """
        @llmbench.ttft(p99_ms=1)
        @llmbench.compare(margin=0.1)
        @llmbench.compare(margin=0.2)
        def test_a(): ...
        """,
}
LATE = {
    "collected": ("def pytest_itemcollected(item): item.add_marker(MARK)", "passed"),
    "modify": ("def pytest_collection_modifyitems(items): items[0].add_marker(MARK)", "passed"),
    "modify, last": (
        "@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items): items[0].add_marker(MARK)",
        "failed",
    ),
    "collection is finished": (
        "def pytest_collection_finish(session): session.items[0].add_marker(MARK)",
        "failed",
    ),
    "setup": ("def pytest_runtest_setup(item): item.add_marker(MARK)", "failed"),
    "class": ("def pytest_runtest_setup(item): item.parent.add_marker(MARK)", "failed"),
    "fixture": (
        "@pytest.fixture(autouse=True)\ndef late(request): request.node.add_marker(MARK)",
        "failed",
    ),
    "applymarker": (
        "@pytest.fixture(autouse=True)\ndef late(request): request.applymarker(MARK)",
        "failed",
    ),
}
BEGIN = """
import pytest
from pytest_llmbench import llmbench
MARK = llmbench.ttft(rate=20, requests=40)
"""


def test_the_nearest_counts(suite: Suite) -> None:
    suite.write(NEAREST)
    suite.measure("replay").assert_outcomes(passed=6)


@pytest.mark.parametrize("place", TWO_IN_ONE_PLACE)
def test_two_in_one_place_are_a_mistake_that_is_told_once(suite: Suite, place: str) -> None:
    suite.write(TWO_IN_ONE_PLACE[place])
    told = "has 2 llmbench_compare markers" if place == "compare" else "has 2 llmbench markers ("
    assert refused(suite.measure("replay")).str().count(told) == 1


@pytest.mark.parametrize("way", LATE)
def test_a_marker_of_a_hook_or_fixture_is_measured_or_fails(suite: Suite, way: str) -> None:
    hook, outcome = LATE[way]
    suite.write("def test_it(): ...", f"{BEGIN}\n{hook}")
    result = suite.measure("replay")
    result.assert_outcomes(**{outcome: 1})
    assert (outcome == "passed") == ("were changed after collection" not in str(result.stdout))


@pytest.mark.parametrize("added", ["llmbench.ttft(p50_ms=1)", "llmbench.no_regression('ttft.p50')"])
def test_a_late_marker_beside_one_that_was_measured(suite: Suite, added: str) -> None:
    hook = f"@pytest.fixture\ndef late(request): request.node.add_marker({added})"
    suite.write(f"{BEGIN}\n@MARK\ndef test_it(late): ...", f"{BEGIN}\n{hook}")
    result = suite.measure("replay")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*were changed after collection*"])


def test_an_override_of_llm_result_measures_nothing(suite: Suite) -> None:
    suite.write(f"{BEGIN}\n@pytest.fixture\ndef llm_result(): ...\n@MARK\ndef test_it(): ...")
    result = suite.measure("replay")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is marked, and nothing was measured*"])


def test_an_item_without_fixtures_measures_nothing(suite: Suite) -> None:
    conftest = f"""{BEGIN}
class Line(pytest.Item):
    def runtest(self): ...

class File(pytest.File):
    def collect(self):
        line = Line.from_parent(self, name="line")
        line.add_marker(MARK)
        yield line

def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".lines":
        return File.from_parent(parent, path=file_path)
"""
    suite.write("", conftest)
    (suite.path / "some.lines").write_text("")
    result = suite.measure("replay")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is marked, and nothing was measured*"])
