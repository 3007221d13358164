"""Workloads made of data sets: whose name they may carry, in which order they draw, what they state."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import realised_sharing, sharing_flags
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import (
    SYSTEM_PROMPT,
    CodeCompletionWorkload,
    CodeFunction,
    Conversation,
    ConversationWorkload,
    DatasetIdentity,
    DatasetWorkload,
    Prompt,
    contexts_from,
)
from pytest_llmbench.workloads.lengths import check_specification
from pytest_llmbench.workloads.stream import BulkRandom

COUNT = reference_tokenizer().count
SHAREGPT = DatasetIdentity(
    "ShareGPT", "2023-04-12", "at least one assistant turn", ("HTML removed",), "vicuna_cleaned", "ab" * 32
)
STACK = DatasetIdentity("The Stack", "v1.2", "functions of at least 5 lines", ("docstrings kept",))
MINE = DatasetIdentity("mine", "1", "all")
CONVERSATIONS = tuple(
    Conversation(f"Question number {k}: why is {k * 7919} odd?", f"Because {'so ' * (k % 9)}")
    for k in range(23)
)
FUNCTIONS = tuple(
    CodeFunction(f"def function_{k}(values):\n    total = {k}\n    for value in values:\n        total")
    for k in range(31)
)
CONTEXTS = tuple(
    "\n".join(f"class Part{c}x{k}:\n    size = {k * c}\n" for k in range(120)) for c in range(10)
)


def conversation_workload(**changes):
    return ConversationWorkload(**{"conversations": CONVERSATIONS, "dataset": SHAREGPT} | changes)


def code_workload(**changes):
    return CodeCompletionWorkload(
        **{"functions": FUNCTIONS, "contexts": CONTEXTS, "dataset": STACK} | changes
    )


def prompts_workload(**changes):
    prompts = tuple(Prompt(f"Solve x + {k} = 3.", 100 + k) for k in range(11))
    return DatasetWorkload(**{"name": "math-500", "prompts": prompts, "dataset": MINE} | changes)


ALL = [conversation_workload, code_workload, prompts_workload]


def test_the_system_prompt_has_two_hundred_tokens():
    assert COUNT(SYSTEM_PROMPT) == 200


def test_conversations_are_drawn_in_the_decided_order():
    generator = random.Random(42)
    order = list(range(23))
    generator.shuffle(order)
    flags = []
    for _ in range(5):
        block = [True] * 5 + [False] * 5
        generator.shuffle(block)
        flags += block
    for index, request in enumerate(conversation_workload().requests(50, 42)):
        chosen = CONVERSATIONS[order[index % 23]]
        expected = f"{SYSTEM_PROMPT}\n\n{chosen.human}" if flags[index] else chosen.human
        assert (request.index, request.text) == (index, expected)
        assert request.input_tokens == COUNT(expected)
        assert request.max_tokens == COUNT(chosen.assistant)
        assert (request.prefix_id, request.shared_prefix_tokens) == ((0, 200) if flags[index] else (None, 0))
        assert request.temperature == 0.0


def test_an_empty_answer_asks_for_one_token():
    (request,) = conversation_workload(conversations=(Conversation("hello", ""),)).requests(1, 1)
    assert request.max_tokens == 1


def test_code_is_drawn_in_the_decided_order():
    generator = random.Random(42)
    lengths = [generator.randint(512, 1024) for _ in range(10)]
    weights = [k**-1.5 for k in range(1, 11)]
    flags, expected = [], []
    for index in range(60):
        if index % 10 == 0:
            block = [True] * 8 + [False] * 2
            generator.shuffle(block)
            flags += block
        rank = None
        if flags[index]:
            point, rank = generator.random() * sum(weights), 0
            while point >= sum(weights[: rank + 1]):
                rank += 1
        expected.append((rank, max(1, min(2048, round(generator.lognormvariate(4.0, 1.5))))))
    made = code_workload()
    requests = made.requests(60, 42)
    assert [(request.prefix_id, request.max_tokens) for request in requests] == expected
    assert list(made.shared_prefixes(42)) == lengths
    for index, request in enumerate(requests):
        function = FUNCTIONS[index % 31].prompt
        assert request.text.endswith(function)
        assert request.input_tokens == COUNT(request.text)
        if request.prefix_id is None:
            assert request.text == function
        else:
            context = request.text.removesuffix(f"\n\n{function}")
            assert COUNT(context) == request.shared_prefix_tokens == lengths[request.prefix_id]
            assert CONTEXTS[request.prefix_id].startswith(context[:1000])


def test_context_choice_follows_the_stated_probabilities():
    """The steps of the cumulative distribution are those of section 4.3.2."""
    from pytest_llmbench.workloads.dataset import _zipf_rank

    stated = [0.5012, 0.1772, 0.0964, 0.0626, 0.0448, 0.0341, 0.0271, 0.0221, 0.0186, 0.0158]
    counts = Counter(_zipf_rank(k / 100_000) for k in range(100_000))
    assert [counts[rank] / 100_000 for rank in range(10)] == pytest.approx(stated, abs=6e-5)
    assert _zipf_rank(math.nextafter(1, 0)) == 9


def test_realised_sharing_is_within_the_audits_tolerance():
    for made, share, contexts in ((conversation_workload(), 0.5, 1), (code_workload(), 0.8, 10)):
        facts = realised_sharing(made, 0, 400, 42)
        assert facts["realised_fraction"] == share
        assert len(facts["contexts"]) == len(facts["realised_by_rank"]) == contexts
        assert sum(facts["realised_by_rank"]) == share * 400
    assert all(512 <= tokens <= 1024 for tokens in facts["contexts"])
    assert facts["realised_by_rank"][0] == max(facts["realised_by_rank"])
    assert realised_sharing(prompts_workload(), 0, 10, 42) == {}


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5, 0.8, 0.37, 1.0])
def test_flags_keep_the_share_over_every_hundred(fraction):
    flags = sharing_flags(BulkRandom(1), fraction)
    drawn = [next(flags) for _ in range(400)]
    for end in (100, 200, 300, 400):
        assert abs(sum(drawn[:end]) - fraction * end) <= 0.5
    assert sum(drawn[:95]) == pytest.approx(95 * fraction, abs=3)


@pytest.mark.parametrize("make", ALL)
def test_shorter_sequences_are_beginnings_and_seeds_differ(make):
    made = make()
    long = made.requests(35, 7)
    assert list(made.requests(12, 7)) == list(long[:12])
    assert list(made.requests(35, 8)) != list(long)
    with pytest.raises(SuiteError, match="give a whole number"):
        made.requests(1, -1)


@pytest.mark.parametrize("make", ALL)
def test_specifications_are_complete_and_tell_data_apart(make):
    made = make()
    assert check_specification(made) == []
    assert workload(made) is made
    stated = made.specification()
    assert json.loads(json.dumps(stated)) == stated
    assert {"version", "subset_method", "preprocessing", "file_sha256"} <= set(stated["dataset"])
    assert make() == made
    assert hash(make()) == hash(made)
    field = {"conversation": "conversations", "code-completion": "functions"}.get(made.name, "prompts")
    other = make(**{field: getattr(made, field)[1:]})
    assert other != made
    assert other.specification() != stated


def test_the_facts_that_the_audit_reads():
    conversation = conversation_workload().specification()
    assert conversation["dataset"]["name"] == "ShareGPT"
    assert conversation["prefix_sharing"]["fraction"] == 0.5
    assert conversation["content"]["system_prompt"]["typical_tokens"] == 200
    code = code_workload().specification()
    assert code["prefix_sharing"]["fraction"] == 0.8
    assert code["output_length"]["type"] == "lognormal"
    assert (code["output_length"]["params"]["mu"], code["output_length"]["params"]["sigma"]) == (4.0, 1.5)
    lengths = sorted(COUNT(c.human) for c in CONVERSATIONS)
    assert conversation["input_length"]["params"]["min"] == lengths[0]
    assert conversation["input_length"]["params"]["p50"] == lengths[11]


def test_only_the_named_data_sets_may_carry_the_reference_names():
    assert conversation_workload().standard
    assert code_workload().standard
    with pytest.raises(SuiteError, match="choose another name"):
        conversation_workload(dataset=replace(SHAREGPT, version="2024"))
    with pytest.raises(SuiteError, match="choose another name"):
        conversation_workload(dataset=MINE)
    with pytest.raises(SuiteError, match="2 mistakes"):
        code_workload(dataset=MINE, functions=(CodeFunction("fn main() {", "Rust"),))
    own = conversation_workload(dataset=MINE, name="support chats")
    assert not own.standard
    assert workload(own) is own
    assert not code_workload(functions=(CodeFunction("fn main() {", "Rust"),), name="rust").standard
    for make in ALL:
        with pytest.raises(SuiteError, match="name of a reference workload"):
            make(name="long-context")


def test_mistakes_are_listed_together():
    empty = DatasetIdentity("", "", "")
    with pytest.raises(SuiteError, match="5 mistakes"):
        conversation_workload(dataset=empty, conversations=())
    with pytest.raises(SuiteError, match="4 mistakes"):
        code_workload(
            contexts=CONTEXTS[:9], functions=(CodeFunction(" "),), dataset=replace(MINE, version="")
        )
    with pytest.raises(SuiteError, match=r"repository contexts \[3\] have fewer than 1024 tokens"):
        code_workload(contexts=(*CONTEXTS[:3], "short", *CONTEXTS[4:]))
    with pytest.raises(SuiteError, match="3 mistakes"):
        prompts_workload(prompts=(Prompt("x", 0), Prompt("", 5)), temperature=-1)


def test_contexts_can_be_made_of_the_functions_themselves():
    texts = [f"def f{k}():\n" + "".join(f"    use({k}, {j})\n" for j in range(60)) for k in range(60)]
    contexts = contexts_from(texts)
    assert len(set(contexts)) == 10
    assert all(COUNT(context) >= 1024 for context in contexts)
    assert code_workload(contexts=contexts).requests(3, 1)
    with pytest.raises(SuiteError, match="10 are needed"):
        contexts_from(texts[:10])


def test_prompts_are_shuffled_once_or_kept_in_file_order():
    made = prompts_workload()
    order = list(range(11))
    random.Random(5).shuffle(order)
    requests = made.requests(25, 5)
    assert [request.max_tokens - 100 for request in requests] == [order[k % 11] for k in range(25)]
    assert all(request.input_tokens == COUNT(request.text) for request in requests)
    kept = prompts_workload(shuffled=False).requests(13, 5)
    assert [request.max_tokens - 100 for request in kept] == [*range(11), 0, 1]
    assert not made.standard
