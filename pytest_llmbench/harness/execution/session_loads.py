"""What a session has sent so far: runs that tests share, and the prompts that a server has received.

One measurement, many gates: tests that need the same load on the same SUT share one run. A
prompt that comes again may be in its server's prefix cache. Parts of tests have prompts of their own
(``measuring/load_plans.py``), so there is nothing to find where a seed gives new ones. A data set or a list
has no others than those in it; then the share of repeated ones is told.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import BoolColumn
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.sequence import passing
from pytest_llmbench.workloads.stream import draws_anew

LIMIT_BYTES = 2 * 2**30
"""The most bytes of records that are kept; beyond them the oldest are dropped."""


@dataclass
class _Kept:
    seen: Observation
    owner: str
    """Node id of the test that measured it."""
    served: set[str]
    """Node ids of the tests that have used the run, the owner included: a repeated attempt measures anew."""
    state: str
    """The state of the server at the time of the measurement."""
    nbytes: int
    """The bytes of its records."""


class SharedRuns:
    """The observations of a session, by SUT and by what was sent.

    A run is given to every test but the one that measured it, and to each only once: a test that is run again
    wants new numbers. Warm-ups and probes are shared only while their server has not been restarted or
    emptied since. A load that starts from a fresh state, and one that was cut short, is nobody else's.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[tuple[str, str], _Kept] = {}

    def find(self, sut: str, plan: LoadPlan, who: str, state: str) -> Observation | None:
        """Another test's observation of the same load, as an answer to ``plan``; None if there is none."""
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
        self._kept[key] = _Kept(seen, who, {who}, state, seen.records.nbytes)
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > self._limit_bytes:
            del self._kept[next(iter(self._kept))]

    def forget(self, sut: str) -> None:
        """Drop the runs of a SUT that is closed."""
        for key in [key for key in self._kept if key[0] == sut]:
            del self._kept[key]


def _was_shown(workload: object) -> bool:
    """The server had to run its prompts to count them: see ``TokenCounter.shows_prompts``."""
    while workload is not None and not getattr(workload, "shows_prompts", False):
        workload = getattr(workload, "base", None)
    return workload is not None


class SentBefore:
    """Tells which prompts a server had received before a test sent them."""

    def __init__(self) -> None:
        self._sent: dict[Hashable, BoolColumn] = defaultdict(lambda: np.zeros(0, dtype=np.bool_))
        """(server, workload, seed) → which requests of the sequence were sent, where the seed determines the
        prompts."""
        self._prompts: dict[Hashable, set[bytes]] = defaultdict(set)
        """Server → digests of all other prompts that it was sent."""
        self._measured: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    def note(self, server: Hashable, who: str, seen: Observation) -> None:
        """Note a load that was sent to ``server``, a key that changes when the server is restarted or
        emptied."""
        plan = seen.plan
        if _was_shown(plan.workload):
            repeated = len(seen.records)
        else:
            repeated = self._drawn(server, seen) if draws_anew(plan.workload) else self._listed(server, seen)
        if plan.phase is Phase.MEASURE:
            self._measured[who] += len(seen.records)
            self._repeated[who] += repeated

    def findings(self, who: str) -> tuple[Finding, ...]:
        """The findings about the loads since the last call; empty where no prompt was sent again."""
        measured, repeated = self._measured.pop(who, 0), self._repeated.pop(who, 0)
        if not repeated:
            return ()
        return (Finding.of("prompts_sent_before", value=repeated / measured),)

    def _drawn(self, server: Hashable, seen: Observation) -> int:
        workload = seen.plan.workload
        key = (server, workload.name, str(workload.specification()), seen.plan.seed)
        index = seen.records.index
        known, end = self._sent[key], int(index.max(initial=-1)) + 1
        if end > len(known):
            known = self._sent[key] = np.pad(known, (0, end - len(known)))
        sent = np.zeros_like(known)
        sent[index] = True
        repeated = int((known & sent).sum())
        known |= sent
        return repeated

    def _listed(self, server: Hashable, seen: Observation) -> int:
        known, repeated = self._prompts[server], 0
        for request in _sent(seen.plan, seen):
            ids = request.token_ids
            prompt = str(request.text) if ids is None else ",".join(map(str, ids))
            digest = hashlib.blake2b(prompt.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
            repeated += digest in known
            known.add(digest)
        return repeated


def _sent(plan: LoadPlan, seen: Observation) -> Iterator[PlannedRequest]:
    """The requests of the load that were sent: several workers may leave gaps."""
    if not len(seen.records):
        return iter(())
    index = seen.records.index
    count = int(index.max()) + 1 - plan.first
    wanted = np.zeros(count, dtype=bool)
    wanted[index - plan.first] = True
    drawn = passing(plan.workload, plan.first, count, plan.seed)
    return (request for request, was_sent in zip(drawn, wanted, strict=False) if was_sent)
