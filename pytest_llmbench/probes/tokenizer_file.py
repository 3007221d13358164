"""``file`` of ``[tokenizer]`` in a SUT file: the model's own tokenizer, from disk, and its facts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import SMALL_BYTES, read_bytes
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.tokens.hugging_face import HuggingFaceTokenizer, TokenizerFile, hugging_face_tokenizer

MOST_BYTES: Final = 256 << 20
"""The most bytes of a ``tokenizer.json``, far above what large vocabularies take."""
NAME: Final = "tokenizer.json"
CONFIG: Final = "tokenizer_config.json"


def read_tokenizer(path: Path) -> HuggingFaceTokenizer:
    """The tokenizer of a ``tokenizer.json``, or of the folder that holds one. Raises SuiteError."""
    file = path
    try:
        file = path / NAME if path.is_dir() else path
        content = read_bytes(file, MOST_BYTES)
        config = _beside(file)
    except OSError as error:
        raise SuiteError(
            f"cannot be read: {error.strerror}",
            where=str(file),
            remedy=f"give the path of a {NAME}, or of the folder that holds it; nothing is downloaded",
        ) from error
    model, revision = _of_the_hub(file)
    try:
        return hugging_face_tokenizer(TokenizerFile(content, config, file.name, model, revision))
    except SuiteError as error:
        raise SuiteError(error.what, where=str(file), remedy=error.remedy) from error


def tokenizer_facts(tokenizer: HuggingFaceTokenizer, source: str) -> Facts:
    """What the file says of itself, under the keys of ``[tokenizer]`` and some more. ``source``: its path."""
    values = {
        "tokenizer.name": tokenizer.name,
        "tokenizer.version": tokenizer.version,
        "tokenizer.vocab_size": tokenizer.vocabulary_size,
        "tokenizer.source": tokenizer.source,
        "tokenizer.sha256": tokenizer.sha256,
        "tokenizer.special.tokens": dict(tokenizer.special_tokens),
    }
    return Facts.of(Origin.DETECTED, values, source)


def _beside(file: Path) -> bytes:
    try:
        return read_bytes(file.with_name(CONFIG), SMALL_BYTES)
    except FileNotFoundError:
        return b""


def _of_the_hub(file: Path) -> tuple[str, str]:
    """Model-hub id and revision of a file in the hub's cache: ``models--ORG--NAME/snapshots/REVISION/…``."""
    for folder in file.absolute().parents:
        model = folder.parent.parent.name
        if folder.parent.name == "snapshots" and model.startswith("models--"):
            return model.removeprefix("models--").replace("--", "/"), folder.name
    return "", ""
