"""Prompts of an exact length by somebody else's count, such as that of a server with its chat template.

Which tokens a server makes of a text is known only by asking it. The search here asks as rarely as it can: it
assumes that every word more is about a token more, corrects itself by what comes back, and stops at the first
text that has exactly the wanted count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.readable import as_ids, readable_ids

Count = Callable[[str], int]

MOST_CALLS = 40
"""Most counts that are made before the search gives up."""
_SPARE = 64
"""Spare pieces beyond twice the target, for whoever counts several of ours as one token."""
_FILLERS = (" a", ".", " and", " so", " here", " always")
_IDLE_FILLERS = 2
"""How often a filler may be added without another token; one that never makes one is given up."""
_STEPS_BACK = 4
_MOST_PAIRS = 12
"""Most pairs of words that are tried for changing places."""


@dataclass(frozen=True, slots=True)
class ExactPrompt:
    """A text of exactly the wanted length, and how many counts it took to find it."""

    text: str
    tokens: int
    calls: int


def exact_prompt(
    target: int, count: Count, seed: int, *, most_calls: int = MOST_CALLS, trimmed: bool = False
) -> ExactPrompt:
    """Readable random text that ``count`` counts as exactly ``target`` tokens. Deterministic in ``seed``.

    ``trimmed``: the text does not begin with a space, which some chat templates take away: for a count that
    knows nothing of them. Raises SuiteError, saying what was reached, when no such text is found in
    ``most_calls`` counts: then the template alone is longer, or a word is never a single token more.
    """
    ids = as_ids(readable_ids(BulkRandom(seed), 2 * target + _SPARE))
    pieces = reference_tokenizer().decode_each([[token] for token in ids])
    if trimmed:
        pieces[0] = pieces[0].lstrip()
    return exact_text(pieces, target, count, most_calls)


def exact_text(pieces: Sequence[str], target: int, count: Count, most_calls: int = MOST_CALLS) -> ExactPrompt:
    """The beginning of ``pieces``, filled up where needed, that ``count`` counts as ``target`` tokens.

    The number of pieces is found by bisection whose first guesses follow the counts seen; where the count
    jumps over the target, the longest beginning below it is filled up, word by word.
    """
    search = _Search(pieces, target, count, most_calls)
    return search.run()


class _Search:
    def __init__(self, pieces: Sequence[str], target: int, count: Count, most_calls: int) -> None:
        self._pieces, self._target, self._count = pieces, target, count
        self._most_calls = most_calls
        self._seen: dict[str, int] = {}

    def run(self) -> ExactPrompt:
        below, above = -1, len(self._pieces) + 1
        guess = min(self._target, len(self._pieces))
        while above - below > 1:
            tokens = self._counted("".join(self._pieces[:guess]))
            if tokens == self._target:
                return self._found("".join(self._pieces[:guess]))
            below, above = (guess, above) if tokens < self._target else (below, guess)
            # A piece is about a token. Beyond a bracket, or when the steps get long, the middle is taken.
            step = guess + self._target - tokens
            halfway = len(self._seen) > self._most_calls // 4
            guess = step if below < step < above and not halfway else (below + above) // 2
        return self._filled(below)

    def _filled(self, pieces: int) -> ExactPrompt:
        """The prompt filled up by other fillers, where the first ``pieces`` fall short and one more is too
        long."""
        for kept in range(pieces, max(-1, pieces - _STEPS_BACK), -1):
            for filler in _FILLERS:
                text = "".join(self._pieces[:kept])
                tokens, idle = self._counted(text), 0
                while tokens < self._target and idle < _IDLE_FILLERS:
                    text += filler
                    before, tokens = tokens, self._counted(text)
                    idle = 0 if tokens > before else idle + 1
                if tokens == self._target:
                    return self._found(text)
        raise self._failure()

    def _counted(self, text: str) -> int:
        if text not in self._seen:
            if len(self._seen) >= self._most_calls:
                raise self._failure()
            self._seen[text] = self._count(text)
        return self._seen[text]

    def _found(self, text: str) -> ExactPrompt:
        return ExactPrompt(text, self._target, len(self._seen))

    def _failure(self) -> SuiteError:
        reached = sorted(self._seen.values(), key=lambda tokens: abs(tokens - self._target))
        closest = f"the closest had {reached[0]}, the shortest {min(reached)}, the longest {max(reached)}"
        return SuiteError(
            f"no prompt of exactly {self._target} tokens after {len(self._seen)} counts: {closest}",
            where="exact prompt length",
            remedy="ask for a length above that of the empty prompt with its template, or allow a tolerance",
        )


def reordered(text: str, count: Count, seed: int) -> str:
    """The words of ``text`` in another order, with another first word. Deterministic in ``seed``.

    As many tokens for every tokenizer that splits a text into words first. The ends are exceptions: a chat
    template may take away the space in front of the first word, so a pair that is counted alike either way
    round changes places; and what follows the last word may merge with it, so that one stays. A text of
    fewer than five words stays as it is, as does one without such a pair.
    """
    space = text[: len(text) - len(text.lstrip(" "))]
    first, *others = text[len(space) :].split(" ")
    last = others[-1:]
    others = others[:-1]
    BulkRandom(seed).shuffle(others)
    # Not with the next word: the server would have seen the pair that the text begins with.
    for place in range(min(len(others) - 1, _MOST_PAIRS), 0, -1):
        word = others[place]
        if word != first and count(f"{space}{first} {word}") == count(f"{space}{word} {first}"):
            others[place] = first
            return space + " ".join([word, *others, *last])
    return text


def cut_to(text: str, tokens: int) -> str:
    """The beginning of ``text`` with exactly ``tokens`` tokens of cl100k_base.

    A cut can change how the last tokens merge, or split a character; then the text is cut a little earlier
    and filled up with words. Raises SuiteError for a text that is too short.
    """
    tokenizer = reference_tokenizer()
    ids = tokenizer.encode(text)
    if len(ids) < tokens:
        raise SuiteError(f"a text of {len(ids)} tokens cannot be cut to {tokens}", where="workload")
    for kept in range(tokens, -1, -1):
        beginning = tokenizer.decode(ids[:kept])
        filled = beginning + " and" * (tokens - kept)
        if text.startswith(beginning) and tokenizer.count(filled) == tokens:
            return filled
    raise SuiteError(f"no beginning of the text has exactly {tokens} tokens", where="workload")
