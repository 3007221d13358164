"""inference-perf's ``config.json``: its laws as ours, what it does not define refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.__main__ import main
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.store.perf_catalogue import read_catalogue
from pytest_llmbench.workloads.lengths import Choice, Fixed, LogNormal, Normal, Uniform, mean_between


def law(kind: str | None, **figures: float) -> dict[str, Any]:
    told = {"min": 10, "max": 100_000, "mean": 4000, "standard_deviation": 2500} | figures
    return told if kind is None else told | {"distribution_type": kind}


def entry(folder: Path, **changes: Any) -> Path:
    content = {"input_sequence_length": law("log_normal"), "output_sequence_length": law("normal", mean=300)}
    path = folder / "config.json"
    path.write_text(json.dumps(content | changes))
    return path


def test_laws_have_the_mean_that_the_file_says(tmp_path: Path) -> None:
    found = read_catalogue(entry(tmp_path))
    assert isinstance(found.input_tokens, LogNormal)
    assert mean_between(found.input_tokens) == pytest.approx(4000, rel=0.01)
    assert found.output_tokens == Normal(300, 2500, 10, 100_000)
    assert found.system_tokens == 0
    exponential = read_catalogue(entry(tmp_path, output_sequence_length=law("exponential"))).output_tokens
    assert isinstance(exponential, Choice)
    assert np.mean(exponential.tokens) == pytest.approx(4000, rel=0.02)
    assert np.median(exponential.tokens) == pytest.approx(10 + 3990 * np.log(2), rel=0.01)
    assert min(exponential.tokens) >= 10
    assert read_catalogue(entry(tmp_path, output_sequence_length=law("uniform"))).output_tokens == Uniform(
        10, 100_000
    )
    fixed = law("normal", standard_deviation=0)
    assert read_catalogue(entry(tmp_path, output_sequence_length=fixed)).output_tokens == Fixed(4000)


def test_the_system_prompt_is_shared_and_part_of_the_length(tmp_path: Path) -> None:
    path = entry(tmp_path, system_prompt=law("normal", mean=1000, min=1000, max=1000, standard_deviation=0))
    file = tmp_path / "w.toml"
    file.write_text('[workloads.chat]\nkind = "inference-perf"\npath = "config.json"\n')
    requests = read_workload_file(file)["chat"].requests(400, 3)
    assert {r.shared_prefix_tokens for r in requests} == {1000}
    assert len({tuple(r.token_ids or ())[:1000] for r in requests}) == 1
    assert min(r.input_tokens for r in requests) >= 1001
    assert np.mean([r.input_tokens for r in requests]) == pytest.approx(4000, rel=0.1)
    assert path.exists()


def test_what_is_left_out_and_suggested_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = entry(
        tmp_path,
        multi_turn=True,
        number_of_turns=law("normal", mean=4),
        metadata={"slos": {"ttft_p99_ms": 500}},
    )
    assert main(["trace", "describe", str(path), "--requests=50"]) == 0
    said = capsys.readouterr().out
    assert "turns (4 on average) and pauses are left out" in said
    assert "ttft_p99_ms 500 (a suggestion, not applied)" in said
    assert "50 requests" in said


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"input_sequence_length": law("bimodal")}, "'bimodal': a mean and a deviation do not define it"),
        ({"input_sequence_length": law(None)}, "observed figures alone"),
        ({"input_sequence_length": law("normal", min=5000)}, "not in order"),
        ({"input_sequence_length": law("normal", mean=float("nan"))}, "mean is nan"),
        ({"input_sequence_length": law("normal", standard_deviation=-1)}, "it is negative"),
        ({"input_sequence_length": 7}, "it is 7"),
        ({"system_prompt": {"mean": -5}}, "system_prompt: mean is -5"),
        ({"system_prompt": {}}, "system_prompt: mean is missing"),
    ],
)
def test_what_is_no_law_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError) as caught:
        read_catalogue(entry(tmp_path, **changes))
    assert told in str(caught.value)


def test_all_mistakes_at_once_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="2 mistakes"):
        read_catalogue(
            entry(tmp_path, input_sequence_length=law("bimodal"), output_sequence_length=law(None))
        )
    for content, told in (("[]", "is not an entry"), ("{", "not JSON"), ("{}", "is not an entry")):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(SuiteError, match=told):
            read_catalogue(tmp_path / "other.json")
    with pytest.raises(SuiteError, match="cannot be read"):
        read_catalogue(tmp_path / "none.json")
