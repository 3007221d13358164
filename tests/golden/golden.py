"""The golden reference: what whole sessions with one seed report, and how to see what a change moves in it.

    python tests/golden/golden.py [CASE …]            compares, and prints path: old -> new
    python tests/golden/golden.py --write [CASE …]    rewrites the reference

A case is a suite of ``suites/`` measured by a pytest of its own. What is kept of it, in ``reference/``:

- its ``report.json`` without times of day, versions, paths and what is the host's. Replay leaves nothing else
  to chance. Empty values are left out, and what the catalogue of clauses says anyway; facts that all tests
  have stand with the system under test. An estimate is a list; long and derived parts are digests;
- of each records file the number of its lines, and of each column the value if it has one, else a digest;
- of the case ``served``, which is sent and timed, only which names there are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEN_TESTS = HERE.parents[1] / "example_suites" / "full_methodology" / "test_ten_tests.py"
SEED = 7
DIGITS = 10
"""Significant ones that are kept; figures differ where they do beyond the last of them."""
SHOWN = 3
"""Of differences at paths that differ in numbers and names only."""
SMALL_WARMUP = """
import pytest
from pytest_llmbench import WarmupPolicy

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=2, output_tokens=0, probes=0)
"""
INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
llm_workers = 0
"""


@dataclass(frozen=True)
class Case:
    """A suite, and how it is measured."""

    suite: Path
    endpoint: str
    scale: str = "standard"
    options: tuple[str, ...] = ()
    conftest: str = SMALL_WARMUP
    structure: bool = False
    """Only names are compared: its figures are those of a machine."""


def _of(name: str) -> Path:
    return HERE / "suites" / f"{name}.py"


CASES = {
    # A quarter of the speed of the usual engine: fewer requests in as many loads.
    "ten_tests": Case(
        TEN_TESTS,
        "replay:fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40",
        scale="quick",
        conftest="",
    ),
    "sessions": Case(
        _of("sessions"),
        "replay:fast?max_num_seqs=8&kv_blocks=712&prefix_caching=on&context_limit_tokens=8192",
    ),
    "loads": Case(_of("loads"), "replay:h100-8b"),
    "reasoning": Case(
        _of("reasoning"),
        "replay:fast?think_mean_tokens=60&think_spread=0.3&think_budget_tokens=80&scheduler=phase",
    ),
    "faults": Case(_of("faults"), "replay:fast?fault=reset&fault_rate=0.2"),
    "non_generative": Case(_of("non_generative"), "replay", options=("--llm-api=openai-embeddings",)),
    "builds": Case(
        _of("builds"),
        "replay:fast?step_base_us=1260&prefill_us_per_token=10.5&decode_us_per_sequence=6.3",
        scale="quick",
        options=("--llm-baseline-endpoint=replay", "--llm-runs=4"),
    ),
    "full_scale": Case(_of("full_scale"), "replay", scale="full", conftest=""),
    "served": Case(_of("served"), "sim", structure=True),
}

HOSTS = {
    "started",
    "duration_s",
    "command",
    "line",
    "loads_file",
    "environment.packages",
    "generator.version",
} | {f"environment.{name}" for name in ("python", "implementation", "platform", "machine", "cpu_count")}
"""Times of day, versions, paths and what is the host's: keys of a test or of the whole."""
EVERYWHERE = {"manifest.sha256"}
"""Left out at any depth, as it is made of versions too."""
VERSIONS = re.compile(r"\b(tiktoken|embedded engine) \d+(\.\d+)+")
DIGESTS = {"plots", "selfcheck", "engine", "specification", "configuration"}
"""Keys at any depth whose value is kept as a digest."""
WORDS = {
    *("message", "reason", "reasons", "description", "title", "text", "advice", "notes", "tables", "source"),
    *("item", "methods", "configuration", "fail_reasons", "saturation_reasons", "error", "statement"),
}
"""Keys of what is written for people; differences there are told after all others."""
BY_MACHINE = {"findings", "void_loads", "note_data"}
"""Keys of lists of which the machine decides what is in them."""


def measured(case: Case, folder: Path) -> dict[str, Any]:
    """What is kept of the case, measured in this folder by a pytest of its own."""
    shutil.copy(case.suite, folder / "test_suite.py")
    (folder / "conftest.py").write_text(case.conftest, "utf-8")
    (folder / "pytest.ini").write_text(INI, "utf-8")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLM_", "GITHUB_", "PYTEST", "OPENAI_")) and name != "CI"
    }
    session = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("--llm-report=out", f"--llm-seed={SEED}"),
            *(f"--llm-endpoint={case.endpoint}", f"--llm-scale={case.scale}", *case.options),
        ],
        cwd=folder,
        env={**kept, "PYTEST_LLMBENCH_STATE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    path = folder / "out" / "report.json"
    if not path.exists():
        raise RuntimeError(f"the session wrote no report:\n{session.stdout}\n{session.stderr}")
    report = json.loads(path.read_text("utf-8"))
    records = {
        Path(test["records_file"]).name.split(".")[1]: _columns(folder / "out" / test["records_file"])
        for test in report["tests"]
        if test["records_file"]
    }
    if case.structure:  # a line leaves out what is usual, which depends on the machine
        return {"report": _names(report)}
    return {"report": _report(report), "records": records}


def _report(report: dict[str, Any]) -> dict[str, Any]:
    """Tests by name, each with its verdict, class, clauses and figures."""
    tests = {}
    facts = [test["facts"] for test in report["tests"]]
    shared = {name: fact for name, fact in facts[0].items() if all(fact == each.get(name) for each in facts)}
    for test in report.pop("tests"):
        test["facts"] = _facts({name: fact for name, fact in test["facts"].items() if name not in shared})
        compliance = test["compliance"]
        compliance["requirements"] = {each["id"]: _clause(each) for each in compliance["requirements"]}
        test["stretches"] = [
            {key: each.pop(key) for key in ("label", "requests", "duration_s")}
            | {"rest": _digest(_kept(each))}
            for each in test["stretches"]
        ]
        tests[test.pop("nodeid").split("::")[1]] = _kept(test)
    report["sut"]["facts"] = _facts({**report["sut"]["facts"], **shared})
    return {**_kept(report), "tests": tests}


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [fact["value"], fact["origin"], fact["source"]]
        for name, fact in facts.items()
        if name not in EVERYWHERE
    }


def _clause(judged: dict[str, Any]) -> dict[str, Any]:
    evidence = _kept(judged["evidence"])
    return {
        "status": f"{judged['status']} ({judged['effect']})",
        "reason": judged["reason"],
        "evidence": _digest(evidence) if evidence else None,
    }


def _kept(value: Any, path: str = "") -> Any:
    if isinstance(value, dict):
        if {"point", "lower", "upper", "method"} <= value.keys():
            return _estimate(value)
        kept = {
            key: _digest(_kept(each)) if key in DIGESTS else _kept(each, f"{path}.{key}".lstrip("."))
            for key, each in value.items()
            if key not in EVERYWHERE
            and f"{path}.{key}".lstrip(".") not in HOSTS
            and each not in (None, [], {}, "")
        }
        if "metrics" in kept:
            kept["methods"] = _digest({name: each["method"] for name, each in value["metrics"].items()})
        return kept
    if isinstance(value, list):
        return [_kept(each, path) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return VERSIONS.sub(r"\1", value) if isinstance(value, str) else value


def _estimate(figure: dict[str, Any]) -> list[Any]:
    """Point, ends, and whatever else it says that is not usual, but for its words; ``ms sample n=8``."""
    usual = {"level": 0.95, "runs": 1, "too_high_by": 0.0, "too_low_by": 0.0, "given_up": 0}
    others = (
        f"{key}={_kept(value)}"
        for key, value in figure.items()
        if key not in ("point", "lower", "upper", "unit", "kind", "method") and usual.get(key) != value
    )
    ends = (_kept(figure[key]) for key in ("point", "lower", "upper"))
    return [*ends, " ".join([figure["unit"], figure["kind"], *others])]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _columns(path: Path) -> dict[str, Any]:
    """Of the lines after the first, which is the header."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file.readlines()[1:]]
    columns: dict[str, Any] = {"lines": len(rows)}
    for name in sorted({name for row in rows for name in row}):
        values = [row.get(name) for row in rows]
        columns[name] = values[0] if all(each == values[0] for each in values) else _digest(values)
    return columns


def _names(value: Any) -> Any:
    """Keys and their keys; of a list those of all that are in it; nothing of what the machine may add to."""
    if isinstance(value, dict):
        return {
            key: None if key in DIGESTS | WORDS | BY_MACHINE else _names(value[key]) for key in sorted(value)
        }
    if isinstance(value, list):
        merged: dict[str, Any] = {}
        for each in value:
            if isinstance(each, dict):
                merged.update(_names(each))
        return [merged] if merged else None
    return None


@dataclass(frozen=True)
class Difference:
    """What the reference has at a path and what has come; ``MISSING`` where one has nothing."""

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def of_words(self) -> bool:
        return bool(WORDS.intersection(self.path))

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {_shown(self.old)} -> {_shown(self.new)}"


MISSING = object()


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]} …"


def differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Leaf by leaf; a list of another length is one difference, and so is an estimate."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key, MISSING), new.get(key, MISSING), (*path, key))
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(old) == len(new)
        and "metrics" not in path[-2:]
    ):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, (*path, str(number)))
    elif not _equal(old, new):
        yield Difference(path, old, new)


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_equal, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=10.0 ** (2 - DIGITS), abs_tol=1e-12)
    return type(old) is type(new) and bool(old == new)


def told(found: list[Difference]) -> str:
    """Verdicts and figures first, words then; of many alike a few and their number."""
    lines = []
    for words, heading in ((False, "verdicts, classes, figures, names"), (True, "words")):
        kinds = defaultdict(list)
        for each in found:
            if each.of_words == words:
                kinds[_kind(each.path)].append(each)
        lines += [f"{heading}: {sum(map(len, kinds.values()))} differences"]
        for kind, alike in kinds.items():
            lines += [f"  {each}" for each in alike[:SHOWN]]
            if len(alike) > SHOWN:
                lines.append(f"  … {len(alike) - SHOWN} more at {kind}")
    return "\n".join(lines)


def _kind(path: tuple[str, ...]) -> str:
    """The path without names of tests, metrics and clauses, and without places in lists."""
    named = {"tests", "metrics", "requirements", "records", "facts", "evidence"}
    parts = [
        "*" if part.isdigit() or (place and path[place - 1] in named) else part
        for place, part in enumerate(path)
    ]
    return ".".join(parts)


def reference(name: str) -> Path:
    return HERE / "reference" / f"{name}.json"


def _pages(value: Any, depth: int = 5) -> str:
    """JSON with a line for each part, figure and clause, so that version control shows what moved."""
    if depth and isinstance(value, dict) and value:
        parts = (f"{json.dumps(key)}:{_pages(each, depth - 1)}" for key, each in value.items())
        return "{\n" + ",\n".join(parts) + "\n}"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def compared(name: str, folder: Path) -> tuple[list[Difference], dict[str, Any]]:
    """What differs from the reference, and what has come."""
    path = reference(name)
    new = measured(CASES[name], folder)
    old = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return list(differences(old, new)), new


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare whole sessions with the golden reference.")
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all, if none is named")
    parser.add_argument("--write", action="store_true", help="rewrite the reference")
    given = parser.parse_args()
    if unknown := [name for name in given.cases if name not in CASES]:
        parser.error(f"unknown: {', '.join(unknown)}")
    moved = False
    for name in given.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found, new = compared(name, Path(folder))
        print(f"{name}: {told(found) if found else 'equal'}", flush=True)
        moved |= bool(found)
        if given.write and found:
            reference(name).write_text(_pages(new) + "\n", "utf-8")
    return int(moved and not given.write)


if __name__ == "__main__":
    sys.exit(main())
