"""What the writer of the records has to say stands in the result, whether one arm was measured or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.store.records_file import RecordsWriter

NOTE = "the disk under {name} could not keep up"


@pytest.mark.parametrize("settings", [{}, {"calibrate": True, "runs": 3}])
def test_a_disk_that_held_the_records_up_is_told(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = property(lambda writer: (NOTE.format(name=writer.path.name),))
    monkeypatch.setattr(RecordsWriter, "notes", notes)
    test = definition("ttft")
    bench = BenchSession(Settings(endpoint="replay", report=tmp_path, **settings))
    sut = bench.sut_from_settings()
    assert sut is not None
    parameters = build(test.parameters, {"concurrency": 4, "requests": 20})
    result = bench.measure("t::a", test, parameters, sut, bench.default_warmup()).result
    bench.close()
    (path,) = (tmp_path / "records").glob("*.jsonl")
    assert NOTE.format(name=path.name) in result.notes
