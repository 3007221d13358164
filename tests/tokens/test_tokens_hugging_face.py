"""Tokenizers from a ``tokenizer.json``: known counts, what they say of themselves, files that are none."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import BOS, EOS, PLAIN_WORDS, byte_level, content_of, small_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.tokens import HuggingFaceTokenizer, TokenizerFile, hugging_face_tokenizer

LIBRARY = byte_level()
CONTENT = content_of(LIBRARY)
HELLO = HuggingFaceTokenizer(TokenizerFile(CONTENT))

OFFLINE = """
import sys
def deny(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError("network touched: " + event)
sys.addaudithook(deny)
from pathlib import Path
from pytest_llmbench.tokens import HuggingFaceTokenizer, TokenizerFile
print(HuggingFaceTokenizer(TokenizerFile(Path(sys.argv[1]).read_bytes())).count("hello hello"))
"""


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello", 1),
        (" hello", 1),
        ("hello hello", 2),
        ("hellohello", 2),
        ("hello, hello", 3),
        ("é", 2),
        ("🦀", 4),
        (f"{BOS}hello", 2),  # written in a text it is what a server takes it for
    ],
)
def test_known_counts(text: str, tokens: int) -> None:
    assert HELLO.count(text) == tokens
    assert len(HELLO.encode(text)) == tokens


def test_nothing_is_added_to_a_text() -> None:
    assert len(LIBRARY.encode("hello").ids) == 2  # the model's own way begins with <s>
    assert HELLO.encode("hello") == LIBRARY.encode("hello").ids[1:]


@settings(max_examples=100)
@given(text=st.text(max_size=60))
def test_every_text_is_counted_whole(text: str) -> None:
    """Its ids are those that become the text again."""
    assert LIBRARY.decode(HELLO.encode(text), skip_special_tokens=False) == text


def test_texts_are_joined_before_they_are_counted() -> None:
    """Two halves of a word are not a word: counts of pieces do not add up."""
    assert HELLO.count("hel") + HELLO.count("lo") > HELLO.count("hello")


def test_a_long_text_is_neither_cut_nor_filled_up() -> None:
    made = byte_level()
    made.enable_truncation(2)
    made.enable_padding(length=50)
    assert HuggingFaceTokenizer(TokenizerFile(content_of(made))).count("hello hello hello") == 3


def test_a_vocabulary_is_held_against_the_reference() -> None:
    """One of bytes makes some four times the tokens, whichever text it was trained on beside these."""
    assert small_tokenizer(vocabulary=258).tokens_per_reference > 4
    assert 2 < small_tokenizer(PLAIN_WORDS, 600).tokens_per_reference < 4


def test_lone_surrogates_count_as_what_they_are_sent_as() -> None:
    assert HELLO.encode("a\ud83e b") == HELLO.encode("a\ufffd b")
    assert HELLO.encode("\ud83e\udd80") == HELLO.encode("🦀")


def test_what_it_says_of_itself() -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert HELLO.sha256 == digest
    assert HELLO.name == f"tokenizer.json {digest[:12]}"
    assert HELLO.version == f"sha256 {digest[:12]}"
    assert HELLO.source.startswith(f"custom: tokenizer.json, sha256 {digest}, encoded by tokenizers ")
    assert HELLO.vocabulary_size == LIBRARY.get_vocab_size()
    special = {LIBRARY.token_to_id(BOS), LIBRARY.token_to_id(EOS)}
    assert set(HELLO.ordinary_ids.tolist()) == set(range(LIBRARY.get_vocab_size())) - special


def test_a_file_of_the_hub_is_called_by_its_model() -> None:
    found = HuggingFaceTokenizer(TokenizerFile(CONTENT, model="acme/small", revision="0e9e39f"))
    assert (found.name, found.version) == ("acme/small", "0e9e39f")
    assert found.source.startswith("model-hub id acme/small: tokenizer.json, sha256 ")


@pytest.mark.parametrize("written", [BOS, {"content": BOS, "lstrip": False}])
def test_special_tokens_by_name(written: object) -> None:
    config = json.dumps({"bos_token": written, "eos_token": EOS, "pad_token": None}).encode()
    found = HuggingFaceTokenizer(TokenizerFile(CONTENT, config))
    assert found.special_tokens == {"ids": 2, "around_a_text": 1, "bos_token": BOS, "eos_token": EOS}
    assert HELLO.special_tokens == {"ids": 2, "around_a_text": 1}


def test_a_file_is_loaded_once_and_goes_to_another_process() -> None:
    file = TokenizerFile(CONTENT, b"{}")
    copy = pickle.loads(pickle.dumps(file))
    assert copy == file
    assert hugging_face_tokenizer(copy) is hugging_face_tokenizer(file)
    assert hugging_face_tokenizer(replace(file, model="other")) is not hugging_face_tokenizer(file)
    assert len(repr(file)) < 200


def words_without_others() -> bytes:
    made = Tokenizer(models.WordLevel({"hello": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return content_of(made)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is not JSON"),
        (b"once upon a time", "it is not JSON"),
        (CONTENT[:-20], "it is not JSON"),
        (b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02", "a SentencePiece model (tokenizer.model)?"),
        (b"[1]", "no tokenizer.json: there is no table"),
        (b'{"tokenizer_class": "LlamaTokenizer"}', "no tokenizer.json: there is no table"),
        (b'{"model": {"type": "Nonsense"}}', "does not read it: "),
        (content_of(Tokenizer(models.BPE())), "its vocabulary is empty"),
        (words_without_others(), "it does not encode every text: "),
    ],
    ids=["empty", "text", "cut", "sentencepiece", "list", "config", "model", "no ids", "no other words"],
)
def test_what_is_no_tokenizer(content: bytes, said: str) -> None:
    with pytest.raises(SuiteError) as caught:
        HuggingFaceTokenizer(TokenizerFile(content))
    assert said in str(caught.value)
    assert "give the tokenizer.json" in str(caught.value)


def test_special_tokens_alone_are_no_vocabulary() -> None:
    made = Tokenizer(models.BPE())
    made.add_special_tokens([BOS, EOS])
    with pytest.raises(SuiteError, match="empty, but for special tokens"):
        HuggingFaceTokenizer(TokenizerFile(content_of(made)))


@pytest.mark.parametrize("config", [b"{", b"[]", b"\xff"])
def test_all_that_is_wrong_is_told_at_once(config: bytes) -> None:
    with pytest.raises(SuiteError) as caught:
        HuggingFaceTokenizer(TokenizerFile(words_without_others(), config))
    assert "2 mistakes" in str(caught.value)
    assert "tokenizer_config.json beside it is no" in str(caught.value)
    assert "does not encode every text" in str(caught.value)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SuiteError, match=r"pip install 'pytest-llmbench\[hf\]'"):
        HuggingFaceTokenizer(TokenizerFile(CONTENT))


def test_a_vocabulary_of_another_size_is_another_tokenizer() -> None:
    assert small_tokenizer(vocabulary=258).count("hello") == 5  # bytes alone
    assert small_tokenizer(vocabulary=258).name != HELLO.name


def test_it_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    command = [sys.executable, "-c", OFFLINE, str(tmp_path / "tokenizer.json")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.strip() == "2"
