"""Where token counts of a record come from, and when we count ourselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripted_server import DONE, FINISH, HEAD, REPLY, chunked, reply, text_event
from small_tokenizer import small_tokenizer

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.reply_reader import MOST_COUNTED
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.openai_chat import OpenAICompletions
from pytest_llmbench.workloads.sequence import sequence_sha256

NO_USAGE = HEAD + chunked([text_event("one two"), text_event(" three"), FINISH, DONE])


def words(text: str) -> int:
    counted.append(text)
    return len(text.split())


counted: list[str] = []


def test_the_server_s_counts_come_first(serve, generator_for, plan):
    counted.clear()
    seen = generator_for(serve(reply(REPLY)), count_text=words).run(plan(1))
    assert TOKEN_SOURCES[seen.records.token_source[0]] is TokenSource.SERVER_USAGE
    assert (seen.records.input_tokens[0], seen.records.output_tokens[0]) == (7, 2)
    assert counted == []  # nothing was tokenised while load was running


def test_the_reference_tokenizer_steps_in(serve, generator_for, plan):
    seen = generator_for(serve(reply(NO_USAGE)), count_text=words).run(plan(1))
    assert TOKEN_SOURCES[seen.records.token_source[0]] is TokenSource.REFERENCE_TOKENIZER
    assert seen.records.output_tokens[0] == 3
    assert seen.records.input_tokens[0] == 2  # "hello 1-0"
    assert seen.records.requested_input_tokens[0] == 1


def test_the_tokenizer_of_a_file_steps_in(serve, generator_for, plan):
    own = small_tokenizer()
    server = serve(reply(HEAD + chunked([text_event("hel"), text_event("lo hello"), FINISH, DONE])))
    counting = {"count_text": own.count, "counted_by": TokenSource.TOKENIZER_FILE}
    records = generator_for(server, **counting).run(plan(1)).records
    assert TOKEN_SOURCES[records.token_source[0]] is TokenSource.TOKENIZER_FILE
    assert records.output_tokens[0] == 2  # joined before they are counted
    assert records.input_tokens[0] == own.count("hello 1-0")


def test_a_measuring_process_counts_with_the_content_of_a_file(serve, plan):
    """The file itself is not looked for again: on another machine it does not exist."""
    own = small_tokenizer()
    server = serve(reply(HEAD + chunked([text_event("hello hello"), FINISH, DONE])))
    for early in (True, False):
        apart = DistributedLoadGenerator(
            Address(server.url), "openai-chat", workers=1, model="m", count_text=own.file, counts_early=early
        )
        with apart as generator:
            records = generator.run(plan(2)).records
        assert {TOKEN_SOURCES[code] for code in records.token_source} == {TokenSource.TOKENIZER_FILE}
        assert records.output_tokens.tolist() == [2, 2]
        assert records.input_tokens.tolist() == [own.count(f"hello 1-{index}") for index in range(2)]


def test_a_reply_beyond_any_model_is_not_tokenised(serve, generator_for, plan):
    """Tokenising 64 MiB takes minutes, in which no other reply is read."""
    counted.clear()
    longest = [text_event("x" * 1000)] * (MOST_COUNTED // 1000)
    for more, source in (([], "reference_tokenizer"), ([text_event("y")], "chunk_count")):
        server = serve(reply(HEAD + chunked([*longest, *more, FINISH, DONE])))
        seen = generator_for(server, count_text=words).run(plan(1))
        assert TOKEN_SOURCES[seen.records.token_source[0]] == source
    assert not [text for text in counted if "y" in text]


def test_without_either_chunks_are_counted_and_called_so(serve, generator_for, plan):
    seen = generator_for(serve(reply(NO_USAGE))).run(plan(1))
    assert TOKEN_SOURCES[seen.records.token_source[0]] is TokenSource.CHUNK_COUNT
    assert seen.records.output_tokens[0] == 2
    assert seen.records.input_tokens[0] == MISSING


@dataclass(frozen=True)
class TokenWorkload:
    name: str = "ids"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [PlannedRequest(index, 8, 3, token_ids=[9906 + index, 11, 1917]) for index in range(count)]

    def specification(self) -> Mapping[str, Any]:
        return {}


def test_prompts_as_token_ids(serve, plan):
    text = 'data: {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}\n\n'
    server = serve(reply(HEAD + chunked([text.encode(), DONE])))
    target = Target.parse(server.url)
    with LoadGenerator(target, OpenAICompletions(), model="m", prompt_form="token_ids") as generator:
        seen = generator.run(plan(2, workload=TokenWorkload()))
    prompts = [json.loads(served.body)["prompt"] for served in server.served]
    assert prompts == [[9906, 11, 1917], [9907, 11, 1917]]
    assert seen.records.input_tokens.tolist() == [3, 3]
    assert seen.sequence_sha256 == sequence_sha256(TokenWorkload().requests(2, 1))
    assert seen.facts.value("wire.prompt_form") == "token_ids"


def test_ids_become_text_where_text_is_sent(serve, generator_for, plan):
    server = serve(reply(REPLY))
    generator = generator_for(server, extra_body={"top_k": 1})
    generator.run(plan(1, workload=TokenWorkload(), ignore_eos=True))
    sent = json.loads(server.served[0].body)
    assert sent["messages"] == [{"role": "user", "content": "\x85, world"}] or "world" in str(
        sent["messages"]
    )
    assert (sent["model"], sent["max_tokens"], sent["top_k"], sent["ignore_eos"]) == ("m", 8, 1, True)
