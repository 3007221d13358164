"""``file`` of ``[tokenizer]``: found beside the SUT file, turned into facts, all mistakes told at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_tokenizer import BOS, byte_level, content_of, sut_file

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.probes.disclosure import read_sut_file, read_tokenizer

MADE = byte_level()
CONTENT = content_of(MADE)


def mistakes_of(folder: Path, text: str) -> str:
    file = folder / "sut.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError) as caught:
        read_sut_file(file)
    return str(caught.value)


def test_the_file_states_the_facts_of_its_table(tmp_path: Path) -> None:
    file = read_sut_file(sut_file(tmp_path, MADE))
    assert file.tokenizer is not None
    assert file.tokenizer.count("hello hello") == 2
    size = MADE.get_vocab_size()
    facts = file.facts
    assert facts.value("tokenizer.vocab_size") == size
    assert facts.value("tokenizer.name") == file.tokenizer.name
    assert facts.value("tokenizer.version") == file.tokenizer.version
    assert facts.value("tokenizer.source") == file.tokenizer.source
    assert facts.value("tokenizer.sha256") == file.tokenizer.sha256
    assert facts.value("tokenizer.special.tokens") == {"ids": 2, "around_a_text": 1}
    assert facts["tokenizer.vocab_size"].origin is Origin.DETECTED
    assert facts["tokenizer.vocab_size"].source == str(tmp_path / "tokenizer.json")
    assert facts.value("tokenizer.counting_option") == "A"
    assert facts["tokenizer.counting_option"].origin is Origin.DECLARED
    assert facts.value("tokenizer.file") == "tokenizer.json"
    # What server counts include is nothing that the file knows.
    assert "tokenizer.special.bos_eos" not in facts


def test_what_is_declared_comes_over_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    (tmp_path / "sut.toml").write_text(
        '[tokenizer]\nfile = "tokenizer.json"\nname = "small"\ncounting_option = "B"\nreference = "small"\n'
    )
    facts = read_sut_file(tmp_path / "sut.toml").facts
    assert (facts.value("tokenizer.name"), facts.value("tokenizer.counting_option")) == ("small", "B")
    assert facts["tokenizer.name"].origin is Origin.DECLARED
    assert facts["tokenizer.sha256"].origin is Origin.DETECTED


def test_a_folder_with_the_names_of_special_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(CONTENT)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    for path in (folder, folder / "tokenizer.json"):
        assert read_tokenizer(path).special_tokens["bos_token"] == BOS


def test_a_file_in_the_hub_s_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--acme--small-7b" / "snapshots" / "0e9e39f2"
    folder.mkdir(parents=True)
    blob = tmp_path / "blob"
    blob.write_bytes(CONTENT)
    (folder / "tokenizer.json").symlink_to(blob)
    found = read_tokenizer(folder)
    assert (found.name, found.version) == ("acme/small-7b", "0e9e39f2")
    assert found.source.startswith("model-hub id acme/small-7b: ")


def test_all_mistakes_are_told_with_those_of_the_file(tmp_path: Path) -> None:
    told = mistakes_of(tmp_path, 'sut.prefix_caching = "on"\n[tokenizer]\nfile = "there/tokenizer.json"\n')
    assert "2 mistakes" in told
    assert 'sut.prefix_caching is "on"' in told
    assert f"tokenizer.file: {tmp_path / 'there' / 'tokenizer.json'}: cannot be read: No such file" in told
    assert "nothing is downloaded" in told


def test_contradictions_of_the_file_and_its_table(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    told = mistakes_of(
        tmp_path,
        '[tokenizer]\nfile = "tokenizer.json"\nvocab_size = 128256\ncounting_option = "B"\n'
        'reference = "cl100k_base"\n',
    )
    assert "2 mistakes" in told
    assert f"tokenizer.vocab_size is 128256, and tokenizer.file has {MADE.get_vocab_size()}" in told
    assert 'tokenizer.reference is "cl100k_base", and tokens are counted by tokenizer.file' in told


def test_the_right_size_is_no_contradiction(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    (tmp_path / "sut.toml").write_text(
        f'[tokenizer]\nfile = "tokenizer.json"\nvocab_size = {MADE.get_vocab_size()}\n'
    )
    facts = read_sut_file(tmp_path / "sut.toml").facts
    assert facts["tokenizer.vocab_size"].origin is Origin.DECLARED


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.model", b"\n\x0e\n\x05<unk>\x00", "SentencePiece"),
        ("tokenizer_config.json", b'{"bos_token": "<s>"}', "no tokenizer.json: there is no table"),
        ("vocab.json", b'{"hello": 0}', "no tokenizer.json: there is no table"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", "it is not JSON"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    (tmp_path / file).write_bytes(content)
    told = mistakes_of(tmp_path, f'[tokenizer]\nfile = "{file}"\n')
    assert str(tmp_path / file) in told
    assert said in told
    assert "give the tokenizer.json" in told


def test_a_folder_without_one(tmp_path: Path) -> None:
    told = mistakes_of(tmp_path, '[tokenizer]\nfile = "."\n')
    assert "tokenizer.json: cannot be read: No such file" in told


def test_a_path_that_is_no_text(tmp_path: Path) -> None:
    assert "tokenizer.file is 3: give text in quotes" in mistakes_of(tmp_path, "tokenizer.file = 3")
