"""A prefix cache that outlives a session: the next one has prompts of its own, or says that it has not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.plugin.session import name_of_this_session
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.store.records_file import read_runs

pytestmark = pytest.mark.usefixtures("however_late")
BODY = """
@llmbench.ttft(p50_ms=5000, concurrency=2, requests=12)
def test_first_token(): ...
"""


@pytest.fixture(scope="module")
def keeping() -> Iterator[EmbeddedEngine]:
    """Its usage says nothing of its cache, its metrics page does."""
    with EmbeddedEngine.start("fast?prefix_caching=true&usage=never&server_timings=false") as running:
        yield running


def measured(suite: Suite, url: str, *options: str) -> dict[str, Any]:
    suite.write(BODY, SMALL_WARMUP)
    suite.measure(url, "--llm-inconclusive=pass", *options).assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    return dict(entry)


def checks(entry: dict[str, Any]) -> dict[str, Any]:
    return {each["check"]: each for each in entry["validity"]["findings"]}


def test_the_next_session_finds_nothing_of_its_prompts_there(suite: Suite, keeping: EmbeddedEngine) -> None:
    before, entry = measured(suite, keeping.url), measured(suite, keeping.url)
    assert before["workload"]["seed"] == entry["workload"]["seed"] == 42
    names = [each["facts"]["workload.prompts"]["value"] for each in (before, entry)]
    assert names[0] != names[1]
    parts = [each["facts"]["workload.parts"]["value"] for each in (before, entry)]
    assert parts[0] != parts[1]
    found = checks(entry)["prefix_cache_hits"]
    assert found["ok"]
    assert found["value"] < 0.01
    assert "prompts_of_others" not in checks(entry)
    page = (suite.path / "out" / "report.html").read_text("utf-8")
    assert f"{names[1]}; --llm-prompts={names[1]} sends them again" in page


@pytest.mark.slow
def test_all_runs_of_a_job_in_all_sessions_have_one_list_of_lengths(
    suite: Suite, keeping: EmbeddedEngine
) -> None:
    lengths = []
    for _ in range(2):
        entry = measured(suite, keeping.url, "--llm-runs=2", "--llm-save=job")
        assert checks(entry)["prefix_cache_hits"]["value"] < 0.01
        runs = read_runs(suite.path / "out" / entry["records_file"]).runs
        sent = [run.records for run in runs if run.label.startswith("run")]
        lengths += [sorted(records.requested_input_tokens.tolist()) for records in sent]
    assert len(set(lengths[0])) > 6
    assert lengths == [lengths[0]] * 4
    assert entry["workload"]["name"] == "synthetic-uniform"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["seed", "mine"])
def test_those_of_a_name_are_sent_again_and_that_is_told(
    suite: Suite, keeping: EmbeddedEngine, name: str
) -> None:
    option = f"--llm-prompts={name}"
    before, entry = measured(suite, keeping.url, option), measured(suite, keeping.url, option)
    assert before["facts"]["workload.parts"] == entry["facts"]["workload.parts"]
    found = checks(entry)
    assert not found["prefix_cache_hits"]["ok"]
    assert found["prefix_cache_hits"]["value"] > 0.8
    assert option in found["prompts_of_others"]["message"]


def test_also_of_a_server_whose_prefix_cache_is_declared_off(suite: Suite, keeping: EmbeddedEngine) -> None:
    """A cache of whole replies is none of prefixes, and nothing else tells of it."""
    (suite.path / "sut.toml").write_text('[sut]\nprefix_caching = "disabled"\n', "utf-8")
    entry = measured(suite, keeping.url, "--llm-prompts=third", "--llm-sut=sut.toml")
    assert "reply cache" in checks(entry)["prompts_of_others"]["message"]
    entry = measured(suite, keeping.url, "--llm-sut=sut.toml")
    assert "prompts_of_others" not in checks(entry)


def test_a_replay_gets_those_of_the_seed(suite: Suite) -> None:
    entry = measured(suite, "replay")
    assert "workload.prompts" not in entry["facts"]
    assert entry["facts"]["workload.parts"] == measured(suite, "replay")["facts"]["workload.parts"]
    other = measured(suite, "replay", "--llm-prompts=mine")
    assert other["facts"]["workload.parts"] != entry["facts"]["workload.parts"]
    assert "prompts_of_others" not in checks(other)


def test_workers_of_xdist_have_a_name_each() -> None:
    """They measure equal parts each for itself, on one server, whose cache would hold those of the first."""
    first, second = (
        cast(Any, SimpleNamespace(workerinput={"testrunuid": "0123456789abcdef", "workerid": worker}))
        for worker in ("gw0", "gw1")
    )
    assert name_of_this_session(first) == name_of_this_session(first) == "01234567-gw0"
    assert name_of_this_session(second) == "01234567-gw1"
    assert Settings(prompts=name_of_this_session(second)).prompts == "01234567-gw1", "so it can be asked for"
    alone: Any = SimpleNamespace()
    assert name_of_this_session(alone) != name_of_this_session(alone)
