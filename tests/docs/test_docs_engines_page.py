"""Every engine of the page of engines is shown by a test, and the dialects are those that there are."""

from __future__ import annotations

import re

import pytest
from cited_tests import ROOT, cited, missing

from pytest_llmbench.registry import extras
from pytest_llmbench.wire.catalogue import DIALECTS

PAGE = (ROOT / "docs/reference/engines.md").read_text("utf-8")
TABLE, _, _ = PAGE.partition("\n## ")
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| engine")]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_what_it_was_held_against_is_shown(row: str) -> None:
    assert cited(row)
    assert missing(row) == []


def test_what_was_not_tried_is_named() -> None:
    tried = {name for row in ROWS for name in re.findall(r"`([\w-]+)`", row)}
    further = {name for extra in extras() for transport in extra.transports for name in transport.dialects}
    untried = (set(DIALECTS) | further) - tried
    assert {name for name in untried if f"`{name}`" not in PAGE} == set()
    assert missing(PAGE) == []
