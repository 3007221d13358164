"""The prompts a server has had in this session: a prompt that comes again may be in its prefix cache.

Parts of tests have prompts of their own (methodology/measuring/seeds.py), so there is nothing to find where a
seed gives new ones. A data set or a list has no others than those in it; then the share of repeated ones is
told.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.sequence import passing
from pytest_llmbench.workloads.stream import draws_anew


class SentBefore:
    """Prompts by server, and what of the measured ones of each test had been sent to it before."""

    def __init__(self) -> None:
        self._indices: dict[Hashable, npt.NDArray[np.int64]] = {}
        """The indices sent of sequences whose seed gives their prompts: by server, workload and seed."""
        self._prompts: dict[Hashable, set[bytes]] = defaultdict(set)
        """The digests of other prompts, by server."""
        self._measured: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    def note(self, server: Hashable, who: str, seen: Observation) -> None:
        """A load that was sent to ``server``, whose key changes when it is restarted or emptied."""
        plan = seen.plan
        repeated = self._drawn(server, seen) if draws_anew(plan.workload) else self._listed(server, seen)
        if plan.phase is Phase.MEASURE:
            self._measured[who] += len(seen.records)
            self._repeated[who] += repeated

    def findings(self, who: str) -> tuple[Finding, ...]:
        """The findings about the loads since the last call; empty where no prompt was sent again."""
        measured, repeated = self._measured.pop(who, 0), self._repeated.pop(who, 0)
        if not repeated:
            return ()
        share = repeated / measured
        message = (
            f"{share:.1%} of the measured prompts had been sent to this server before in this session, and a "
            "prefix cache may have held them: the workload has no others, or the same load was sent again"
        )
        return (
            Finding("prompts_sent_before", ok=False, voids=False, message=message, value=share, unit="ratio"),
        )

    def _drawn(self, server: Hashable, seen: Observation) -> int:
        workload = seen.plan.workload
        key = (server, workload.name, str(workload.specification()), seen.plan.seed)
        sent, known = np.unique(seen.records.index), self._indices.get(key)
        self._indices[key] = sent if known is None else np.union1d(known, sent)
        return 0 if known is None else len(np.intersect1d(known, sent))

    def _listed(self, server: Hashable, seen: Observation) -> int:
        known, repeated = self._prompts[server], 0
        for request in _sent(seen.plan, seen):
            digest = _digest(request)
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


def _digest(request: PlannedRequest) -> bytes:
    ids = request.token_ids
    prompt = str(request.text) if ids is None else ",".join(map(str, ids))
    return hashlib.blake2b(prompt.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
