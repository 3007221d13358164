"""The SUT file: what the tester discloses about the system under test, and how to talk to it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import SMALL_BYTES, parse_toml, read_bytes
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.request import CHUNK_TOKEN_FIELDS, OUTPUT_LIMITS, OWN_HEADERS, present
from pytest_llmbench.probes.sut_schema import (
    Endpoint,
    Prices,
    Reasoning,
    Request,
    ServerTimes,
    SUTTables,
    Table,
    Variants,
    VariantTable,
    table_at,
    values_of,
    variant_contradictions,
)
from pytest_llmbench.trust import ClientCertificate
from pytest_llmbench.wire.error_replies import beginning

if TYPE_CHECKING:
    from pytest_llmbench.tokens.hugging_face import HuggingFaceTokenizer

_PLACE = r"(?:field|header):\S+"
_NOT_FACTS = ("endpoint", "request", "prices")
_WHOLE_FACTS = ("network.ttft_adjustment",)
"""Tables that are one fact each, instead of one for every key."""

_SECRET_BEARING = ("headers", "api_key_env", "api_key_file", "api_key")
"""Keys whose values are never repeated in messages: somebody may have put an API key there by mistake."""

_TAKE_TOKEN_IDS = ("auto", "openai-completions", "sglang-generate", "vllm-grpc", "sglang-grpc")
_PROMPTS = ("messages", "prompt", "input", "inputs", "input_ids", "text_input")
_OURS = ("model", *_PROMPTS, "stream", "temperature", "n", *sorted(OUTPUT_LIMITS))
"""Body fields that the workload and the load generator decide."""

_REMOVED = {
    "json_messages": "messages over WebSocket that a file describes are no longer measured: leave the table "
    "out, and serve OpenAI's Responses over WebSocket, or an API over HTTP or gRPC",
}
"""Tables of earlier releases, and what to do in their place."""
_REMEDY = "the keys and their values are listed in docs/reference/sut-file.md"

_MOST_SHOWN = 200
_TOKENIZER_BYTES: Final = 256 << 20
"""The most bytes of a ``tokenizer.json``, far above what large vocabularies take."""
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"

T = TypeVar("T", bound=Table)

_WANTED = {
    "string_type": "give text in quotes",
    "string_too_short": "give text that is not empty",
    "string_pattern_mismatch": "give a path that begins with / and has no blanks",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false, without quotes",
    "list_type": "give a list",
    "dict_type": "give a table",
    "model_type": "give a table",
}


@dataclass(frozen=True, slots=True)
class SUTFile:
    """A SUT file that has been read. Relative paths in it start from its folder."""

    path: Path
    facts: Facts
    """Everything disclosed, by the dotted names of the keys, with ``Origin.DECLARED``."""
    endpoint: Endpoint
    request: Request
    prices: Prices
    variants: Mapping[str, VariantTable] = field(default_factory=dict)
    reasoning: Reasoning = field(default_factory=Reasoning)
    server_times: ServerTimes = field(default_factory=ServerTimes)
    tokenizer: HuggingFaceTokenizer | None = None
    """The tokenizer that ``tokenizer.file`` names; None without one."""

    @property
    def header_env(self) -> dict[str, str]:
        """Header name → name of the environment variable that holds its value."""
        return {name: reference.env for name, reference in self.endpoint.headers.items()}

    @property
    def api_key_file(self) -> Path | None:
        return self._beside(self.endpoint.api_key_file)

    @property
    def ca_file(self) -> Path | None:
        return self._beside(self.endpoint.ca_file)

    @property
    def client(self) -> ClientCertificate | None:
        """The certificate for servers that demand one; None without one."""
        cert_file = self._beside(self.endpoint.client_cert_file)
        return (
            None
            if cert_file is None
            else ClientCertificate(cert_file, self._beside(self.endpoint.client_key_file))
        )

    def _beside(self, name: str | None) -> Path | None:
        return None if name is None else self.path.parent / Path(name).expanduser()


def read_sut_file(path: Path) -> SUTFile:
    """Read and check a SUT file. Raises one SuiteError that lists every mistake in it."""
    content = _parse(path)
    variants = {"variants": content.pop("variants")} if "variants" in content else {}
    mistakes: list[str] = []
    tables = _validated(SUTTables, content, mistakes)
    mistakes += _contradictions(content)
    named = _validated(Variants, variants, mistakes)
    mistakes += _variant_mistakes(variants)
    tokenizer = _tokenizer(_table(content, "tokenizer"), path, mistakes)
    if tables is None or named is None or mistakes:
        raise SuiteError.from_mistakes(mistakes, where=f"SUT file {path}", remedy=_REMEDY)
    parts = (tables.endpoint, tables.request, tables.prices, named.variants, tables.reasoning)
    facts = _told_by(tokenizer, tables, path) | _facts(tables, path)
    return SUTFile(path, facts, *parts, tables.server_times, tokenizer)


def read_variants(given: Mapping[str, Any], where: str) -> dict[str, VariantTable]:
    """Variants that are not from a file: name → table of the same shape. Raises one SuiteError."""
    content, mistakes = {"variants": given}, []  # type: tuple[dict[str, Any], list[str]]
    named = _validated(Variants, content, mistakes)
    mistakes += _variant_mistakes(content)
    if named is None or mistakes:
        raise SuiteError.from_mistakes(mistakes, where=where, remedy=_REMEDY)
    return named.variants


def variant_facts(table: VariantTable, source: str) -> Facts:
    """The facts that a variant declares; they override those of the SUT."""
    stated = table.model_dump(exclude_unset=True, include={"sut", "guardrails"})
    return Facts.of(Origin.DECLARED, dict(_flat(stated, "")), source)


def _validated(kind: type[T], content: Mapping[str, Any], mistakes: list[str]) -> T | None:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        mistakes += dict.fromkeys(_explain(detail) for detail in error.errors(include_url=False))
        return None


def _tokenizer(table: Mapping[str, Any], path: Path, mistakes: list[str]) -> HuggingFaceTokenizer | None:
    """The tokenizer of the file that the table names; its mistakes are added to ``mistakes``."""
    named = table.get("file")
    if not isinstance(named, str) or not named.strip():
        return None
    try:
        found = read_tokenizer(path.parent / Path(named.strip()).expanduser())
    except SuiteError as error:
        mistakes.append(f"tokenizer.file: {error.where}: {error.what} ({error.remedy})")
        return None
    size, own = table.get("vocab_size"), table.get("name", found.name)
    if isinstance(size, int) and size != found.vocabulary_size:
        mistakes.append(
            f"tokenizer.vocab_size is {size}, and tokenizer.file has {found.vocabulary_size}: leave it out"
        )
    if table.get("counting_option") == "B" and table.get("reference", own) != own:
        mistakes.append(
            f"tokenizer.reference is {_toml(table['reference'])}, and tokens are counted by tokenizer.file: "
            "leave that out, or name it as the reference"
        )
    return found


def read_tokenizer(path: Path) -> HuggingFaceTokenizer:
    """Read the tokenizer of a ``tokenizer.json``, or of the folder that contains one. Raises SuiteError."""
    from pytest_llmbench.tokens.hugging_face import TokenizerFile, hugging_face_tokenizer  # few name one

    file = path
    try:
        file = path / _TOKENIZER if path.is_dir() else path
        content = read_bytes(file, _TOKENIZER_BYTES)
        config = _config_beside(file)
    except OSError as error:
        raise SuiteError(
            f"cannot be read: {error.strerror}",
            where=str(file),
            remedy=f"give the path of a {_TOKENIZER}, or of the folder that holds it; nothing is downloaded",
        ) from error
    model, revision = _of_the_hub(file)
    try:
        return hugging_face_tokenizer(TokenizerFile(content, config, file.name, model, revision))
    except SuiteError as error:
        raise SuiteError(error.what, where=str(file), remedy=error.remedy) from error


def tokenizer_facts(tokenizer: HuggingFaceTokenizer, source: str) -> Facts:
    """The facts in a tokenizer's file, under the keys of ``[tokenizer]`` and some more. ``source``: its
    path."""
    values = {
        "tokenizer.name": tokenizer.name,
        "tokenizer.version": tokenizer.version,
        "tokenizer.vocab_size": tokenizer.vocabulary_size,
        "tokenizer.source": tokenizer.source,
        "tokenizer.sha256": tokenizer.sha256,
        "tokenizer.tokens_per_reference": round(tokenizer.tokens_per_reference, 3),
        "tokenizer.special.tokens": dict(tokenizer.special_tokens),
    }
    return Facts.of(Origin.DETECTED, values, source)


def _config_beside(file: Path) -> bytes:
    try:
        return read_bytes(file.with_name(_TOKENIZER_CONFIG), SMALL_BYTES)
    except FileNotFoundError:
        return b""


def _of_the_hub(file: Path) -> tuple[str, str]:
    """Model-hub id and revision of a file in the hub's cache: ``models--ORG--NAME/snapshots/REVISION/…``."""
    for folder in file.absolute().parents:
        model = folder.parent.parent.name
        if folder.parent.name == "snapshots" and model.startswith("models--"):
            return model.removeprefix("models--").replace("--", "/"), folder.name
    return "", ""


def _told_by(tokenizer: HuggingFaceTokenizer | None, tables: SUTTables, path: Path) -> Facts:
    """The facts in a tokenizer's file. Naming the SUT's own tokenizer means that counts are native
    (section 4.4)."""
    if tokenizer is None:
        return Facts()
    native = Facts.of(Origin.DECLARED, {"tokenizer.counting_option": "A"}, f"{path}: tokenizer.file")
    return tokenizer_facts(tokenizer, str(path.parent / str(tables.tokenizer.file))) | native


def _parse(path: Path) -> dict[str, Any]:
    where = f"SUT file {path}"
    try:
        raw = read_bytes(path, SMALL_BYTES)
    except OSError as error:
        remedy = "give the path of a TOML file with --llm-sut"
        raise SuiteError(f"cannot be read: {error.strerror}", where=where, remedy=remedy) from error
    try:
        return parse_toml(raw)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SuiteError(
            f"not UTF-8 text (at line {line})", where=where, remedy="save it as UTF-8"
        ) from error
    except ValueError as error:
        remedy = "mend the TOML; text stands in quotes, lists in [ ], tables begin with [name]"
        raise SuiteError(f"broken TOML: {error}", where=where, remedy=remedy) from error


def _facts(tables: SUTTables, path: Path) -> Facts:
    stated = tables.model_dump(exclude_unset=True, exclude=set(_NOT_FACTS))
    values = dict(_flat(stated, ""))
    if values.get("sut.hardware.disclosed") is False:
        values["sut.hardware.accelerator_type"] = "undisclosed"
    return Facts.of(Origin.DECLARED, values, str(path))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and not (value and prefix + name in _WHOLE_FACTS):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _explain(detail: ErrorDetails) -> str:
    """One mistake in the words of the file: the key, its value, what it should be."""
    path, kind = list(detail["loc"]), detail["type"]
    if "headers" in path:
        name = _dotted(path[: path.index("headers") + 2])
        return f"{name}: not a reference; " + 'write { env = "VARIABLE" }, the value stays outside'
    if "env" in path:
        return f"{_dotted(path[: path.index('env') + 2])}: a table of names and values, all of them text"
    if kind == "extra_forbidden" and path[0] in _REMOVED:
        return f"{path[0]}: {_REMOVED[str(path[0])]}"
    if kind == "extra_forbidden":
        table = _table_class(path[:-1])
        known = [*table.model_fields, *(() if path[:-1] else ("variants",))] if table else []
        return f"{_dotted(path)}: unknown key{_suggestion(str(path[-1]), known)}{_about_keys(path)}"
    if any(name in _SECRET_BEARING for name in path):
        return f"{_dotted(path)}: not the name of a {'file' if 'api_key_file' in path else 'variable'}"
    branch = next((at for at, part in enumerate(path) if isinstance(part, str) and _is_branch(part)), None)
    if branch is not None:
        # A key that may hold one of several types has an error for each; together they are one mistake.
        return f"{_dotted(path[:branch])}: give a {_allowed(path[:branch])}"
    seen = f"{_dotted(path)} is {_toml(detail['input'])}"
    if kind == "literal_error":
        known = [word.strip("`") for word in _allowed(path).split(", ")]
        return f"{seen}: choose one of {', '.join(known)}{_suggestion(str(detail['input']), known)}"
    wanted = _WANTED.get(kind) or detail["msg"].replace("Input should be", "it has to be")
    return f"{seen}: {wanted}"


def _is_branch(part: str) -> bool:
    """Whether the part of a path is not from the file, but tells which of several types was tried."""
    return "[" in part or part == "constrained-str"


def _allowed(path: Sequence[int | str]) -> str:
    table = _table_class(path[:-1])
    return values_of(table.model_fields[str(path[-1])].annotation) if table else "another value"


def _table_class(path: Sequence[int | str]) -> type[Table] | None:
    """The class of the table at ``path`` from the top of the file; None if there is none."""
    return table_at(path[2:], VariantTable) if path[:1] == ["variants"] else table_at(path)


def _dotted(path: Sequence[int | str]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _suggestion(seen: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(seen.lower().replace("-", "_"), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _about_keys(path: Sequence[int | str]) -> str:
    if path[-1] != "api_key":
        return ""
    return " A key never stands in this file: name its variable (api_key_env) or its file (api_key_file)"


def _toml(value: object) -> str:
    try:
        return beginning(json.dumps(value, ensure_ascii=False), _MOST_SHOWN)
    except (TypeError, ValueError):  # dates and times, which TOML has and JSON has not
        return beginning(str(value), _MOST_SHOWN)


def _contradictions(content: Mapping[str, Any]) -> list[str]:
    """Mistakes: keys that are valid each, and do not go together."""
    sut, tokenizer, request = (_table(content, name) for name in ("sut", "tokenizer", "request"))
    hardware, adjustment = _table(sut, "hardware"), _table(_table(content, "network"), "ttft_adjustment")
    endpoint, found = _table(content, "endpoint"), list[str]()
    if sut.get("boundary") == "custom" and not sut.get("components"):
        found.append("sut.boundary is custom: list what lies inside it in sut.components")
    if hardware.get("disclosed") is False and len(hardware) > 1:
        given = ", ".join(name for name in hardware if name != "disclosed")
        found.append(f"sut.hardware.disclosed is false, yet {given} is given: leave out one or the other")
    if tokenizer.get("counting_option") == "B" and not tokenizer.get("reference"):
        found.append("tokenizer.counting_option is B: name the reference tokenizer in tokenizer.reference")
    if adjustment.get("applied") is True:
        missing = [name for name in ("amount_ms", "method") if name not in adjustment]
        found += [
            f"network.ttft_adjustment.{name} is missing: an adjustment is documented" for name in missing
        ]
    if "api_key_env" in endpoint and "api_key_file" in endpoint:
        found.append("endpoint.api_key_env and endpoint.api_key_file are both given: choose one")
    if endpoint.get("insecure") is True and "ca_file" in endpoint:
        found.append("endpoint.insecure is true, so endpoint.ca_file would not be used: choose one")
    prices = [
        name for name in ("input_per_million", "output_per_million") if name in _table(content, "prices")
    ]
    if len(prices) == 1:
        found.append(f"prices.{prices[0]} alone gives no cost: state both prices, 0 for what is free")
    if "client_key_file" in endpoint and "client_cert_file" not in endpoint:
        found.append("endpoint.client_key_file is the key of a certificate: give client_cert_file too")
    if "reset" in endpoint and "path" not in _table(endpoint, "reset"):
        found.append("endpoint.reset.path is missing: which call empties the caches?")
    return (
        found
        + _request_mistakes(request, endpoint)
        + _reasoning_mistakes(_table(content, "reasoning"))
        + _time_mistakes(_table(content, "server_times"))
        + _body_mistakes(_table(request, "extra_body"), "request.extra_body")
    )


def _request_mistakes(request: Mapping[str, Any], endpoint: Mapping[str, Any]) -> list[str]:
    extra, found = _table(request, "extra_body"), []
    if request.get("prompt") == "token_ids" and endpoint.get("api", "auto") not in _TAKE_TOKEN_IDS:
        found.append(
            f"request.prompt is token_ids, which {endpoint['api']} cannot carry: endpoint.api = "
            '"openai-completions"'
        )
    if request.get("prompt", "text") == "text" and endpoint.get("api") == "sglang-grpc":
        found.append('endpoint.api is sglang-grpc, which takes no text: request.prompt = "token_ids"')
    omitted = request.get("omit")
    if isinstance(omitted, list) and any(name in extra for name in omitted if isinstance(name, str)):
        found.append("request.omit and request.extra_body name the same field: choose one")
    found += _chunk_token_mistakes(request, endpoint)
    session = request.get("session_header")
    if isinstance(session, str) and session.lower() in OWN_HEADERS:
        found.append(f"request.session_header: header {session!r} is set by the load generator itself")
    if isinstance(session, str) and session.lower() in map(str.lower, _table(endpoint, "headers")):
        found.append(f"request.session_header and endpoint.headers both name {session}: choose one")
    return found


def _chunk_token_mistakes(request: Mapping[str, Any], endpoint: Mapping[str, Any]) -> list[str]:
    """Mistakes of ``request.chunk_tokens`` together with other keys. The schema reports a value that is not
    valid."""
    asked = request.get("chunk_tokens")
    fields = CHUNK_TOKEN_FIELDS.get(asked, {}) if isinstance(asked, str) else {}
    omitted = request.get("omit")
    found = []
    for name in fields:
        if name in _table(request, "extra_body"):
            found.append(f"request.chunk_tokens and request.extra_body both send {name}: choose one")
        if isinstance(omitted, list) and name in omitted:
            found.append(f"request.chunk_tokens is {asked}, which needs {name}: take it out of request.omit")
    api = endpoint.get("api", "auto")
    if fields and api not in ("auto", "openai-chat", "openai-completions"):
        found.append(f"request.chunk_tokens is {asked}, which {api} does not have: leave it out")
    return found


def _reasoning_mistakes(reasoning: Mapping[str, Any]) -> list[str]:
    found = []
    if reasoning.get("starts_thinking") is True and reasoning.get("tags", "auto") in ("auto", "none"):
        found.append(
            "reasoning.starts_thinking needs the form of the closing tag: set reasoning.tags to one by name"
        )
    for name, series in (("end_reason", r"[^\s{}]+\{[^\s{}]+\}"), ("critical_evictions", r"[^\s{}]+")):
        place = reasoning.get(name)
        if isinstance(place, str) and not re.fullmatch(f"{_PLACE}|metric:{series}", place.strip()):
            of_page = "metric:NAME{LABEL}" if name == "end_reason" else "metric:NAME"
            found.append(f"reasoning.{name} is {place!r}: write one of field:NAME, header:NAME, {of_page}")
    return found


def _time_mistakes(times: Mapping[str, Any]) -> list[str]:
    found = []
    for name in ("queue_wait", "prefill"):
        place = times.get(name)
        if isinstance(place, str) and not re.fullmatch(_PLACE, place.strip()):
            forms = "field:NAME, header:NAME, header:Server-Timing:ENTRY"
            found.append(f"server_times.{name} is {place!r}: write one of {forms}")
    if "unit" in times and not times.keys() & {"queue_wait", "prefill"}:
        found.append("server_times.unit alone says nothing: which time is it that of?")
    return found


def _variant_mistakes(content: Mapping[str, Any]) -> list[str]:
    variants = _table(content, "variants")
    found = variant_contradictions(variants)
    for name in variants:
        variant = _table(variants, name)
        found += _body_mistakes(
            _table(_table(variant, "request"), "extra_body"), f"variants.{name}.request.extra_body"
        )
        found += _body_mistakes(
            {"json": _table(_table(variant, "control"), "body")}, f"variants.{name}.control.body"
        )
    return found


def _body_mistakes(extra: Mapping[str, Any], where: str) -> list[str]:
    found = [f"{where}.{name}: the plugin decides this field" for name in _OURS if name in extra]
    if where.endswith("extra_body"):
        nested = [name for name in present(extra, OUTPUT_LIMITS) if name not in _OURS]
        found += [f"{where}.{name}: the plugin decides how long a reply may be" for name in nested]
    if "ignore_eos" in extra:
        found.append(f"{where}.ignore_eos: set request.ignore_eos, so that it is declared")
    try:
        json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError) as error:
        found.append(f"{where} cannot be sent as JSON: {error}")
    return found


def _table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}
