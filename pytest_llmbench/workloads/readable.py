"""Readable random text of an exact length: sentences of plain words, each word one cl100k token.

Random ids fall apart on their way through text, and a document that is to have 131,072 tokens has to have
them. A word that is one token with its leading space stays one wherever it stands between other words, and
so does the full stop behind it; so the ids drawn here are exactly the ids that the text encodes to.

Sets of tools with JSON schemas are made of the same words. Their length is that of the tools as compact JSON;
what a server makes of them in its chat template has another, which only the server knows.

A prompt may have an exact length by somebody else's count, such as that of a server with its chat template.
Which tokens a server makes of a text is known only by asking it. The search asks as rarely as it can: it
assumes that every word more is about a token more, corrects itself by what comes back, and stops at the first
text that has exactly the wanted count.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.reply_checks import compact
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.stream import BulkRandom

_WORD_LIST = """
about above across account action active address again against agree air allow almost alone along already
also although always among amount animal another answer appear apply approach area argue arm army around
arrive article ask attack attempt author autumn average away back bad bank base basic battle beach bear beat
become bed before begin behind believe below benefit best better between big bill bird black blood blue
board boat body book border born both bottom box boy branch bread break bridge brief bright bring broad
brother brown build building burn business busy buy call camera camp capital captain car card care carry
case castle cat catch cause cell center central century certain chair chance change chapter charge cheap
check child choice church circle city claim class clean clear climb clock close cloth cloud coast coat code
coffee cold collect college color come common company compare complete computer concern condition consider
contain contract control cook cool copy corn corner correct cost cotton count country couple course court
cover cow create cross crowd culture cup current customer cut daily damage dance danger dark data daughter
day dead deal dear death debate decade decide deep degree depend describe desert design desk detail develop
device dinner direct discover discuss distance divide doctor dog door double doubt down draw dream dress
drink drive drop dry dust duty each early earth east easy edge education effect effort egg eight either
electric element else empty end enemy energy engine enjoy enough enter entire equal evening event ever every
exact example except exercise exist expect expert explain eye face fact factory fair fall family famous far
farm fast father fear feature feel few field fight figure fill film final find fine finger finish fire first
fish fit five flat flight floor flow flower fly follow food foot force foreign forest forget form former
forward four free fresh friend front fruit full future game garden gas gate general gentle gift girl give
glad glass goal gold good government grass gray great green ground group grow growth guard guess guide hair
half hall hand happen happy harbor hard hat head health hear heart heat heavy height help hill history hold
home honest hope horse hospital hot hotel hour house human hundred hunt husband ice idea image impact
improve inch income increase industry inside insect iron island issue item job join journey judge jump keep
key kind king kitchen knee knife know lady lake land language large last late laugh law lead leader leaf
learn least leave left leg legal length lesson letter level library lift light limit line lion list listen
little local long look lose loss loud love low lower luck lunch machine main major make manage map march
mark market marriage master match matter meal meaning measure meat medicine meet member memory mention metal
method middle might mile milk mind minute mirror miss mission mix model modern moment money month moon
morning mother motion mountain mouth move music name narrow nation nature near neck need neighbor net
network never new news night nine noise north nose note nothing notice number object ocean offer office
often oil old open opinion orange order ordinary organ other outside oven over owner page pain paint pair
paper parent park part party pass past path pattern pause peace pen pencil people pepper perfect period
person phone photo picture piece pilot place plain plan plane plant plate play please pocket poem point
police pool poor port position possible post potato pound power practice prepare present press price prince
print prison private prize problem process produce product program project promise proof protect proud prove
public pull purple push quality quarter queen question quick quiet race radio rain raise range rate reach
read ready reason receive record red region report rest result return rice rich ride right ring rise risk
river road rock role roof room root rope round route row royal rule run safe sail salt same sand save scale
scene school science score sea search season seat second secret see seed seem sell send sense sentence
series serve set seven shade shape share sharp sheep sheet shell ship shirt shoe shop short shoulder show
sick side sign silence silver simple sing single sister site six size skill skin sky sleep slow small smell
smile smoke smooth snow social soft soil soldier solution some song soon sound soup source south space speak
special speech speed spend spirit sport spot spread spring square staff stage stand star start state station
stay steam steel step stick still stock stone stop store storm story strange stream street strength strong
student study subject sugar summer sun supply support sure surface surprise sweet swim system table tail
talk tall task taste tax tea teacher team tear ten test thank theory thick thin thing think third thousand
three throw ticket tie time tiny title today together tomorrow tone tongue tool tooth top total touch tour
tower town track trade traffic train travel treat tree trial trip trouble truck true trust truth try turn
twelve twenty two type uncle under unit until upper use useful usual valley value various vast view village
visit voice vote wait walk wall want war warm wash watch water wave way weak wealth wear weather week weight
well west wet wheel white whole wide wife wild win wind window wine wing winter wire wise wish woman wonder
wood wool word work world worth write wrong year yellow yesterday young zero
"""
WORDS = tuple(_WORD_LIST.split())
"""The list of words. It is part of the definition of every workload made of them: another list gives other
sequences."""

_SHORTEST_SENTENCE, _LONGEST_SENTENCE = 8, 20
FEWEST_TOOL_TOKENS: Final = 160
"""Least length of a set of tools: one tool, and room to fill up."""
_DESCRIPTION_WORDS = (6, 24)


def readable_ids(generator: BulkRandom, tokens: int) -> npt.NDArray[np.uint32]:
    """``tokens`` ids of cl100k_base: sentences of random words, each ending with a full stop.

    Draw order: ``tokens`` times ``randint`` for the words, then the sentence lengths, ``tokens // 8 + 1``
    times ``randint(8, 20)``, each counting its full stop. The last sentence may be cut off.
    """
    words, stop = word_ids(), encoded(".")[0]
    ids = words.take(generator.integers(0, len(WORDS) - 1, tokens))
    lengths = generator.integers(_SHORTEST_SENTENCE, _LONGEST_SENTENCE, tokens // _SHORTEST_SENTENCE + 1)
    ends = np.cumsum(lengths, dtype=np.int64) - 1
    ids[ends[: ends.searchsorted(tokens)]] = stop
    return ids


def starting_with_a_word(ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The ids of :func:`readable_ids`, changed in place so that they can follow any others: two full stops in
    a row would become one token."""
    if len(ids) and ids[0] == encoded(".")[0]:
        ids[0] = word_ids()[0]
    return ids


def encoded(text: str) -> list[int]:
    """Ids of ``text`` in cl100k_base."""
    return reference_tokenizer().encode(text)


def as_ids(ids: npt.NDArray[np.uint32]) -> array[int]:
    """The array as a sequence of Python ints, four bytes each."""
    found = array("I")
    found.frombytes(np.ascontiguousarray(ids, dtype=np.uint32).data.cast("B"))
    return found


@cache
def word_ids() -> npt.NDArray[np.uint32]:
    """The ids of :data:`WORDS`, each with its leading space."""
    return np.array([encoded(f" {word}")[0] for word in WORDS], dtype=np.uint32)


def tools_of_length(generator: BulkRandom, tokens: int) -> str:
    """Tools as compact JSON of exactly ``tokens`` tokens.

    Draw order: tool after tool, each its words; what would be too long is dropped, and the description of
    the first tool filled up. Raises SuiteError below :data:`FEWEST_TOOL_TOKENS`.
    """
    if tokens < FEWEST_TOOL_TOKENS:
        raise SuiteError(
            f"a set of tools cannot have {tokens} tokens",
            where="tool schemas",
            remedy=f"give at least {FEWEST_TOOL_TOKENS}",
        )
    made = _tools(generator)
    tools = [next(made)]
    about = _length(tools)
    for tool in made:
        about += _length([tool])  # of the list, to within a token for each: counting it whole is quadratic
        if about > tokens:
            break
        tools.append(tool)
    first = tools[0]["function"]
    plain = first["description"]
    missing = tokens - _length(tools)
    fill = generator.choices(WORDS, k=max(0, missing))
    for words in range(missing, -1, -1):  # a word more is a token more: the first is nearly always right
        first["description"] = " ".join([plain, *fill[:words]])
        if _length(tools) == tokens:
            return compact(tools)
    raise AssertionError(f"no description makes a set of {tokens} tokens")


def salted_tools(tools: list[Any], words: str) -> str:
    """The tools, as JSON, with ``words`` at the beginning of the first description."""
    first = tools[0]["function"]
    described = f"{words} {first.get('description', '')}"
    changed = {"description": described} | {k: v for k, v in first.items() if k != "description"}
    return compact([{**tools[0], "function": changed}, *tools[1:]])


def _length(tools: list[dict[str, Any]]) -> int:
    return reference_tokenizer().count(compact(tools))


def _tools(generator: BulkRandom) -> Iterator[dict[str, Any]]:
    """An endless series of tools; the number in its name makes each one unique."""
    number = 0
    while True:
        number += 1
        keys = generator.sample(WORDS, 3)
        properties = {
            keys[0]: {"type": "string", "description": _words(generator)},
            keys[1]: {"type": "string", "enum": generator.sample(WORDS, 4)},
            keys[2]: {"type": "integer"},
        }
        yield {
            "type": "function",
            "function": {
                "description": _words(generator),
                "name": f"{generator.choice(WORDS)}_{generator.choice(WORDS)}_{number}",
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": keys,
                    "additionalProperties": False,
                },
            },
        }


def _words(generator: BulkRandom) -> str:
    count = generator.randint(*_DESCRIPTION_WORDS)
    return " ".join(generator.choices(WORDS, k=count))


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
            remedy="give a length above that of the empty prompt with its template, or allow a tolerance",
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
