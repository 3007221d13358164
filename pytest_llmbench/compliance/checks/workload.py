"""How the workload is specified, seeded, published and counted (sections 4.3 to 4.4)."""

from __future__ import annotations

import re

from pytest_llmbench.compliance.checks.registry import Checks, Predicate, one_of, stated
from pytest_llmbench.compliance.dataset_identity import doubt_about, unverified
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView
from pytest_llmbench.compliance.regeneration import regenerated
from pytest_llmbench.compliance.request_bodies import against_workload, held_to_another_limit
from pytest_llmbench.model.outcome import TokenSource
from pytest_llmbench.model.records import TOKEN_SOURCES
from pytest_llmbench.model.request_fields import INPUT_FIELDS, OUTPUT_FIELDS, SAMPLING_FIELDS
from pytest_llmbench.workloads.specification import CONTROLS, LENGTH_TYPES

check = Checks()

_LENGTH_FIELDS = ("type", "params", "unit", "tokenizer")


@check("O-4.3-custom-workload")
def custom_workload(look: EvidenceView) -> Answer:
    name = look.need("workload.name")
    return look.answer(
        look.need("workload.standard") is False, f"custom workload {name}", f"{name} is not custom"
    )


@check("M-4.3-custom-fully-specified")
def custom_fully_specified(look: EvidenceView) -> Answer:
    """Complete means that another tester could draw the same sequence."""
    for part in (input_length, output_length, content, prefix_sharing):
        answer = part(look)
        if not answer.met:
            return answer
    look.need_all("workload.n_requests", "workload.seed", "workload.temperature", "workload.stop")
    difference = against_workload(look, SAMPLING_FIELDS) or regenerated(look)
    return look.answer(difference is None, "completely specified and drawn again alike", difference or "")


@check("M-4.3.1-input-length-spec")
def input_length(look: EvidenceView) -> Answer:
    kind, *_ = look.need_fields("workload.input_length", *_LENGTH_FIELDS)
    if kind not in LENGTH_TYPES:
        return look.unmet(f"input length {kind!r}, not {', '.join(LENGTH_TYPES)}")
    complaint = against_workload(look, INPUT_FIELDS)
    return look.answer(complaint is None, f"input length {kind}", complaint or "")


@check("M-4.3.1-output-length-spec")
def output_length(look: EvidenceView) -> Answer:
    """As stated, and held to it: no other limit in the request bodies, and none of the server's (AMB-33)."""
    kind, *_, control = look.need_fields("workload.output_length", *_LENGTH_FIELDS, "control")
    if kind not in LENGTH_TYPES:
        return look.unmet(f"output length {kind!r}, not {', '.join(LENGTH_TYPES)}")
    if control not in CONTROLS:
        return look.unmet(f"output length controlled by {control!r}, not {', '.join(CONTROLS)}")
    complaint = against_workload(look, OUTPUT_FIELDS) or held_to_another_limit(look)
    return look.answer(complaint is None, f"output length {kind}, controlled by {control}", complaint or "")


@check("M-4.3.1-content-spec")
def content(look: EvidenceView) -> Answer:
    domain, language, *_ = look.need_fields(
        "workload.content", "domain", "language", "system_prompt.present", "system_prompt.typical_tokens"
    )
    return look.met(f"content: {domain}, language: {language}")


@check("M-4.3.1-prefix-sharing-spec")
def prefix_sharing(look: EvidenceView) -> Answer:
    fraction, _ = look.need_fields("workload.prefix_sharing", "fraction", "length")
    return look.answer(
        0 <= fraction <= 1, f"{fraction:g} of the requests share a prefix", f"{fraction!r} is not a share"
    )


def advised(workload: str) -> Predicate:
    """Met by the run of an advised workload, whose data set is the published one."""

    def predicate(look: EvidenceView) -> Answer:
        name = look.need("workload.name")
        if name != workload:
            return look.unmet(f"the workload is {name}, the advised one is {workload}")
        doubt = unverified(look)
        return look.answer(doubt is None, f"the workload is {name}", f"not verified: {doubt}")

    return predicate


def _uses(look: EvidenceView, workload: str) -> Answer:
    """This run or a sibling of the same test on the same SUT uses ``workload`` (AMB-06)."""
    if look.need("workload.name") == workload:
        return advised(workload)(look)
    published = look.evidence.published_digests
    others = [
        sibling.facts.value("workload.name")
        for sibling in look.evidence.others(look.evidence.test)
        if doubt_about(sibling.facts, published) is None
    ]
    look.note("sibling_workloads", others)
    return look.answer(
        workload in others,
        f"another run of this test on this SUT uses {workload}",
        f"neither this run nor another of this test on this SUT uses {workload}",
    )


@check("M-4.3.2.1-synthetic-uniform-for-engine")
def synthetic_uniform_for_engine(look: EvidenceView) -> Answer:
    return _uses(look, "synthetic-uniform")


@check("S-4.3.2.3-conversation-for-gateway")
def conversation_for_gateway(look: EvidenceView) -> Answer:
    return _uses(look, "conversation")


@check("M-4.3.3-deterministic-seed")
def deterministic_seed(look: EvidenceView) -> Answer:
    seed = look.need("workload.seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        return look.unmet(f"workload.seed is {seed!r}, not an integer")
    difference = regenerated(look)
    return look.answer(difference is None, f"seed {seed} gives the same sequence again", difference or "")


@check("M-4.3.3-seed-reported")
def seed_reported(look: EvidenceView) -> Answer:
    seed = look.need("workload.seed")
    shown = re.search(rf"(?<![\d.]){re.escape(str(seed))}(?![\d.])", look.configuration("Workload"))
    return look.answer(
        shown is not None, f"the report shows seed {seed}", f"the report does not show seed {seed}"
    )


@check("S-4.3.3-publish-sequences")
def publish_sequences(look: EvidenceView) -> Answer:
    """With the seed, and as files or by generator; a generator needs data that others can have."""
    published = look.need("workload.published")
    doubt = unverified(look)
    if published == "generator" and doubt is not None:
        return look.unmet(f"nobody can generate the sequence again: {doubt}")
    look.need_all("workload.seed", "workload.sequence_sha256")
    return look.answer(
        published in ("sequence", "generator"),
        f"published as {published}",
        f"workload.published is {published!r}, neither sequence nor generator",
    )


@check("M-4.3.3-dataset-version")
def dataset_version(look: EvidenceView) -> Answer:
    name, version, _ = look.need_fields("workload.dataset", "name", "version", "file_sha256")
    return look.met(f"{name}, version {version}")


@check("M-4.3.3-dataset-subset")
def dataset_subset(look: EvidenceView) -> Answer:
    (method,) = look.need_fields("workload.dataset", "subset_method")
    return look.met(f"subset: {method}")


@check("M-4.3.3-dataset-preprocessing")
def dataset_preprocessing(look: EvidenceView) -> Answer:
    """An empty list states that there was none."""
    (steps,) = look.need_fields("workload.dataset", "preprocessing")
    return look.answer(
        isinstance(steps, list),
        f"{len(steps)} preprocessing steps",
        f"preprocessing is {steps!r}, not a list",
    )


VOCABULARIES = {
    "cl100k_base": (100_256, 100_277),
    "o200k_base": (199_998, 200_019),
    "p50k_base": (50_280, 50_281),
    "r50k_base": (50_256, 50_257),
}
"""Published vocabularies: name → ids without and with special tokens."""
OURS = "cl100k_base"
"""What the project's own reference tokenizer counts by."""
_REFERENCE = TOKEN_SOURCES.index(TokenSource.REFERENCE_TOKENIZER)

check("M-4.4.1-tokenizer-name-version")(stated("tokenizer.name", "tokenizer.version"))
check("M-4.4.1-tokenizer-source")(stated("tokenizer.source"))
check("M-4.4.3-bos-eos")(one_of("tokenizer.special.bos_eos", "included", "excluded"))
check("M-4.4.3-system-prompt-tokens")(
    one_of("tokenizer.special.system_prompt", "separate", "included", "none")
)
check("M-4.4.3-tool-format-tokens")(
    one_of("tokenizer.special.tool_format", "included", "excluded", "not_used")
)


@check("M-4.4.1-vocab-size")
def vocabulary_size(look: EvidenceView) -> Answer:
    """A positive number, and of a published vocabulary its own."""
    size, known = look.need("tokenizer.vocab_size"), VOCABULARIES.get(look.fact("tokenizer.name"))
    if known is not None and size not in known:
        return look.unmet(f"{look.fact('tokenizer.name')} has {known[1]} ids, {size!r} are declared")
    return look.answer(
        isinstance(size, int) and not isinstance(size, bool) and size > 0,
        f"{size} ids",
        f"tokenizer.vocab_size is {size!r}, not a positive number",
    )


@check("M-4.4.2-counting-option")
def counting_option(look: EvidenceView) -> Answer:
    """Declared always, not only where systems are compared (AMB-22), and what the counts come from."""
    option = look.need("tokenizer.counting_option")
    name, ours = look.fact("tokenizer.name"), _counted_here(look)
    if option == "B":
        reference = look.need("tokenizer.reference")
        counted = "the reference tokenizer here" if ours else f"the server, by {name}"
        return look.answer(
            reference == (OURS if ours else name),
            f"option B, reference tokenizer {reference}",
            f"option B with {reference} is declared, the counts are those of {counted}",
        )
    if option == "A" and ours and name != OURS:
        return look.unmet(f"option A is declared, and the tokens were counted here by {OURS}, not by {name}")
    return look.answer(
        option == "A", "option A, the system's own tokenizer", f"option {option!r} is neither A nor B"
    )


def _counted_here(look: EvidenceView) -> bool:
    """Whether some replies were counted by the project's own tokenizer."""
    records = look.evidence.records
    return bool((records.token_source[records.ok] == _REFERENCE).any())
