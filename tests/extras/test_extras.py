"""What plugs in from outside, and what is left when the extras of this package are left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_llmbench
from pytest_llmbench.marks.stub import stub

PACKAGE = Path(pytest_llmbench.__file__).parent
DIALECT = """
from pytest_llmbench.registry import Extra, Transport
from pytest_llmbench.wire.openai_chat import OpenAIChat


class AcmeChat(OpenAIChat):
    name = "acme-chat"


EXTRA = Extra(
    dialects={"acme-chat": "acme:AcmeChat"},
    transports=(
        Transport(
            name="acme-bus",
            title="ACME's bus",
            schemes=("acme",),
            dialects={"acme-chat": "acme:AcmeChat"},
            carry="acme:carry",
            ask="acme:ask",
        ),
    ),
)


def carry(target, spoken, path, session_header):
    from pytest_llmbench.generator.http.http1 import http1_transport
    from pytest_llmbench.generator.http.request_head import RequestHead

    def made(clock, kernel_stamps):
        transport = http1_transport(target, clock, kernel_stamps=kernel_stamps)
        transport.name = "acme-bus"
        return transport

    return RequestHead(target, path, {}, session_header), made
"""
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
SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p50_ms=5_000, concurrency=4, requests=20)
def test_it(): ...
"""


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A folder with that distribution, as an installer leaves it."""
    (tmp_path / "acme.py").write_text(DIALECT)
    told = tmp_path / "acme-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[pytest_llmbench.extras]\nacme = acme:EXTRA\n")
    (tmp_path / "load.py").write_text(LOAD)
    return tmp_path


def python(*arguments: str, path: Path, package: Path = PACKAGE) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(package.parent)])}
    given = [sys.executable, *arguments]
    return subprocess.run(given, env=env, cwd=path, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("scheme", "transport"), [("http", "http/1.1"), ("acme", "acme-bus")])
def test_a_dialect_and_a_transport_of_another_distribution(acme: Path, scheme: str, transport: str) -> None:
    """Found in the process that measures, too."""
    run = python("load.py", scheme, path=acme)
    assert run.stdout.split() == ["6", transport, "acme-chat"], run.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without its extras."""
    package = tmp_path_factory.mktemp("bare") / "pytest_llmbench"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("extras", "__pycache__"))
    return package


def test_without_extras_the_core_measures(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    given = ("--llm-endpoint=replay", "--llm-inconclusive=pass")
    run = python("-m", "pytest", "-p", "no:cacheprovider", "-q", *given, path=tmp_path, package=bare)
    assert "1 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--llm-endpoint=ws://127.0.0.1:1/v1",), "ws:// is spoken by an extra"),
        (
            ("--llm-endpoint=grpc://127.0.0.1:1",),
            "grpc:// is spoken by an extra",
        ),
        (
            ("--llm-endpoint=http://127.0.0.1:1/v1", "--llm-http=2"),
            "http/2 is spoken by an extra",
        ),
        (
            ("--llm-endpoint=sim", "--llm-workers=ray"),
            "workers on a Ray cluster are an extra",
        ),
        (("--llm-import=serving-tests.json",), "lists of tests are read by an extra"),
    ],
)
def test_without_extras_what_they_do_is_refused_in_words(
    bare: Path, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    run = python("-m", "pytest", "-p", "no:cacheprovider", "-q", *given, path=tmp_path, package=bare)
    assert f"{said} that this installation lacks" in run.stdout + run.stderr


def test_no_module_of_the_core_names_one_of_an_extra() -> None:
    """Not even late or for types: they are found by the registry alone."""
    for path in PACKAGE.rglob("*.py"):
        within = path.relative_to(PACKAGE)
        if within.parts[0] != "extras" and within.name != "registry.py":
            assert "pytest_llmbench.extras" not in path.read_text("utf-8"), within


def test_the_stub_has_the_markers_of_this_package_as_they_are() -> None:
    path = PACKAGE / "marks" / "builders.pyi"
    assert path.read_text("utf-8") == stub(), f"python -m pytest_llmbench.marks.stub > {path}"
