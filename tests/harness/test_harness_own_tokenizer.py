"""The SUT's own tokenizer at work: counts of replies, prompts in its vocabulary, what the server says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import BOS, EOS, PLAIN_WORDS, byte_level, small_tokenizer, sut_file

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.session import Bench, BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.address import agreement, with_counted_prompts
from pytest_llmbench.harness.workloads.exact_lengths import ExactLengths, TokenCounter, bound
from pytest_llmbench.methodology.procedure import WarmupPolicy
from pytest_llmbench.model.facts import Fact, Origin
from pytest_llmbench.model.judgement import Status
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import OnRecord, Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import TOKEN_SOURCES, Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.probes.token_count import UncountedError
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.long_context import LongContextWorkload
from pytest_llmbench.workloads.sequence import text_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

OWN = small_tokenizer(PLAIN_WORDS, 700)
BASE = SyntheticWorkload("mine", Uniform(30, 60), Fixed(4))
TEMPLATE = 9
ENGINE = """
async def generate(prompt, max_tokens):
    for n in range(max_tokens):
        yield f"word{n} "
"""


class Server:
    """Counts as one with this tokenizer and a chat template does."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.count = count
        self.asked: list[str] = []

    def __call__(self, text: str) -> int:
        self.asked.append(text)
        return self.count(text)

    def __exit__(self, *_: Any) -> None:
        pass


def counter(count: Callable[[str], int]) -> tuple[TokenCounter, Server]:
    server = Server(count)

    def make() -> Any:
        return server

    return TokenCounter(make, "http://a/v1", OWN), server


def templated(text: str) -> int:
    return TEMPLATE + OWN.count(text)


def trimming(text: str) -> int:
    """As templates do that take white space away at both ends."""
    return templated(text.strip())


def joined(text: str) -> int:
    """With the template around the text before it is counted: tokens might merge across its ends."""
    return 1 + OWN.count(f"{BOS}user\n{text}{EOS}\n{BOS}assistant\n")


@pytest.mark.parametrize("count", [templated, trimming, joined])
def test_the_server_is_asked_about_a_few_texts_for_all_prompts(count: Callable[[str], int]) -> None:
    found, server = counter(count)
    exact = bound(ExactLengths(BASE), found)
    assert server.asked == []
    drawn = exact.requests(12, 1)
    assert len(server.asked) == 4
    assert [count(request.text or "") for request in drawn] == [
        request.input_tokens for request in BASE.requests(12, 1)
    ]
    assert len({request.text for request in drawn}) == 12
    assert all(request.text == (request.text or "").strip() for request in drawn)
    assert [request.text for request in exact.requests(3, 1)] == [request.text for request in drawn[:3]]
    assert OWN.name in exact.specification()["input_length"]["tokenizer"]


def test_a_tokenizer_of_another_model_is_an_error_with_its_size() -> None:
    found, _ = counter(lambda text: TEMPLATE + len(text.split()))
    with pytest.raises(SUTError) as caught:
        bound(ExactLengths(BASE), found).requests(1, 1)
    told = str(caught.value)
    assert "the server counts differently from the tokenizer of the SUT file" in told
    assert " where it has " in told
    assert "leave file out of [tokenizer]" in told


def test_words_alone_do_not_make_another_model_s_tokenizer_right() -> None:
    """Large vocabularies agree about plain words; one text tells them apart."""
    found, server = counter(lambda text: templated(text) + ("漢" in text))
    with pytest.raises(SUTError, match=f"between {TEMPLATE} and {TEMPLATE + 1} tokens"):
        found("hello")
    assert len(server.asked) == 4


def test_where_the_server_counts_nothing_the_text_alone_counts() -> None:
    def silent(_: str) -> int:
        raise UncountedError("says nothing")

    found, server = counter(silent)
    drawn = bound(ExactLengths(BASE), found).requests(4, 1)
    assert [OWN.count(request.text or "") for request in drawn] == [r.input_tokens for r in drawn]
    assert len(server.asked) == 1


def test_a_server_that_fails_is_no_server_that_counts_nothing() -> None:
    def failing(_: str) -> int:
        raise SUTError("connection refused")

    with pytest.raises(SUTError, match="refused"):
        counter(failing)[0]("hello")


def ids_of(request: PlannedRequest) -> list[int]:
    return list(request.token_ids or ())


def test_ids_are_drawn_in_its_vocabulary() -> None:
    exact = bound(ExactLengths(BASE), None, OWN)
    drawn = exact.requests(40, 1)
    assert [len(ids_of(request)) for request in drawn] == [r.input_tokens for r in BASE.requests(40, 1)]
    ids = {token for request in drawn for token in ids_of(request)}
    assert ids <= set(OWN.ordinary_ids.tolist())
    assert not ids & {OWN.encode(BOS)[0], OWN.encode(EOS)[0]}
    assert len(ids) > 0.6 * len(OWN.ordinary_ids)
    assert list(map(ids_of, exact.requests(3, 1))) == list(map(ids_of, drawn[:3]))
    assert ids_of(exact.requests(1, 2)[0]) != ids_of(drawn[0])
    stated = exact.specification()
    assert stated["input_length"]["exact"] is True
    assert stated["input_length"]["tokenizer"] == OWN.name
    assert stated["generation"]["token_ids"]["max"] == int(OWN.ordinary_ids[-1])
    assert workload(exact) is exact  # completely specified
    assert exact != bound(ExactLengths(BASE), None, small_tokenizer())


@pytest.mark.parametrize("beyond", [BASE, LongContextWorkload(Fixed(200), "mine")])
def test_ids_beyond_the_vocabulary_are_refused(beyond: Any) -> None:
    with pytest.raises(SuiteError, match=r"draws token ids up to 100255, but .* ends at"):
        bound(beyond, None, OWN)
    small = SyntheticWorkload("small", Fixed(5), Fixed(1), int(OWN.ordinary_ids[-1]), "mine")
    assert bound(small, None, OWN) is small


def seen_of(plan: LoadPlan, counted: dict[int, int | None], source: TokenSource) -> Observation:
    rows = [
        RequestRecord(
            index=index,
            request_id=str(index),
            phase=Phase.MEASURE,
            outcome=Outcome.OK,
            input_tokens=tokens,
            token_source=source,
        )
        for index, tokens in counted.items()
    ]
    return Observation(plan, Records.from_rows(rows), 0, 1, ClockAnchor(0, 0))


def ours(plan: LoadPlan) -> list[int]:
    requests = plan.workload.requests(plan.first + plan.requests, plan.seed)[plan.first :]
    return [OWN.count(text_of(request) or "") for request in requests]


def test_prompts_are_counted_again_after_a_load() -> None:
    plan = LoadPlan("measure", BASE, ClosedLoop(1), 40, seed=3, first=5)
    counts = ours(plan)
    counted: dict[int, int | None] = {5 + at: tokens + TEMPLATE for at, tokens in enumerate(counts)}
    counted[6] = counts[1] + TEMPLATE + 2
    counted[7] = None
    seen = seen_of(plan, counted, TokenSource.SERVER_USAGE)
    told = agreement(plan, seen.records, OWN.count).value("tokenizer.agreement")
    kept = [tokens for at, tokens in enumerate(counts[:32]) if at != 2]
    assert told == {"prompts": 31, "tokens": np.mean(kept), "least": TEMPLATE, "most": TEMPLATE + 2}


@pytest.mark.parametrize("source", [TokenSource.TOKENIZER_FILE, TokenSource.CHUNK_COUNT])
def test_our_own_counts_agree_with_nothing(source: TokenSource) -> None:
    plan = LoadPlan("measure", BASE, ClosedLoop(1), 3, seed=3)
    seen = seen_of(plan, dict(enumerate(ours(plan))), source)
    assert len(agreement(plan, seen.records, OWN.count)) == 0


@pytest.mark.parametrize(("phase", "told"), [(Phase.MEASURE, True), (Phase.WARMUP, False)])
def test_only_measured_loads_are_counted_again(phase: Phase, told: bool) -> None:
    plan = LoadPlan("any", BASE, ClosedLoop(1), 3, seed=3, phase=phase)
    seen = seen_of(plan, dict(enumerate(ours(plan))), TokenSource.SERVER_USAGE)

    class Inner:
        def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
            return replace(seen, plan=plan)

        def stop(self, reason: str) -> None: ...

        def close(self) -> None: ...

    found = with_counted_prompts(Inner(), OWN).run(plan).facts.value("tokenizer.agreement")
    assert (found is not None) is told


def measured(sut: Path, scenario: str) -> TestResult:
    with closing(BenchSession(Settings(endpoint=scenario, scale="quick", sut=sut))) as session:
        bench = Bench(session, scenario, WarmupPolicy.none())
        return bench.measure(concurrency=2, requests=6, workload=BASE)


def test_replies_that_the_server_does_not_count(tmp_path: Path) -> None:
    """The embedded engine's words are several tokens each in this vocabulary."""
    file = sut_file(tmp_path, byte_level(PLAIN_WORDS, 300))
    result = measured(file, "sim:fast?usage=never")
    (run,) = result.observations
    records = run.records
    assert records.counts()["ok"] == 6
    assert {TOKEN_SOURCES[code] for code in records.token_source} == {TokenSource.TOKENIZER_FILE}
    assert (records.output_tokens == records.requested_max_tokens).all()  # never more than was asked for
    own = small_tokenizer(PLAIN_WORDS, 300)
    plan = run.plan
    sent = plan.workload.requests(plan.first + 6, plan.seed)[plan.first :]
    counted = {request.index: own.count(text_of(request) or "") for request in sent}
    assert dict(zip(records.index.tolist(), records.input_tokens.tolist(), strict=True)) == counted
    facts = result.facts
    assert facts.value("tokenizer.counting_option") == "A"
    assert facts.value("tokenizer.vocab_size") == 300
    assert facts.value("tokenizer.reference") is None
    compliance = result.compliance
    assert compliance is not None
    tokenizing = {each.id: each.status for each in compliance.requirements if each.id.startswith("M-4.4.")}
    assert len(tokenizing) == 7
    # 300 ids are nearly bytes, as no language model counts.
    assert tokenizing.pop("M-4.4.2-counting-option") is Status.UNMET
    assert set(tokenizing.values()) == {Status.MET}, tokenizing
    assert result.metrics["tpot.p50"].point is None


def test_a_server_that_counts_otherwise_is_a_warning_with_its_size(tmp_path: Path) -> None:
    """The embedded engine has cl100k_base: its counts stay its own, and the file is told to be another's."""
    file = sut_file(tmp_path, byte_level(PLAIN_WORDS, 300))
    result = measured(file, "sim")
    (run,) = result.observations
    assert {TOKEN_SOURCES[code] for code in run.records.token_source} == {TokenSource.SERVER_USAGE}
    found = next(found for found in result.validity.findings if found.check == "tokenizer_agreement")
    assert (found.ok, found.voids) == (False, False)
    assert "its vocabulary differs from tokenizer.file" in found.message


def test_what_our_counts_are_of_is_stated_where_nobody_else_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counted_by_a_file.py").write_text(ENGINE, encoding="utf-8")
    result = measured(sut_file(tmp_path, byte_level()), "python:counted_by_a_file:generate")
    (run,) = result.observations
    # A byte is a token in this file, and no reply is longer than was asked for.
    assert run.records.output_tokens.tolist() == [min(4, len("word0 word1 word2 word3 "))] * 6
    for key, value in (("bos_eos", "excluded"), ("system_prompt", "none"), ("tool_format", "not_used")):
        expected = Fact(value, Origin.GENERATOR, "tokenizer file")
        assert result.facts[f"tokenizer.special.{key}"] == expected
    assert result.facts["tokenizer.vocab_size"].origin is Origin.DETECTED
