"""The walks of docs/ARCHITECTURE.md: their stations are there, and a marker comes by in that order."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_llmbench"
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
WALKS = {
    heading: re.findall(r"^\d+\. `([\w/]+\.py)::([\w.]+)`", text, re.M)
    for heading, text in re.findall(r"^### (.*?)\n(.*?)(?=^##)", PAGE, re.M | re.S)
}
SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=500)
def test_first_token():
    import pytest_llmbench.reports.plots  # no station is in there, and to draw takes a third of the session
    pytest_llmbench.reports.plots.render = lambda plot, plot_id, salt="": "<svg></svg>"
"""
TRACE = """
import json, sys

ENTERED = {}

def _enter(frame, event, argument):
    if event == "call" and "pytest_llmbench" in frame.f_code.co_filename:
        ENTERED.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname))

def pytest_configure():
    sys.settrace(_enter)

def pytest_unconfigure():
    sys.settrace(None)
    print("\\nENTERED " + json.dumps(list(ENTERED)), file=sys.__stdout__)
"""


def test_there_are_three_short_walks() -> None:
    assert [heading.split(":")[0] for heading in WALKS] == ["A marker", "A request", "A clause"]
    assert all(4 <= len(stations) <= 12 for stations in WALKS.values())


def defined_in(path: Path) -> set[str]:
    """Qualified names of the classes, functions and methods of a module."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
            found |= {f"{node.name}.{inner.name}" for inner in node.body if hasattr(inner, "name")}
    return found


@pytest.mark.parametrize("station", [station for walk in WALKS.values() for station in walk], ids="::".join)
def test_a_station_is_where_the_page_says(station: tuple[str, str]) -> None:
    module, name = station
    assert name in defined_in(PACKAGE / module)


def test_a_marker_comes_by_its_stations_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(SUITE, "utf-8")
    (tmp_path / "trace_entered.py").write_text(TRACE, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "trace_entered", "-p", "pytest_llmbench.plugin"]
    command += ["--llm-endpoint=replay", "--llm-scale=quick", "--llm-inconclusive=pass", "--rootdir=."]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("ENTERED ")]
    entered = [
        f"{file.rpartition('pytest_llmbench/')[2]}::{name}"
        for file, name in json.loads(line.removeprefix("ENTERED "))
    ]
    (marker,) = [walk for heading, walk in WALKS.items() if heading.startswith("A marker")]
    # the first makes the mark, while the suite is read
    stations = ["::".join(station) for station in marker[1:]]
    assert [station for station in entered if station in stations] == stations
