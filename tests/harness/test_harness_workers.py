"""``--llm-workers``: as an option, and through the plugin to the end."""

from __future__ import annotations

import gzip
import json
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import worker_notes
from pytest_llmbench.harness.sut.address import found_notes
from pytest_llmbench.model.sentences import Note


def test_the_number_of_workers_is_an_option_like_others() -> None:
    assert Settings.from_options({"workers": ""}).workers == 1
    assert Settings.from_options({"workers": "4"}).workers == 4


@pytest.mark.parametrize("given", ["-2", "many", "1.5"])
def test_other_values_are_mistakes(given: str) -> None:
    with pytest.raises(SuiteError, match=f"--llm-workers: .*got '{given}'"):
        Settings.from_options({"workers": given})


def test_cores_are_an_option_like_others() -> None:
    core = min(os.sched_getaffinity(0))
    assert Settings.from_options({"worker_cpus": str(core)}).worker_cpus == str(core)
    with pytest.raises(SuiteError, match=r"--llm-worker-cpus: .*may not use core 99999"):
        Settings.from_options({"worker_cpus": "99999"})
    with pytest.raises(SuiteError, match=r"--llm-worker-cpus: .*is not a list of cores"):
        Settings.from_options({"worker_cpus": "first"})


@pytest.mark.parametrize(
    ("workers", "why"), [("ray", "processes of this machine"), ("0", "needs worker processes")]
)
def test_cores_are_for_worker_processes_of_this_machine(workers: str, why: str) -> None:
    with pytest.raises(SuiteError, match=f"--llm-worker-cpus {why}|--llm-worker-cpus places {why}"):
        Settings.from_options({"workers": workers, "worker_cpus": "auto"})
    assert Settings.from_options({"workers": workers, "worker_cpus": "none"}).worker_cpus == "none"


def test_more_workers_than_cores_are_told() -> None:
    assert worker_notes(1, cores=1) == ()
    assert worker_notes(2, cores=2) == ()
    (note,) = worker_notes(3, cores=2)
    assert str(note).startswith("3 worker processes share 2 cores: they delay one another")
    (note,) = worker_notes(0)
    assert "measured in pytest's own process (--llm-workers 0)" in str(note)
    assert worker_notes(0, replay=True) == ()
    (note,) = worker_notes(2, replay=True)
    assert "no effect on a replay" in str(note)


SUITE = """
from pytest_llmbench import WarmupPolicy, llmbench
import pytest

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=6, output_tokens=0, probes=0)

@llmbench.ttft(rate=60, requests=50)
def test_load(llm_result):
    (seen,) = [run for run in llm_result.observations if run.plan.label == "measure"][:1]
    assert seen.facts.value("generator.workers") == 2
    assert sorted(seen.records.index.tolist()) == list(range(seen.plan.first, seen.plan.first + 50))
    assert seen.engine is not None
"""


@pytest.mark.usefixtures("however_late")
def test_two_workers_measure_the_embedded_engine(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLM_API_KEY", "OPENAI_API_KEY", "CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nllm_workers = 2\n")
    pytester.makepyfile(test_suite=SUITE)
    run = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--llm-endpoint=sim", "--llm-scale=quick", "--llm-report=out"
    )
    run.assert_outcomes(passed=1)
    directory = pytester.path / "out"
    entry = json.loads((directory / "report.json").read_text("utf-8"))["tests"][0]
    assert entry["outcome"] == "passed"
    lines = gzip.decompress((directory / entry["records_file"]).read_bytes()).splitlines()[1:]
    measured = [row for row in map(json.loads, lines) if row["phase"] == "measure"]
    assert len(measured) == 50 * (1 + len(entry["void_loads"]))
    assert {row["outcome"] for row in measured} == {"ok"}


def test_an_unusual_dialect_that_was_found_is_noted() -> None:
    def noted(asked: str, api: str) -> tuple[Note, ...]:
        return found_notes(asked, cast(Any, SimpleNamespace(api=api, models=(), changed={})))

    assert noted("auto", "openai-chat") == noted("openai-responses", "openai-responses") == ()
    (note,) = noted("auto", "openai-responses")
    assert "openai-responses" in str(note)
    assert "--llm-api=NAME" in str(note)
