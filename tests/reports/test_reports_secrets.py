"""A canary key in every place a server or an author could put it appears in no rendering."""

from __future__ import annotations

import base64
import copy
from typing import Any
from urllib.parse import quote

from pytest_llmbench.redaction import Redactor
from pytest_llmbench.reports import html_blocks
from pytest_llmbench.reports.ci_files import annotations_text, ctrf, properties
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import markdown_report
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.reports.terminal import overview, section_lines

CANARY = 'sk-canary/"0123456789"<x>'


def _planted_in_levels(entry: dict[str, Any]) -> None:
    entry["levels"][0] |= {
        "label": CANARY, "variant": CANARY, "saturation_reasons": [CANARY], "fail_reasons": [CANARY],
        "passed": False, "saturated": True, "shared_from": CANARY, "errors": {CANARY: 1},
    }  # fmt: skip
    entry["stretches"][0] |= {"variant": CANARY, "stopped": CANARY, "shared_from": CANARY}
    entry["stretches"][0]["engine"] |= {"gap": CANARY, "source": f"http://{CANARY}@host/metrics"}
    entry["metrics"]["batch_utilisation"]["method"] = CANARY


def _planted(report: dict[str, Any]) -> dict[str, Any]:
    entry = report["tests"][0]
    basic = base64.b64encode(f"user:{CANARY}".encode()).decode()
    entry["error"] = f"401 for {CANARY}, Basic {basic}"
    entry["notes"] = [f"seen at https://host/?key={quote(CANARY, safe='')}"]
    entry["validity"]["findings"][1]["message"] = f"server says {CANARY!r}"
    entry["facts"]["sut.headers"] = {
        "value": {"authorization": CANARY},
        "origin": "detected",
        "source": CANARY,
    }
    entry["compliance"]["requirements"][0]["evidence"] = {"key": CANARY}
    entry["configuration"][0]["text"] = CANARY
    report["tests"][2]["error"] = CANARY
    report["environment"]["settings"]["key"] = CANARY
    report["sut"]["endpoint"] = f"https://host/{CANARY}"
    return report


def test_no_rendering_shows_a_key(report: dict[str, Any], every_entry: dict[str, Any]) -> None:
    report["tests"].append(copy.deepcopy(every_entry["throughput"]))
    _planted_in_levels(report["tests"][-1])
    clean = Redactor([CANARY]).value(_planted(report))
    renderings = [html_report(clean), markdown_report(clean), minimum_report(clean), str(overview(clean))]
    renderings += [annotations_text(clean), ctrf(clean)]
    for entry in clean["tests"]:
        renderings += [str(section_lines(entry)), html_blocks.extra_block(entry)]
        renderings += [*html_blocks.row_cells(entry), str(properties(entry))]
    everything = "\n".join(renderings)
    assert "[redacted]" in everything
    assert "sk-canary" not in everything
    assert "0123456789" not in everything
    assert base64.b64encode(CANARY.encode()).decode()[4:20] not in everything
