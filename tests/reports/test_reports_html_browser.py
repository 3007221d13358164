"""report.html in a real browser: filter, sort, links, no error, no request, no sideways scroll.

Skipped where no Chromium is installed.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.reports import html_blocks
from pytest_llmbench.reports.html import html_report

Entry = dict[str, Any]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
TRY = """
const seen = { errors: [] };
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const rows = () => [...page.querySelectorAll("#tests tbody tr")];
  const shown = () => rows().filter((row) => row.offsetParent !== null).length;
  const type = (text) => {
    const search = page.querySelector("nav.filters input");
    search.value = text;
    search.dispatchEvent(new view.Event("input"));
  };
  try {
    seen.all = shown();
    seen.navigation = page.querySelector("nav.filters").hidden;
    type("test_capacity");
    seen.searched = shown();
    seen.told = page.querySelector("nav.filters output").textContent;
    type("");
    const button = page.querySelector("button[data-filter=INCONCLUSIVE]");
    button.click();
    seen.pressed = shown();
    seen.cards = [...page.querySelectorAll(".card")].filter((card) => card.offsetParent !== null).length;
    button.click();
    seen.again = shown();
    page.querySelector("#tests thead th").click();
    seen.up = rows().map((row) => row.cells[0].textContent);
    page.querySelector("#tests thead th").click();
    seen.down = rows().map((row) => row.cells[0].textContent);
    const folded = page.querySelectorAll("details.test")[1];
    seen.foldedBefore = folded.open;
    view.location.hash = "#test-1";
    seen.sideways = page.documentElement.scrollWidth - page.documentElement.clientWidth;
    seen.requests = view.performance.getEntriesByType("resource").map((entry) => entry.name);
    const ledger = page.querySelector("details.searched");
    ledger.open = true;
    ledger.closest("details.part").open = true;
    const find = ledger.querySelector("input");
    find.value = "no such requirement";
    find.dispatchEvent(new view.Event("input"));
    seen.requirements = [...ledger.querySelectorAll("tbody tr")].filter((row) => !row.hidden).length;
    setTimeout(() => {
      seen.foldedAfter = folded.open;
      document.querySelector("output").textContent = JSON.stringify(seen);
    }, 50);
  } catch (error) {
    seen.errors.push(String(error));
    document.querySelector("output").textContent = JSON.stringify(seen);
  }
});
"""


def in_browser(page: str, directory: Path, width: int, script: str = TRY) -> tuple[dict[str, Any], str]:
    """What the script of the test saw in a frame so wide, and what the browser wrote on its console."""
    (directory / "report.html").write_text(page, encoding="utf-8")
    frame = f'<iframe src="report.html" style="width:{width}px;height:900px;border:0"></iframe>'
    around = f"<!DOCTYPE html><body>{frame}<output></output><script>{script}</script></body>"
    (directory / "around.html").write_text(around, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        "--enable-logging=stderr", "--virtual-time-budget=5000", f"--user-data-dir={directory / 'profile'}",
        "--window-size=1300,1000", "--dump-dom", (directory / "around.html").as_uri(),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<output>(.*?)</output>", ran.stdout, re.DOTALL)
    assert told is not None, ran.stderr[-2000:]
    assert told[1], ran.stderr[-2000:]
    return json.loads(html.unescape(told[1])), ran.stderr


TICK = """
document.querySelector("iframe").addEventListener("load", (event) => {
  const page = event.target.contentDocument;
  const shown = () => [...page.querySelectorAll("tbody")].filter((row) => row.offsetParent !== null)
    .map((row) => row.id);
  const seen = { all: shown() };
  for (const name of ["not_compliant", "other"]) {
    const box = page.getElementById(`show-llm-class-${name}`);
    box.checked = false;
    seen[name] = shown();
    box.checked = true;
  }
  seen.again = shown();
  document.querySelector("output").textContent = JSON.stringify(seen);
});
"""


def test_rows_of_pytest_html_are_filtered_by_their_class(entry: Entry, tmp_path: Path) -> None:
    rows = {"ours": entry, "theirs": None}
    bodies = "".join(
        f'<tbody id="{name}"><tr><td>x</td>{"".join(html_blocks.row_cells(of))}</tr></tbody>'
        for name, of in rows.items()
    )
    boxes = html_blocks.class_filter({html_blocks.compliance_class(of) for of in rows.values()})
    page = f'<!DOCTYPE html><body>{boxes}<table id="results-table">{bodies}</table></body>'
    seen, _ = in_browser(page, tmp_path, 1200, TICK)
    both = ["ours", "theirs"]
    assert seen == {"all": both, "not_compliant": ["theirs"], "other": ["ours"], "again": both}


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_a_browser(whole_report: Entry, tmp_path: Path, width: int) -> None:
    for entry in whole_report["tests"]:
        entry["plots"] = {}  # drawn elsewhere
    seen, console = in_browser(html_report(whole_report), tmp_path, width)
    tests = len(whole_report["tests"])
    assert seen["errors"] == []
    assert "CONSOLE" not in console, [line for line in console.splitlines() if "CONSOLE" in line]
    assert seen["requests"] == []
    assert seen["sideways"] == 0
    assert (seen["all"], seen["navigation"]) == (tests, False)
    assert (seen["searched"], seen["told"]) == (1, f"1 of {tests} tests")
    assert (seen["pressed"], seen["cards"], seen["again"]) == (1, 1, tests)
    assert seen["up"] == sorted(seen["up"])
    assert seen["down"] == seen["up"][::-1]
    assert (seen["foldedBefore"], seen["foldedAfter"]) == (False, True)
    assert seen["requirements"] == 0
