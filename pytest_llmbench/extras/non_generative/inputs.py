"""A prompt as the inputs of a non-generative request.

A prompt is one text. Where it holds the control character RS (U+001E, "record separator"), each of its parts
is an input of its own: several texts to embed, or a query and its documents. Where it holds none and a pair
is wanted, it is cut between words: the first eighth is the query, the rest the document.
"""

from __future__ import annotations

from typing import Any, Final

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.dialect import EncodeOptions, ResultsAsked
from pytest_llmbench.wire.openai_chat import text_prompt, token_prompt

SEPARATOR: Final = "\x1e"
_QUERY_SHARE: Final = 8


def texts_of(request: PlannedRequest) -> list[str]:
    """The inputs of a request, at least one.

    :raises GeneratorError: it has no text.
    """
    text = text_prompt(request)
    # Some of the ids that are drawn stand for the separator, and in what they are decoded to it separates
    # nothing.
    return [text] if request.token_ids is not None else text.split(SEPARATOR)


def texts_or_ids(request: PlannedRequest, options: EncodeOptions) -> Any:
    """The inputs as a body holds them: a text, a list of texts, or the token ids of one.

    :raises GeneratorError: the request has no text, or no ids, where that is asked for.
    """
    if options.prompt_form != "text":
        return token_prompt(request)
    texts = texts_of(request)
    return texts[0] if len(texts) == 1 else texts


def one_result_each(given: Any) -> ResultsAsked:
    """What a body with :func:`texts_or_ids` asks for: a result for each input."""
    of_texts = given.__class__ is list and given and given[0].__class__ is not int
    inputs = len(given) if of_texts else 1
    return ResultsAsked(inputs, inputs)


def query_and_documents(request: PlannedRequest) -> tuple[str, list[str]]:
    """The query and the documents of a request, at least one.

    :raises GeneratorError: it has no text, or one too short to be cut in two.
    """
    first, *rest = texts_of(request)
    if rest:
        return first, rest
    if len(first) < 2:
        raise GeneratorError(
            "a query and a document cannot be made of a prompt of less than two characters",
            where=f"request {request.index}",
            remedy="use longer prompts, or separate query and documents by U+001E",
        )
    at = max(1, len(first) // _QUERY_SHARE)
    space = first.find(" ", at)
    cut = at if space < 0 or not first[space:].strip() else space
    return first[:cut], [first[cut:].lstrip() or first[cut:]]
