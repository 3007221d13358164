"""The system under test as a value: what ``llm_sut`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SetUp:
    """A set-up of the fixture ``llm_sut`` that a test uses. Each is a system of its own, also where the
    address is that of an earlier one."""

    number: int
    """Tells the set-ups of a session apart."""
    test: str
    """Node id of the test."""


@dataclass(frozen=True)
class SUT:
    """The address of the system under test and how to talk to it. Nothing is sent when a SUT is made."""

    endpoint: str
    """``https://host/v1``, ``wss://host/v1``, ``grpc://host:port``, ``sim[:PRESET]``, ``replay[:PRESET]`` or
    ``python:module:attr``."""
    model: str | None = None
    """Name of the model; None: the only one that the endpoint lists."""
    api: str = "auto"
    """Wire dialect: ``auto``, or a name such as ``openai-chat``."""
    disclosure: Mapping[str, Any] = field(default_factory=dict)
    """Facts by their dotted names (``sut.boundary``), in addition to those of ``--llm-sut``."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request body."""
    ignore_eos: bool = False
    """Whether to ask the engine to go on to ``max_tokens`` (a declared part of the length control,
    AMB-33)."""

    @property
    def is_embedded(self) -> bool:
        """Whether it is ``sim``, the embedded engine over loopback, in real time."""
        return self._scheme == "sim"

    @property
    def is_replay(self) -> bool:
        """Whether it is ``replay``, the embedded engine in virtual time."""
        return self._scheme == "replay"

    @property
    def is_in_process(self) -> bool:
        """Whether it is ``python``, an async generator or an ASGI application called within pytest's own
        process."""
        return self._scheme == "python"

    @property
    def was_there_before(self) -> bool:
        """A server at an address: it may have kept the prompts of earlier sessions in its prefix cache."""
        return not (self.is_embedded or self.is_replay or self.is_in_process)

    @property
    def preset(self) -> str:
        """The preset of the embedded engine: the text behind ``sim:`` or ``replay:``."""
        return self.endpoint.partition(":")[2] or "fast"

    @property
    def _scheme(self) -> str:
        return self.endpoint.partition(":")[0]
