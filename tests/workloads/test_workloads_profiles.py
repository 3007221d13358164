"""Workload profiles: ranges, exact lengths, shared beginnings, mixtures of them, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.factory import make_workload
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import fairness, ttft
from pytest_llmbench.store.objects import described, rebuilt
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import Salted, WithFixedOutput, realised_sharing, without_outputs
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed, LogNormal, Uniform, check_specification
from pytest_llmbench.workloads.mixture import Mixture, Part
from pytest_llmbench.workloads.profiles import (
    LIMITED,
    ProfileWorkload,
    groups,
    profile_workload,
    profiles,
    spread,
    told_of,
    without_output,
)
from pytest_llmbench.workloads.readable import FEWEST_TOOL_TOKENS
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

K = 1024
OF_THE_DRAFT = {
    "EMBED": ((16, 8 * K), (0, 0)),
    "XRANK": ((128, K), (0, 0)),
    "LOGPR": ((64, 4 * K), (0, 0)),
    "CLAS": ((32, 2 * K), (1, 10)),
    "SFQA": ((16, 512), (5, 100)),
    "FUNC": ((512, 4 * K), (20, 200)),
    "CHAT": ((64, 16 * K), (50, K)),
    "COMP": ((256, 8 * K), (5, 200)),
    "PERS": ((2 * K, 10 * K), (100, 2 * K)),
    "SUMM": ((K, 32 * K), (64, K)),
    "LDQA": ((4 * K, 128 * K), (16, 512)),
    "RAGN": ((528, 8 * K), (64, K)),
    "CGEN": ((32, K), (256, 8 * K)),
    "REAS": ((64, 2 * K), (544, 33 * K)),
    "DGEN": ((128, 2 * K), (512, 16 * K)),
    "TRNS": ((32, 8 * K), (32, 10 * K)),
    "AGNT": ((512, 16 * K), (20, 500)),
    "PLAN": ((128, 4 * K), (256, 2 * K)),
}


def test_the_ranges_are_those_of_the_draft() -> None:
    assert {code: (p.input, p.output) for code, p in profiles().items()} == OF_THE_DRAFT


@pytest.mark.parametrize("code", OF_THE_DRAFT)
def test_every_profile_is_complete_and_stays_in_its_ranges(code: str) -> None:
    made = workload(f"profile:{code}")
    assert not made.standard
    assert check_specification(made) == []
    (low, high), (fewest, most) = OF_THE_DRAFT[code]
    requests = made.requests(60, 7)
    prompts = [r.shared_prefix_tokens if code == "PERS" else r.input_tokens for r in requests]
    assert all(low <= tokens <= high for tokens in prompts)
    assert all(fewest <= r.max_tokens <= most for r in requests)
    assert len(set(prompts)) > 1
    assert all(len(r.token_ids) == r.input_tokens for r in requests)
    assert list(made.requests(20, 7)) == list(requests[:20])
    assert [r.token_ids for r in made.requests(3, 8)] != [r.token_ids for r in requests[:3]]
    assert rebuilt(described(made)) == made


@pytest.mark.parametrize("code", ["SFQA", "FUNC", "RAGN"])
def test_the_text_of_a_prompt_has_exactly_its_tokens(code: str) -> None:
    tokenizer = reference_tokenizer()
    for request in workload(f"profile:{code}").requests(8, 3):
        assert tokenizer.encode(tokenizer.decode(list(request.token_ids))) == list(request.token_ids)


def test_the_first_requests_are_known() -> None:
    chat = workload("profile:CHAT").requests(3, 42)
    assert [(r.input_tokens, r.max_tokens) for r in chat] == [(506, 261), (106, 125), (691, 88)]
    assert reference_tokenizer().decode(list(chat[0].token_ids[:4])) == " arrive army camp early"


def test_a_range_holds_ninety_five_of_a_hundred_lengths_before_they_are_clamped() -> None:
    law = spread((64, 16 * K))
    assert isinstance(law, LogNormal)
    assert math.exp(law.mu) == pytest.approx(math.sqrt(64 * 16 * K), rel=1e-3)
    clamped = LogNormal(law.mu, law.sigma, 1, 10**7)
    assert clamped.at_least(64) - clamped.at_least(16 * K) == pytest.approx(0.9545, abs=0.001)
    assert spread((512, 512)) == Fixed(512)


def _beginnings(code: str, count: int) -> dict[int, list[list[int]]]:
    found: dict[int, list[list[int]]] = {}
    for request in workload(f"profile:{code}").requests(count, 5):
        if request.prefix_id is not None:
            head = list(request.token_ids[: request.shared_prefix_tokens])
            found.setdefault(request.prefix_id, []).append(head)
    return found


@pytest.mark.parametrize(("code", "of", "share"), [("FUNC", 16, 1.0), ("PERS", 32, 1.0), ("RAGN", 64, 0.5)])
def test_prompts_with_one_head_begin_alike_and_no_two_heads_do(code: str, of: int, share: float) -> None:
    heads = _beginnings(code, 100)
    assert max(heads) < of
    assert sum(map(len, heads.values())) == 100 * share
    assert all(one == other for same in heads.values() for one, other in pairwise(same))
    assert len({tuple(same[0][:16]) for same in heads.values()}) == len(heads)
    shared = realised_sharing(workload(f"profile:{code}"), 0, 100, 5)
    assert shared["realised_fraction"] == share
    assert len(shared["contexts"]) == of
    assert all(shared["contexts"][number] == len(same[0]) for number, same in heads.items())


def test_a_cold_chunk_is_nobody_elses_and_hot_ones_follow_zipf() -> None:
    requests = workload("profile:RAGN").requests(400, 5)
    cold = [tuple(r.token_ids[:16]) for r in requests if r.prefix_id is None]
    assert len(cold) == len(set(cold)) == 200
    assert all(r.input_tokens >= 528 for r in requests)
    (rank, often), *_ = Counter(r.prefix_id for r in requests if r.prefix_id is not None).most_common()
    assert (rank, often > 25) == (0, True)  # 1/H(64) is a fifth of 200


def test_a_document_has_several_questions_and_is_then_replaced() -> None:
    documents = _beginnings("LDQA", 120)
    asked = [len(same) for same in documents.values()]
    assert max(documents) > 20
    assert max(asked) <= 6
    last = max(documents) - 4
    assert all(len(same) >= 2 for number, same in documents.items() if number < last)
    assert all(one == other for same in documents.values() for one, other in pairwise(same))


def test_those_without_output_say_so() -> None:
    silent = {code for code, profile in profiles().items() if not profile.generates}
    assert silent == {"EMBED", "XRANK", "LOGPR"}
    stated = workload({"profile:EMBED": 1, "profile:CHAT": 1}).specification()["profiles"]
    assert without_output(stated) == ["EMBED"]
    assert workload("profile:EMBED").specification()["output_length"]["params"] == {"tokens": 0}


def test_of_another_workload_the_inputs_alone_are_kept() -> None:
    base = workload("profile:FUNC")
    kept = without_outputs(base)
    for before, after in zip(base.requests(20, 3), kept.requests(20, 3), strict=True):
        assert after == replace(before, max_tokens=0)
    assert check_specification(kept) == []
    assert kept.specification()["output_length"]["params"] == {"tokens": 0}
    assert kept.specification()["deviations"][-1]["what"] == "output_length"
    assert (kept.name, kept.standard) == (base.name, False)
    embed = workload("profile:EMBED")
    assert without_outputs(embed) is embed
    assert without_outputs(kept) is kept


def test_an_unknown_profile_gets_a_suggestion() -> None:
    with pytest.raises(SuiteError, match="did you mean 'profile:CHAT'"):
        workload("profile:chat")
    with pytest.raises(SuiteError, match="profiles: EMBED, XRANK, LOGPR, CLAS"):
        workload("profile:")


def test_the_name_of_a_profile_cannot_be_borrowed() -> None:
    with pytest.raises(SuiteError, match="belong to the profiles"):
        workload(SyntheticWorkload("profile:CHAT", Uniform(1, 4), Uniform(1, 4)))
    tampered = ProfileWorkload(replace(profiles()["CHAT"], input=(64, 128)))
    small = SyntheticWorkload("small", Uniform(1, 4), Uniform(1, 4))
    for wrong in (
        tampered,
        WithFixedOutput(tampered, 5),
        Mixture("mix", (Part("a", tampered, 1), Part("b", small, 1))),
        Claiming("ours", Uniform(1, 4), Uniform(1, 4)),
    ):
        with pytest.raises(SuiteError, match="belong to the profiles"):
            workload(wrong)


@dataclass(frozen=True, slots=True)
class Claiming(SyntheticWorkload):
    """States a profile that it is not made of."""

    def specification(self) -> dict[str, Any]:
        own = SyntheticWorkload.specification(self)
        return {**own, "profiles": profile_workload("profile:CHAT").specification()["profiles"]}


def test_declared_changes_of_a_profile_are_allowed() -> None:
    base = profile_workload("profile:FUNC")
    assert workload(WithFixedOutput(base, 8)).requests(1, 1)[0].max_tokens == 8
    salted = workload(Salted(base, "monday")).requests(20, 1)
    assert not any(r.shared_prefix_tokens for r in salted)
    assert len({tuple(r.token_ids[:16]) for r in salted}) == 20  # behind what begins every list of tools


def test_a_profile_can_be_what_another_workload_is_made_from() -> None:
    longer = make_workload("profile:SFQA", prefix_tokens=512)
    assert longer.name == "custom"
    assert all(r.shared_prefix_tokens == 512 and r.input_tokens > 512 for r in longer.requests(20, 1))
    assert make_workload("profile:SFQA", output_tokens=7).requests(1, 1)[0].max_tokens == 7
    assert make_workload({"profile:SFQA": 1, "profile:CLAS": 1}).name == "1 profile:SFQA + 1 profile:CLAS"
    with pytest.raises(SuiteError, match="shares prefixes already"):
        make_workload("profile:FUNC", prefix_tokens=512)


@pytest.mark.parametrize("given", ["profile:CHAT", {"profile:CHAT": 1, "profile:RAGN": 1}])
def test_fairness_has_classes_of_its_own(given: object) -> None:
    with pytest.raises(SuiteError, match=r"or a ClassMix, got '.*profile:CHAT"):
        build(fairness.Parameters, {"workload": given})


def test_the_data_file_is_whole() -> None:
    for code, profile in profiles().items():
        ranges = {profile.input, profile.output if profile.generates else (1, 1), profile.own or (1, 1)}
        if profile.heads is not None:
            assert profile.own, code
            ranges |= {profile.heads.tokens, profile.heads.uses or (1, 1)}
            assert profile.heads.of >= 1, code
            assert 0 < profile.heads.share <= 1, code
            assert profile.heads.exponent >= 0, code
        assert all(type(end) is int and 1 <= low <= high for low, high in ranges for end in (low, high)), code
        assert profile.calls is None or profile.heads.tokens[0] >= FEWEST_TOOL_TOKENS, code
        assert profile.latency in ("", "IN", "NR", "TO", "IN-NR", "NR-TO"), code
        assert profile.group in groups(), code
        assert profile.calls is None or 0 <= profile.calls <= 1, code
        assert profile.cuts is None or 0 < profile.cuts.share <= 1, code
        assert all(name in LIMITED and limit > 0 for name, limit in profile.limits), code


def test_suggestions_are_told_and_said_not_to_be_applied() -> None:
    (told,) = told_of(workload("profile:CHAT").specification()["profiles"])
    assert told.startswith(
        "profile:CHAT, after draft-mondal-llm-serving-workload-profiles-00: latency class IN"
    )
    assert "session by nature" in told
    assert told.endswith("suggests ttft.p99 <= 500 ms (a suggestion, not applied)")
    (told,) = told_of(workload("profile:DGEN").specification()["profiles"])
    assert "suggests no limit" in told


def test_weights_by_name_make_a_mixture() -> None:
    mix = workload({"profile:CHAT": 0.6, "profile:RAGN": 0.3, "profile:REAS": 0.1})
    assert isinstance(mix, Mixture)
    assert mix.name == "0.6 profile:CHAT + 0.3 profile:RAGN + 0.1 profile:REAS"
    assert check_specification(mix) == []
    assert [p["code"] for p in mix.specification()["profiles"]] == ["CHAT", "RAGN", "REAS"]
    requests = mix.requests(300, 4)
    counted = Counter(r.class_label for r in requests)
    assert counted["profile:CHAT"] / 300 == pytest.approx(0.6, abs=0.1)
    assert set(counted) == {"profile:CHAT", "profile:RAGN", "profile:REAS"}
    assert all(r.max_tokens >= 544 for r in requests if r.class_label == "profile:REAS")
    assert {r.class_label for r in requests if r.prefix_id is not None} == {"profile:RAGN"}
    assert rebuilt(described(mix)) == mix


def test_a_mixture_tells_all_its_mistakes() -> None:
    with pytest.raises(SuiteError) as caught:
        workload(
            {
                "profile:CHIT": 1,
                "synthetic-uniform": "half",
                3: 1,
                "profile:CHAT": True,
            }
        )
    for told in (
        "'profile:CHIT'",
        "'half'",
        "part 3: the label must be a text",
        "True: give (workload, weight)",
    ):
        assert told in str(caught.value)
    for label in ("a[b]", "0-256", "4096+"):
        with pytest.raises(SuiteError, match="use no brackets and no range"):
            workload({label: ("synthetic-uniform", 1), "profile:CHAT": 1})
    for weight in (0, -1, math.nan, math.inf, 10**400, -(10**400)):
        with pytest.raises(SuiteError, match="give a number above 0"):
            workload({"profile:CHAT": weight, "profile:RAGN": 1})
    with pytest.raises(SuiteError, match="at least two"):
        workload({"profile:CHAT": 1})
    with pytest.raises(SuiteError, match="there are 0 parts"):
        workload({})


def test_a_marker_takes_weights_and_holds_a_workload() -> None:
    made = build(ttft.Parameters, {"workload": {"profile:CHAT": 1, "profile:RAGN": 1}, "rate": 2})
    assert isinstance(made.workload, Mixture)
    assert hash(made.workload) == hash(workload({"profile:CHAT": 1, "profile:RAGN": 1}))
    with pytest.raises(SuiteError, match="did you mean 'profile:RAGN'"):
        build(ttft.Parameters, {"workload": {"profile:CHAT": 1, "profile:RAG": 1}, "rate": 2})


def test_a_limit_on_one_class_cannot_count_its_failures() -> None:
    from pytest_llmbench.model.objective import e2e, ms

    given = {"workload": {"profile:CHAT": 1, "profile:RAGN": 1}, "failures": "over_limit", "rate": 2}
    with pytest.raises(SuiteError, match="completion_rate of the class"):
        build(ttft.Parameters, given | {"slo": [e2e["profile:CHAT"].p99 <= 5 * ms]})
    build(ttft.Parameters, given | {"slo": [e2e.p99 <= 5 * ms]})


def test_lengths_lie_around_the_middle_of_the_range() -> None:
    tokens = [r.input_tokens for r in workload("profile:SFQA").requests(500, 2)]
    assert np.median(tokens) == pytest.approx(math.sqrt(16 * 512), rel=0.15)
