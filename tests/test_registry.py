"""What another distribution adds is found, in every process that measures; the page tells how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from extended import FILES, distribution, python

from pytest_llmbench import load_report

LOAD = """
import sys
from pytest_llmbench import make_workload
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

if __name__ == "__main__":
    with EmbeddedEngine.start("fast") as engine:
        url = engine.url.replace("http", sys.argv[1], 1)
        with DistributedLoadGenerator(Address(url), "acme-chat", workers=1, model="sim-fast") as generator:
            workload = make_workload(input_tokens=8, output_tokens=4)
            seen = generator.run(LoadPlan("acme", workload, ClosedLoop(2), 6, seed=1))
    print(seen.records.counts()["ok"], seen.selfcheck.transport, seen.facts.value("wire.dialect"))
"""
MEASURED = (
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-q",
    "--llm-endpoint=replay",
    "--llm-inconclusive=pass",
)


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distribution(tmp_path_factory.mktemp("acme"))


@pytest.mark.parametrize(("scheme", "transport"), [("http", "http/1.1"), ("acme", "acme-bus")])
def test_a_dialect_and_a_transport(acme: Path, scheme: str, transport: str) -> None:
    (acme / "load.py").write_text(LOAD)
    run = python("load.py", scheme, path=acme)
    assert run.stdout.split() == ["6", transport, "acme-chat"], run.stderr


def test_arrivals_metrics_and_a_file_of_the_report(acme: Path) -> None:
    run = python(*MEASURED, "--llm-report=out", "test_acme.py", path=acme)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    (entry,) = json.loads((acme / "out" / "report.json").read_text("utf-8"))["tests"]
    assert entry["facts"]["load.arrival"]["value"] == "pairs"
    assert entry["metrics"]["decode_time.p95"]["unit"] == "ms"
    decode, e2e = (entry["metrics"][f"{family}.max"]["point"] for family in ("decode_time", "e2e"))
    assert 0 < decode < e2e
    lines = (acme / "out" / "acme.csv").read_text("utf-8").splitlines()
    assert lines == ["test,outcome", "test_acme.py::test_in_pairs,passed"]
    records = load_report(acme / "out").tests[0].records
    assert len(records) == 100
    assert len(set(records["scheduled_ns"].tolist())) == 50, "two come at an instant"


def test_arrivals_of_a_suite_alone(tmp_path: Path) -> None:
    """No distribution: the two files of the page. What was measured is read again without them."""
    for name in ("conftest.py", "test_bursts.py"):
        (tmp_path / name).write_text(FILES[name])
    run = python(*MEASURED, "--llm-report=out", "test_bursts.py", path=tmp_path)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    (entry,) = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["tests"]
    assert entry["facts"]["load.arrival"]["value"] == "bursts"
    again = python("-m", "pytest_llmbench", "recompute", "out", path=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_format_of_traces(acme: Path) -> None:
    kept = [{"at_s": at, "prompt": 100, "reply": 7} for at in (0, 1.5, 3)]
    (acme / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    run = python("-m", "pytest_llmbench", "trace", "describe", "log.jsonl", path=acme)
    assert "acme-log" in run.stdout, run.stdout + run.stderr
    wrong = json.dumps(kept[0] | {"prompt": -1})
    (acme / "wrong.jsonl").write_text(wrong)
    run = python("-m", "pytest_llmbench", "trace", "describe", "wrong.jsonl", path=acme)
    assert "line 1: prompt is -1" in run.stdout + run.stderr


def test_findings_and_notes(acme: Path) -> None:
    made = (
        "from pytest_llmbench.model.judgement import Finding",
        "from pytest_llmbench.model.sentences import read_note",
        "found = Finding.of('acme_bus_full', value=0.98)",
        "print(found.message, found.voids, read_note('over_acme_bus', {}, 'lost'), sep='|')",
    )
    run = python("-c", "\n".join(made), path=acme)
    message, voids, note = run.stdout.strip().split("|")
    assert message == "the bus was 98 % full: lower the rate", run.stderr
    assert (voids, note) == ("True", "the load was measured over ACME's bus, which stamps nothing")


def test_a_deployment_of_the_embedded_engine(acme: Path) -> None:
    measured = [each for each in MEASURED if "endpoint" not in each]
    given = (*measured, "--llm-endpoint=replay:fast?spares=2", "--llm-report=spares", "test_acme.py")
    run = python(*given, path=acme)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    (entry,) = json.loads((acme / "spares" / "report.json").read_text("utf-8"))["tests"]
    facts = {name: entry["facts"][f"sut.{name}"]["value"] for name in ("replicas", "boundary")}
    assert facts == {"replicas": 3, "boundary": "application_gateway"}


@pytest.mark.parametrize(
    ("part", "broken", "said"),
    [
        ("return np.repeat(np.cumsum(gaps), 2)[:count]", "return gaps", "pairs gives no 100 offsets"),
        ("/ 1e6", "/ 0", "the metric decode_time must give a vector of finite numbers"),
    ],
)
def test_a_part_that_gives_what_it_should_not_is_an_error(
    tmp_path: Path, part: str, broken: str, said: str
) -> None:
    parts = distribution(tmp_path) / "acme" / "parts.py"
    parts.write_text(parts.read_text("utf-8").replace(part, broken))
    run = python(*MEASURED, "test_acme.py", path=tmp_path)
    assert said in run.stdout, run.stdout + run.stderr


def test_an_entry_point_of_another_kind_is_refused_in_words(tmp_path: Path) -> None:
    points = distribution(tmp_path) / "acme-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text("utf-8").replace("acme:EXTRA", "acme.parts:pairs"))
    run = python(*MEASURED, "test_acme.py", path=tmp_path)
    assert "the entry point acme gives function, not an Extra" in run.stdout + run.stderr
