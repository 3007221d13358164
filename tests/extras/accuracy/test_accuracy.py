"""The accuracy test: its marker, its figures in replay and served, held against the engine's own truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plugin_suite import Suite
from replayed_sut import ReplayedSUT
from served_load import PATIENT, truths_of

from pytest_llmbench.__main__ import main
from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.accuracy import procedure as accuracy
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.dataset import DatasetWorkload
from pytest_llmbench.workloads.synthetic import ARITHMETIC


def measured(scenario: str = "fast", **given: Any) -> TestResult:
    return ReplayedSUT(scenario).measure(accuracy.TEST, **given)


def verdict(result: TestResult) -> GateVerdict:
    return gate(result.objectives, result.metrics).verdict


def questions(folder: Path, *rows: Any) -> str:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_model_that_answers_rightly_passes_and_one_that_does_not_fails() -> None:
    assert verdict(measured(min_share=0.9)) is GateVerdict.PASS
    wrong = measured("fast?wrong_answer_rate=0.2", min_share=0.9)
    assert verdict(wrong) is GateVerdict.FAIL
    share = wrong.metrics["accuracy"]
    assert share.lower is not None
    assert share.upper is not None
    assert share.lower < 0.8 < share.upper
    by_class = [wrong.metrics[f"accuracy[{label}]"].point for label in ("add", "subtract", "multiply")]
    assert sum(each or 0 for each in by_class) / 3 == pytest.approx(share.point, abs=0.001)


def test_the_golden_share_is_decided_by_just_these_questions() -> None:
    # An interval of 300 questions is 7 points wide; one wrong answer more or less decides nevertheless.
    share = measured("fast?wrong_answer_rate=0.1", questions=300).metrics["accuracy_of_set"].point
    assert share is not None
    given = {"golden": share / 0.99, "min_of_golden": 0.99, "questions": 300}
    assert verdict(measured("fast?wrong_answer_rate=0.1", **given)) is GateVerdict.PASS
    given["golden"] += 1 / 300
    assert verdict(measured("fast?wrong_answer_rate=0.1", **given)) is GateVerdict.FAIL


def measured_with(suite: Suite, scenario: str, golden: str) -> pytest.RunResult:
    suite.write(
        f"""

        @llmbench.accuracy(dataset="q.jsonl", {golden})
        def test_it(llm_result):
            pass
        """
    )
    return suite.measure(f"replay:{scenario}", scale="standard")


def test_the_golden_share_of_a_saved_report(suite: Suite) -> None:
    rows = [
        json.dumps({"question": f"Is {at} even?", "answer": "yes" if at % 2 else "no"}) for at in range(80)
    ]
    (suite.path / "q.jsonl").write_text("\n".join(rows))
    measured_with(suite, "fast", "").assert_outcomes(passed=1)
    (suite.path / "out").rename(suite.path / "trusted")
    golden = "golden='trusted/report.json'"
    measured_with(suite, "fast", golden).assert_outcomes(passed=1)
    measured_with(suite, "fast?wrong_answer_rate=0.2", golden).assert_outcomes(failed=1)
    assert suite.report["tests"][0]["parameters"]["golden"] == 1.0
    measured_with(suite, "fast?wrong_answer_rate=1", "").assert_outcomes(passed=1)
    (suite.path / "out").rename(suite.path / "wrong")
    none = measured_with(suite, "fast", "golden='wrong/report.json'")
    none.stderr.fnmatch_lines(["*its share of right answers to these questions is 0: *test_it*"])
    (suite.path / "q.jsonl").write_text("\n".join(rows[1:]))
    other = measured_with(suite, "fast", golden)
    other.stderr.fnmatch_lines(
        ["*no accuracy test in it was measured with the questions of 'q'; it has *test_it*"]
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"arithmetic": 0.5}', 0.5),
        ('{"arithmetic": 1.5}', "states no share from 0 to 1 for 'arithmetic'"),
        ('{"arithmetic": true}', "states no share"),
        ('{"other": 0.5}', "states no share"),
        ("[0.5]", "states no share"),
        ('{"arithmetic"', "cannot be read"),
        ('{"schema_version": "1.6"}', "cannot be read: the report does not match its schema"),
        (None, "cannot be read: No such file"),
    ],
)
def test_the_golden_share_of_a_list(content: str | None, told: float | str, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    if content is not None:
        path.write_text(content)
    if isinstance(told, float):
        assert build(accuracy.Parameters, {"golden": str(path)}).golden == told
        return
    with pytest.raises(SuiteError) as refused:
        build(accuracy.Parameters, {"golden": str(path)})
    assert told in str(refused.value)


MMLU = {"question": "Which is a noble gas?", "choices": ["iron", "neon", "zinc"]}


@pytest.mark.parametrize(
    ("row", "letter"),
    [
        (MMLU | {"answer": 1}, "B"),
        (MMLU | {"answer": "B"}, "B"),
        (MMLU | {"answer": "(c)"}, None),
        (MMLU | {"answer": "neon"}, "B"),
        (MMLU | {"answer": 3}, None),
        (MMLU | {"answer": -1}, None),
        (MMLU | {"answer": True}, None),
        (MMLU | {"answer": "argon"}, None),
        (MMLU | {"choices": ["neon", "neon"], "answer": "neon"}, None),
        (MMLU | {"choices": ["neon"], "answer": 0}, None),
        (MMLU | {"choices": list("abcdefghijk"), "answer": 0}, None),
        (MMLU | {"choices": ["neon", ""], "answer": 0}, None),
        (MMLU | {"choices": "iron, neon", "answer": 0}, None),
        (MMLU | {"choices": {"text": ["iron", "neon"], "label": ["1", "2"]}, "answerKey": "2"}, "B"),
        (MMLU | {"choices": {"text": ["iron", "neon"], "label": ["1", "1"]}, "answerKey": "1"}, None),
        (MMLU | {"choices": {"text": ["iron", "neon"], "label": ["1"]}, "answerKey": "1"}, None),
        ({"question": "Gas?", "options": {"A": "iron", "B": "neon"}, "answer": "neon"}, "B"),
        (MMLU | {"choices": [], "answer": "B"}, "B"),  # the question has its choices itself
    ],
)
def test_choices_as_a_list(row: dict[str, Any], letter: str | None, tmp_path: Path) -> None:
    path = questions(tmp_path, {"question": "A or B?", "answer": "A"}, row)
    if letter is None:
        with pytest.raises(SuiteError, match=r"row 1(: the choices must|: the answer .* is no| has no)"):
            build(accuracy.Parameters, {"dataset": path, "scorer": "choice"})
        return
    asked = build(accuracy.Parameters, {"dataset": path, "scorer": "choice"}).workload
    assert isinstance(asked, DatasetWorkload)
    prompt = asked.prompts[1]
    assert prompt.expected is not None
    assert prompt.expected.answer == letter
    assert ("B. neon" in prompt.text) is bool(row.get("choices") or row.get("options"))


def test_questions_from_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "mmlu.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([MMLU | {"answer": at} for at in (0, 1, 2)] * 20), path)
    result = measured(dataset=str(path), scorer="choice")
    assert result.metrics["accuracy_of_set"].point == 1.0
    assert result.metrics["accuracy_of_set"].n == 60
    parquet.write_table(pyarrow.Table.from_pylist([MMLU | {"answer": at} for at in (0, 3)]), path)
    with pytest.raises(SuiteError, match="row 1: the answer 3 is not one of the 3 choices"):
        measured(dataset=str(path), scorer="choice")


def test_wrong_answers_come_only_above_the_load_that_the_scenario_names() -> None:
    scenario = "fast?wrong_answer_rate=1&wrong_answers_above=4"
    assert measured(scenario, concurrency=4, questions=60).metrics["accuracy"].point == 1.0
    under_load = measured(scenario, concurrency=16, questions=60).metrics["accuracy"].point
    assert under_load is not None
    assert under_load < 0.3  # the first four, and the last ones


def test_failed_requests_are_not_answered_and_cut_replies_are_told(tmp_path: Path) -> None:
    failed = measured("fast?fault=http_error&fault_rate=0.5&fault_from=60", questions=200)
    assert failed.metrics["accuracy"].point == failed.metrics["completion_rate"].point
    rows = [{"question": f"Number {at}?", "answer": "one thousand and one nights"} for at in range(20)]
    cut = measured(dataset=questions(tmp_path, *rows), scorer="contains", max_tokens=2)
    assert cut.metrics["accuracy"].point == 0.0
    found = {each.check: each for each in validity_of(cut, Budget(0.01)).findings}
    assert found["answers_cut"].value == 1.0
    assert not found["answers_cut"].voids


def test_a_scorer_that_fails_voids_the_test(tmp_path: Path) -> None:
    asked = questions(tmp_path, {"question": "1 + 1?", "answer": 2})
    result = measured(dataset=asked, scorer="python:operator:add")
    assert result.metrics["accuracy"].point is None
    [finding] = [each for each in validity_of(result, Budget(0.01)).findings if each.check == "scorer_failed"]
    assert finding.voids
    assert "(row 0: TypeError: it gave" in finding.message
    assert "not True or False" in finding.message


def test_every_bad_row_of_a_file_is_named(tmp_path: Path) -> None:
    path = questions(
        tmp_path, {"question": "1 + 1?", "answer": 2}, {"q": "?"}, {"question": "2?", "answer": "two"}
    )
    with pytest.raises(SuiteError) as refused:
        build(accuracy.Parameters, {"dataset": path, "scorer": "number"})
    told = str(refused.value)
    assert all(each in told for each in ("row 1 has no text under prompt", "row 2", "holds no number"))
    with pytest.raises(SuiteError, match="No such file"):
        build(accuracy.Parameters, {"dataset": "none.jsonl"})
    asked = build(accuracy.Parameters, {"workload": "synthetic-uniform"})
    [missing] = accuracy.needs(asked, ReplayedSUT().setting(asked.workload))
    assert "no request of workload 'synthetic-uniform' has an expected answer" in missing


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"compliance": "conditional"}, "not part of the draft"),
        ({"min_share": 0.99, "questions": 100}, "needs at least 368 questions to be decided, there are 100"),
        ({"min_shares": 0.9}, "did you mean min_share"),
        ({"golden": 1.5}, "golden"),
        ({"scorer": "number"}, "scorer needs dataset"),
        ({"slo": ["x"]}, "slo"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError) as refused:
        build(accuracy.Parameters, given, test="accuracy", counted=True)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "api", ["openai-chat", "openai-completions", "openai-responses", "anthropic-messages"]
)
def test_records_say_what_the_engine_knows_of_its_answers(api: str) -> None:
    plan = LoadPlan("measure", ARITHMETIC, ClosedLoop(4), 60, seed=3, deadlines=PATIENT)
    with EmbeddedEngine.start("fast?wrong_answer_rate=0.3&writes_per_event=3") as engine:
        with LoadGenerator(Target.parse(engine.url), dialect(api), model=engine.model) as generator:
            seen = generator.run(plan)
        truths = truths_of(engine, seen)
    told = [str(each).partition(":")[0] for each in seen.records.answer_check]
    assert told == [truth.answer_check for truth in truths]
    assert set(told) == {"right", "wrong"}
    # The same engine in virtual time draws the same answers.
    replayed = ReplayEngine(parse_scenario("fast?wrong_answer_rate=0.3")).run(plan)
    assert sorted(map(str, replayed.records.answer_check)) == sorted(map(str, seen.records.answer_check))


def test_a_share_of_the_load_is_questions(suite: Suite) -> None:
    suite.write(
        """
        from pytest_llmbench import llmbench, metric, percent

        @llmbench.ttft(
            p50_ms=500, requests=200, concurrency=16,
            workload={"synthetic-uniform": 0.7, "arithmetic": 0.3},
            slo=[metric("accuracy", "ratio") >= 90 * percent],
        )
        def test_busy(llm_result):
            assert llm_result.metrics["accuracy"].n > 30

        @llmbench.accuracy(min_share=0.9, questions=100)
        def test_alone(llm_result): ...
        """
    )
    scenario = "replay:fast?wrong_answer_rate=1&wrong_answers_above=12"
    result = suite.measure(scenario, scale="standard")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*FAILED*test_busy - accuracy*"])
    assert main(["recompute", str(suite.path / "out")]) == 0
