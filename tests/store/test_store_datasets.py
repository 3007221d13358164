"""Data sets from files: every format, what is left out, and what is said of files that are not one."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.store.datasets import (
    code_texts,
    conversations,
    exercises,
    file_sha256,
    function_prompts,
    read_rows,
)

HERE = Path("some/file")


def said(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": what} for who, what in turns]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.json", '[{"a": 1}, {"a": 2}]'),
        ("wrapped.json", '{"data": [{"a": 1}, {"a": 2}]}'),
        ("rows.jsonl", '{"a": 1}\n\n{"a": 2}\n'),
    ],
)
def test_rows_in_file_order(tmp_path: Path, name: str, content: str) -> None:
    plain, packed = tmp_path / name, tmp_path / f"{name}.gz"
    plain.write_text(content)
    packed.write_bytes(gzip.compress(content.encode()))
    assert [row["a"] for row in read_rows(plain)] == [1, 2]
    assert [row["a"] for row in read_rows(packed)] == [1, 2]


def test_csv_rows_and_a_format_that_the_suffix_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_text("\ufeffa,b\n1,x\n", encoding="utf-8")
    assert list(read_rows(path, "csv")) == [{"a": "1", "b": "x"}]
    with pytest.raises(SuiteError, match='give the format, for example format = "jsonl"'):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", "[1]", "row 1 is not a JSON object"),
        ("a.json", "{", "not JSON: "),
        ("a.jsonl", '{"a": 1}\n{"a":', "line 2 is not JSON"),
        ("a.jsonl", "[1]", "line 1 is not a JSON object"),
        ("a.csv.gz", "not packed", "cannot be read"),
        ("a.jsonl", '{"a": "\\ud83d\\ude00"}\n{"a": "\\ud83d"}', "line 2 holds half a character"),
        ("a.jsonl", '{"a": [{"\\uDE00": 1}]}', "line 1 holds half a character"),
        ("a.json", '[{"a": "x"}, {"a": "\\ud83d x"}]', "row 2 holds half a character"),
    ],
)
def test_files_that_are_not_what_they_seem(tmp_path: Path, name: str, content: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(SuiteError, match=told) as caught:
        list(read_rows(path))
    assert str(path) in str(caught.value)


def test_csv_cells_beyond_the_header_and_missing_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1\n\n2,3,4,5\n" + "x" * 200_000 + ",y\n")
    rows = list(read_rows(path))
    assert rows[:2] == [{"a": "1", "b": None}, {"a": "2", "b": "3", None: ["4", "5"]}]
    assert len(rows[2]["a"]) == 200_000


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(SuiteError, match=r"pytest-llmbench\[parquet\]"):
            list(read_rows(path))
        return
    parquet.write_table(pyarrow.table({"a": [1, 2]}), path)
    assert list(read_rows(path)) == [{"a": 1}, {"a": 2}]


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[]")
    assert file_sha256(path) == hashlib.sha256(b"[]").hexdigest()
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        file_sha256(tmp_path / "none")


def test_the_first_turns_of_conversations() -> None:
    rows = [
        said(("gpt", "ignored"), ("human", "Q1"), ("human", "more"), ("gpt", "A1"), ("human", "Q2")),
        said(("human", "alone")),
        said(("gpt", "nobody asked")),
        said(("human", "  "), ("gpt", "A")),
        said(),
        {"messages": [{"role": "user", "content": "Q3"}, {"role": "assistant", "content": "A3"}]},
    ]
    assert [(c.human, c.assistant) for c in conversations(rows, HERE)] == [("Q1", "A1"), ("Q3", "A3")]
    with pytest.raises(SuiteError, match="holds no conversation"):
        conversations(rows[1:3], HERE)


def test_exercises_of_both_kinds() -> None:
    math = {"problem": "1 + 1?", "solution": "It is 2.", "answer": "2"}
    code = {"task_id": "t", "prompt": "def f():", "canonical_solution": " return 1"}
    assert exercises([math, code], HERE) == [("1 + 1?", "It is 2."), ("def f():", " return 1")]
    assert exercises([math], HERE, answer_field="answer") == [("1 + 1?", "2")]
    assert exercises([{"q": "x"}], HERE, prompt_field="q") == [("x", None)]
    with pytest.raises(SuiteError, match=r"row 1 has no text under prompt or .*; it has q"):
        exercises([math, {"q": "x"}], HERE)
    with pytest.raises(SuiteError, match="no rows"):
        exercises([], HERE)


def test_source_texts_in_the_wanted_languages() -> None:
    rows = [{"content": "a", "lang": "python"}, {"content": "b", "lang": "Rust"}, {"content": "c"}]
    assert code_texts(rows, HERE, ("Python", "JavaScript")) == [("Python", "a"), ("Python", "c")]
    with pytest.raises(SuiteError, match="no source text in Go"):
        code_texts(rows[:2], HERE, ("Go",))


PYTHON = '''
class A:
    @cached
    def f(self,
          b):
        """Documented
        twice."""
        return 1

def one_line(): return 2

async def g(a):
    return 3
'''


def test_functions_end_where_their_body_begins() -> None:
    assert function_prompts("Python", PYTHON) == [
        '@cached\ndef f(self,\n      b):\n    """Documented\n    twice."""\n',
        "async def g(a):\n",
    ]
    assert function_prompts("Python", "def broken(:\n") == []
    script = "/** Adds. */\nexport async function add(a: number): Promise<number> {\n  return a\n}\nx = 1\n"
    assert function_prompts("TypeScript", script) == [
        "/** Adds. */\nexport async function add(a: number): Promise<number> {\n"
    ]


def test_what_a_packed_file_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"{}," * (20 << 20) + b"{}]"))
    with pytest.raises(SuiteError, match="longer than 16 MiB"):
        list(read_rows(path))


def test_what_a_parquet_file_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"a": ["x" * 10_000] * 20_000}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("pytest_llmbench.store.rows.MOST_BYTES", 50_000_000)
    with pytest.raises(SuiteError, match="its rows are more than"):
        for _ in read_rows(path):
            pass
