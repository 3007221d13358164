"""The published shape of report.json."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.result import Level
from pytest_llmbench.store import schema

PUBLISHED = Path(__file__).parents[2] / "docs" / "report.schema.json"


def test_published_schema_is_current() -> None:
    command = [sys.executable, "-m", "pytest_llmbench.store.schema"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert PUBLISHED.read_text(encoding="utf-8") == printed == schema.json_schema_text()


def test_a_sample_report_validates(report: schema.Report) -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    validator = jsonschema.Draft202012Validator(published)
    validator.validate(json.loads(json.dumps(report.plain())))


def test_the_schema_refuses_what_is_not_in_it(report: schema.Report) -> None:
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    document = report.plain()
    document["tests"][0]["gate"]["verdict"] = "probably"
    document["tests"][0]["surprise"] = 1
    messages = sorted(error.message for error in validator.iter_errors(document))
    assert len(messages) == 2
    assert "probably" in messages[0]
    assert "surprise" in messages[1]


def test_top_level_and_test_keys(report: schema.Report) -> None:
    document = report.plain()
    top = ["schema_version", "generator", "started", "environment", "sut", "tests", "incomplete"]
    assert list(document) == top
    required = {"nodeid", "test", "section", "outcome", "validity", "compliance", "gate", "metrics", "load"}
    required |= {"workload", "warmup", "selfcheck", "counts", "tables", "records_file"}
    for entry in document["tests"]:
        assert required <= set(entry)
    first = document["tests"][0]
    assert set(first["validity"]) == {"verdict", "findings"}
    judged = {"verdict", "verdict_literal", "draft", "requirements", "next_class", "simulated"}
    assert set(first["compliance"]) == judged
    assert {"id", "level", "status", "reason", "evidence"} <= set(first["compliance"]["requirements"][0])
    assert {"metric", "op", "limit", "unit", "point", "lower", "upper", "verdict"} <= set(
        first["gate"]["objectives"][0]
    )
    assert {"point", "lower", "upper", "level", "n", "method", "unit"} <= set(first["metrics"]["ttft.p99"])


def test_a_level_has_every_field_of_its_noun() -> None:
    """``observation`` is an index that means nothing outside; ``stretch`` stands for it."""
    names = ["stretch" if name == "observation" else name for name in (field.name for field in fields(Level))]
    assert set(names) == set(schema.LevelEntry.model_fields)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        schema.GaugeEntry(mean=value, max=None, n=1)


def test_the_endpoint_loses_its_credentials() -> None:
    sut = schema.Sut(endpoint="https://user:pa55word@host:8443/v1?api_key=abc&a=1", model=None, api=None)
    assert sut.endpoint == "https://host:8443/v1?api_key=[redacted]&a=1"


@pytest.mark.parametrize(
    ("section", "wrong", "words"),
    [
        (lambda test: test["metrics"]["ttft.p99"], {"surprise": 1}, "surprise"),
        (lambda test: test["metrics"]["ttft.p99"], {"n": "many"}, "valid integer"),
        (lambda test: test["metrics"]["ttft.p99"], {"point": float("inf")}, "finite"),
        (lambda test: test["compliance"]["requirements"][0], {"status": "perhaps"}, "'met', 'unmet'"),
    ],
)
def test_a_dataclass_in_a_report_is_held_to_what_its_models_are(
    report: schema.Report, section: Any, wrong: dict[str, Any], words: str
) -> None:
    document = report.plain()
    section(document["tests"][0]).update(wrong)
    with pytest.raises(ValidationError, match=words):
        schema.Report.model_validate(document)


def test_a_dataclass_reads_back_as_what_it_was(report: schema.Report) -> None:
    read = schema.Report.model_validate(report.plain())
    metric = read.tests[0].metrics["ttft.p99"]
    assert type(metric) is Estimate
    assert metric == report.tests[0].metrics["ttft.p99"]


def test_every_dataclass_of_the_report_has_its_published_name() -> None:
    published = schema.json_schema()["$defs"]
    assert {noun.__name__ for noun in schema.PUBLISHED}.isdisjoint(published)
    assert {published[name]["title"] for name in schema.PUBLISHED.values()} == set(schema.PUBLISHED.values())


@pytest.mark.parametrize("name", ["reads", "send_lag_p99_ns", "transport"])
def test_a_count_that_is_missing_is_not_zero(name: str) -> None:
    whole = TypeAdapter(schema.WholeSelfCheck).dump_python(SelfCheck())
    assert TypeAdapter(schema.WholeSelfCheck).validate_python(whole) == SelfCheck()
    later = {key: value for key, value in whole.items() if key != "unstamped_reads"}
    assert TypeAdapter(schema.WholeSelfCheck).validate_python(later) == SelfCheck()
    del whole[name]
    with pytest.raises(ValidationError, match=f"{name} missing"):
        TypeAdapter(schema.WholeSelfCheck).validate_python(whole)
    with pytest.raises(ValidationError, match=r"requests_ok, .*last_finished_ns missing"):
        TypeAdapter(schema.WholeWarmup).validate_python({"performed": True})
