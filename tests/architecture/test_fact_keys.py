"""The vocabulary of the manifest: one module holds the keys, all else reads and writes facts by them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from pytest_llmbench.model import facts
from pytest_llmbench.model.facts import Key, SUTFact, WorkloadFact

PACKAGE = Path(facts.__file__).parents[1]
SPELLED = re.compile(r"(?<!where=)[\"']([a-z_]+(?:\.[a-z0-9_]+)*)[\"']")
NAMED = re.compile(r"\b(\w+Fact\.[A-Z_0-9]+|COLD_START|PRODUCTION_SAMPLE_CHECK)\b")


def keys_by_name() -> dict[str, Key[object]]:
    groups = {name: group for name, group in vars(facts).items() if name.endswith("Fact")}
    found = {f"{name}.{own}": key for name, group in groups.items() for own, key in vars(group).items()}
    return {name: key for name, key in (found | vars(facts)).items() if isinstance(key, Key)}


KEYS = keys_by_name()
TEXTS = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("facts", "hookspecs")  # the latter shows authors a text
}


def test_no_key_is_spelled_out_elsewhere() -> None:
    spelled = {(path, text) for path, code in TEXTS.items() for text in SPELLED.findall(code)}
    assert sorted(found for found in spelled if found[1] in set(KEYS.values())) == []


def test_every_key_is_in_use_and_is_one_fact() -> None:
    grouped = {"GuardrailFact.INPUT_FILTER", "GuardrailFact.OUTPUT_FILTER", "SUTFact.ACCELERATOR_MEMORY_GIB"}
    within = set(NAMED.findall("\n".join(TEXTS.values()))) | grouped  # FILTERS, ACCELERATORS
    assert sorted(KEYS.keys() - within) == []
    assert len(set(KEYS.values())) == len(KEYS)


def test_constants_are_named_by_their_keys() -> None:
    assert [name for name, key in KEYS.items() if not re.search(own_words(name), key)] == []


def own_words(name: str) -> str:
    return name.rpartition(".")[2].lower().replace("_", "[._]") + "$"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (WorkloadFact.SEED, (0, -1, 2**40), (True, 1.0, "1", [1])),
        (WorkloadFact.TEMPERATURE, (0, 0.7), (False, "0", {})),
        (WorkloadFact.STANDARD, (True, False), (1, "true")),
        (WorkloadFact.STOP, ([], ["a"], ("a",)), ("a", {}, True)),
        (WorkloadFact.CONTENT, ({}, {"domain": "x"}), ([], "x")),
        (WorkloadFact.NAME, ("", "x"), (1, ["x"], True)),
    ],
)
def test_values_of_another_type_are_known(
    key: Key[object], good: tuple[object, ...], bad: tuple[object, ...]
) -> None:
    assert [value for value in good if not key.admits(value)] == []
    assert [value for value in bad if key.admits(value)] == []


def test_a_key_is_a_plain_text_elsewhere() -> None:
    copied = pickle.loads(pickle.dumps({SUTFact.BOUNDARY: 1}))
    assert copied == {"sut.boundary": 1}
    assert {type(key) for key in copied} == {str}
