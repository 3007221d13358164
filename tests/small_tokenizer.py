"""Tokenizers of some hundred ids, trained on the spot: what a ``tokenizer.json`` of a model is, in small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pytest_llmbench.tokens import HuggingFaceTokenizer, TokenizerFile
from pytest_llmbench.workloads.readable import WORDS

BOS, EOS = "<s>", "</s>"
HELLO = ("hello hello hello",)
"""Trained on this, ``hello`` is one token with and without its space, and every other byte is one."""
PLAIN_WORDS = (" " + " ".join(WORDS),)
"""Words in pieces of some letters, as other vocabularies have them."""


def byte_level(corpus: Sequence[str] = HELLO, vocabulary: int = 320) -> Tokenizer:
    """BPE over bytes, of at most ``vocabulary`` ids; puts ``<s>`` before a text if it is asked to."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(corpus, trainer)
    made.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return made


def content_of(made: Tokenizer) -> bytes:
    """The ``tokenizer.json`` of it."""
    text: str = made.to_str()
    return text.encode()


def small_tokenizer(corpus: Sequence[str] = HELLO, vocabulary: int = 320) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(TokenizerFile(content_of(byte_level(corpus, vocabulary))))


def sut_file(folder: Path, made: Tokenizer, text: str = "") -> Path:
    """A SUT file with such a tokenizer beside it, and whatever else it is to say."""
    (folder / "tokenizer.json").write_bytes(content_of(made))
    file = folder / "sut.toml"
    file.write_text(f'{text}\n[tokenizer]\nfile = "tokenizer.json"\n', encoding="utf-8")
    return file
