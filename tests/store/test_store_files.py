"""report.json on disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from stored_results import make_report

from pytest_llmbench.errors import StoreError
from pytest_llmbench.redaction import keep_secret
from pytest_llmbench.store import entries, files, schema
from pytest_llmbench.store.environment import this_environment

CANARY = "sk-canary-0123456789"


def test_what_is_written_is_read_back(tmp_path: Path, report: schema.Report) -> None:
    path = tmp_path / "deep" / files.REPORT_NAME
    files.write_report(path, files.document_of(report))
    assert files.read_report(path) == report
    assert [found.name for found in path.parent.iterdir()] == ["report.json"]


def test_a_report_has_a_line_for_each_part(tmp_path: Path, report: schema.Report) -> None:
    path, document = tmp_path / files.REPORT_NAME, files.document_of(report)
    files.write_report(path, document)
    lines = path.read_text("utf-8").splitlines()
    assert json.loads("".join(lines)) == document
    beginnings = [line.lstrip().partition('"')[2].partition('"')[0] for line in lines]
    assert [name for name in beginnings if name in document] == list(document)
    assert beginnings.count("nodeid") == len(document["tests"])


@pytest.mark.parametrize("tests", [0, 1, 3])
def test_a_report_of_any_number_of_tests(tmp_path: Path, report: schema.Report, tests: int) -> None:
    document = files.document_of(report)
    document["tests"] = [document["tests"][0] | {"nodeid": f"a.py::é{n}"} for n in range(tests)]
    files.write_report(tmp_path / "report.json", document)
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == document


def test_a_packed_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    files.write_text(path, '{"a": "é"}')
    first = path.read_bytes()
    files.write_text(path, '{"a": "é"}')
    assert path.read_bytes() == first
    assert gzip.decompress(first) == '{"a": "é"}'.encode()
    assert files.read_object(path, "loads", absent="", damaged="") == {"a": "é"}
    for damaged in (first[:-9], b'{"a": 1}', b""):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="not a complete JSON file"):
            files.read_object(path, "loads", absent="", damaged="")


def test_what_unpacks_to_very_much_is_not_read(tmp_path: Path) -> None:
    """What is made of so many objects takes thirty times their bytes."""
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": [' + b"{}," * (6 << 20) + b"{}]}"))
    with pytest.raises(StoreError, match="longer than 16 MiB"):
        files.read_object(path, "baseline", absent="", damaged="")


def test_a_canary_key_is_in_no_report(tmp_path: Path) -> None:
    entry = entries.entry_from_error(
        nodeid="a.py::a", test="ttft", section="5.1", error=f'401: key "{CANARY}" is not known'
    )
    path = tmp_path / "report.json"
    report = make_report(entry, endpoint=f"https://{CANARY}@host/v1?api_key={CANARY}")
    keep_secret(CANARY)
    files.write_report(path, files.document_of(report))
    assert CANARY not in path.read_text()
    assert '401: key "[redacted]" is not known' in str(files.read_report(path).tests[0].error)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"file/report: the folder cannot be written") as caught:
        files.check_writable(tmp_path / "file" / "report", "--llm-report")
    assert caught.value.remedy is not None
    assert "--llm-report" in caught.value.remedy


def test_a_directory_that_takes_no_file() -> None:
    with pytest.raises(StoreError, match="/proc"):
        files.check_writable(Path("/proc/self"), "--llm-report")


def test_a_good_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "a" / "b", "--llm-report")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_failed_write_leaves_no_debris(tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    target.mkdir()
    with pytest.raises(StoreError, match=r"report\.md: cannot write the file"):
        files.write_text(target, "text")
    assert list(tmp_path.iterdir()) == [target]


def _written(tmp_path: Path, report: schema.Report) -> Path:
    path = tmp_path / "report.json"
    files.write_report(path, files.document_of(report))
    return path


@pytest.mark.parametrize(
    ("version", "message", "remedy"),
    [
        ("2.0", "2.0 is newer than 1.6", "upgrade"),
        ("1.7", "1.7 is newer than 1.6", "upgrade"),
        ("0.9", "0.9 is older than 1.6", "again"),
        ("latest", "not a report of pytest-llmbench", "--llm-report"),
        (None, "not a report of pytest-llmbench", "--llm-report"),
    ],
)
def test_another_version_is_refused(
    tmp_path: Path, report: schema.Report, version: str | None, message: str, remedy: str
) -> None:
    path = _written(tmp_path, report)
    document = json.loads(path.read_text()) | {"schema_version": version}
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=message) as caught:
        files.read_report(path)
    assert remedy in str(caught.value.remedy)


def test_a_report_of_an_earlier_minor_version_is_read(tmp_path: Path, report: schema.Report) -> None:
    path = _written(tmp_path, report)
    document = json.loads(path.read_text()) | {"schema_version": "1.0"}
    for entry in document["tests"]:
        del entry["levels"], entry["compliance"]["next_class"]
        for plot in entry["plots"].values():
            del plot["bands"], plot["y_log"]
        for stretch in entry["stretches"]:
            for name in ("variant", "load_duration_s", "shared_from", "stopped", "engine"):
                del stretch[name]
    path.write_text(json.dumps(document))
    read = files.read_report(path)
    assert read.schema_version == "1.6"
    assert read.tests[0].levels == []
    assert read.tests[0].stretches[0].engine is None
    assert read.tests[0].metrics == report.tests[0].metrics


def test_a_truncated_report_is_refused(tmp_path: Path, report: schema.Report) -> None:
    path = _written(tmp_path, report)
    path.write_text(path.read_text()[:-200])
    with pytest.raises(StoreError, match="not a complete JSON file, perhaps truncated"):
        files.read_report(path)


def test_a_report_of_another_shape_names_the_place(tmp_path: Path, report: schema.Report) -> None:
    path = _written(tmp_path, report)
    document = json.loads(path.read_text())
    document["tests"][0]["gate"]["verdict"] = "maybe"
    del document["sut"]
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"sut: Field required; tests\.0\.gate\.verdict: Input should be"):
        files.read_report(path)


@pytest.mark.parametrize("content", ["[1]", "3"])
def test_other_json_is_no_report(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(StoreError, match="expected a JSON object"):
        files.read_report(tmp_path / "r.json")


def test_a_missing_report(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read the report: No such file"):
        files.read_report(tmp_path / "none.json")


def test_the_environment_names_what_measured() -> None:
    environment = this_environment(["pytest", "no-such-package-here"])
    assert list(environment.packages) == ["pytest"]
    assert environment.python.startswith("3.")
