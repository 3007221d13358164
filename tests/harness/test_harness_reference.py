"""What a test is compared with: the session that was named, or all that were saved under its name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from saved_sessions import IDENTITY, TTFT, measured, saved

from pytest_llmbench.compare.comparability import waivers_of_option
from pytest_llmbench.compare.limits import Confirmation, RegressionLimit
from pytest_llmbench.harness.comparison import baselines
from pytest_llmbench.harness.comparison.baselines import Comparing, Reference
from pytest_llmbench.model.judgement import Comparison, ComparisonVerdict, GateVerdict
from pytest_llmbench.store.baselines import BaselineTest, Standing, read_baseline, read_earlier

STRETCHES = (100.0, 130.0, 80.0)
"""The figure of three runs with other lengths each, on a day like all others."""
LIMIT = RegressionLimit("ttft.p50", 0.05, "test")


def _session(level: float = 1.0, runs: Sequence[float] = STRETCHES, lists: str = "shared 7") -> BaselineTest:
    identity = {**IDENTITY, "lengths": lists} if lists else dict(IDENTITY)
    made = measured({"ttft.p50": [level * value for value in runs]})
    return made.model_copy(update={"identity": identity})


def _compared(reference: Reference, runs: Sequence[float]) -> Comparison:
    (found,) = reference.compared({"ttft.p50": list(runs)}, [LIMIT], ("main", "now"))
    return found


def _reference(*saved_: BaselineTest, lists: str = "shared 7") -> Reference:
    return Reference.of(saved_, {**IDENTITY, "lengths": lists} if lists else IDENTITY)


def test_runs_of_one_list_are_paired_stretch_by_stretch() -> None:
    found = _compared(_reference(_session()), [101.0, 131.5, 80.7])
    assert (found.paired, found.unit_of_replication) == (True, "run")
    assert found.verdict is ComparisonVerdict.EQUIVALENT


def test_only_the_runs_that_both_have_are_paired() -> None:
    found = _compared(_reference(_session(runs=[*STRETCHES, 300.0, 310.0])), [101.0, 131.5, 80.7])
    assert len(found.baseline) == 3
    assert found.verdict is ComparisonVerdict.EQUIVALENT


@pytest.mark.parametrize(("before", "now"), [("", "shared 7"), ("shared 8", "shared 7"), ("", "")])
def test_runs_of_other_lists_have_the_noise_of_lengths_in_their_interval(before: str, now: str) -> None:
    found = _compared(_reference(_session(lists=before), lists=now), [101.0, 131.5, 80.7])
    assert not found.paired
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    told = " ".join(map(str, _reference(_session(lists=before), lists=now).notes("main")))
    assert ("other prompt and reply lengths" in told) == (before != now)


def test_the_runs_of_a_job_have_one_list_and_are_no_pairs() -> None:
    jobs = _session(runs=[100.0, 101.0, 99.0], lists="repeated 7")
    found = _compared(_reference(jobs, lists="repeated 7"), [99.0, 101.0, 100.0, 102.0])
    assert not found.paired
    assert len(found.candidate) == 4
    assert "Welch" in found.change.method
    assert found.verdict is ComparisonVerdict.EQUIVALENT


def test_from_three_sessions_on_the_unit_is_the_session() -> None:
    two, three = ([_session(level) for level in levels] for levels in ((1.02, 0.98), (1.02, 0.98, 1.0)))
    now = [1.01 * value for value in STRETCHES]
    assert _compared(_reference(*two), now).unit_of_replication == "run"
    found = _compared(_reference(*three), now)
    assert found.unit_of_replication == "session"
    assert len(found.baseline) == 3
    assert found.change.lower is not None
    assert found.change.lower < -0.05
    single = _compared(_reference(*three), now[:1])
    assert single.change.point == pytest.approx(found.change.point, abs=1e-3)


def test_days_are_said_to_be_alike_while_nothing_is_known_of_them() -> None:
    (said,) = map(str, _reference(_session()).notes("main"))
    assert "assumes that days are alike" in said
    assert "save 2 more under 'main'" in said
    assert "save 1 more" in str(_reference(_session(), _session()).notes("main")[0])
    (three,) = _reference(_session(), _session(), _session()).notes("main")
    assert str(three) == "compared with the last 3 sessions of 'main', by the spread between sessions"
    virtual = {name: value for name, value in IDENTITY.items() if not name.startswith("host")}
    assert Reference.of([_session(lists="")], virtual).notes("main") == []


def test_sessions_that_failed_or_measured_another_thing_do_not_count() -> None:
    failed = _session(2.0).model_copy(update={"gate": GateVerdict.FAIL})
    other = measured({"ttft.p50": list(STRETCHES)}, sut__boundary="gateway")
    good = [_session(level) for level in (1.0, 1.01, 0.99)]
    found = _reference(failed, good[0], other, good[1], failed, good[2])
    assert found.sessions == tuple(good)
    assert _reference(*good, failed).sessions == tuple(good)
    assert _reference(good[0], failed, other, good[1]).sessions == ()
    (waiver,) = waivers_of_option(["sut.boundary=alike@2999-01-01"], date(2026, 1, 1))
    assert len(Reference.of([good[0], other, good[1]], good[0].identity, [waiver]).sessions) == 3


def test_the_latest_ten_sessions_count() -> None:
    every = [_session(1 + (number * 7 % 5) / 1000) for number in range(14)]
    assert len(_compared(_reference(*every), STRETCHES).baseline) == 10


def _standing(standing: str, level: float = 1.0, **more: Any) -> BaselineTest:
    return _session(level).model_copy(update={"standing": Standing(standing), **more})


def test_only_what_counts_is_compared_with_and_the_others_are_told() -> None:
    good = [_standing("counts", level) for level in (1.0, 1.01, 0.99)]
    bad = [_standing(each, 2.0) for each in ("behind", "waived", "failed", "behind")]
    found = _reference(*good, *bad)
    assert (found.sessions, found.named) == (tuple(good), good[-1])
    told = str(found.notes("main")[0])
    assert told.startswith("4 sessions of 'main' are left out of the comparison: 2 did not pass the")
    assert _reference(*bad).named is bad[-1]  # which is refused where something decides


def test_what_was_before_an_accepted_level_is_no_part_of_it() -> None:
    old = [_standing("counts", level) for level in (1.0, 1.01, 0.99)]
    new = [_standing("counts", 2.0, accepted="larger pages"), _standing("counts", 2.01)]
    found = _reference(*old, *new)
    assert found.alike == tuple(new)
    assert str(found.notes("main")[0]) == "a new level was accepted: larger pages"
    assert _reference(*old, _standing("failed", 2.0, accepted="x")).alike == tuple(old)


def test_a_level_that_changed_and_a_night_far_from_all_others_are_left_out() -> None:
    nights = [_session(1 + (day * 7 % 5) / 500) for day in range(14)]
    better = [_session(0.8 + (day * 7 % 5) / 500) for day in range(5)]
    changed = _reference(*nights, *better)
    found = _compared(changed, [0.8 * value for value in STRETCHES])
    assert len(found.baseline) == 5
    assert str(changed.notes("main", [found])[-1]).startswith("ttft.p50 is compared with 5 of them")
    broken = _compared(_reference(*nights[:4], _session(3.0), *nights[4:8]), STRETCHES)
    assert len(broken.baseline) == 8
    assert broken.verdict is ComparisonVerdict.EQUIVALENT


@pytest.mark.parametrize(
    ("before", "verdict"),
    [
        ([], "unconfirmed"),
        (["regressed"], "regressed"),
        (["equivalent", "unconfirmed"], "regressed"),
        (["regressed", "equivalent", "equivalent"], "unconfirmed"),  # longer ago than three sessions
    ],
)
def test_a_regression_has_to_show_in_as_many_sessions_as_asked(before: list[str], verdict: str) -> None:
    good = [_standing("counts") for _ in range(3)]
    told = [_standing("behind", verdicts={"ttft.p50": ComparisonVerdict(each)}) for each in before]
    reference = _reference(*good, *told)
    found = _compared(reference, [2 * value for value in STRETCHES])
    (kept,) = reference.confirmed([found], Confirmation(2, 3))
    assert kept.verdict == verdict
    assert reference.confirmed([found], None) == (found,)


@pytest.mark.parametrize(
    ("outcome", "limit", "compared", "error", "standing"),
    [
        ("passed", "pass", "equivalent", None, "counts"),
        ("passed", "inconclusive", "improved", None, "counts"),  # where undecided limits pass
        ("passed", "pass", "unconfirmed", None, "behind"),
        ("passed", "pass", "inconclusive", None, "counts"),
        ("failed", "pass", "inconclusive", None, "counts"),
        ("failed", "pass", "inconclusive", "assert 0", "failed"),
        ("failed", "pass", "regressed", None, "behind"),
        ("failed", "pass", "regressed", "assert 0", "failed"),
        ("failed", "fail", "regressed", None, "failed"),
        ("failed", "inconclusive", "equivalent", None, "failed"),
        ("failed", "pass", "equivalent", "assert 0", "failed"),
        ("xfailed", "pass", "regressed", None, "waived"),
        ("xpassed", "pass", "equivalent", None, "waived"),
        ("skipped", "pass", "equivalent", None, "waived"),
    ],
)
def test_the_standing_of_a_result(
    outcome: str, limit: str, compared: str, error: str | None, standing: str
) -> None:
    entry = {
        "outcome": outcome,
        "error": error,
        "gate": {"objectives": [{"verdict": limit}]},
        "comparisons": [_told(compared, -0.01, 0.06), {"gated": False, "verdict": "regressed"}],
    }
    assert baselines.standing(entry) == standing


def _told(verdict: str, lower: float | None, upper: float | None, better: str = "lower") -> dict[str, Any]:
    change = {"lower": lower, "upper": upper}
    return {"gated": True, "verdict": verdict, "better": better, "change": change}


@pytest.mark.parametrize(
    ("better", "lower", "upper", "standing"),
    [
        ("lower", 0.0, 0.06, "counts"),
        ("lower", 0.001, 0.06, "behind"),
        ("lower", None, None, "behind"),
        ("higher", -0.06, 0.0, "counts"),
        ("higher", -0.06, -0.001, "behind"),
    ],
)
def test_what_is_undecided_counts_where_it_may_be_no_change(
    better: str, lower: float | None, upper: float | None, standing: str
) -> None:
    told = _told("inconclusive", lower, upper, better)
    entry = {"outcome": "passed", "error": None, "gate": {"objectives": []}, "comparisons": [told]}
    assert baselines.standing(entry) == standing


def test_all_sessions_of_a_name_are_read_and_one_of_a_number(tmp_path: Path) -> None:
    names = ["main", "v1", "main", "main"]
    paths = [saved(tmp_path, name, _session(), day=day) for day, name in enumerate(names)]
    earlier, problems = read_earlier(paths[3], "main")
    assert list(earlier) == [paths[0], paths[2]]
    assert problems == []
    assert read_earlier(paths[2], "main")[0].keys() == {paths[0]}
    assert read_earlier(paths[3], "0004") == ({}, [])
    assert read_earlier(tmp_path / "copied.json", "main") == ({}, [])
    paths[0].write_text("{")
    earlier, problems = read_earlier(paths[3], "main")
    assert list(earlier) == [paths[2]]
    assert "0001_main.json" in problems[0]


def test_a_test_that_some_of_the_sessions_lack_is_compared_with_the_others(tmp_path: Path) -> None:
    counts = [1, 0, 1, 1]
    paths = [saved(tmp_path, "main", *[_session()] * count, day=day) for day, count in enumerate(counts)]
    earlier, _ = read_earlier(paths[3], "main")
    asked = Comparing(paths[3], read_baseline(paths[3]), (), tuple(earlier.values()))
    found = asked.reference(TTFT, {**IDENTITY, "lengths": "shared 7"})
    assert found is not None
    assert len(found.sessions) == 3
    assert asked.reference("gates/other.py::t", IDENTITY) is None


def _made(by: str, method: str, level: float = 1.0) -> BaselineTest:
    own = {"tokens.counted_by": by, "itl.method": method, "lengths": "repeated 7"}
    values = {
        name: [level * run for run in (100.0, 101.0, 99.0)] for name in ("ttft.p50", "tpot.p50", "itl.p50")
    }
    return measured(values).model_copy(update={"identity": {**IDENTITY, **own}})


def _verdicts(before: Sequence[BaselineTest], now: BaselineTest, *waive: str) -> dict[str, Comparison]:
    waivers = waivers_of_option([f"{field}=known@2999-01-01" for field in waive], date(2026, 1, 1))
    found = Reference.of(before, now.identity, waivers).compared(now.by_run, [], ("main", "now"))
    return {each.metric: each for each in found}


@pytest.mark.parametrize("sessions", [1, 4])
def test_what_was_made_otherwise_is_not_compared_and_the_rest_is(sessions: int) -> None:
    before = [_made("the server", "ITL, method direct", 1 + day / 1000) for day in range(sessions)]
    found = _verdicts(before, _made("the server", "Time Between Chunks, method A", 0.4))
    assert found["itl.p50"].verdict is ComparisonVerdict.INCONCLUSIVE
    assert found["itl.p50"].change.point is None
    assert found["itl.p50"].reason == (
        "itl.method was ITL, method direct, now it is Time Between Chunks, method A"
    )
    assert found["tpot.p50"].verdict is found["ttft.p50"].verdict is ComparisonVerdict.IMPROVED
    found = _verdicts(before, _made("the reference tokenizer", "ITL, method direct", 0.4))
    both = "tokens.counted_by was the server, now it is the reference tokenizer"
    assert found["itl.p50"].reason == found["tpot.p50"].reason == both
    assert found["ttft.p50"].verdict is ComparisonVerdict.IMPROVED
    found = _verdicts(
        before, _made("the reference tokenizer", "ITL, method direct", 0.4), "tokens.counted_by"
    )
    assert found["tpot.p50"].verdict is ComparisonVerdict.IMPROVED


def test_sessions_that_made_a_metric_otherwise_are_left_out_of_that_metric_alone() -> None:
    others = [_made("the reference tokenizer", "ITL, method direct", 3.0) for _ in range(3)]
    same = [_made("the server", "ITL, method direct", level) for level in (1.0, 1.01, 0.99)]
    found = _verdicts([*others, *same], _made("the server", "ITL, method direct"))
    assert len(found["tpot.p50"].baseline) == 3
    assert len(found["ttft.p50"].baseline) == 6


def test_a_baseline_of_before_is_compared_and_said_not_to_tell_how_it_was_made() -> None:
    now = _made("the server", "ITL, method direct")
    reference = Reference.of([_session()], now.identity)
    assert "does not record how its metrics were measured" in str(reference.notes("main")[0])
