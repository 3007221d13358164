"""``--llm-records=sequence``: the exact requests of a test as files beside the report (appendix A.1.4)."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedWriter
from pathlib import Path
from typing import Any

from pytest_llmbench.model.facts import Facts, Origin, WorkloadFact
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.store.files import whole_file
from pytest_llmbench.workloads.sequence import drawn, sequence_json

FOLDER = "sequence"
_PLAIN_REQUESTS = 1_000
"""The most requests of a sequence that is written uncompressed."""
_AT_ONCE = 256

EXPORT_SEQUENCE = "--llm-records=sequence"
EXPORTED_BEFORE = "--llm-export-sequence"
"""The source of these facts in reports of the versions before."""


def with_sequence_files(result: TestResult, report: Path) -> TestResult:
    """Write the sequences of the result's measured load, and say so among its facts.

    A file holds requests 0 to the last one that was planned, so the load of every level is a slice of it. It
    is ``WORKLOAD-SEED-COUNT.json``, compressed with gzip when it is long.
    """
    wanted: dict[tuple[str, int], tuple[Workload, int]] = {}
    for run in result.observations:
        plan = run.plan
        if plan.phase is Phase.MEASURE:
            workload, length = wanted.get((plan.workload.name, plan.seed), (plan.workload, 0))
            sent = max(plan.requests, len(run.records))
            wanted[plan.workload.name, plan.seed] = (workload, max(length, plan.first + sent))
    files = [
        _written(report / FOLDER, workload, seed, length)
        for (_, seed), (workload, length) in wanted.items()
        if length
    ]
    if not files:
        return result
    facts = {WorkloadFact.PUBLISHED: "sequence", WorkloadFact.SEQUENCE_FILES: files}
    return replace(result, facts=result.facts | Facts.of(Origin.GENERATOR, facts, EXPORT_SEQUENCE))


def _written(folder: Path, workload: Workload, seed: int, length: int) -> dict[str, Any]:
    """Write one sequence; returns what the report says about it."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", workload.name)
    if not workload.standard:  # another of that name may have other parameters
        stem += f"-{hashlib.sha256(repr(sorted(workload.specification().items())).encode()).hexdigest()[:8]}"
    stem += f"-{seed}-{length}"
    path = folder / f"{stem}.json{'.gz' if length > _PLAIN_REQUESTS else ''}"
    digest = hashlib.sha256()
    with whole_file(path) as temporary, temporary.open("wb") as raw:
        _write(raw, _pieces(workload, seed, length), digest, compressed=path.suffix == ".gz")
    return {
        "file": f"{FOLDER}/{path.name}",
        "workload": workload.name,
        "seed": seed,
        "requests": length,
        "sha256": digest.hexdigest(),
    }


def _write(raw: BufferedWriter, pieces: Iterator[bytes], digest: Any, *, compressed: bool) -> None:
    # No name and no time in the gzip header: the same sequence gives the same bytes.
    packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if compressed else None
    for piece in pieces:
        digest.update(piece)
        (packed or raw).write(piece)
    if packed is not None:
        packed.close()


def _pieces(workload: Workload, seed: int, length: int) -> Iterator[bytes]:
    """The compact JSON text of the sequence, some requests at a time."""
    yield b"["
    for first in range(0, length, _AT_ONCE):
        part = sequence_json(drawn(workload, first, min(_AT_ONCE, length - first), seed))
        yield (("," if first else "") + part[1:-1]).encode()
    yield b"]"
