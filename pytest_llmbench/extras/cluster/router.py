"""Which engine takes a request. Pure: it only decides, without a clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Literal, Protocol

from pytest_llmbench.simulator.engine.sequence import EngineSequence

RouterPolicy = Literal["round_robin", "least_loaded", "prefix", "session"]
MAX_LEAD: Final = 16
"""How many requests more than the least loaded replica one may have, where nothing else is said."""


class RoutedReplica(Protocol):
    """A replica as the router sees it."""

    @property
    def requests(self) -> int:
        """Number of requests that were given to it and have not ended."""

    @property
    def prompt_tokens(self) -> int:
        """Sum of the prompt tokens of its :attr:`requests`."""

    def cached_tokens(self, sequence: EngineSequence) -> int:
        """Number of tokens at the beginning of the prompt that its prefix cache holds; looking changes
        nothing."""


class Router:
    """Chooses a replica for each request. Deterministic: the choice follows from the replicas' state and the
    requests before."""

    _MOST_SESSIONS = 65536
    """Maximum number of sessions remembered. The one that asked longest ago is forgotten first; its next turn
    is routed by load."""

    def __init__(self, policy: RouterPolicy | None = None, max_lead: int = MAX_LEAD) -> None:
        self._max_lead = max_lead
        self._choose = self._policies()[policy or "round_robin"]
        self._next = 0
        self._by_session: OrderedDict[Hashable, int] = OrderedDict()

    def choose(
        self,
        replicas: Sequence[RoutedReplica],
        up: Sequence[int],
        sequence: EngineSequence,
        session: Hashable | None,
    ) -> int:
        """The number of the replica that takes ``sequence``: one of ``up``, which is in order and not empty.

        ``session``: the session that the request says it belongs to.
        """
        return self._choose(replicas, up, sequence, session)

    def _policies(self) -> dict[RouterPolicy, Callable[..., int]]:
        return {
            "round_robin": self._in_turn,
            "least_loaded": self._by_load,
            "prefix": self._by_prefix,
            "session": self._by_pin,
        }

    def _in_turn(self, replicas: Sequence[RoutedReplica], up: Sequence[int], *_: object) -> int:
        chosen = min(up, key=lambda number: (number - self._next) % len(replicas))
        self._next = chosen + 1
        return chosen

    def _by_load(self, replicas: Sequence[RoutedReplica], up: Sequence[int], *_: object) -> int:
        return min(up, key=lambda number: _load(replicas[number]))

    def _by_prefix(
        self,
        replicas: Sequence[RoutedReplica],
        up: Sequence[int],
        sequence: EngineSequence,
        _: Hashable | None,
    ) -> int:
        most = min(replicas[number].requests for number in up) + self._max_lead
        near = [number for number in up if replicas[number].requests <= most]
        cached = {number: replicas[number].cached_tokens(sequence) for number in near}
        return min(near, key=lambda number: (-cached[number], _load(replicas[number])))

    def _by_pin(
        self,
        replicas: Sequence[RoutedReplica],
        up: Sequence[int],
        _: EngineSequence,
        session: Hashable | None,
    ) -> int:
        if session is None:
            return self._by_load(replicas, up)
        pinned = self._by_session.get(session)
        chosen = self._by_load(replicas, up) if pinned is None or pinned not in up else pinned
        self._by_session[session] = chosen
        self._by_session.move_to_end(session)
        if len(self._by_session) > self._MOST_SESSIONS:
            self._by_session.popitem(last=False)
        return chosen


def _load(replica: RoutedReplica) -> tuple[int, int]:
    return replica.requests, replica.prompt_tokens
