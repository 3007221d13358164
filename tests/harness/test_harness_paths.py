"""Names of record files, endpoints, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import records_path
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.sut import SUT


def test_no_report_no_records() -> None:
    assert records_path(None, "a.py::test_x", None) is None


def test_attempts_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first = records_path(tmp_path, "t/a.py::test_x[1]", None)
    assert first is not None
    first.write_text("")
    second = records_path(tmp_path, "t/a.py::test_x[1]", None)
    other = records_path(tmp_path, "t/a.py::test_x[2]", None)
    worker = records_path(tmp_path, "t/a.py::test_x[1]", "gw1")
    assert len({first, second, other, worker}) == 4
    assert first.parent == tmp_path / "records"
    assert "test-x" in first.name


def test_long_ids_give_names_that_file_systems_take(tmp_path: Path) -> None:
    path = records_path(tmp_path, "d/" * 200 + "t.py::test_x", None)
    assert path is not None
    path.write_text("")


def test_embedded_endpoints() -> None:
    assert SUT("sim").is_embedded
    assert SUT("sim:fast?seed=1").is_embedded
    assert not SUT("http://simulator/v1").is_embedded


def test_settings_list_every_mistake() -> None:
    with pytest.raises(SuiteError) as caught:
        Settings.from_options({"runs": 0, "scale": "fuller", "seed": None})
    assert "--llm-runs" in str(caught.value)
    assert "--llm-scale" in str(caught.value)
