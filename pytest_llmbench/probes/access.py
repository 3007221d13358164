"""The way to an endpoint and what requests to it look like: values only, nothing here opens a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.probes.credentials import Credentials

if TYPE_CHECKING:
    from pytest_llmbench.http_proxy import HttpProxy
    from pytest_llmbench.trust import ClientCertificate
    from pytest_llmbench.wire.dialect import PromptForm
    from pytest_llmbench.wire.websocket.json_messages import JsonMessages


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to reach an endpoint, beside its URL."""

    credentials: Credentials = field(default_factory=Credentials)
    ca_file: Path | None = None
    insecure: bool = False
    """The server's certificate is not checked."""
    client: ClientCertificate | None = None
    """Shown to a server that demands one."""
    proxy: HttpProxy | None = None
    """Goes before the one of the environment."""
    connect_s: float = 10.0
    answer_s: float = 120.0
    """The time from the request to the end of its answer; a cold model may be loaded by the first one."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What the measured requests will look like, so that the preflight asks in the same way."""

    prompt_form: PromptForm = "text"
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    messages: JsonMessages | None = None
    """The dialect that is described; None: none is."""
