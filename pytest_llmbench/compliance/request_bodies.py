"""What requests asked for beyond their workload, and where a reply was held to another limit (AMB-33)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from pytest_llmbench.compliance.evidence_view import EvidenceView
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import LENGTH_FINISH, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, BoolColumn, Records
from pytest_llmbench.model.request_fields import meaning, present

MOST_CUT_SHORT = 0.01
"""Share of the replies of a run that may end at a limit below the one that was asked for."""
_LIMIT_TOLERANCE, _FEWEST_TOKENS_SHORT = 0.02, 2
_COUNTED_BY_SERVER = (
    TOKEN_SOURCES.index(TokenSource.SERVER_USAGE),
    TOKEN_SOURCES.index(TokenSource.CHUNK_USAGE),
)


def further_fields(view: EvidenceView, run: Observation) -> Mapping[str, Any]:
    """The fields that every request of the run had beside those of its workload."""
    own: Mapping[str, Any] | None = run.facts.value("request.variant_body")
    whole: Mapping[str, Any] = view.fact("request.extra_body", {})
    return whole if own is None else own


def against_workload(view: EvidenceView, names: Collection[str]) -> str | None:
    """A further field among ``names``, which the workload does not know of; None for none."""
    found = present(view.fact("request.extra_body", {}), names)
    found += [name for run in view.evidence.runs for name in present(further_fields(view, run), names)]
    unsent = [name for name in view.fact("request.unsent", ()) if name in names]
    if unsent:
        return f"requests do not tell the server what the workload states: {', '.join(unsent)}"
    if not found:
        return None
    return f"request bodies had fields that the workload does not state: {', '.join(dict.fromkeys(found))}"


def bodies_differ(view: EvidenceView, one: Observation, other: Observation) -> str | None:
    """What the requests of two runs asked for differently; None for nothing."""
    first, second = (meaning(further_fields(view, run)) for run in (one, other))
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return f"other request bodies ({', '.join(names)})" if names else None


def held_to_another_limit(view: EvidenceView) -> str | None:
    """A run whose replies ended at a limit that nobody asked for; None where there is none."""
    for run in view.evidence.runs:
        ended = int(run.records.ok.sum())
        share = int(_cut_short(run.records).sum()) / ended if ended else 0.0
        if share > MOST_CUT_SHORT:
            view.note("cut_short_share", share)
            return (
                f"{share:.1%} of the replies of {run.plan.label!r} ended at a limit below the one asked for"
            )
    return None


def _cut_short(records: Records) -> BoolColumn:
    """Ended by length with fewer tokens than the request allowed, by the server's own count."""
    ended = np.fromiter((reason in LENGTH_FINISH for reason in records.finish_reason), bool, len(records))
    asked, got = records.requested_max_tokens, records.output_tokens
    counted = np.isin(records.token_source, _COUNTED_BY_SERVER) & (asked != MISSING) & (got != MISSING)
    short = got < asked - np.maximum(_FEWEST_TOKENS_SHORT, _LIMIT_TOLERANCE * asked)
    return np.asarray(records.ok & ended & counted & short)
