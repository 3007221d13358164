"""How the workload is specified, seeded, published and counted (sections 4.3 to 4.4), and the five reference
workloads as the draft defines them (section 4.3.2 and appendix A).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_llmbench.compliance.checks.registry import (
    Checks,
    Predicate,
    capable,
    one_of,
    stated,
    stated_fields,
)
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.compliance.workload_evidence import (
    MOST_UNSTATED_CACHED,
    against_workload,
    alike_and_repeated,
    counted_wrongly,
    doubt_about,
    held_to_another_limit,
    own_input_cached,
    read_in_part,
    regenerated,
    sent_again,
    unverified,
)
from pytest_llmbench.metrics.server_side import by_server
from pytest_llmbench.model.draft import CONTEXT_OUTPUT_TOKENS, CONTEXTS, ZIPF_EXPONENT
from pytest_llmbench.model.facts import TokenizerFact, WorkloadFact
from pytest_llmbench.model.numbers import percentage
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import TOKEN_SOURCES, IntColumn
from pytest_llmbench.model.request import INPUT_FIELDS, LIVE_ANSWERS, OUTPUT_FIELDS, SAMPLING_FIELDS
from pytest_llmbench.workloads.adapted import told_of_cuts
from pytest_llmbench.workloads.lengths import CONTROLS, LENGTH_TYPES

check = Checks()

_LENGTH_FIELDS = ("type", "params", "unit", "tokenizer")


@check("O-4.3-custom-workload")
def custom_workload(view: EvidenceView) -> Answer:
    name = view.need(WorkloadFact.NAME)
    cuts = told_of_cuts(view.fact(WorkloadFact.CUTS))
    told = f": {cuts}, which are in no latency and no completion rate" if cuts else ""
    custom = view.need(WorkloadFact.STANDARD) is False
    return view.answer(custom, f"custom workload {name}{told}", f"{name} is not custom")


@check("M-4.3-custom-fully-specified")
def custom_fully_specified(view: EvidenceView) -> Answer:
    """Complete means that another tester could draw the same sequence."""
    for part in (input_length, output_length, content, prefix_sharing):
        answer = part(view)
        if not answer.met:
            return answer
    view.need_all(WorkloadFact.N_REQUESTS, WorkloadFact.SEED, WorkloadFact.TEMPERATURE, WorkloadFact.STOP)
    difference = against_workload(view, SAMPLING_FIELDS) or regenerated(view)
    return view.unless(difference, "completely specified and drawn again alike")


@check("M-4.3.1-input-length-spec")
def input_length(view: EvidenceView) -> Answer:
    kind, *_ = view.need_fields(WorkloadFact.INPUT_LENGTH, *_LENGTH_FIELDS)
    if kind not in LENGTH_TYPES:
        return view.unmet(f"input length {kind!r}, not {', '.join(LENGTH_TYPES)}")
    complaint = against_workload(view, INPUT_FIELDS) or read_in_part(view)
    return view.unless(complaint, f"input length {kind}")


@check("M-4.3.1-output-length-spec")
def output_length(view: EvidenceView) -> Answer:
    """The output length is as stated, and replies are held to it.

    No other limit stands in the request bodies, and none of the server's applies (AMB-33).
    """
    kind, *_, control = view.need_fields(WorkloadFact.OUTPUT_LENGTH, *_LENGTH_FIELDS, "control")
    if kind not in LENGTH_TYPES:
        return view.unmet(f"output length {kind!r}, not {', '.join(LENGTH_TYPES)}")
    if control not in CONTROLS:
        return view.unmet(f"output length controlled by {control!r}, not {', '.join(CONTROLS)}")
    complaint = against_workload(view, OUTPUT_FIELDS) or held_to_another_limit(view)
    return view.unless(complaint, f"output length {kind}, controlled by {control}")


@check("M-4.3.1-content-spec")
def content(view: EvidenceView) -> Answer:
    domain, language, present, tokens = view.need_fields(
        WorkloadFact.CONTENT, "domain", "language", "system_prompt.present", "system_prompt.typical_tokens"
    )
    prompt = f"with a system prompt of typically {tokens} tokens" if present else "without a system prompt"
    return view.met(f"domain is {domain}, language is {language}, {prompt}")


@check("M-4.3.1-prefix-sharing-spec")
def prefix_sharing(view: EvidenceView) -> Answer:
    """The fraction is stated, and a prefix cache finds no more alike than that and the data set explain."""
    fraction, _ = view.need_fields(WorkloadFact.PREFIX_SHARING, "fraction", "length")
    if not 0 <= fraction <= 1:
        return view.unmet(f"{fraction!r} is not a share")
    alike, repeated = alike_and_repeated(view)
    told = f"{percentage(fraction)} of the requests share a prefix"
    told += f", {percentage(alike)} of the entries of the data set begin like another one" if alike else ""
    told += f", {percentage(repeated)} of the requests send an entry of it again" if repeated else ""
    cached = own_input_cached(view) or 0.0
    found = cached > fraction + alike + repeated + MOST_UNSTATED_CACHED
    return view.answer(not found, told, f"{told}, and {percentage(cached)} of their tokens came from a cache")


def advised(workload: str) -> Predicate:
    """Met by the run of an advised workload, whose data set is the published one."""

    def predicate(view: EvidenceView) -> Answer:
        name = view.need(WorkloadFact.NAME)
        if name != workload:
            return view.unmet(f"the workload is {name}, the advised one is {workload}")
        doubt = unverified(view)
        return view.unless(doubt and f"not verified: {doubt}", f"the workload is {name}")

    return predicate


def _used(workload: str) -> Predicate:
    """Met when this run or another result of the same test on the same SUT uses ``workload`` (AMB-06)."""

    def predicate(view: EvidenceView) -> Answer:
        if view.need(WorkloadFact.NAME) == workload:
            return advised(workload)(view)
        published = view.evidence.published_digests
        others = [
            sibling.facts.value(WorkloadFact.NAME)
            for sibling in view.evidence.others(view.evidence.test)
            if doubt_about(sibling.facts, published) is None
        ]
        view.note("sibling_workloads", others)
        return view.answer(
            workload in others,
            f"another run of this test on this SUT uses {workload}",
            f"neither this run nor another of this test on this SUT uses {workload}",
        )

    return predicate


check("M-4.3.2.1-synthetic-uniform-for-engine")(_used("synthetic-uniform"))
check("S-4.3.2.3-conversation-for-gateway")(_used("conversation"))


@check("M-4.3.3-deterministic-seed")
def deterministic_seed(view: EvidenceView) -> Answer:
    seed = view.need(WorkloadFact.SEED)
    difference = regenerated(view)
    return view.unless(difference, f"seed {seed} gives the same sequence again")


check("M-4.3.3-seed-reported")(stated(WorkloadFact.SEED))


@check("S-4.3.3-publish-sequences")
def publish_sequences(view: EvidenceView) -> Answer:
    """The sequence is published with its seed, as files or by generator; a generator needs data that others
    can have."""
    published = view.need(WorkloadFact.PUBLISHED)
    doubt = unverified(view)
    if published == "generator" and doubt is not None:
        return view.unmet(f"nobody can generate the sequence again: {doubt}")
    if view.fact(WorkloadFact.ANSWERS) is not None:
        return view.unmet(f"nobody can generate the sequence again: {LIVE_ANSWERS}")
    view.need_all(WorkloadFact.SEED, WorkloadFact.SEQUENCE_SHA256)
    return view.answer(
        published in ("sequence", "generator"),
        f"published as {published}",
        f"workload.published is {published!r}, neither sequence nor generator",
    )


check("M-4.3.3-dataset-version")(stated_fields(WorkloadFact.DATASET, "name", "version", "file_sha256"))
check("M-4.3.3-dataset-subset")(stated_fields(WorkloadFact.DATASET, "subset_method"))


@check("M-4.3.3-dataset-preprocessing")
def dataset_preprocessing(view: EvidenceView) -> Answer:
    """An empty list states that there was none."""
    (steps,) = view.need_fields(WorkloadFact.DATASET, "preprocessing")
    return view.answer(
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

check("M-4.4.1-tokenizer-name-version")(stated(TokenizerFact.NAME, TokenizerFact.VERSION))
check("M-4.4.1-tokenizer-source")(stated(TokenizerFact.SOURCE))
check("M-4.4.3-bos-eos")(one_of(TokenizerFact.SPECIAL_BOS_EOS, "included", "excluded"))
check("M-4.4.3-system-prompt-tokens")(
    one_of(TokenizerFact.SPECIAL_SYSTEM_PROMPT, "separate", "included", "none")
)
check("M-4.4.3-tool-format-tokens")(
    one_of(TokenizerFact.SPECIAL_TOOL_FORMAT, "included", "excluded", "not_used")
)


@check("M-4.4.1-vocab-size")
def vocabulary_size(view: EvidenceView) -> Answer:
    """A positive number, and of a published vocabulary its own."""
    size, name = view.need(TokenizerFact.VOCAB_SIZE), view.fact(TokenizerFact.NAME, "")
    known = VOCABULARIES.get(name)
    if known is not None and size not in known:
        return view.unmet(f"{name} has {known[1]} ids, {size!r} are declared")
    return view.answer(size > 0, f"{size} ids", f"tokenizer.vocab_size is {size}, not a positive number")


@check("M-4.4.2-counting-option")
def counting_option(view: EvidenceView) -> Answer:
    """Declared always, not only where systems are compared (AMB-22), and what the counts come from."""
    option = view.need(TokenizerFact.COUNTING_OPTION)
    miscounted = counted_wrongly(view)
    if miscounted is not None:
        return view.unmet(miscounted)
    name, ours = view.fact(TokenizerFact.NAME), _counted_here(view, TokenSource.REFERENCE_TOKENIZER)
    if option == "B":
        reference = view.need(TokenizerFact.REFERENCE)
        counted = "the reference tokenizer here" if ours else f"the server, by {name}"
        if not ours and _counted_here(view, TokenSource.TOKENIZER_FILE):
            counted = f"the tokenizer's file here, of {name}"
        return view.answer(
            reference == (OURS if ours else name),
            f"option B, reference tokenizer {reference}",
            f"option B with {reference} is declared, the counts are those of {counted}",
        )
    if option == "A" and ours and name != OURS:
        return view.unmet(f"option A is declared, and the tokens were counted here by {OURS}, not by {name}")
    return view.answer(
        option == "A", "option A, the system's own tokenizer", f"option {option!r} is neither A nor B"
    )


def _counted_here(view: EvidenceView, source: TokenSource) -> bool:
    """Whether some replies were counted by us, with this tokenizer."""
    records = view.evidence.records
    return bool((records.token_source[records.ok] == TOKEN_SOURCES.index(source)).any())


SHARE_TOLERANCE = 0.02
"""Realised shares lie within two points of the named ones."""

_SHAREGPT = {"name": "ShareGPT", "subset": "vicuna_cleaned", "version": "2023-04-12"}
_REFERENCE_PERCENTILES = {"input": (156, 892, 2134), "output": (234, 789, 1567)}


check("P-A.1.4-generation-order")(
    capable("the order of the draft, proved by the digests of its sequences", "generation_order")
)


def _synthetic(input_bounds: tuple[int, int], output_bounds: tuple[int, int]) -> Predicate:
    """Met by the requests of a synthetic workload of the draft, with lengths in these bounds."""

    def predicate(view: EvidenceView) -> Answer:
        complaint = _outside(view, input_bounds, output_bounds) or _not_plain(view)
        complaint = complaint or regenerated(view, by_reference=True)
        return view.unless(complaint, "lengths, ids and settings are those of the draft")

    return predicate


check("P-A.1-synthetic-uniform-params")(_synthetic((128, 512), (64, 256)))
check("P-A.2-synthetic-skewed-params")(_synthetic((32, 4096), (16, 2048)))


def _first(complaints: Mapping[str, bool]) -> str | None:
    """The first of the complaints that holds; None where none does."""
    return next((text for text, holds in complaints.items() if holds), None)


def _planned(view: EvidenceView) -> tuple[IntColumn, IntColumn]:
    """Planned input and output lengths of every measured request."""
    records = view.records
    columns = {
        "record.requested_input_tokens": records.requested_input_tokens,
        "record.requested_max_tokens": records.requested_max_tokens,
    }
    missing = [name for name, column in columns.items() if not has(column).all()]
    if missing:
        raise NoEvidenceError(*missing)
    return records.requested_input_tokens, records.requested_max_tokens


def _outside(view: EvidenceView, input_bounds: tuple[int, int], output_bounds: tuple[int, int]) -> str | None:
    for side, lengths, (low, high) in zip(
        ("input", "output"), _planned(view), (input_bounds, output_bounds), strict=True
    ):
        view.note(f"planned_{side}_tokens", [int(lengths.min()), int(lengths.max())])
        if lengths.min() < low or lengths.max() > high:
            return (
                f"planned {side} lengths {lengths.min()} to {lengths.max()}, the draft says {low} to {high}"
            )
    return None


def _not_plain(view: EvidenceView) -> str | None:
    """Temperature 0, no stop sequences, no shared prefix, no system prompt."""
    temperature, stop = view.need_all(WorkloadFact.TEMPERATURE, WorkloadFact.STOP)
    (fraction,) = view.need_fields(WorkloadFact.PREFIX_SHARING, "fraction")
    (system_prompt,) = view.need_fields(WorkloadFact.CONTENT, "system_prompt.present")
    complaints = {
        f"temperature is {temperature!r}, not 0": temperature != 0,
        f"stop sequences {stop!r}": stop != [],
        f"prefix sharing {fraction!r}, not 0": fraction != 0,
        "there is a system prompt": system_prompt is not False,
    }
    found = _first(complaints)
    return found or against_workload(view, SAMPLING_FIELDS)


@check("P-A.3-conversation-params")
def conversation(view: EvidenceView) -> Answer:
    dataset = dict(zip(_SHAREGPT, view.need_fields(WorkloadFact.DATASET, *_SHAREGPT), strict=True))
    fraction, realised = view.need_fields(WorkloadFact.PREFIX_SHARING, "fraction", "realised_fraction")
    (tokens,) = view.need_fields(WorkloadFact.CONTENT, "system_prompt.typical_tokens")
    records = view.records
    for side, column in (("input", records.input_tokens), ("output", records.output_tokens)):
        known = column[has(column)]
        if len(known):
            view.note(f"{side}_tokens_p50_p95_p99", [float(p) for p in np.percentile(known, (50, 95, 99))])
            view.note(f"{side}_tokens_reference", list(_REFERENCE_PERCENTILES[side]))
    complaints = {
        f"dataset {dataset}, the draft says {_SHAREGPT}": dataset != _SHAREGPT,
        f"{fraction!r} of the requests share the system prompt, not 0.5": fraction != 0.5,
        f"the realised share is {percentage(realised)}": abs(realised - 0.5) > SHARE_TOLERANCE,
        f"the system prompt has {tokens} tokens, not 200": tokens != 200,
    }
    complaint = _first(complaints)
    complaint = complaint or sent_again(view) or against_workload(view, SAMPLING_FIELDS)
    return view.unless(complaint, "dataset, sharing and system prompt are those of the draft")


@check("P-A.4-code-completion-params")
def code_completion(view: EvidenceView) -> Answer:
    contexts, realised, by_rank = view.need_fields(
        WorkloadFact.PREFIX_SHARING, "contexts", "realised_fraction", "realised_by_rank"
    )
    law, parameters = view.need_fields(WorkloadFact.OUTPUT_LENGTH, "type", "params")
    complaints = {
        f"{len(contexts)} repository contexts, not {CONTEXTS}": len(contexts) != CONTEXTS,
        "a repository context is not 512 to 1024 tokens long": not all(512 <= n <= 1024 for n in contexts),
        f"the realised share is {percentage(realised)}, not 80 %": abs(realised - 0.8) > SHARE_TOLERANCE,
        f"context frequencies {by_rank} do not follow the draft's Zipf law": not _is_zipf(by_rank),
        f"output {law} {parameters}": law != "lognormal"
        or (parameters.get("mu"), parameters.get("sigma")) != (4.0, 1.5),
    }
    complaint = _first(complaints)
    complaint = complaint or sent_again(view) or against_workload(view, SAMPLING_FIELDS)
    return view.unless(complaint, "contexts, sharing and output law are those of the draft")


def _is_zipf(by_rank: list[int]) -> bool:
    """Frequencies against 1/k^1.5 normalised: none farther off than five standard deviations of its count."""
    if len(by_rank) != CONTEXTS or sum(by_rank) == 0:
        return False
    total = sum(by_rank)
    weights = np.arange(1, CONTEXTS + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    share = weights / weights.sum()
    spread = np.sqrt(total * share * (1 - share))
    return bool(np.all(np.abs(np.asarray(by_rank) - total * share) <= 5 * spread))


@check("P-A.5-long-context-params")
def long_context(view: EvidenceView) -> Answer:
    """Lengths are those asked for in the tokenizer of the workload: the template and the vocabulary of the
    server make others of them, unless its own count was asked for."""
    _, limit = _planned(view)
    (question_tokens,) = view.need_fields(WorkloadFact.CONTENT, "question_tokens")
    (fraction,) = view.need_fields(WorkloadFact.PREFIX_SHARING, "fraction")
    missed = 0
    for run in view.evidence.runs:
        if run.plan.workload.specification()["input_length"].get("exact") is True:
            records, target = run.records, run.records.requested_input_tokens
            # Off by more than 1 % (of short ones, 16 tokens). Who counted a reply counted its prompt.
            off = np.abs(records.input_tokens - target) > np.maximum(16, target // 100)
            missed += int((off & by_server(records) & has(records.input_tokens)).sum())
    complaints = {
        f"{missed} prompts miss the exact requested length": missed > 0,
        f"the question has {question_tokens} tokens, not about 100": not 90 <= question_tokens <= 110,
        f"output limits other than {CONTEXT_OUTPUT_TOKENS}": bool((limit != CONTEXT_OUTPUT_TOKENS).any()),
        "documents share a prefix": fraction != 0,
    }
    complaint = _first(complaints)
    complaint = complaint or against_workload(view, SAMPLING_FIELDS)
    return view.unless(complaint, "document, question and output are those of the draft")
