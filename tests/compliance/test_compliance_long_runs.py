"""The audit of a run too long to be held in memory says what that of a short one says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from complete_run import complete as canned
from replayed_runs import complete

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence, chunk_sizes, chunk_token_sums
from pytest_llmbench.metrics import itl
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats import clusters


@pytest.fixture
def long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is gone through 41 requests at a time, its gaps are counted and never kept."""
    whole = Records.blocks

    def blocks(records: Records, *_: int) -> Iterator[Records]:
        return whole(records, 41)

    # What is kept in memory is no business of the audit, whose checks would have to hand it on.
    monkeypatch.setattr(Records, "blocks", blocks)
    monkeypatch.setattr(itl, "KEPT", 0)
    monkeypatch.setattr(clusters, "SORTED", 10)


def _said(evidence: Evidence) -> list[tuple[str, str, str]]:
    # A copy has counted nothing yet.
    found = audit(Evidence(evidence.test, evidence.result, evidence.siblings))
    return [(entry.id, str(entry.status), entry.reason) for entry in found.requirements]


@pytest.mark.parametrize("test", ["ttft", "itl", "capacity"])
def test_the_same_is_said_of_it(test: str, request: pytest.FixtureRequest) -> None:
    evidence = canned() if test == "ttft" else complete(test)
    expected = _said(evidence)
    request.getfixturevalue("long_runs")
    assert _said(evidence) == expected


def _streams(count: int = 200) -> Records:
    """Of one to sixty chunks of no token, of one, of several and of an unknown number; some fail."""
    random = np.random.default_rng(3)
    rows = []
    for index in range(count):
        sent, chunks = 1_000_000 * index, int(random.integers(1, 60))
        at_ns = (sent + np.cumsum(random.integers(0, 5, chunks) * 1_000_003)).tolist()
        row = RequestRecord(index, f"{index}", Phase.MEASURE, submitted_ns=sent, chunk_ns=at_ns)
        sizes = random.choice([0, 1, 1, 1, 2, 3], chunks).tolist()
        row.chunk_tokens = sizes if index % 7 else []
        row.output_tokens = sum(sizes) if index % 5 else None
        row.outcome = Outcome.OK if random.random() > 0.1 else Outcome.TIMEOUT
        row.server_token_ns = at_ns if index % 6 else []
        rows.append(row)
    return Records.from_rows(rows)


def test_sizes_and_sums_of_chunks(long_runs: None) -> None:
    """By hand, chunk by chunk."""
    records = _streams()
    tokens, owner = records.chunk_tokens, np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
    of_ok = tokens[records.ok[owner]]
    assert chunk_sizes(records) == (
        len(of_ok),
        int((of_ok >= 0).sum()),
        int((of_ok == 1).sum()),
        int((of_ok > 1).sum()),
    )
    sums, complete_ones = chunk_token_sums(records)
    for place in range(len(records)):
        own = tokens[owner == place]
        assert sums[place] == own[own >= 0].sum()
        assert complete_ones[place] == (own >= 0).all()
