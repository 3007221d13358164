"""Several engines of a scenario behind a router: how many there are, which of them takes a request, and the
loop that gives it.

Replicas do all of a request; with prefill/decode disaggregation some engines compute prompts and hand the
blocks of their KV cache over to others, which decode.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, Literal

from pytest_llmbench.simulator.engine.config import EngineConfig, Range, out_of_range, shown
from pytest_llmbench.simulator.engine.deployment import At, Deployment
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.loop import C, EngineLoop, R, Replica
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence

MAX_LEAD: Final = 16
"""How many requests more than the least loaded replica one may have, where nothing else is said."""

_MOST_REPLICAS = 256
_SEED_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class ClusterOptions(Deployment):
    """Options of how many engines there are, and how the router before them chooses.

    A request's load counts from when it is given to a replica until its last token. ``least_loaded`` goes to
    the replica with the fewest requests; of these to the one with the fewest prompt tokens, then to the
    first. ``prefix`` goes to the replica whose prefix cache holds most of the prompt; of these by load.
    Without a prefix cache it goes by load. ``session`` gives the first turn of a session by load and its
    later ones to the same replica; a request of no session goes by load. Replicas that recover from a crash
    are passed over while another one is up.

    With ``prefill_workers`` and ``decode_workers`` there are two stages, and ``router`` is before the first.
    """

    title = "router"

    replicas: int = 1
    """Engines of the same figures; the router before several of them gives each request to one."""
    router: RouterPolicy | None = None
    """How the router chooses: round_robin (where none is named), least_loaded, prefix (longest cached prefix)
    or session (one replica for all turns)."""
    router_max_lead: int = MAX_LEAD
    """How many requests more than the least loaded replica a replica may have before router=prefix gives it
    no further one."""

    prefill_workers: int = 0
    """Engines that compute prompts alone, for others that decode; 0: every engine does both."""
    decode_workers: int = 0
    """Engines that decode what prefill_workers have computed."""
    decode_router: RouterPolicy | None = None
    """How an engine is chosen for decoding, once the prompt has been computed: least_loaded (where none is
    named), round_robin, prefix or session."""
    kv_transfer_gb_per_s: float = 24.0
    """Gigabytes per second and accelerator at which an engine's KV cache goes to another engine. The default
    is that of a network adapter of 400 Gbit/s for each accelerator: Mooncake's transfer engine is reported to
    reach 190 GB/s over eight of them, with 40 GB of data. Every transfer has it for itself."""
    kv_transfer_latency_us: float = 500.0
    """What a transfer takes beside its bytes. Mooncake's table for a model of 8 billion parameters begins at
    0.54 ms for 20 MB, and falls on a line through 0.4 ms; the rest is an assumption for the two engines'
    agreement."""

    def mistakes(self) -> list[str]:
        """The mistakes in these values; empty if there are none."""
        found = out_of_range(
            self,
            {
                "replicas": Range(1, _MOST_REPLICAS),
                "prefill_workers": Range(0, _MOST_REPLICAS),
                "decode_workers": Range(0, _MOST_REPLICAS),
            },
        )
        found += [] if found else self._out_of_place()
        ranges = {
            "kv_transfer_gb_per_s": Range(above=True),
            "kv_transfer_latency_us": Range(),
            "router_max_lead": Range(),
        }
        needs = {
            "kv_transfer_gb_per_s": (self.disaggregated, "only prefill_workers have anything to transfer"),
            "kv_transfer_latency_us": (self.disaggregated, "only prefill_workers have anything to transfer"),
            "router_max_lead": (self.router == "prefix", "only router=prefix looks at it"),
        }
        for name, (used, why) in needs.items():
            value = getattr(self, name)
            if not used and value in ranges[name] and value != getattr(_PLAIN, name):
                found.append(f"{name} is {shown(value)}, but {why}")
        return found + out_of_range(self, ranges)

    def _out_of_place(self) -> list[str]:
        prefill, decode = self.prefill_workers, self.decode_workers
        if (prefill > 0) != (decode > 0):
            return [f"prefill_workers is {prefill} and decode_workers {decode}: name both, or none"]
        if self.disaggregated and self.replicas > 1:
            return [f"replicas is {self.replicas}, but prefill_workers and decode_workers are all engines"]
        found = []
        if self.router is not None and max(self.replicas, prefill) == 1:
            more = "prefill_workers=2" if self.disaggregated else "replicas=2"
            one = "prefill worker" if self.disaggregated else "replica"
            found.append(f"router is {self.router}, but there is one {one}: add {more} or more")
        if self.decode_router is not None and decode < 2:
            found.append(
                f"decode_router is {self.decode_router}, but there is "
                f"{'one' if decode else 'no'} decode worker: add decode_workers=2 or more"
            )
        return found

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run on different engines."""
        return self.prefill_workers > 0

    @property
    def engines(self) -> int:
        """Number of engines."""
        return self.prefill_workers + self.decode_workers if self.disaggregated else self.replicas

    @property
    def policy(self) -> RouterPolicy | None:
        """The routing policy in force; with two stages that of the first. ``None``: there is no router."""
        return None if self.engines == 1 else self.router or "round_robin"

    @property
    def decode_policy(self) -> RouterPolicy:
        """The routing policy of the second stage, which decodes."""
        return self.decode_router or "least_loaded"

    def transfer_ns(self, config: EngineConfig, blocks: int) -> int:
        """Duration in nanoseconds of the transfer of so many KV blocks from one engine to another: latency +
        bytes / (bandwidth of an accelerator · accelerators of an engine)."""
        sent_bytes = blocks * config.kv_block_tokens * config.kv_kib_per_token * 1024
        per_s = self.kv_transfer_gb_per_s * 1e9 * config.accelerator_count
        return round(self.kv_transfer_latency_us * 1e3 + sent_bytes / per_s * 1e9)

    def started(self, config: EngineConfig) -> tuple[Engine, ...]:
        """The engines, those that prefill before those that decode.

        The laws of the first that decodes have the scenario's own seed; no two draw the same lengths.
        """
        first = self.prefill_workers
        seeds = (config.seed + (number - first) % self.engines * _SEED_STEP for number in range(self.engines))
        return tuple(Engine(replace(config, seed=seed)) for seed in seeds)

    def loop(self, replicas: Sequence[R], at: At) -> EngineLoop[Any, R]:
        return ClusterLoop(
            replicas,
            Router(self.policy, self.router_max_lead),
            at,
            prefill_workers=self.prefill_workers,
            decode_router=Router(self.decode_policy),
            transfer_ns=self.transfer_ns,
        )

    def components(self) -> list[str]:
        if self.policy is None:
            return []
        lead = f", lead {self.router_max_lead}" if self.policy == "prefix" else ""
        if not self.disaggregated:
            return [f"router ({self.policy}{lead}) before {self.replicas} replicas"]
        return [
            f"router ({self.policy}{lead}) before {self.prefill_workers} prefill workers",
            f"KV transfer at {shown(self.kv_transfer_gb_per_s)} GB/s per accelerator and "
            f"{shown(self.kv_transfer_latency_us)} us",
            f"router ({self.decode_policy}) before {self.decode_workers} decode workers",
        ]

    def policies(self) -> str:
        if not self.disaggregated:
            return self.policy or "none"
        return f"{self.policy} to prefill, {self.decode_policy} to decode"

    def in_words(self) -> list[str]:
        if self.policy is None:
            return []
        if not self.disaggregated:
            return [f"{self.replicas} replicas behind a router ({self.policy})"]
        workers = f"{self.prefill_workers} prefill and {self.decode_workers} decode workers"
        return [f"{workers} behind routers ({self.policies()})"]


_PLAIN = ClusterOptions()


@dataclass(slots=True, eq=False)
class Handover(Generic[R]):
    """The handover of one prompt."""

    prompt: EngineSequence
    decode: EngineSequence
    source: R
    target: R


class ClusterLoop(EngineLoop[C, R]):
    """The engines, the router before them, and the handovers between them.

    With prefill and decode apart a request is routed to an engine of the first kind, and as its prompt is
    through to one of the second. There it waits for the blocks of its prompt, then for what belongs into them
    (the transfer), then for a place in the batch. The source holds the blocks of a prompt until its transfer
    has ended, also if nobody waits for it any more; a prompt whose request is gone before its transfer has
    begun is not sent.
    """

    def __init__(
        self,
        replicas: Sequence[R],
        router: Router,
        at: At,
        *,
        prefill_workers: int,
        decode_router: Router,
        transfer_ns: Callable[[EngineConfig, int], int],
    ) -> None:
        """``transfer_ns``: the duration of the transfer of so many blocks from an engine of these figures."""
        super().__init__(replicas)
        self.stages = 2 if prefill_workers else 1
        self._takers = self.replicas[:prefill_workers] or self.replicas
        self._decoders = self.replicas[prefill_workers:] if prefill_workers else ()
        self._router, self._decode_router = router, decode_router
        self._at, self._transfer_ns = at, transfer_ns
        self._dropped = False
        """Whether something was dropped or has failed since things were settled."""
        self._waiting: dict[EngineSequence, Handover[R]] = {}
        """Handovers whose target has no blocks for them yet, by the sequence that decodes."""

    def submit(self, client: C, now_ns: int) -> None:
        sequence = client.sequence
        assert sequence is not None
        if self.stages == 2 and sequence.generates:
            sequence = sequence.prompt()
        self._chosen(self._router, self._takers, sequence, client, now_ns).take(sequence, client)

    def _chosen(
        self, router: Router, replicas: Sequence[R], sequence: EngineSequence, client: C, now_ns: int
    ) -> R:
        """The one of ``replicas`` that the router chooses for the request; those that are down are passed
        over."""
        up = [place for place, replica in enumerate(replicas) if replica.down_until_ns <= now_ns]
        return replicas[router.choose(replicas, up or range(len(replicas)), sequence, client.session)]

    def note_failed(self, replica: R, step: StepResult, now_ns: int) -> None:
        self._dropped = True
        super().note_failed(replica, step, now_ns)

    def drop(self, client: C) -> bool:
        dropped = super().drop(client)
        self._dropped |= dropped
        return dropped

    def abort_all(self) -> None:
        super().abort_all()
        self._dropped = True

    def pass_on(self, replica: R, step: StepResult, now_ns: int) -> None:
        """Pass on the prompts that a step completed as it ended, and send what its engine has room for
        now."""
        for prompt in step.finished:
            decode = prompt.decode
            client = None if decode is None else replica.in_flight.pop(prompt, None)
            if decode is not None and client is not None:
                target = self._chosen(self._decode_router, self._decoders, decode, client, now_ns)
                target.expect(decode, client, now_ns)
                self._waiting[decode] = Handover(prompt, decode, replica, target)
                self._send(target, now_ns)
        if replica in self._decoders:
            self._send(replica, now_ns)

    def settle(self, now_ns: int) -> None:
        """Drop the handovers whose requests have been dropped or failed, and send what there is room for
        now."""
        if self.stages == 1 or not self._dropped:
            return
        self._dropped = False
        for decode, handover in list(self._waiting.items()):
            if not handover.target.engine.expects(decode):
                del self._waiting[decode]
                handover.source.engine.release(handover.prompt)
        for target in self._decoders:
            self._send(target, now_ns)
        for replica in self.replicas:
            replica.wake()

    def _send(self, target: R, now_ns: int) -> None:
        for decode in target.reserve(now_ns):
            took_ns = self._transfer_ns(target.engine.config, decode.received_blocks)
            self._at(now_ns + took_ns, partial(self._end_transfer, self._waiting.pop(decode), now_ns))

    def _end_transfer(self, handover: Handover[R], begun_ns: int, now_ns: int) -> None:
        handover.source.engine.release(handover.prompt)
        handover.target.receive(handover.decode, begun_ns, now_ns)
        handover.source.wake()
        handover.target.wake()


RouterPolicy = Literal["round_robin", "least_loaded", "prefix", "session"]


class Router:
    """Chooses a replica for each request. Deterministic: the choice follows from the replicas' state and the
    requests before."""

    _MOST_SESSIONS = 65536
    """Maximum number of sessions remembered. The one that asked longest ago is forgotten first; its next turn
    is routed by load."""

    def __init__(self, policy: RouterPolicy | None = None, max_lead: int = MAX_LEAD) -> None:
        self._policy, self._max_lead = policy or "round_robin", max_lead
        self._next = 0
        self._by_session: OrderedDict[Hashable, int] = OrderedDict()

    def choose(
        self,
        replicas: Sequence[Replica[Any]],
        up: Sequence[int],
        sequence: EngineSequence,
        session: Hashable | None,
    ) -> int:
        """The number of the replica that takes ``sequence``: one of ``up``, which is in order and not empty.

        ``session``: the session that the request says it belongs to.
        """
        if self._policy == "round_robin":
            chosen = min(up, key=lambda number: (number - self._next) % len(replicas))
            self._next = chosen + 1
            return chosen

        def load(number: int) -> tuple[int, int]:
            return replicas[number].requests, replicas[number].prompt_tokens

        if self._policy == "prefix":
            most = min(replicas[number].requests for number in up) + self._max_lead
            near = [number for number in up if replicas[number].requests <= most]
            cached = {number: replicas[number].cached_tokens(sequence) for number in near}
            return min(near, key=lambda number: (-cached[number], load(number)))
        if self._policy == "least_loaded" or session is None:
            return min(up, key=load)
        pinned = self._by_session.get(session)
        chosen = min(up, key=load) if pinned is None or pinned not in up else pinned
        self._by_session[session] = chosen
        self._by_session.move_to_end(session)
        if len(self._by_session) > self._MOST_SESSIONS:
            self._by_session.popitem(last=False)
        return chosen
