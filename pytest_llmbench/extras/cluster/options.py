"""How many engines of a scenario there are, and how the router before them chooses: its options.

Replicas do all of a request; with prefill/decode disaggregation some engines compute prompts and hand the
blocks of their KV cache over to others, which decode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.extras.cluster.loop import ClusterLoop
from pytest_llmbench.extras.cluster.router import MAX_LEAD, Router, RouterPolicy
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.deployment import At, Deployment
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.loop import EngineLoop, R

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
        found = [
            f"{name} is {value}; it has to be from {least} to {_MOST_REPLICAS}"
            for name, value, least in (
                ("replicas", self.replicas, 1),
                ("prefill_workers", self.prefill_workers, 0),
                ("decode_workers", self.decode_workers, 0),
            )
            if not least <= value <= _MOST_REPLICAS
        ]
        found += [] if found else self._out_of_place()
        for name in ("kv_transfer_gb_per_s", "kv_transfer_latency_us"):
            value, plain = getattr(self, name), getattr(_PLAIN, name)
            if not (math.isfinite(value) and value >= 0) or (name.endswith("_s") and value == 0):
                least = "above 0" if name.endswith("_s") else "0 or more"
                found.append(f"{name} is {value:g}; it has to be {least}")
            elif value != plain and not self.disaggregated:
                found.append(f"{name} is {value:g}, but only prefill_workers have anything to transfer")
        if self.router_max_lead < 0:
            found.append(f"router_max_lead is {self.router_max_lead}; it has to be 0 or more")
        elif self.router != "prefix" and self.router_max_lead != _PLAIN.router_max_lead:
            found.append(f"router_max_lead is {self.router_max_lead}, but only router=prefix looks at it")
        return found

    def _out_of_place(self) -> list[str]:
        """The mistakes where numbers of engines and routers do not go together."""
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
            f"KV transfer at {self.kv_transfer_gb_per_s:g} GB/s per accelerator and "
            f"{self.kv_transfer_latency_us:g} us",
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
