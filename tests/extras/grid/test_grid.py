"""A grid of jobs: a test item for each cell, what it gives to a user and by accelerator, and the front."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from plugin_suite import Suite, refused
from replayed_sut import ReplayedSUT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.grid import front, procedure
from pytest_llmbench.extras.grid.front import PER_ACCELERATOR
from pytest_llmbench.model.result import TestResult


def measured(**given: Any) -> TestResult:
    return ReplayedSUT().measure(procedure.TEST, **given)


WHOLE = {
    "started": "2026-01-20T09:30:00.000Z",
    "sut": {"facts": {}, "model": "tiny<7b", "endpoint": "http://host/v1"},
}


def entry(name: str, concurrency: int, user: float | None, machine: float, **more: Any) -> dict[str, Any]:
    def estimate(value: float | None) -> dict[str, Any]:
        return {"point": value, "lower": value, "upper": value}

    lengths = {"input_tokens": 512, "output_tokens": 128, "concurrency": concurrency}
    return {
        "nodeid": name,
        "test": "grid",
        "parameters": lengths | more.pop("lengths", {}),
        "validity": {"verdict": "valid"},
        "gate": {"verdict": "pass"},
        "metrics": {
            "output_tokens_per_user_second": estimate(user),
            "output_token_throughput": estimate(machine),
            "ttft.p50": estimate(20.0),
        },
    } | more


def test_cells_are_all_combinations_in_the_order_of_the_lists() -> None:
    found = procedure.cells({"input_tokens": [512, 4096], "concurrency": (1, 8), "ttft_p50_ms": 5})
    assert [label for label, _ in found] == [
        "in512-out128-c1", "in512-out128-c8", "in4096-out128-c1", "in4096-out128-c8",
    ]  # fmt: skip
    assert found[2][1] == {"input_tokens": 4096, "output_tokens": 128, "concurrency": 1, "ttft_p50_ms": 5}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"concurrency": []}, "concurrency is an empty list"),
        ({"input_tokens": [512, 8, 512]}, "input_tokens has 512 twice"),
    ],
)
def test_lists_without_a_cell_or_with_one_twice_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError) as refused:
        procedure.cells(given)
    assert complaint in str(refused.value)


def test_a_cell_is_a_job_of_its_lengths() -> None:
    result = measured(input_tokens=256, output_tokens=32, concurrency=4)
    plan = result.observations[0].plan
    assert (plan.requests, plan.load.in_flight) == (40, 4)
    records = result.observations[0].records
    assert set(records.requested_input_tokens) == {256}
    assert set(records.output_tokens) == {32}
    user, tpot = result.metrics["output_tokens_per_user_second"], result.metrics["tpot.mean"]
    assert user.point == pytest.approx(1000 / tpot.point)  # type: ignore[operator]
    assert user.lower == pytest.approx(1000 / tpot.upper)  # type: ignore[operator]
    assert user.upper == pytest.approx(1000 / tpot.lower)  # type: ignore[operator]
    machine, per_gpu = (result.metrics[name].point for name in ("output_token_throughput", PER_ACCELERATOR))
    assert per_gpu == pytest.approx(machine / result.facts.value("sut.hardware.accelerator_count"))


def test_the_front_holds_what_no_other_cell_of_its_lengths_beats() -> None:
    document = {
        **WHOLE,
        "tests": [
            entry("slow-for-all", 64, 10.0, 100.0),
            entry("for-users", 1, 50.0, 40.0),
            entry("for-the-machine", 32, 20.0, 300.0),
            entry("other-lengths", 8, 5.0, 10.0, lengths={"input_tokens": 9000}),
            entry("void", 4, 99.0, 999.0, validity={"verdict": "invalid"}),
            entry("nothing", 2, None, 10.0),
            {"test": "ttft", "parameters": {}},
        ],
    }
    found = {cell.nodeid: cell.on_front for cell in front.cells_of(document)}
    assert found == {
        "slow-for-all": False,
        "for-users": True,
        "for-the-machine": True,
        "other-lengths": True,
        "void": False,
        "nothing": False,
    }
    rows = list(csv.DictReader(io.StringIO(front.csv_text(document).partition("\n")[2])))
    assert [row["on_front"] for row in rows] == [str(each) for each in found.values()]
    void = next(row for row in rows if row["nodeid"] == "void")
    assert (void["verdict"], void["tok_s"], void["tok_s_per_user"]) == ("invalid", "", "")
    page = front.page(document)
    assert page.count("on the front") == 3
    assert page.count("dominated</td>") == 1
    assert page.count("<svg") == 2
    assert "nan" not in page
    assert "<p>5 of 6 cells passed · tiny&lt;7b at http://host/v1 · 2026-01-20 09:30 UTC</p>" in page


def compared(metric: str, *change: float | None) -> dict[str, Any]:
    told = dict(zip(("point", "lower", "upper"), change, strict=True))
    return {"metric": metric, "baseline_name": "<main>", "change": told}


def test_a_saved_front_stands_beside_and_says_which_cells_got_worse() -> None:
    user, machine = "output_tokens_per_user_second", "output_token_throughput"
    document = {
        **WHOLE,
        "tests": [
            entry("worse", 1, 45.0, 40.0, comparisons=[
                compared(user, -0.1, -0.12, -0.08), compared(machine, -0.2, -0.5, 0.1),
            ]),
            entry("better", 8, 33.0, 220.0, comparisons=[
                compared(user, 0.1, 0.05, 0.15), compared(machine, 0.1, -0.1, 0.3),
            ]),
            entry("mixed", 16, 11.0, 330.0, comparisons=[
                compared(user, 0.1, 0.05, 0.15), compared(machine, -0.5, -0.6, -0.4),
            ]),
            entry("open", 32, 20.0, 100.0, comparisons=[
                compared(user, -0.3, None, None), compared(machine, -0.3, None, 0.2),
            ]),
            entry("new", 64, 9.0, 300.0),
            entry("void", 4, 1.0, 1.0, validity={"verdict": "invalid"}, comparisons=[
                compared(user, -0.5, -0.5, -0.5),
            ]),
        ]
    }  # fmt: skip
    cells = {cell.nodeid: cell for cell in front.cells_of(document)}
    assert {name: cell.change for name, cell in cells.items()} == {
        "worse": "worse", "better": "better", "mixed": "worse", "open": "undecided", "new": "", "void": "",
    }  # fmt: skip
    # Before: 50 and 50, 30 and 200, 10 and 660, 28.6 and 143 tokens a second.
    assert {name for name, cell in cells.items() if cell.was_on_front} == {"worse", "better", "mixed"}
    rows = {
        row["nodeid"]: row for row in csv.DictReader(io.StringIO(front.csv_text(document).partition("\n")[2]))
    }
    assert [rows["worse"][name] for name in ("against", "change", "tok_s_change_lower")] == [
        "<main>",
        "worse",
        "-0.5",
    ]
    assert [rows["new"][name] for name in ("against", "change", "tok_s_change", "was_on_front")] == [""] * 4
    page = front.page(document)
    assert "<p>2 of 4 cells got worse than &lt;main&gt;: concurrency 1, 16." in page
    assert " 2 were not compared.</p>" in page
    assert page.count("stroke-dasharray") == 1
    assert "<td>-10 % [-12 %, -8 %]</td>" in page
    assert "[open, open]" in page
    del document["tests"][0], document["tests"][1]
    assert "No cell is shown to be worse than &lt;main&gt;." in front.page(document)


def test_each_cell_is_an_item_that_can_be_chosen(suite: Suite) -> None:
    suite.write(
        """

        @llmbench.grid(input_tokens=[64, 128], output_tokens=[8], concurrency=[1, 2], ttft_p50_ms=500)
        def test_cells(llm_result, llm_cell):
            assert llm_result.metrics["output_tokens_per_user_second"].point > 0
            assert llm_cell["input_tokens"] in (64, 128)

        @llmbench.grid(concurrency=4, output_tokens=8)
        def test_one(): ...

        def test_no_cell(llm_cell):
            assert llm_cell == {}
        """
    )
    result = suite.measure("replay", "-k", "in128 or one or no_cell")
    result.assert_outcomes(passed=4, deselected=2)
    result.stdout.fnmatch_lines(["*PASS*test_cells?in128-out8-c1?*", "*PASS*test_one?in512-out8-c4?*"])
    lines = (suite.path / "out" / "grid.csv").read_text().splitlines()
    assert len(lines) == 2 + 3
    assert "128 tokens in, 8 out" in (suite.path / "out" / "grid.html").read_text()
    suite.write("@llmbench.ttft()\ndef test_t(): ...")
    suite.measure("replay").assert_outcomes(passed=1)
    assert (suite.path / "out" / "report.html").exists()
    assert not [*(suite.path / "out").glob("grid*")]


def test_mistakes_of_a_cell_are_told_at_collection(suite: Suite) -> None:
    suite.write(
        """

        @llmbench.grid(concurrency=[1, 0], min_tok_s_per_users=5)
        def test_cells(): ...
        """
    )
    refused(suite.run("--llm-endpoint=replay")).fnmatch_lines(
        ["*did you mean min_tok_s_per_user?", "*concurrency must be*"]
    )
