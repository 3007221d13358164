"""One measurement, many gates: tests that need the same load on the same SUT share one run (DESIGN §2.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import LoadPlan

LIMIT_BYTES = 2 * 2**30
"""The bytes of records that are kept; beyond them the oldest go."""


@dataclass
class _Kept:
    seen: Observation
    owner: str
    """Node id of the test that measured it."""
    served: set[str]
    """Tests that have had it, the owner included: a repeated attempt measures anew."""
    state: str
    """The state of the server when it was measured."""


class SharedRuns:
    """Observations of a session, by SUT and by what was sent.

    A run is given to every test but the one that measured it, and to each only once: a test that is run again
    wants new numbers. Warm-ups and probes are shared only while their server has not been restarted or
    emptied since. A load that starts from a fresh state, and one that was cut short, is nobody else's.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[tuple[str, str], _Kept] = {}

    def find(self, sut: str, plan: LoadPlan, who: str, state: str) -> Observation | None:
        """What another test saw of the same load, as an answer to ``plan``; None where there is nothing."""
        kept = self._kept.get((sut, plan.key))
        if kept is None or who in kept.served:
            return None
        if plan.phase is not Phase.MEASURE and kept.state != state:
            return None
        kept.served.add(who)
        return replace(kept.seen, plan=plan, shared_from=kept.owner)

    def keep(self, sut: str, plan: LoadPlan, who: str, state: str, seen: Observation) -> None:
        """Remember a run that may be shared; a newer one takes the place of an older one."""
        if plan.fresh_state or seen.interrupted is not None or seen.stopped is not None:
            return
        key = (sut, plan.key)
        self._kept.pop(key, None)
        self._kept[key] = _Kept(seen, who, {who}, state)
        while len(self._kept) > 1 and self._nbytes() > self._limit_bytes:
            del self._kept[next(iter(self._kept))]

    def _nbytes(self) -> int:
        return sum(kept.seen.records.nbytes for kept in self._kept.values())
