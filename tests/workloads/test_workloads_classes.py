"""Synthetic-Skewed with its pinned digests, and the request classes of the fairness test made from it."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from statistics import NormalDist

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.workloads.catalogue import reference_variant, workload
from pytest_llmbench.workloads.lengths import LogNormal, check_specification
from pytest_llmbench.workloads.mixture import LONG, SHORT, ClassMix, RequestClass
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SYNTHETIC_UNIFORM, SyntheticWorkload

PINNED = {
    10: "9ffbad5ad6d366261fdcf71a5686f7fb1996c4202f64f0f07e4e83f4e6908da7",
    1000: "9f6d9b1acd146e6f7bb7d8817d4719152ebea24c5ef6445e3af3413918487aee",
}


@pytest.mark.parametrize("count", PINNED)
def test_synthetic_skewed_has_the_pinned_digests(count):
    assert sequence_sha256(SYNTHETIC_SKEWED.requests(count, 42)) == PINNED[count]


def test_first_pairs_of_synthetic_skewed():
    pairs = [(r.input_tokens, r.max_tokens) for r in SYNTHETIC_SKEWED.requests(5, 42)]
    assert pairs == [(313, 50), (237, 73), (1052, 156), (299, 25), (318, 2048)]


def test_only_the_reference_parameters_are_synthetic_skewed():
    assert SYNTHETIC_SKEWED.standard
    assert check_specification(SYNTHETIC_SKEWED) == []
    laws = SYNTHETIC_SKEWED.input_tokens, SYNTHETIC_SKEWED.output_tokens
    assert not SyntheticWorkload("mine", *laws).standard
    with pytest.raises(SuiteError, match="belongs to a reference workload"):
        SyntheticWorkload("synthetic-skewed", LogNormal(5.5, 1.0, 32, 4095), laws[1])
    with pytest.raises(SuiteError, match="belongs to a reference workload"):
        SyntheticWorkload("synthetic-skewed", *laws, temperature=0.5)


def by_the_decision(count, seed, classes):
    """AMB-07 word for word, with nothing but Python's generator."""
    generator = random.Random(seed)

    def inside(mu, sigma, low, high, wanted):
        while True:
            tokens = max(low, min(high, round(generator.lognormvariate(mu, sigma))))
            if wanted[0] <= tokens <= wanted[1]:
                return tokens

    sequence = []
    for _ in range(count):
        point, total = generator.random(), 0.0
        for picked in classes:
            total += picked.share
            if point < total:
                break
        length = inside(5.5, 1.0, 32, 4096, picked.input)
        limit = inside(4.5, 1.2, 16, 2048, picked.output)
        sequence.append([limit, [generator.randint(0, 100_255) for _ in range(length)]])
    return sequence


@pytest.mark.parametrize("classes", [(SHORT, LONG), (LONG, SHORT)])
def test_classes_are_drawn_in_the_decided_order(classes):
    mix = ClassMix(classes)
    assert json.loads(sequence_json(mix.requests(60, 7))) == by_the_decision(60, 7, classes)


def test_every_request_lies_in_the_ranges_of_its_class():
    requests = ClassMix().requests(2000, 5)
    counts = Counter(request.class_label for request in requests)
    assert set(counts) == {"short", "long"}
    assert abs(counts["short"] / 2000 - 0.8) < 0.045
    for request in requests:
        declared = {"short": SHORT, "long": LONG}[request.class_label]
        assert declared.input[0] <= request.input_tokens == len(request.token_ids) <= declared.input[1]
        assert declared.output[0] <= request.max_tokens <= declared.output[1]


def test_mean_tokens_are_those_that_are_drawn():
    mix = ClassMix()
    for name in ("short", "long"):
        alone = mix.isolated(name)
        requests = alone.requests(1500, 3)
        assert {request.class_label for request in requests} == {name}
        mean = sum(request.input_tokens + request.max_tokens for request in requests) / 1500
        assert mean == pytest.approx(mix.mean_tokens(name), rel=0.03)
        assert alone.mean_tokens() == pytest.approx(mix.mean_tokens(name))
    assert mix.mean_tokens() == pytest.approx(0.8 * mix.mean_tokens("short") + 0.2 * mix.mean_tokens("long"))
    assert mix.mean_tokens("short") == pytest.approx(
        mean_by_summing(NormalDist(5.5, 1.0), SHORT.input)
        + mean_by_summing(NormalDist(4.5, 1.2), SHORT.output)
    )


def mean_by_summing(law, wanted):
    """Σ k·P(k) / Σ P(k), where P(k) is the chance that exp of a normal is rounded to k."""
    chances = {
        k: law.cdf(math.log(k + 0.5)) - law.cdf(math.log(k - 0.5)) for k in range(wanted[0], wanted[1] + 1)
    }
    return sum(k * chance for k, chance in chances.items()) / sum(chances.values())


def test_a_mix_keeps_the_standing_of_its_base_and_states_its_classes():
    mix = ClassMix()
    assert (mix.name, mix.standard) == ("synthetic-skewed", True)
    assert check_specification(mix) == []
    assert workload(mix) is mix
    stated = mix.specification()["classes"]
    assert stated[0] == {"name": "short", "input": [64, 256], "output": [32, 128], "share": 0.8}
    assert mix.isolated("long").specification() != mix.specification()
    custom = ClassMix(base=SyntheticWorkload("mine", SYNTHETIC_SKEWED.input_tokens, LONG_OUTPUT))
    assert not custom.standard
    assert ClassMix() == mix
    assert hash(ClassMix()) == hash(mix)


LONG_OUTPUT = LogNormal(5, 1, 16, 2048)


def test_a_mix_can_be_made_anew_from_its_specification():
    for mix in (ClassMix(), ClassMix().isolated("long"), ClassMix((LONG, SHORT))):
        stored = json.loads(json.dumps(mix.specification()))
        assert reference_variant("synthetic-skewed", stored) == mix
    stored["classes"][0]["share"] = 0.9
    assert reference_variant("synthetic-skewed", stored) is None


def test_mistakes_are_listed_together():
    with pytest.raises(SuiteError, match="3 mistakes") as caught:
        ClassMix((RequestClass("a", (1, 8), (20, 30), 0.5), RequestClass("a", (64, 99), (20, 30), -0.5)))
    assert "out of reach" in str(caught.value)
    assert "a different name" in str(caught.value)
    with pytest.raises(SuiteError, match="do not add up to 1"):
        ClassMix((SHORT,))
    with pytest.raises(SuiteError, match="at least one"):
        ClassMix(())
    with pytest.raises(SuiteError, match="there are: short, long"):
        ClassMix().isolated("medium")
    with pytest.raises(SuiteError, match="out of reach"):
        ClassMix(base=SYNTHETIC_UNIFORM)
