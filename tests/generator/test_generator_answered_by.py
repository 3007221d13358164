"""The model that replies name, where a gateway answers for another one than was asked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from scripted_server import DONE, HEAD, Conversation, ScriptedServer, chunked, event

from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan

Serve = Callable[..., ScriptedServer]
GeneratorFor = Callable[..., LoadGenerator]
MakePlan = Callable[..., LoadPlan]


def answer(model: str | None, *, words: int = 3, usage: bool = True) -> bytes:
    """A whole reply that names this model in each of its events, or none."""
    named = {} if model is None else {"model": model}
    common = {"id": "chatcmpl-0123456789", "object": "chat.completion.chunk", **named}

    def of(delta: dict[str, str], finish: str | None = None) -> bytes:
        return event({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    events = [of({"role": "assistant", "content": ""}), *(of({"content": " word"}) for _ in range(words))]
    counts = {"prompt_tokens": 7, "completion_tokens": words}
    events += [of({}, "stop"), *([event({**common, "choices": [], "usage": counts})] if usage else []), DONE]
    return HEAD + chunked(events)


@pytest.mark.parametrize("usage", [True, False], ids=["recognised", "parsed"])
def test_each_record_has_the_model_of_its_reply(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, *, usage: bool
) -> None:
    """Replies of each kind come often enough to be known by their bytes, if they have a usage."""
    given = ("m", "m-small", None, "m")
    number = count()

    def script(conversation: Conversation) -> None:
        conversation.send(answer(given[next(number) % len(given)], usage=usage))

    generator = generator_for(serve(script))
    records = generator.run(plan(32, load=ClosedLoop(1))).records
    assert records.ok.all()
    assert list(records.answered_by) == [None, "m-small", None, None] * 8


def test_a_reply_that_failed_may_name_one_too(serve, generator_for, plan):
    cut = answer("m-small")[:-60]
    records = generator_for(serve(lambda it: (it.send(cut), it.close()))).run(plan(1)).records
    assert not records.ok.any()
    assert list(records.answered_by) == ["m-small"]
