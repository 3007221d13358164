"""What the writer of the records has to say stands in the result, whether one arm was measured or several."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.session import Bench, BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import as_told
from pytest_llmbench.store.records_file import RecordsWriter


def measured(**settings: Any) -> TestResult:
    with closing(BenchSession(Settings(endpoint="replay", **settings))) as session:
        return Bench(session, "replay", session.default_warmup()).measure(concurrency=4, requests=20)


NOTE = "the disk under {name} could not keep up"


@pytest.mark.parametrize("settings", [{}, {"calibrate": True, "runs": 3}])
def test_a_disk_that_held_the_records_up_is_told(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = property(lambda writer: (as_told(NOTE.format(name=writer.path.name)),))
    monkeypatch.setattr(RecordsWriter, "notes", notes)
    result = measured(report=tmp_path, **settings)
    (path,) = (tmp_path / "records").glob("*.jsonl.gz")
    assert NOTE.format(name=path.name) in map(str, result.notes)


@pytest.mark.parametrize("settings", [{}, {"calibrate": True, "runs": 3}, {"export_sequence": True}])
def test_a_full_disk_costs_no_result(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RecordsWriter._write_out

    def full(writer: RecordsWriter, lines: list[bytes]) -> None:
        if b'"anchor"' in lines[0]:  # there was room for the header
            return real(writer, lines)
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_text(path: Path, text: str) -> None:
        raise StoreError("cannot write the file: No space left on device", where=str(path))

    monkeypatch.setattr(RecordsWriter, "_write_out", full)
    monkeypatch.setattr("pytest_llmbench.harness.execution.write_text", no_text)
    if "export_sequence" in settings:
        (tmp_path / "sequence").touch()  # a file where the folder must be
    result = measured(report=tmp_path, **settings)
    assert result.metrics["ttft.mean"].point is not None
    assert result.validity.verdict == "valid"
    missing = [finding for finding in result.validity.findings if finding.check == "files_on_disk"]
    assert not any(finding.ok or finding.voids for finding in missing)
    told = " ".join(finding.message for finding in missing)
    assert "records could not be written: No space left on device" in told
    assert ".loads.json.gz: cannot write the file" in told
    assert ("/sequence/" in told) == ("export_sequence" in settings)
