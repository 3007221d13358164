"""Every claim of SECURITY.md names a test that shows it, and the tests are there."""

from __future__ import annotations

import pytest
from cited_tests import ROOT, cited, missing

PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| from whom")]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_what_holds_is_shown(row: str) -> None:
    assert cited(row)
    assert missing(row) == []


def test_the_page_is_found_and_fits_on_one() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text("utf-8")
    assert len(PAGE.splitlines()) < 80
