"""Several engines behind one address: which of them takes a request. Pure: decisions only, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence

RouterPolicy = Literal["round_robin", "least_loaded", "prefix", "session"]

_MOST_REPLICAS = 256
_SEED_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """How many engines there are, and how the router before them chooses.

    A request's load counts from when it is given to a replica until its last token. ``least_loaded`` goes to
    the replica with the fewest requests; of these to the one with the fewest prompt tokens, then to the
    first. ``prefix`` goes to the replica whose prefix cache holds most of the prompt; of these by load.
    Without a prefix cache it goes by load. ``session`` gives the first turn of a session by load and its
    later ones to the same replica; a request of no session goes by load. Replicas that recover from a crash
    are passed over while another one is up.
    """

    replicas: int = 1
    """Engines of the same figures; the router before several of them gives each request to one."""
    router: RouterPolicy | None = None
    """How the router chooses: round_robin (where none is named), least_loaded, prefix (longest cached prefix)
    or session (one replica for all turns)."""
    router_max_lead: int = 16
    """With router=prefix: a replica with more than so many requests more than the least loaded one gets no
    further one."""

    def mistakes(self) -> list[str]:
        """What is impossible about these values."""
        found = []
        if not 1 <= self.replicas <= _MOST_REPLICAS:
            found.append(f"replicas is {self.replicas}; it has to be from 1 to {_MOST_REPLICAS}")
        elif self.replicas == 1 and self.router is not None:
            found.append(f"router is {self.router}, but there is one replica: add replicas=2 or more")
        if self.router_max_lead < 0:
            found.append(f"router_max_lead is {self.router_max_lead}; it has to be 0 or more")
        elif self.router != "prefix" and self.router_max_lead != _PLAIN_LEAD:
            found.append(f"router_max_lead is {self.router_max_lead}, but only router=prefix looks at it")
        return found

    @property
    def policy(self) -> RouterPolicy | None:
        """The policy that is in force; ``None``: there is no router."""
        return None if self.replicas == 1 else self.router or "round_robin"


_PLAIN_LEAD = RouterOptions().router_max_lead


def replicas_of(config: EngineConfig, options: RouterOptions) -> tuple[Engine, ...]:
    """The engines of a scenario. The laws of the first have its own seed; no two draw the same lengths."""
    seeds = (config.seed + number * _SEED_STEP for number in range(options.replicas))
    return tuple(Engine(replace(config, seed=seed)) for seed in seeds)


class RoutedReplica(Protocol):
    """What the router sees of a replica."""

    @property
    def requests(self) -> int:
        """Requests that were given to it and have not ended."""

    @property
    def prompt_tokens(self) -> int:
        """Their prompt tokens."""

    def cached_tokens(self, sequence: EngineSequence) -> int:
        """Tokens at the beginning of the prompt that its prefix cache holds; looking changes nothing."""


class Router:
    """Chooses a replica for each request. Deterministic: what it sees and the requests before decide."""

    _MOST_SESSIONS = 65536
    """Of more, those that asked longest ago are forgotten: their next turn goes by load."""

    def __init__(self, options: RouterOptions) -> None:
        self._max_lead = options.router_max_lead
        self._choose = self._policies()[options.policy or "round_robin"]
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
