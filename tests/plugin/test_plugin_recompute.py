"""``pytest-llmbench recompute``: the same figures from the stored records, to the last digit."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from plugin_suite import Suite, stored_lines

from pytest_llmbench.__main__ import main
from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.execution import read_loads
from pytest_llmbench.store.files import write_text

TEN = Path(__file__).parents[2] / "example_suites" / "full_methodology" / "test_ten_tests.py"
TWO = """
from pytest_llmbench import llmbench, make_workload, ms, ttft

@llmbench.ttft(rate=20, slo=[ttft.p50 <= 500 * ms])
def test_first_token(): ...

@llmbench.ttft(rate=20, p50_ms=900)
def test_shares_its_load(): ...

@llmbench.ttft(concurrency=2, requests=20, workload=make_workload(input_tokens=64, output_tokens=(16, 32)))
def test_with_a_workload_of_its_own(): ...
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the report directory of ``measured`` is kept, once there is one."""
    return tmp_path_factory.mktemp("kept") / "out"


@pytest.fixture
def measured(suite: Suite, kept: Path) -> Suite:
    """A session of the first test alone, measured once for all that change what it wrote: each has a copy."""
    if not kept.exists():
        suite.write(TWO)
        suite.measure("replay", "-k", "first_token").assert_outcomes(passed=1, deselected=2)
        shutil.copytree(suite.path / "out", kept)
    else:
        shutil.copytree(kept, suite.path / "out")
    return suite


def recomputed(suite: Suite, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["recompute", str(suite.path / "out" / "report.json")])
    return status, capsys.readouterr().out


def test_figures_are_identical_shared_loads_included(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.write(TWO)
    suite.measure("replay").assert_outcomes(passed=3)
    assert suite.report["tests"][1]["shared"]
    status, said = recomputed(suite, capsys)
    assert status == 0, said
    assert len(re.findall(r": all (\d\d+) figures are identical", said)) == 3


def test_adapters_that_come_and_go_are_recomputed(suite: Suite) -> None:
    suite.write("""
        from pytest_llmbench import Fixed, SyntheticWorkload, churn, llmbench

        SHORT = SyntheticWorkload("short", Fixed(16), Fixed(40))
        AWAY = churn({"adapter-1": "/a/1"}, rate=8)

        @llmbench.ttft(rate=40, workload=SHORT, adapters=["adapter-1"], beside=AWAY, max_error_share=0.9)
        def test_away(llm_result):
            assert llm_result.metrics["completion_rate[adapter-1]"].point < 1
            assert llm_result.metrics["adapter_load.p50"].point == 40
    """)
    suite.measure("replay:fast?adapters=2&adapter_load_ms=40").assert_outcomes(passed=1)
    assert suite.recomputed() == 1


def test_runs_of_a_baseline_are_recomputed_too(suite: Suite) -> None:
    suite.write("""
        @llmbench.capacity(initial=2, maximum=4, ttft_p99_ms=5_000)
        def test_capacity(): ...
    """)
    suite.measure("replay", "--llm-runs=3", "--llm-save=main", "--llm-inconclusive=pass")
    assert len(suite.entry["by_run"]["max_concurrency"]) == 3
    assert suite.recomputed() == 1


def test_the_candidate_of_an_ab_is_recomputed_too(suite: Suite) -> None:
    suite.write(TWO)
    other = "--llm-baseline-endpoint=replay:fast?step_base_us=1150"
    suite.measure("replay", other, "-k", "first_token").assert_outcomes(passed=1, deselected=2)
    assert suite.entry["comparisons"]
    assert suite.recomputed() == 1


def test_a_changed_record_is_told_with_metric_and_both_values(
    measured: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured.path / "out" / measured.report["tests"][0]["records_file"]
    lines = stored_lines(path)
    row = json.loads(lines[-1])
    assert row["phase"] == "measure"
    row["chunk_gaps_ns"][0] += 50_000_000  # the first content of a compact line
    path.write_bytes(gzip.compress("".join([*lines[:-1], json.dumps(row)]).encode()))
    status, said = recomputed(measured, capsys)
    assert status == 1
    assert "figures and values DIFFER" in said
    assert re.search(r"ttft\.max: stored [\d.]+ ms .*, recomputed [\d.]+ ms", said)


def test_a_changed_figure_is_told(measured: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    path = measured.path / "out" / "report.json"
    document = json.loads(path.read_text("utf-8"))
    document["tests"][0]["metrics"]["ttft.p50"]["point"] += 1e-9
    path.write_text(json.dumps(document))
    status, said = recomputed(measured, capsys)
    assert status == 1
    assert "1 of " in said
    assert "ttft.p50: stored" in said


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "gate.verdict": lambda test: test["gate"].update(verdict="inconclusive"),
    "gate.objectives[0].limit": lambda test: test["gate"]["objectives"][0].update(limit=9_000.0),
    "gate.objectives[0].verdict": lambda test: test["gate"]["objectives"][0].update(verdict="fail"),
    "validity.verdict": lambda test: test["validity"].update(verdict="invalid"),
    "counts.ok": lambda test: test["counts"].update(ok=test["counts"]["ok"] + 1),
    "facts.workload.name.value": lambda test: test["facts"]["workload.name"].update(value="conversation"),
    "tables.ttft_results[0].rows[1][1]": lambda test: cells_of(test)[1].__setitem__(1, "1.00 ms"),
    "stretches[0].requests": lambda test: test["stretches"][0].update(requests=10),
    "compliance.requirements": lambda test: met_by_hand(test),
    "compliance.verdict_literal": lambda test: test["compliance"].update(verdict_literal="unconditional"),
}
"""Path of an edited value → the edit."""


def cells_of(test: dict[str, Any]) -> Any:
    table = test["tables"]["ttft_results"]
    return (table[0] if isinstance(table, list) else table)["rows"]


def met_by_hand(test: dict[str, Any]) -> None:
    """Every unmet requirement is called met, and the class is what follows."""
    for requirement in test["compliance"]["requirements"]:
        if requirement["status"] == "unmet":
            requirement["status"] = "met"
    test["compliance"].update(verdict="unconditional", next_class=None)


def test_whatever_is_edited_is_told(
    measured: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (edited, edit) in enumerate(EDITS.items()):
        out = Path(shutil.copytree(measured.path / "out", tmp_path / str(number)))
        document = json.loads((out / "report.json").read_text("utf-8"))
        edit(document["tests"][0])
        (out / "report.json").write_text(json.dumps(document))
        capsys.readouterr()
        assert main(["recompute", str(out)]) == 1, edited
        said = capsys.readouterr()
        assert edited.split("[")[0] in said.out, said


def test_a_text_beside_the_report_is_rendered_anew(
    measured: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured.path / "out" / "minimum.txt"
    path.write_text(path.read_text().replace("Deviations:", "Deviations: none"))
    status, said = recomputed(measured, capsys)
    assert status == 1
    assert "minimum.txt: DIFFER" in said


def test_a_class_that_its_own_requirements_contradict_is_not_read(
    measured: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured.path / "out" / "report.json"
    document = json.loads(path.read_text("utf-8"))
    document["tests"][0]["compliance"]["verdict"] = "unconditional"
    path.write_text(json.dumps(document))
    assert main(["recompute", str(path)]) == 2
    assert "its requirements give not_compliant" in capsys.readouterr().err


def test_compact_records_are_recomputed_and_none_are_not_there(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.write(TWO)
    suite.measure("replay", "-k", "first_token", "--llm-records=compact")
    (entry,) = suite.report["tests"]
    assert entry["records_file"].endswith(".compact.jsonl.gz")
    status, said = recomputed(suite, capsys)
    assert status == 0, said
    shutil.rmtree(suite.path / "out")
    suite.measure("replay", "-k", "first_token", "--llm-records=none")
    (entry,) = suite.report["tests"]
    assert entry["records_file"] is None
    assert not (suite.path / "out" / "records").exists()
    status, said = recomputed(suite, capsys)
    assert status != 0
    assert "--llm-records" in said


def test_what_is_missing_is_said(measured: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = measured.report["tests"]
    records, loads = (measured.path / "out" / entry[name] for name in ("records_file", "loads_file"))
    whole = stored_lines(records)
    records.write_bytes(gzip.compress("".join(whole[:-3]).encode()))
    status, said = recomputed(measured, capsys)
    assert status == 1
    assert "the records are not complete: a load of 50 requests has 47" in said
    records.write_bytes(gzip.compress("".join([*whole, whole[-1]]).encode()))
    assert "more records than requests" in recomputed(measured, capsys)[1]
    records.write_bytes(gzip.compress("".join(whole).encode()))
    content = read_loads(loads)
    content["loads"][-1]["requests"] += 1
    write_text(loads, json.dumps(content))
    assert (
        "requests was 51 when it was measured, the procedure now asks for 50"
        in recomputed(measured, capsys)[1]
    )
    loads.unlink()
    assert "cannot read the loads" in recomputed(measured, capsys)[1]


DAMAGE: dict[str, Callable[[Any], object]] = {
    "no loads": lambda loads: loads.pop("loads"),
    "loads of another kind": lambda loads: loads.update(loads=5),
    "no parameters": lambda loads: loads.pop("parameters"),
    "a test of another kind": lambda loads: loads.update(test=[]),
    "an unknown parameter": lambda loads: loads["parameters"].update(p101_ms=1),
    "no figures": lambda loads: loads["loads"][0]["seen"].clear(),
    "rows without end": lambda loads: loads["loads"][0].update(rows=10**30),
    "a huge type": lambda loads: loads["setting"].update(x={"$array": [1], "dtype": "U1000000000"}),
    "a type of many digits": lambda loads: loads["setting"].update(x={"$array": [1], "dtype": "9" * 5000}),
    "a fact of another kind": lambda loads: loads["setting"]["facts"]["$facts"].update(a=5),
}


def test_a_file_of_loads_that_is_not_packed_is_read(
    measured: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    report = measured.path / "out" / "report.json"
    packed = measured.path / "out" / measured.report["tests"][0]["loads_file"]
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    write_text(packed.with_suffix(""), json.dumps(read_loads(packed)))
    report.write_text(report.read_text("utf-8").replace(packed.name, packed.with_suffix("").name), "utf-8")
    whole = packed.read_bytes()
    packed.unlink()
    assert recomputed(measured, capsys)[0] == 0
    for damaged in (whole[:-9], b"no gzip", b""):
        packed.write_bytes(damaged)
        with pytest.raises(StoreError, match="not a complete JSON file"):
            read_loads(packed)


def test_damage_to_the_loads_is_told(measured: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    path = measured.path / "out" / measured.report["tests"][0]["loads_file"]
    whole = read_loads(path)
    for name, damage in DAMAGE.items():
        loads = deepcopy(whole)
        damage(loads)
        write_text(path, json.dumps(loads))
        status, said = recomputed(measured, capsys)
        assert status == 1, name
        assert "NOT RECOMPUTED" in said, name
        assert len(said) < 2000, name
    whole["setting"]["facts"]["$facts"]["manifest.frozen_ns"].update(value="x")
    write_text(path, json.dumps(whole))
    assert "values DIFFER" in recomputed(measured, capsys)[1]  # of another type it is no evidence


def test_a_report_of_a_version_with_one_sequence_is_not_drawn_differently(
    measured: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = measured.path / "out" / measured.report["tests"][0]["loads_file"]
    content = read_loads(loads)
    for load in content["loads"]:
        assert load.pop("part")
        load["seed"] = 42
    content["setting"].pop("salt")
    write_text(loads, json.dumps(content))
    status, said = recomputed(measured, capsys)
    assert status == 0, said
    content["loads"][-1]["label"] = "another load"
    write_text(loads, json.dumps(content))
    assert "label was 'another load' when it was measured" in recomputed(measured, capsys)[1]


def test_no_report_is_another_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recompute", str(tmp_path)]) == 2
    assert "cannot read the report" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "recompute" in capsys.readouterr().out


@pytest.mark.slow
def test_all_ten_tests_are_identical(suite: Suite) -> None:
    suite.write(TEN.read_text("utf-8"))
    suite.measure("replay", "--llm-inconclusive=pass")
    assert suite.recomputed() == 10
