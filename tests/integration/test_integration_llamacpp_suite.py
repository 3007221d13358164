"""The suite for llama.cpp on its real server, which it launches: limits calibrated, kept in a file, held."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from pytest_apart import Session

HERE = Path(__file__).parent
SUITE = HERE.parents[1] / "example_suites" / "engines" / "llama_cpp"
PROGRAM = """#!/bin/sh
for port; do :; done
exec {python} {server} "$2" "$port"
"""
"""A program ``llama-server`` that takes the suite's command line: the wheel has no program of that name."""


@pytest.mark.slow
@pytest.mark.usefixtures("however_late")
def test_a_calibration_writes_the_limits_and_the_gate_holds_them(tmp_path, llama_model):
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, server=HERE / "llama_server.py"), "utf-8")
    program.chmod(0o755)
    env = dict(os.environ, MODEL=str(llama_model), PATH=f"{program.parent}:{os.environ['PATH']}")
    folder = tmp_path / "suite"
    shutil.copytree(SUITE, folder)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "utf-8")
    file = folder / "limits.toml"
    kept, alone, own = file.read_text("utf-8").partition("[test_one_user]")
    # A busy machine reads the few tokens of so small a model at once: the pace of one user is then 0.
    own = "".join(line for line in own.splitlines(keepends=True) if "tpot" not in line)
    file.write_text(kept + alone + own, "utf-8")
    options = ("--llm-place=runner", "--llm-remeasure=6")

    calibrated = Session(folder, *options, "--llm-calibrate", "--llm-runs=3", env=env).text(300)
    assert "2 passed" in calibrated, calibrated
    limits = tomllib.loads(file.read_text("utf-8"))
    pace = limits["test_all_slots"]["tpot.p50"]
    assert pace["laptop"] == 84.6
    assert pace["runner"] > 0

    gate = Session(folder, *options, "--llm-inconclusive=pass", env=env).text(300)
    assert "2 passed" in gate, gate

    file.write_text(file.read_text("utf-8").replace(str(pace["runner"]), "0.0001"), "utf-8")
    broken = Session(folder, *options, "-k", "all_slots", env=env).text(300)
    assert "1 failed" in broken, broken
