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
from pydantic import ValidationError

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.level import Level
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.result import WarmupReport
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


@pytest.mark.parametrize(
    ("noun", "entry"),
    [
        (SelfCheck, schema.SelfCheckEntry),
        (WarmupReport, schema.WarmupEntry),
        (Estimate, schema.Metric),
    ],
)
def test_an_entry_has_every_field_of_its_noun(noun: Any, entry: type[schema.Shape]) -> None:
    assert [field.name for field in fields(noun)] == list(entry.model_fields)


def test_a_level_has_every_field_of_its_noun() -> None:
    """``observation`` is an index that means nothing outside; ``stretch`` stands for it."""
    names = ["stretch" if name == "observation" else name for name in (field.name for field in fields(Level))]
    assert set(names) == set(schema.LevelEntry.model_fields)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        schema.Metric(point=value, lower=None, upper=None, level=0.95, n=1, method="m", unit="ms")


def test_the_endpoint_loses_its_credentials() -> None:
    sut = schema.Sut(endpoint="https://user:pa55word@host:8443/v1?api_key=abc&a=1", model=None, api=None)
    assert sut.endpoint == "https://host:8443/v1?api_key=[redacted]&a=1"
