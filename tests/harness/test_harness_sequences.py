"""``--llm-records=sequence``: the files, their digests, and the fact that they were published."""

from __future__ import annotations

import gzip
import hashlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.harness.session import Bench, BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.workloads.files import with_sequence_files
from pytest_llmbench.workloads.adapted import SameLengths
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.stream import part_seed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def measured(requests: int, **settings: Any) -> Any:
    with closing(BenchSession(Settings(endpoint="replay", **settings))) as session:
        return Bench(session, "replay", session.default_warmup()).measure(concurrency=4, requests=requests)


def test_the_file_holds_exactly_what_was_sent(tmp_path: Path) -> None:
    facts = measured(100, report=tmp_path, export_sequence=True).facts
    assert facts.value("workload.published") == "sequence"
    (file,) = facts.value("workload.sequence_files")
    content = (tmp_path / file["file"]).read_bytes()
    ((part, seed),) = facts.value("workload.parts")
    (change,) = facts.value("workload.deviations")  # a job: its lengths are those of a list
    again = SameLengths(SYNTHETIC_UNIFORM, change["lengths_seed"]).requests(100, part_seed(42, part))
    assert hashlib.sha256(content).hexdigest() == sequence_sha256(again) == file["sha256"]
    assert file["sha256"] == facts.value("workload.sequence_sha256")
    assert (file["workload"], file["seed"], file["requests"]) == ("synthetic-uniform", seed, 100)


def test_long_sequences_are_compressed_and_the_same_again(tmp_path: Path) -> None:
    result = measured(1)
    run = result.observations[0]
    long = replace(result, observations=(replace(run, plan=run.plan.with_(requests=1_500)),))
    contents = []
    for name in ("one", "two"):
        (file,) = with_sequence_files(long, tmp_path / name).facts.value("workload.sequence_files")
        assert file["file"].endswith(".json.gz")
        contents.append((tmp_path / name / file["file"]).read_bytes())
        assert hashlib.sha256(gzip.decompress(contents[-1])).hexdigest() == file["sha256"]
    assert contents[0] == contents[1]


def test_without_the_option_the_generator_is_what_is_published() -> None:
    assert measured(10).facts.value("workload.published") == "generator"


def test_it_needs_a_report() -> None:
    with pytest.raises(SuiteError, match="--llm-records=sequence needs --llm-report"):
        Settings.from_options({"export_sequence": True})


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "sequence").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write the file"):
        with_sequence_files(measured(1), tmp_path)
