"""The tables of ``[variants.NAME]``: one SUT in several states, and how each is reached (DESIGN §2.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_llmbench.probes.sut_schema import (
    EnvName,
    EnvRef,
    Guardrails,
    HeaderName,
    Path,
    Reset,
    System,
    Table,
    Text,
)

WAYS = ("url", "command", "control", "request", "preset")
"""How a variant is reached; each has exactly one. ``url`` beside ``command`` says where that one answers."""

PORT = "{port}"
"""Stands for a free port of this host in ``command``, ``env`` and ``url``."""

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_OF_A_COMMAND = ("cwd", "env", "health", "log", "concurrent")


class Call(Table):
    """An HTTP call to the SUT, or to whatever administers it."""

    method: Literal["POST", "GET", "PUT", "PATCH", "DELETE"] = Field(
        default="POST", description="Method of the call. Default: `POST`."
    )
    path: Path | None = Field(default=None, description="Path on the server of the SUT.")
    url: Text | None = Field(default=None, description="Or a whole URL, of an administrative server.")
    body: dict[str, Any] | None = Field(default=None, description="JSON body, if there is one.")
    expect: int | None = Field(
        default=None, ge=100, le=599, description="Status that means success. Default: any of 200 to 299."
    )


class Health(Table):
    path: Path = Field(
        default="/health",
        description="Path that answers with 200 to 299 once the server can be used. Default: `/health`.",
    )
    timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="How long to wait for that, in seconds. Default: 600."
    )


class FurtherRequest(Table):
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of every request body, over those of `[request]`."
    )
    headers: dict[HeaderName, EnvRef] = Field(
        default_factory=dict, description='Further headers, each as `name = { env = "VARIABLE" }`.'
    )


class VariantTable(Table):
    """One variant. Exactly one of ``url``, ``command``, ``control``, ``request`` and ``preset``."""

    url: Text | None = Field(
        default=None,
        description="Another endpoint. Beside `command`: where the launched server answers. "
        "Default there: `http://127.0.0.1:{port}/v1`.",
    )
    command: list[Text] | None = Field(
        default=None,
        min_length=1,
        description="A server to launch, program and arguments apart; `{port}` is a free port of this host.",
    )
    cwd: Text | None = Field(default=None, description="Directory in which the command runs.")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="Variables of the command, beside those of this process."
    )
    health: Health = Health()
    log: Text | None = Field(
        default=None, description="File for what the command writes. Default: a temporary file."
    )
    concurrent: bool = Field(
        default=False,
        description="`true`: may run beside other launched variants. Else one runs at a time.",
    )
    control: Call | None = None
    restore: Call | None = None
    request: FurtherRequest | None = None
    preset: Text | None = Field(
        default=None,
        description="Options of the embedded engine over those of the endpoint, as `prefix_caching=on`.",
    )
    reset: Reset = Reset()
    sut: System = Field(
        default=System(), description="Keys of `[sut]` that differ in this variant, `prefix_caching` say."
    )
    guardrails: Guardrails = Field(
        default=Guardrails(), description="Keys of `[guardrails]` that differ in this variant."
    )

    @property
    def way(self) -> str:
        """The member of ``WAYS`` by which the variant is reached."""
        return next(way for way in ("command", *WAYS) if getattr(self, way) is not None)


class Variants(Table):
    """The whole of ``[variants]``, so that mistakes carry the name of their variant."""

    variants: dict[str, VariantTable] = Field(default_factory=dict)


def variant_contradictions(variants: Mapping[str, Any]) -> list[str]:
    """Keys of variants that are well written each, and do not go together."""
    found = []
    for name, table in variants.items():
        if not _NAME.match(name):
            found.append(f"variants.{name!r}: a name has letters, digits, dots, dashes and underscores")
        if isinstance(table, Mapping):
            found += [f"variants.{name}{mistake}" for mistake in _mistakes(table)]
    return found


def _mistakes(table: Mapping[str, Any]) -> Iterator[str]:
    ways = [way for way in WAYS if way in table]
    if not ways:
        yield f" says not how it is reached: give one of {', '.join(WAYS)}"
    elif len(ways) > 1 and ways != ["url", "command"]:
        yield f" is reached in {len(ways)} ways ({', '.join(ways)}): choose one"
    if "command" not in table:
        for key in _OF_A_COMMAND:
            if key in table:
                yield f".{key} belongs to a command, and there is none"
    elif "url" not in table and PORT not in _words(table):
        yield f".command: say where it answers, with url, or with {PORT} in the command or its env"
    for key in ("control", "restore"):
        call = table.get(key)
        if isinstance(call, Mapping) and ("path" in call) == ("url" in call):
            yield f".{key}: give either path or url"
    if "restore" in table and "control" not in table:
        yield ".restore undoes a control call, and there is none"
    reset = table.get("reset")
    if isinstance(reset, Mapping) and "path" not in reset:
        yield ".reset.path is missing: which call empties the caches?"
    sut = table.get("sut")
    if isinstance(sut, Mapping) and sut.get("boundary") == "custom" and not sut.get("components"):
        yield ".sut.boundary is custom: list what lies inside it in sut.components"


def _words(table: Mapping[str, Any]) -> str:
    command, env = table.get("command"), table.get("env")
    words: Sequence[Any] = command if isinstance(command, list) else [PORT]
    values = env.values() if isinstance(env, Mapping) else ()
    return " ".join(str(word) for word in (*words, *values))
