"""The SUT file: what the tester discloses about the system under test, and how to talk to it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.http_client import ClientCertificate
from pytest_llmbench.input_files import SMALL_BYTES, parse_toml, read_bytes
from pytest_llmbench.model.facts import Facts, NetworkFact, Origin, SUTFact, TokenizerFact
from pytest_llmbench.probes.sut_schema import (
    SUTTables,
    Table,
    Tokenizer,
    Variants,
    VariantTable,
    table_at,
    values_of,
)
from pytest_llmbench.wire.error_replies import beginning

if TYPE_CHECKING:
    from pytest_llmbench.tokens import HuggingFaceTokenizer

_NOT_FACTS = ("endpoint", "request", "prices", "profile", "telemetry", "variants", "limits")
_WHOLE_FACTS = (NetworkFact.TTFT_ADJUSTMENT,)
"""Tables that are one fact each, instead of one for every key."""

_SECRET_BEARING = ("headers", "api_key_env", "api_key_file", "api_key")
"""Keys whose values are never repeated in messages: somebody may have put an API key there by mistake."""

_REMOVED = {
    "json_messages": "messages over WebSocket that a file describes are no longer measured: leave the table "
    "out, and serve OpenAI's Responses over WebSocket, or an API over HTTP or gRPC",
}
"""Tables of earlier releases, and what to do in their place."""
_ABOUT_KEYS = "A key never belongs in this file: name its variable (api_key_env) or its file (api_key_file)"
_REMEDY = "docs/examples/sut.toml has every key, docs/reference/sut-file.md says what they are for"

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
    tables: SUTTables
    tokenizer: HuggingFaceTokenizer | None = None
    """The tokenizer that ``tokenizer.file`` names; None without one."""

    @property
    def header_env(self) -> dict[str, str]:
        """Header name → name of the environment variable that holds its value."""
        return {name: reference.env for name, reference in self.tables.endpoint.headers.items()}

    @property
    def api_key_file(self) -> Path | None:
        return self._beside(self.tables.endpoint.api_key_file)

    @property
    def ca_file(self) -> Path | None:
        return self._beside(self.tables.endpoint.ca_file)

    @property
    def client(self) -> ClientCertificate | None:
        """The certificate for servers that demand one; None without one."""
        cert_file = self._beside(self.tables.endpoint.client_cert_file)
        return (
            None
            if cert_file is None
            else ClientCertificate(cert_file, self._beside(self.tables.endpoint.client_key_file))
        )

    def _beside(self, name: str | None) -> Path | None:
        return None if name is None else self.path.parent / Path(name).expanduser()


def read_sut_file(path: Path) -> SUTFile:
    """Read and check a SUT file. Raises one SuiteError that lists every mistake in it."""
    content = _parse(path)
    mistakes: list[str] = []
    tables = _validated(SUTTables, content, mistakes)
    tokenizer = _tokenizer(tables.tokenizer, path, mistakes)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=f"SUT file {path}", remedy=_REMEDY)
    facts = Facts()
    if tokenizer is not None:  # to name the SUT's own tokenizer means that counts are native (section 4.4)
        native = {TokenizerFact.COUNTING_OPTION: "A"}
        facts = tokenizer_facts(tokenizer, str(path.parent / str(tables.tokenizer.file)))
        facts |= Facts.of(Origin.DECLARED, native, f"{path}: tokenizer.file")
    stated = dict(_flat(tables.model_dump(exclude_unset=True, exclude=set(_NOT_FACTS)), ""))
    if stated.get(SUTFact.HARDWARE_DISCLOSED) is False:
        stated[SUTFact.ACCELERATOR_TYPE] = "undisclosed"
    return SUTFile(path, facts | Facts.of(Origin.DECLARED, stated, str(path)), tables, tokenizer)


def read_variants(given: Mapping[str, Any], where: str) -> dict[str, VariantTable]:
    """Variants that are not from a file: name → table of the same shape. Raises one SuiteError."""
    mistakes: list[str] = []
    named = _validated(Variants, {"variants": given}, mistakes)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=where, remedy=_REMEDY)
    return named.variants


def variant_facts(table: VariantTable, source: str) -> Facts:
    """The facts that a variant declares; they override those of the SUT."""
    stated = table.model_dump(exclude_unset=True, include={"sut", "guardrails"})
    return Facts.of(Origin.DECLARED, dict(_flat(stated, "")), source)


def _validated(kind: type[T], content: Mapping[str, Any], mistakes: list[str]) -> T:
    """The tables as far as they are valid. What is wrong with the others is added to ``mistakes``, and so is
    what does not go together in tables of which every known key is valid."""
    left, broken = dict(content), set[tuple[int | str, ...]]()
    while True:
        try:
            made = kind.model_validate(left)
            break
        except ValidationError as error:
            details = error.errors(include_url=False)
        mistakes += dict.fromkeys(map(_explain, details))
        for detail in details:
            left, table = _without(left, detail["loc"])
            broken |= set() if detail["type"] == "extra_forbidden" else {table}
    mistakes += [told for path, told in _contradictions(made, ()) if path not in broken]
    return made


def _without(
    content: Mapping[str, Any], path: tuple[int | str, ...]
) -> tuple[dict[str, Any], tuple[int | str, ...]]:
    """A copy without the key that a mistake is about, and the path of the table that had it."""
    name, inner = str(path[0]), content.get(str(path[0]))
    if isinstance(inner, Mapping) and len(path) > 1 and path[1] in inner:
        kept, table = _without(inner, path[1:])
        return {**content, name: kept}, (name, *table)
    return {key: value for key, value in content.items() if key != name}, ()


def _contradictions(table: Table, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    yield from ((path, told) for told in table.contradictions(_dotted(path)))
    for name in sorted(table.model_fields_set):
        value = getattr(table, name)
        inner = value if isinstance(value, dict) else {"": value}
        for key, each in inner.items():
            if isinstance(each, Table):
                yield from _contradictions(each, (*path, name, *filter(None, [key])))


def _tokenizer(table: Tokenizer, path: Path, mistakes: list[str]) -> HuggingFaceTokenizer | None:
    """The tokenizer of the file that the table names; its mistakes are added to ``mistakes``."""
    if table.file is None:
        return None
    try:
        found = read_tokenizer(path.parent / Path(table.file).expanduser())
    except SuiteError as error:
        mistakes.append(f"tokenizer.file: {error.where}: {error.what} ({error.remedy})")
        return None
    if table.vocab_size not in (None, found.vocabulary_size):
        told = f"tokenizer.vocab_size is {table.vocab_size}, and tokenizer.file has {found.vocabulary_size}"
        mistakes.append(f"{told}: leave it out")
    if table.counting_option == "B" and table.reference not in (None, table.name or found.name):
        mistakes.append(
            f"tokenizer.reference is {_toml(table.reference)}, and tokens are counted by tokenizer.file: "
            "leave that out, or name it as the reference"
        )
    return found


def read_tokenizer(path: Path) -> HuggingFaceTokenizer:
    """Read the tokenizer of a ``tokenizer.json``, or of the folder that contains one. Raises SuiteError."""
    from pytest_llmbench.tokens import TokenizerFile, hugging_face_tokenizer  # few name one

    file = path
    try:
        file = path / _TOKENIZER if path.is_dir() else path
        content = read_bytes(file, _TOKENIZER_BYTES)
        config = b""
        with suppress(FileNotFoundError):
            config = read_bytes(file.with_name(_TOKENIZER_CONFIG), SMALL_BYTES)
    except OSError as error:
        raise SuiteError(
            f"cannot be read: {error.strerror}",
            where=str(file),
            remedy=f"give the path of a {_TOKENIZER}, or of the folder that holds it; nothing is downloaded",
        ) from error
    model = revision = ""
    for folder in file.absolute().parents:  # models--ORG--NAME/snapshots/REVISION/… in the hub's cache
        name = folder.parent.parent.name
        if folder.parent.name == "snapshots" and name.startswith("models--"):
            model, revision = name.removeprefix("models--").replace("--", "/"), folder.name
            break
    try:
        return hugging_face_tokenizer(TokenizerFile(content, config, file.name, model, revision))
    except SuiteError as error:
        raise SuiteError(error.what, where=str(file), remedy=error.remedy) from error


def tokenizer_facts(tokenizer: HuggingFaceTokenizer, source: str) -> Facts:
    """The facts in a tokenizer's file, under the keys of ``[tokenizer]`` and some more. ``source``: its
    path."""
    values = {
        TokenizerFact.NAME: tokenizer.name,
        TokenizerFact.VERSION: tokenizer.version,
        TokenizerFact.VOCAB_SIZE: tokenizer.vocabulary_size,
        TokenizerFact.SOURCE: tokenizer.source,
        TokenizerFact.SHA256: tokenizer.sha256,
        TokenizerFact.TOKENS_PER_REFERENCE: round(tokenizer.tokens_per_reference, 3),
        TokenizerFact.SPECIAL_TOKENS: dict(tokenizer.special_tokens),
    }
    return Facts.of(Origin.DETECTED, values, source)


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
        remedy = "correct the TOML; text is in quotes, lists in [ ], tables begin with [name]"
        raise SuiteError(f"broken TOML: {error}", where=where, remedy=remedy) from error


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
        table = table_at(path[:-1])
        known = [*table.model_fields] if table else []
        text = f"{_dotted(path)}: unknown key{_suggestion(str(path[-1]), known)}"
        return f"{text} {_ABOUT_KEYS}" if path[-1] == "api_key" else text
    if any(name in _SECRET_BEARING for name in path):
        return f"{_dotted(path)}: not the name of a {'file' if 'api_key_file' in path else 'variable'}"
    # A part that is not of the file: it tells which of several types was tried.
    tried = (at for at, part in enumerate(path) if "[" in str(part) or part == "constrained-str")
    if (branch := next(tried, None)) is not None:
        # A key that may hold one of several types has an error for each; together they are one mistake.
        return f"{_dotted(path[:branch])}: give a {_allowed(path[:branch])}"
    seen = f"{_dotted(path)} is {_toml(detail['input'])}"
    if kind == "literal_error":
        known = [word.strip("`") for word in _allowed(path).split(", ")]
        return f"{seen}: choose one of {', '.join(known)}{_suggestion(str(detail['input']), known)}"
    wanted = _WANTED.get(kind) or detail["msg"].replace("Input should be", "it must be")
    return f"{seen}: {wanted}"


def _allowed(path: Sequence[int | str]) -> str:
    table = table_at(path[:-1])
    return values_of(table.model_fields[str(path[-1])].annotation) if table else "another value"


def _dotted(path: Sequence[int | str]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _suggestion(seen: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(seen.lower().replace("-", "_"), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _toml(value: object) -> str:
    try:
        return beginning(json.dumps(value, ensure_ascii=False), _MOST_SHOWN)
    except (TypeError, ValueError):  # dates and times, which TOML has and JSON has not
        return beginning(str(value), _MOST_SHOWN)
