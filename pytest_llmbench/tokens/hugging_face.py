"""A model's own tokenizer, made of the content of its ``tokenizer.json`` (section 4.4, option A).

The library ``tokenizers`` (extra ``[hf]``) encodes. It is handed bytes and never a name, so nothing is looked
up or downloaded. Whatever the file says of truncation and padding is switched off, since lengths are counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import parse_json
from pytest_llmbench.tokens.reference import no_panic, reference_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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
