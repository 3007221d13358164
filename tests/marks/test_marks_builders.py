"""The builders: marks of any arguments, and keywords that are those of the parameters of the tests."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import fields

import pytest

from pytest_llmbench import llmbench
from pytest_llmbench.errors import UnknownMarkerError
from pytest_llmbench.harness.comparison.systems import Wanted
from pytest_llmbench.methodology.catalogue import TESTS


def keywords(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(llmbench, name)).parameters)


def test_the_names_are_those_of_the_tests_and_of_the_markers_beside_them() -> None:
    names = {name for name in dir(llmbench) if not name.startswith("_")}
    assert names == {*TESTS, "compare", "no_regression"}
    listed = f"no test 'speed'; there are: {', '.join(sorted(names)[:7])}"
    with pytest.raises(UnknownMarkerError, match=listed):
        llmbench.speed  # noqa: B018
    with pytest.raises(UnknownMarkerError, match=r"no test 'tfft'; did you mean ttft\?"):
        llmbench.tfft  # noqa: B018
    with pytest.raises(UnknownMarkerError, match=r"is a metric: .*\(slo=\[tpot.p50 <= 20 \* ms\]\)"):
        llmbench.tpot  # noqa: B018
    with pytest.raises(UnknownMarkerError, match=r"names no test; write .*@llmbench.ttft\(p99_ms=500\)"):
        llmbench(lambda: None)
    assert not hasattr(llmbench, "tfft")
    assert not hasattr(llmbench, "__wrapped__")


def test_a_builder_makes_a_mark_of_whatever_it_is_given() -> None:
    mark = llmbench.ttft(500, p99ms=3).mark
    assert (mark.name, mark.args, mark.kwargs) == ("llmbench", (500,), {"test": "ttft", "p99ms": 3})
    beside = llmbench.no_regression("ttft.p99").mark
    assert (beside.name, beside.args, beside.kwargs) == ("llmbench_no_regression", ("ttft.p99",), {})


@pytest.mark.parametrize("test", TESTS)
def test_each_field_is_a_keyword_with_its_default(test: str) -> None:
    parameters = TESTS[test].parameters
    shown = keywords(test)
    declared = {each.name: each.default for each in fields(parameters) if each.init}
    assert declared.keys() - shown.keys() == (set() if parameters.repeats else {"runs"})
    differing = {name for name, each in shown.items() if each.default != declared[name]}
    assert differing <= ({"workload"} if test == "prefix_cache" else set())
    assert all(each.kind is each.KEYWORD_ONLY for each in shown.values())


def test_the_keywords_of_compare_are_the_fields_that_a_comparison_reads() -> None:
    assert {name: each.default for name, each in keywords("compare").items()} == {
        each.name: each.default for each in fields(Wanted)
    }
    assert all(each.kind is each.KEYWORD_ONLY for each in keywords("compare").values())
    assert ":param same_time: checklist: when the systems were measured" in llmbench.compare.documentation


def test_own_keywords_come_first_and_those_of_all_tests_last() -> None:
    names = list(keywords("ttft"))
    assert names[:2] == ["mean_ms", "p50_ms"]
    assert names.index("bucket_limits") < names.index("rate") < names.index("failures")
    assert names.index("failures") < names.index("workload")
    assert names[-1] == "timeout_s"


def test_a_keyword_is_shown_as_authors_write_it() -> None:
    assert keywords("itl")["levels_percent"].default == (25, 50, 75, 90)
    assert all(type(percent) is int for percent in keywords("itl")["levels_percent"].default)
    assert (
        keywords("ttft")["arrival"].annotation
        == "Literal['poisson', 'uniform', 'gamma', 'trace'] | str | Sequence[Any] | None"
    )
    # A mapping becomes a workload before it is a parameter, and no object is a default that can be written.
    stand_in = keywords("prefix_cache")["workload"]
    assert (stand_in.annotation, stand_in.default) == ("str | Workload | Mapping[str, Any] | None", None)


def test_help_shows_keywords_with_types_and_what_they_mean() -> None:
    told = pydoc.plain(pydoc.render_doc(llmbench.capacity))
    assert (
        "llmbench.capacity(\n        *,\n        ttft_p99_ms: float | Mapping[str, float] | None = None,\n"
        in told
    )
    assert "Concurrent Request Capacity (section 5.5 of the draft)." in told
    assert ":param min_completion: criterion: least share of requests that complete." in told
    assert ":param workload: name of a workload" in told


def test_what_a_test_does_not_explain_is_explained_by_what_it_inherits_from() -> None:
    assert ":param workload: name of a workload, a workload" in llmbench.ttft.documentation
    assert ":param workload: ``synthetic-skewed``, a synthetic" in llmbench.fairness.documentation
    assert ":param workload: ``session:chat``" in llmbench.sessions.documentation
