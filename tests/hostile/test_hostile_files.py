"""Files that an author names: whatever lies there, one message says what, where and what to do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_things import THINGS, within

from pytest_llmbench import input_files
from pytest_llmbench.__main__ import main
from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.execution import read_loads
from pytest_llmbench.harness.selftest.certificate import read as read_certificate
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.http_client import client_context
from pytest_llmbench.probes.access import read_credentials
from pytest_llmbench.probes.disclosure import read_sut_file, read_tokenizer
from pytest_llmbench.store.baselines import read_baseline, read_calibration
from pytest_llmbench.store.files import read_report
from pytest_llmbench.store.journal import read_journal
from pytest_llmbench.store.perf_catalogue import read_catalogue
from pytest_llmbench.store.records_file import read_runs

DEEP = 100_000
_MIB = 1 << 20


def _dataset(path: Path) -> object:
    """As ``--llm-workloads`` reads it: format by the suffix, each of the kinds."""
    table = path.with_name("workloads.toml")
    table.write_text(
        f'[workloads.w]\nkind = "trace"\npath = {json.dumps(str(path))}\ndataset = "d"\nversion = "1"\n'
        f'subset_method = "all"\nformat = "{_format(path)}"\n'
    )
    return read_workload_file(table)


def _format(path: Path) -> str:
    return next((kind for kind in ("jsonl", "csv") if f".{kind}" in path.name), "json")


def _ca(path: Path) -> object:
    try:
        return client_context(path)
    except OSError as error:
        raise LLMBenchError(str(error)) from error


READERS: dict[str, Callable[[Path], object]] = {
    "SUT file": read_sut_file,
    "workload file": read_workload_file,
    "trace": _dataset,
    "certificates": _ca,
    "report": read_report,
    "baseline": read_baseline,
    "loads": read_loads,
    "records": read_runs,
    "calibration": read_calibration,
    "journal": read_journal,
    "catalogue": read_catalogue,
    "tokenizer": read_tokenizer,
}
TOML = ("SUT file", "workload file")


@pytest.fixture(autouse=True)
def _little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one limit of all readers, which none of them takes from its caller."""
    for module in ("input_files", "store.datasets"):
        monkeypatch.setattr(f"pytest_llmbench.{module}.MOST_BYTES", 8 * _MIB)
    # Default of an argument: what read_bytes takes when nothing is said.
    monkeypatch.setattr(input_files.read_bytes, "__defaults__", (8 * _MIB,))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("thing", THINGS)
def test_what_lies_there_is_told(tmp_path: Path, thing: str, reader: str) -> None:
    path = tmp_path / ("file.toml" if reader in TOML else "file.json")
    THINGS[thing](path)
    empty_is_fine = thing == "nothing" and reader in TOML
    with within(20, mebibytes=400):
        if empty_is_fine:
            READERS[reader](path)
            return
        with pytest.raises(LLMBenchError) as raised:
            READERS[reader](path)
    told = str(raised.value)
    assert len(told) < 2000
    assert reader == "certificates" or path.name in told


@pytest.mark.parametrize("thing", [*[*THINGS][:9], "a long line"])
def test_what_is_no_key(tmp_path: Path, thing: str) -> None:
    """Any short line may be one, and is a secret from then on."""
    THINGS[thing](tmp_path / "file")
    with within(20, mebibytes=100), pytest.raises(LLMBenchError, match=r"file.* API key"):
        read_credentials({}, key_file=tmp_path / "file")


@pytest.mark.parametrize("thing", THINGS)
def test_what_lies_in_place_of_a_certificate_of_the_generator(tmp_path: Path, thing: str) -> None:
    """It is looked for, not named: what cannot be read is not there."""
    THINGS[thing](tmp_path / "file")
    with within(20, mebibytes=400):
        assert read_certificate(tmp_path / "file") is None


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "json.gz", "jsonl.gz"])
def test_data_sets_of_every_format(tmp_path: Path, thing: str, suffix: str) -> None:
    path = tmp_path / f"file.{suffix}"
    THINGS[thing](path)
    with within(20, mebibytes=400), pytest.raises(LLMBenchError, match=r"file\.") as raised:
        _dataset(path)
    assert len(str(raised.value)) < 2000


def test_what_unpacks_to_more_than_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b"\n" * _MIB)
    assert path.stat().st_size < _MIB
    with within(20, mebibytes=100), pytest.raises(LLMBenchError, match="longer than 8 MiB"):
        _dataset(path)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"timestamp": 1e400}, "timestamp is inf"),
        ({"timestamp": float("nan")}, "timestamp is nan"),
        ({"timestamp": -1e400}, "timestamp is -inf"),
        ({"timestamp": 1e300}, "more than a year"),
        ({"input_length": 1e400}, "input_length is inf"),
        ({"input_length": float("nan")}, "input_length is nan"),
        ({"input_length": 10**30}, "from 0 to 10,000,000"),
        ({"output_length": 10**30}, "from 0 to 10,000,000"),
        ({"hash_ids": 5}, "hash_ids is 5"),
        ({"hash_ids": [1e400]}, "hash_ids holds inf"),
        ({"hash_ids": [None]}, "hash_ids holds None"),
        ({"timestamp": None}, "line 2: timestamp is missing"),
        ({"timestamp": [[]]}, "timestamp is [[]]"),
    ],
)
def test_a_row_of_a_trace_that_is_none(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    path = tmp_path / "trace.jsonl"
    good = {"timestamp": 0, "input_length": 5, "output_length": 5}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(good | row)}\n")
    with pytest.raises(LLMBenchError, match="trace") as raised:
        _dataset(path)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,5,6\n2023,x,\n",
            "line 3: ContextTokens is 'x'",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "9" * 1000 + ",5,5\n", "line 2: TIMESTAMP is"),
        (
            'timestamp,input_length,output_length\n1,"' + "x" * 200_000 + '",1\n',
            "line 2: input_length is 'xxx",
        ),
        ("a,b\n1,2,3,4\n", "None"),
    ],
)
def test_lines_of_csv_that_are_no_requests(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(LLMBenchError, match=told):
        _dataset(path)


@pytest.mark.parametrize("value", ["1" + "0" * 30, "-1", "0", "nan", "inf", "1e400", "true", '"x"', "[]"])
@pytest.mark.parametrize(
    "law",
    [
        "{VALUE}",
        '{ kind = "fixed", tokens = VALUE }',
        '{ kind = "choice", tokens = [1, VALUE] }',
        '{ kind = "uniform", min = VALUE, max = VALUE }',
        '{ kind = "empirical", tokens = [1, 2], weights = [VALUE, 1.0] }',
        '{ kind = "lognormal", mu = VALUE, sigma = 1.0, min = 1, max = 9 }',
        '{ kind = "normal", mean = 1.0, sd = VALUE, min = 1, max = 9 }',
    ],
)
def test_lengths_that_nobody_can_draw(tmp_path: Path, law: str, value: str) -> None:
    path = tmp_path / "workloads.toml"
    text = law.replace("{VALUE}", "VALUE").replace("VALUE", value)
    path.write_text(f"[workloads.w]\ninput_tokens = {text}\noutput_tokens = 1\n")
    with within(10, mebibytes=200):
        try:
            made = read_workload_file(path)["w"]
        except LLMBenchError:
            return
        assert all(1 <= request.input_tokens <= 9 for request in made.requests(100, 1))


@pytest.mark.parametrize("value", ['"' + "x" * 100_000 + '"', "[" + "2026-01-01, " * 10_000 + "]"])
def test_a_value_is_told_in_short(tmp_path: Path, value: str) -> None:
    (tmp_path / "sut.toml").write_text(f"[sut]\nboundary = {value}\n")
    with pytest.raises(LLMBenchError, match="boundary is") as raised:
        read_sut_file(tmp_path / "sut.toml")
    assert len(str(raised.value)) < 2000


def test_a_path_that_none_can_be() -> None:
    for name in ("a\0b", "\ud800", "x" * 5000):
        with pytest.raises(LLMBenchError, match="cannot be read"):
            read_sut_file(Path(name))


def test_a_file_with_the_mark_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "sut.toml"
    path.write_bytes(b'\xef\xbb\xbf[sut.model]\nname = "m"\n')
    assert read_sut_file(path).facts["sut.model.name"].value == "m"


@pytest.mark.parametrize("thing", THINGS)
def test_recompute_of_what_is_no_report(
    tmp_path: Path, thing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    THINGS[thing](tmp_path / "x.json")
    assert main(["recompute", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err.count("\n") < 10
