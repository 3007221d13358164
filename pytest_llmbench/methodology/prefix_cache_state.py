"""Was the prefix cache in the state that each run declares? If not, the comparison means nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.records import MISSING, Records

MOST_WHEN_OFF = 0.01
"""Share of the input that a cache which is switched off may seem to serve (system prompts of the server)."""
MOST_FIRST_HITS = 0.1
"""Share of the prefixes whose very first request may find them in an empty cache."""


def state_findings(by_state: Mapping[str, Seen]) -> tuple[Finding, ...]:
    """One finding per run; a run whose server tells nothing about its cache is warned of, not voided."""
    checks = {"disabled": _off, "cold": _empty, "warm": _filled}
    return tuple(checks[state](seen) for state, seen in by_state.items())


def with_zeros(records: Records) -> Records:
    """Servers such as vLLM tell cached tokens only where there are any: where some reply tells, the others
    mean zero. Where none does, nothing is known."""
    if not _told(records):
        return records
    silent = records.ok & (records.cached_tokens == MISSING)
    return replace(records, cached_tokens=np.where(silent, 0, records.cached_tokens))


def _off(seen: Seen) -> Finding:
    share = _cached_share(seen)
    if share is None:
        return _untold("disabled")
    ok = share <= MOST_WHEN_OFF
    advice = "" if ok else ": the cache is not off; check how the variant switches it"
    return Finding(
        "cache_disabled",
        ok=ok,
        voids=True,
        message=f"with the cache off the server took {share:.1%} of the input from it{advice}",
        value=share,
        limit=MOST_WHEN_OFF,
        unit="ratio",
    )


def _empty(seen: Seen) -> Finding:
    """The first request with each prefix cannot find it in an empty cache."""
    records = with_zeros(seen.records)
    if not _told(records):
        return _untold("cold")
    first = _first_of_each_prefix(records)
    hits = int((records.cached_tokens[first] * 2 > records.shared_prefix_tokens[first]).sum())
    share = hits / len(first) if len(first) else 0.0
    ok = share <= MOST_FIRST_HITS
    advice = "" if ok else ": it was not empty; check the reset call or the restart"
    return Finding(
        "cache_cold",
        ok=ok,
        voids=True,
        message=f"{hits} of {len(first)} prefixes were in the cache before their first request{advice}",
        value=share,
        limit=MOST_FIRST_HITS,
        unit="ratio",
    )


def _filled(seen: Seen) -> Finding:
    share = _cached_share(seen)
    if share is None:
        return _untold("warm")
    ok = share > 0
    advice = "" if ok else ": the cache is not on, or evicts what it holds before it is used"
    return Finding(
        "cache_warm",
        ok=ok,
        voids=True,
        message=f"with the cache filled the server took {share:.1%} of the input from it{advice}",
        value=share,
        unit="ratio",
    )


def _untold(state: str) -> Finding:
    message = f"cache {state}: the server does not say what it takes from its cache; its state is as declared"
    return Finding(f"cache_{state}", ok=True, voids=False, message=message)


def _cached_share(seen: Seen) -> float | None:
    """Of the input: from the replies, else from the engine's own counters."""
    records = with_zeros(seen.records)
    if _told(records):
        counted = records.ok & (records.cached_tokens != MISSING) & (records.input_tokens > 0)
        total = int(records.input_tokens[counted].sum())
        return int(records.cached_tokens[counted].sum()) / total if total else None
    engine = seen.observation.engine
    if engine is None:
        return None
    asked, hit = engine.grown("prefix_queries_tokens"), engine.grown("prefix_hits_tokens")
    if asked is None or hit is None:
        return None
    return hit / asked if asked > 0 else 0.0


def _told(records: Records) -> bool:
    return bool(np.any(records.cached_tokens[records.ok] != MISSING))


def _first_of_each_prefix(records: Records) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    order = np.argsort(records.submitted_ns, kind="stable")
    usable = order[(records.ok & (records.cached_tokens != MISSING) & (records.prefix_id != MISSING))[order]]
    _, places = np.unique(records.prefix_id[usable], return_index=True)
    first: np.ndarray[tuple[int], np.dtype[np.int64]] = usable[places]
    return first


__all__ = ["MOST_FIRST_HITS", "MOST_WHEN_OFF", "state_findings", "with_zeros"]
