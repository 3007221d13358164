"""From free CPUs of a cluster to workers that are up, of our version, with clocks that are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pytest_llmbench.errors import GeneratorError, LLMBenchError, SuiteError
from pytest_llmbench.generator.ray.clocks import ClockLine, mistake_of
from pytest_llmbench.generator.ray.cluster import WHERE, Lost
from pytest_llmbench.generator.ray.foreman import Greeting, Machine
from pytest_llmbench.generator.ray.post import Hand, MachineClock
from pytest_llmbench.generator.workers.protocol import Setup, own_version

_UP_S = 60.0


class Source(Protocol):
    """Where actors come from."""

    def hire(self, count: int) -> Sequence[Hand]: ...


Hired = tuple[Hand, MachineClock]


def hire(
    cluster: Source, setups: Sequence[Setup], here: Machine, clocks: dict[str, MachineClock]
) -> list[Hired]:
    """An actor with a worker for each setup. ``clocks`` are those known already, and grow.

    Raises SuiteError or GeneratorError; then nothing of the new ones is left.
    """
    actors, greetings = _up(cluster, len(setups))
    try:
        hired = []
        for actor, greeting, setup in zip(actors, greetings, setups, strict=True):
            _refuse_other_version(greeting)
            _refuse_own_loopback(setup, greeting.machine, here)
            hired.append((actor, _known_clock(actor, greeting.machine, here, clocks)))
        _answered(
            actors,
            [
                actor.start("engage", *_portable(setup, clock))
                for (actor, clock), setup in zip(hired, setups, strict=True)
            ],
        )
    except BaseException:
        _kill(actors)
        raise
    return hired


def _up(cluster: Source, count: int) -> tuple[Sequence[Hand], list[Greeting]]:
    """Actors that have greeted. A node that is just being lost is still given some: then once more."""
    for tries_left in (1, 0):
        actors = cluster.hire(count)
        try:
            return actors, _answered(actors, [actor.start("greet") for actor in actors])
        except (GeneratorError, Lost):
            _kill(actors)
            if not tries_left:
                raise
        except BaseException:
            _kill(actors)
            raise
    raise AssertionError("unreachable")


def _kill(actors: Sequence[Hand]) -> None:
    for actor in actors:
        actor.kill()


def _answered(actors: Sequence[Hand], promised: Sequence[Any]) -> list[Any]:
    """What all of them said, within ``_UP_S`` in all."""
    deadline_s = time.monotonic() + _UP_S
    answers = []
    for number, (actor, promise) in enumerate(zip(actors, promised, strict=True), start=1):
        try:
            answers.append(actor.got(promise, max(0.1, deadline_s - time.monotonic())))
        except Lost as error:
            raise _not_up(str(error), f"{WHERE}, worker {number} of {len(actors)}") from error
    return answers


def _not_up(why: str, where: str) -> LLMBenchError:
    if "No module named 'pytest_llmbench" in why:
        return SuiteError(
            "pytest-llmbench is not installed on its node",
            where=where,
            remedy=f"have the image of the cluster's nodes install the same version: {own_version()}",
        )
    return GeneratorError(
        f"is not up: {why}", where=where, remedy="`ray status` and the logs of its node tell more"
    )


def _refuse_other_version(greeting: Greeting) -> None:
    if greeting.version != own_version():
        raise SuiteError(
            f"{greeting.machine.host} has pytest-llmbench {greeting.version}, this process {own_version()}",
            where=WHERE,
            remedy="install the same version everywhere; restart the cluster's nodes after upgrades",
        )


def _refuse_own_loopback(setup: Setup, machine: Machine, here: Machine) -> None:
    host = urlsplit(setup.address.url).hostname or ""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback and machine.network != here.network:
        raise SuiteError(
            f"{setup.address.url} is this machine only: on {machine.host} it would be {machine.host} itself",
            where=WHERE,
            remedy="give the endpoint by an address that the cluster's nodes reach; the embedded engine "
            "(sim) can be loaded from this machine alone",
        )


def _known_clock(
    actor: Hand, machine: Machine, here: Machine, clocks: dict[str, MachineClock]
) -> MachineClock:
    clock = clocks.setdefault(machine.clock, MachineClock(machine, here))
    offset = clock.before(actor)
    mistake = mistake_of(ClockLine(offset, offset), machine.host)
    if mistake is not None:
        raise GeneratorError(
            mistake, where=WHERE, remedy="take nodes that are nearer, or a less busy network between them"
        )
    return clock


def _portable(setup: Setup, clock: MachineClock) -> tuple[Setup, bytes | None]:
    """As the other machine needs it: by its clock, and without paths of this one."""
    deadline_ns = setup.session_deadline_ns
    ca_file = setup.address.ca_file
    portable = replace(
        setup,
        directory=Path(),
        number=0,
        cpu=None,
        session_deadline_ns=None if deadline_ns is None else clock.line.theirs(deadline_ns),
        address=replace(setup.address, ca_file=None),
    )
    return portable, None if ca_file is None else ca_file.read_bytes()


__all__ = ["Hired", "hire"]
