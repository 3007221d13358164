"""How replies came: whether their chunks came one at a time, whether the server counted all tokens, whether
they are as long as the workload asks for, and whether all are of the model that was asked for.

Counts of output tokens that cannot be are none: a procedure does not see them. So whatever is per token
(TPOT, token rates, goodput under a limit on TPOT, the cells of every table) is undefined and not wrong by as
much as the count is. The result has the observations as they came, which the audit judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_llmbench.methodology.procedure import Procedure, Setting, relayed
from pytest_llmbench.metrics.chunking import Runs, gathered_share
from pytest_llmbench.metrics.itl import ITL, TBC, choose_option
from pytest_llmbench.metrics.server_side import BY_SERVER, cut_short, miscount
from pytest_llmbench.model.estimate import COUNTED_BY, ITL_METHOD
from pytest_llmbench.model.facts import Facts, TokenizerFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import KNOWN_FINISH, Phase, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.reply_checks import CUT, NO_ANSWER, SCORER_FAILED, check_of
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note

MOST_GATHERED = 0.5
"""The share of chunks sent together with an earlier one beyond which that is how streams come, rather than
what happens now and then."""
_COUNTS = {
    TokenSource.SERVER_USAGE: "the server",
    TokenSource.CHUNK_USAGE: "the server",
    TokenSource.REFERENCE_TOKENIZER: "the reference tokenizer",
    TokenSource.CHUNK_COUNT: "chunks with text",
    TokenSource.TOKENIZER_FILE: "a tokenizer file",
}
MOST_UNCOUNTED = 0.01
"""The share of replies without a count of the server, beside others that have one, that is an exception."""
LEAST_OF_ASKED = 0.5
"""The smallest output length, as a share of the one asked for, that is no warning."""
MOST_UNSCORED = 0.1
"""The share of questions that came to nothing for a reason beside the model, beyond which that is told."""
_SHOWN = 4
"""Names of models that are shown."""


def gathered(records: Runs) -> Finding | None:
    """The finding on chunks that are sent several at a time; None where most come alone."""
    share = gathered_share(records)
    if share is None or share <= MOST_GATHERED:
        return None
    return Finding.of("gathered_chunks", value=share, limit=MOST_GATHERED)


def ended_early(seen: Sequence[Observation]) -> Finding | None:
    """The finding on replies that the model ended long before the length that the workload asks for; None
    where they are half as long at least. Not of data sets, whose lengths are ceilings, and of replies that
    end when their structure does, or their answer is given."""
    asked = got = n = 0
    for run in seen:
        if run.plan.ignore_eos or run.plan.workload.specification().get("dataset") is not None:
            continue
        records = run.records
        known = records.ok & np.isin(records.token_source, BY_SERVER)
        known &= (records.requested_max_tokens > 0) & (records.output_tokens != MISSING)
        known &= ~cut_short(records)
        free = zip(records.schema_check, records.answer_check, strict=True)
        known &= np.array([structure is None and answer is None for structure, answer in free], dtype=bool)
        asked += int(records.requested_max_tokens[known].sum())
        got += int(records.output_tokens[known].sum())
        n += int(known.sum())
    if not n or got >= LEAST_OF_ASKED * asked:
        return None
    return Finding.of("ended_early", value=got / asked, limit=LEAST_OF_ASKED, got=got / n, asked=asked / n)


def counted_differently(records: Records) -> Finding | None:
    """The finding on replies without the server's count of output tokens: all of them, if not by a file of
    its own tokenizer, or more than a few beside others that have one."""
    total = int(records.ok.sum())
    other = total - int((records.ok & np.isin(records.token_source, BY_SERVER)).sum())
    if other == total:
        counts = np.bincount(records.token_source[records.ok], minlength=len(TOKEN_SOURCES))
        by_text, by_chunks = (
            int(counts[TOKEN_SOURCES.index(source)])
            for source in (TokenSource.REFERENCE_TOKENIZER, TokenSource.CHUNK_COUNT)
        )
        return Finding.of("server_counts", by_text=by_text > 0) if by_text + by_chunks else None
    if other <= MOST_UNCOUNTED * total:
        return None
    share, counted = other / total, total - other
    return Finding.of(
        "counted_differently", value=share, limit=MOST_UNCOUNTED, counted=counted, replies=total
    )


def contradicted_counts(records: Records) -> Finding | None:
    """The finding on token counts of the server that its own replies contradict; None where there are
    none."""
    told = [text for text in np.asarray(records.contradiction, dtype=object)[records.ok] if text]
    if not told:
        return None
    total = int(records.ok.sum())
    wrong = len(told)
    return Finding.of(
        "contradicted_counts", value=wrong / total, limit=0.0, wrong=wrong, replies=total, example=told[0]
    )


def unknown_finish(records: Records) -> Finding | None:
    """The finding on replies that end with a word that is not known, taken as a normal end; None where there
    are none."""
    every = np.asarray(records.finish_reason, dtype=object)[records.ok]
    told = Counter(word for word in every.tolist() if word is not None and word not in KNOWN_FINISH)
    if not told:
        return None
    words = tuple(Note.of("counted", name=repr(word), count=n) for word, n in told.most_common(_SHOWN))
    return Finding.of("unknown_finish", value=told.total() / len(every), limit=0.0, words=words)


def answers_unscored(records: Records) -> Finding | None:
    """The finding on replies to questions that say less of the model than of how it was asked: the scorer
    failed, finds no answer in many of them, or many were cut. None where there are none."""
    if all(each is None for each in records.answer_check):
        return None
    from pytest_llmbench.metrics.ratios import checks  # few loads ask questions

    told = [each for run in checks([records]) for each in run]
    found = Counter(map(check_of, told))
    if found[SCORER_FAILED]:
        example = next(each for each in told if check_of(each) == SCORER_FAILED).partition(": ")[2]
        return Finding.of(
            "scorer_failed", value=found[SCORER_FAILED], limit=0, questions=len(told), example=example
        )
    for check, name in ((NO_ANSWER, "no_answer"), (CUT, "answers_cut")):
        if found[check] > MOST_UNSCORED * len(told):
            return Finding.of(name, value=found[check] / len(told), limit=MOST_UNSCORED)
    return None


def other_models(seen: Sequence[Observation]) -> Finding | None:
    """The finding on replies that name another model than the one asked for; None where there is none. A
    warning where they name several, as those of one that was asked for and of one that stood in for it."""
    counts: dict[str, Counter[str | None]] = {}
    for run in seen:
        named = np.asarray(run.records.answered_by, dtype=object)[run.records.ok]
        counts.setdefault(run.plan.variant, Counter()).update(named.tolist())
    other = sum(count.total() - count[None] for count in counts.values())
    if not other:
        return None
    mixed = [count for count in counts.values() if len(+count) > 1]
    worst = max(mixed or counts.values(), key=lambda count: count.total() - count[None])
    models = tuple(Note.of("counted", name=name or None, count=n) for name, n in worst.most_common(_SHOWN))
    total = worst.total()
    share, further = (total - worst[None]) / total, len(worst) > _SHOWN
    if mixed:
        return Finding.of("other_models.mixed", value=share, limit=0.0, models=models, further=further)
    return Finding.of("other_models", True, share, models=models, further=further)


def how_made(seen: Sequence[Observation], facts: Facts, option: str | None = None) -> dict[str, str]:
    """How the metrics of some runs were made, as only their records tell: :data:`ITL_METHOD` and
    :data:`COUNTED_BY`. One that is not known is missing. ``option``: of the time between tokens, if the test
    chose it."""
    runs = [run.records for run in seen if run.plan.phase is Phase.MEASURE]
    counts = np.zeros(len(TOKEN_SOURCES), dtype=np.int64)
    for run in runs:
        counts += np.bincount(run.token_source[run.ok], minlength=len(TOKEN_SOURCES))
    # A few replies without usage do not make other figures.
    usual = [TOKEN_SOURCES[at] for at in np.flatnonzero(counts > MOST_UNCOUNTED * counts.sum())]
    counted = " and ".join(dict.fromkeys(_COUNTS[source] for source in usual if source in _COUNTS))
    if usual == [TokenSource.TOKENIZER_FILE]:
        counted = f"tokenizer {facts.value(TokenizerFact.NAME)}"
    streams = [run for run in runs if run.ok.any() and len(run.chunk_ns)]
    options = [option] if option else sorted({choose_option(run) for run in streams})
    timed = " and ".join(f"{TBC if each == 'A' else ITL}, method {each}" for each in options)
    return {name: text for name, text in ((COUNTED_BY, counted), (ITL_METHOD, timed)) if text}


Test = Callable[[Any, Setting], Procedure[TestResult]]


def as_believed(procedure: Test) -> Test:
    """The procedure, shown the measured loads without the counts of output tokens that cannot be."""

    def shown(parameters: Any, setting: Setting) -> Procedure[TestResult]:
        # Identity of records without counts → these, those that came, and why they are not believed.
        hidden: dict[int, tuple[Records, Records, str]] = {}

        def seen(run: Observation) -> Observation:
            found = miscount([run], setting.facts) if run.plan.phase is Phase.MEASURE else None
            if found is None:
                return run
            bare = run.records.without_output_counts()
            hidden[id(bare)] = bare, run.records, found.why
            return replace(run, records=bare)

        result = yield from relayed(procedure(parameters, setting), seen=seen)
        told = [hidden.get(id(run.records)) for run in result.observations]
        came = (
            run if known is None else replace(run, records=known[1])
            for run, known in zip(result.observations, told, strict=True)
        )
        whys = dict.fromkeys(known[2] for known in told if known is not None)
        notes = (Note.of("no_figure_per_token", why=why) for why in whys)
        return replace(result, observations=tuple(came), notes=(*result.notes, *notes)) if whys else result

    return shown
