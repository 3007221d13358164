"""The tables and keys of a SUT file. Their descriptions make up the page of its keys in the documentation.

A key is named like the fact it states; ``[endpoint]``, ``[request]``, ``[prices]``, ``[profile]`` and
``[limits]`` state none. The tables of ``[variants.NAME]`` are one SUT in several states, and how each is
reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pytest_llmbench.http_client import PORT
from pytest_llmbench.model.request import (
    CHUNK_TOKEN_FIELDS,
    OUTPUT_LIMITS,
    OWN_HEADERS,
    SESSION_HEADER,
    present,
)

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
HeaderNameOrNone = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]*$")]
Switch = Literal["enabled", "disabled"]
Filter = Literal["enabled", "disabled", "absent", "unknown"]


def _key(description: str, default: Any = None, **limits: Any) -> Any:
    return Field(default=default, description=description, **limits)


_PLACE = r"(?:field|header):\S+"
_TAKE_TOKEN_IDS = ("auto", "openai-completions", "sglang-generate", "vllm-grpc", "sglang-grpc")
_PROMPTS = ("messages", "prompt", "input", "inputs", "input_ids", "text_input")
_OURS = ("model", *_PROMPTS, "stream", "temperature", "n", *sorted(OUTPUT_LIMITS))
"""Body fields that the workload and the load generator decide."""


class Table(BaseModel):
    """A TOML table: unknown keys are mistakes, and nothing is converted (``"8"`` is not a number)."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most sessions have no SUT file
    )

    def contradictions(self, at: str) -> Iterator[str]:  # noqa: ARG002 - each table has its own
        """Mistakes: keys that are valid each, and do not go together. ``at``: where the table stands."""
        yield from ()


def _unsendable(extra: Mapping[str, Any], where: str) -> Iterator[str]:
    """Mistakes in further fields of a body."""
    yield from (f"{where}.{name}: the plugin decides this field" for name in _OURS if name in extra)
    if where.endswith("extra_body"):
        for name in present(extra, OUTPUT_LIMITS):
            if name not in _OURS:
                yield f"{where}.{name}: the plugin decides how long a reply may be"
    if "ignore_eos" in extra:
        yield f"{where}.ignore_eos: set request.ignore_eos, so that it is declared"
    try:
        json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"{where} cannot be sent as JSON: {error}"


def _no_place(table: Table, name: str, pattern: str, forms: str, at: str) -> Iterator[str]:
    """Mistake: the key names no place where a server could say something."""
    place = getattr(table, name)
    if place is not None and not re.fullmatch(pattern, place):
        yield f"{at}.{name} is {place!r}: write one of {forms}"


class Model(Table):
    name: Text | None = _key("Model identifier, such as `meta-llama/Llama-3.1-8B-Instruct`.")
    served_as: Text | None = _key(
        "What the endpoint calls it, where that name has nothing in common with `name`."
    )
    version: Text | None = _key("Version or revision of the weights.")
    quantization: Text | None = _key("Quantization scheme, such as `fp8`; `none` for an unquantised model.")


class Hardware(Table):
    disclosed: bool | None = _key("`false` where the operator does not say what the SUT runs on (AMB-27).")
    accelerator_type: Text | None = _key(
        "Such as `NVIDIA H100 SXM`; `cpu` for an engine without accelerators."
    )
    accelerator_count: int | None = _key("Number of accelerators; 0 with `cpu`.", ge=0)
    accelerator_memory_gib: float | None = _key(
        "Memory of one accelerator in GiB; with `cpu`, memory of the machine.", ge=0
    )

    def contradictions(self, at: str) -> Iterator[str]:
        given = [name for name in type(self).model_fields if name in self.model_fields_set - {"disclosed"}]
        if self.disclosed is False and given:
            yield f"{at}.disclosed is false, yet {', '.join(given)} is given: leave out one or the other"


class Software(Table):
    engine: Text | None = _key("Serving software, such as `vLLM`.")
    version: Text | None = _key("Its version.")


class System(Table):
    boundary: Literal["model_engine", "application_gateway", "compound_system", "custom"] | None = _key(
        "What is measured (section 4.1). `custom` needs `components`. What the draft says of the gateway "
        "binds every boundary but `model_engine`. There is no default."
    )
    components: list[Text] | None = _key("What lies inside the boundary.")
    profile: Text | None = _key("A label of your own for the kind of deployment.")
    prefix_caching: Switch | None = _key("Whether the prefix cache is on.")
    context_limit_tokens: int | None = _key("Longest context the SUT accepts.", ge=1)
    model: Model = Model()
    hardware: Hardware = Hardware()
    software: Software = Software()

    def contradictions(self, at: str) -> Iterator[str]:
        if self.boundary == "custom" and not self.components:
            yield f"{at}.boundary is custom: list what lies inside it in {at}.components"


class SpecialTokens(Table):
    bos_eos: Literal["included", "excluded"] | None = _key("Whether begin and end tokens are in the counts.")
    system_prompt: Literal["separate", "included", "none"] | None = _key(
        "Whether system-prompt tokens are counted apart, together with the rest, or not used."
    )
    tool_format: Literal["included", "excluded", "not_used"] | None = _key(
        "How tokens are counted that only format tool calls."
    )
    chat_template: Literal["included", "excluded", "not_used"] | None = _key(
        "Whether tokens that the chat template adds are in the counts."
    )


class Tokenizer(Table):
    file: Text | None = _key(
        "The SUT's own `tokenizer.json`, or the folder that holds it; needs the extra `[hf]`. It counts "
        "what the server does not count, and states the rest of this table."
    )
    name: Text | None = _key("The tokenizer that token counts refer to.")
    version: Text | None = _key("Its version or revision.")
    vocab_size: int | None = _key("Number of its ids, special tokens included.", ge=1)
    source: Text | None = _key("Model-hub id, tiktoken name, or `custom`.")
    counting_option: Literal["A", "B"] | None = _key(
        "`A`: the SUT's own tokenizer; `B`: one reference for all systems (section 4.4)."
    )
    reference: Text | None = _key("Name of the reference tokenizer; needed with option B.")
    special: SpecialTokens = SpecialTokens()

    def contradictions(self, at: str) -> Iterator[str]:
        if self.counting_option == "B" and not self.reference:
            yield f"{at}.counting_option is B: name the reference tokenizer in {at}.reference"


class Clock(Table):
    topology: Literal["single_machine", "distributed"] | None = _key(
        "Overrides detection, for a container of this host with its own address."
    )
    method: Literal["ntp", "ptp", "other"] | None = _key(
        "How the clocks of the two machines are kept together (section 4.7)."
    )
    accuracy_ms: float | None = _key("Estimated accuracy of that, in ms.", ge=0)
    offset_ms: float | None = _key("Measured offset to the time server, in ms.")
    ntp_server: Text | None = _key("The time server that both machines use.")
    sub_ms_required: bool | None = _key("`true` if instants of two machines are subtracted from each other.")


class Adjustment(Table):
    applied: bool | None = _key("Whether network time is taken off the adjusted TTFT.")
    amount_ms: float | None = _key("How much, in ms; needed when applied.", ge=0)
    method: Text | None = _key("How the amount was found; needed when applied.")

    def contradictions(self, at: str) -> Iterator[str]:
        for name in ("amount_ms", "method") if self.applied else ():
            if getattr(self, name) is None:
                yield f"{at}.{name} is missing: an adjustment is documented"


class Network(Table):
    significant: bool | None = _key(
        "Whether network time matters compared with TTFT. Default: decided by the measured round trip."
    )
    ttft_adjustment: Adjustment = Adjustment()


class Guardrails(Table):
    input_filter: Filter | None = _key(
        "Input filtering; `absent` for a bare engine. `unknown` is honest, but not compliant."
    )
    output_filter: Filter | None = _key("Output filtering, in the same words.")
    systems: list[Text] | Literal["not known"] | None = _key(
        "Names of the safety systems, an empty list for none, or `not known`."
    )
    production_claim: bool | None = _key("`true` if the results are to stand for production (section 4.8).")
    default_config: bool | None = _key("`true` if the safety systems run in their default configuration.")
    benign_content: bool | None = _key(
        "`true` if content of your own asks for nothing that a safety system refuses (guardrail test)."
    )
    comparative_run: Text | None = _key(
        "Where to find the run with the opposite state of the safety systems."
    )


class Warmup(Table):
    model_loaded: bool | None = _key(
        "`true` if the model is completely in accelerator memory before measuring."
    )


class Publication(Table):
    intended: bool | None = _key("`true` if the results are to be published.")
    considered: Text | None = _key("A note that publishing capacity figures of this system was weighed.")


class Isolation(Table):
    """Safety of a test that overloads the system on purpose (section 7.4)."""

    isolated_system: bool | None = _key("Whether nobody else uses the system while it is measured.")
    recovery_plan: Text | None = _key("How the system is brought back after a failure.")
    failure_monitoring: Text | None = _key("How failures that spread to other systems would be noticed.")


class EnvRef(Table):
    """A value that stands in the environment, not in the file."""

    env: EnvName


Path = Annotated[str, StringConstraints(pattern=r"^/\S*$")]


class Reset(Table):
    """An HTTP call that empties the caches of a running server."""

    method: Literal["POST", "GET", "PUT", "DELETE"] = _key("Method of that call. Default: `POST`.", "POST")
    path: Path | None = _key(
        "Path on the server, such as `/reset_prefix_cache`, of the call that empties its caches."
    )

    def contradictions(self, at: str) -> Iterator[str]:
        if self.path is None:
            yield f"{at}.path is missing: which call empties the caches?"


Api = Literal[
    "auto", "openai-chat", "openai-completions", "openai-responses", "anthropic-messages", "ollama-chat",
    "ollama-generate", "sglang-generate", "tgi-generate", "triton-generate", "openai-embeddings", "rerank",
    "score", "logprobs", "vllm-grpc", "sglang-grpc", "kserve-grpc",
]  # fmt: skip


class Endpoint(Table):
    model: Text | None = _key("Model to ask for. Default: the only one the endpoint lists.")
    api: Api = _key(
        "[Wire dialect](dialects.md); `auto` takes chat, else completions, else what there is.", "auto"
    )
    headers: dict[HeaderName, EnvRef] = _key('Further headers, each as `name = { env = "VARIABLE" }`.', {})
    api_key_env: EnvName | None = _key(
        "Variable with the API key. Default: `LLM_API_KEY`, then `OPENAI_API_KEY`."
    )
    api_key_file: Text | None = _key("File with the API key, instead of a variable.")
    ca_file: Text | None = _key("PEM file with the certificate authority to trust.")
    client_cert_file: Text | None = _key(
        "PEM file with the certificate to show to a server that demands one."
    )
    client_key_file: Text | None = _key(
        "PEM file with its key, not encrypted. Default: it stands in `client_cert_file`."
    )
    insecure: bool = _key("`true`: the server's certificate is not checked.", False)
    reset: Reset = Reset()

    def contradictions(self, at: str) -> Iterator[str]:
        if self.api_key_env and self.api_key_file:
            yield f"{at}.api_key_env and {at}.api_key_file are both given: choose one"
        if self.insecure and self.ca_file:
            yield f"{at}.insecure is true, so {at}.ca_file would not be used: choose one"
        if self.client_key_file and not self.client_cert_file:
            yield f"{at}.client_key_file is the key of a certificate: give client_cert_file too"


class Request(Table):
    prompt: Literal["text", "token_ids"] = _key(
        "How prompts are sent. `token_ids` needs a dialect that takes them, such as completions (AMB-32).",
        "text",
    )
    ignore_eos: bool = _key(
        "Ask the engine to go on to `max_tokens`; part of the length control (AMB-33).", False
    )
    omit: list[Literal["stream_options", "temperature"]] = _key(
        "Fields that are not sent, for a server that refuses them. Without `stream_options` most give no "
        "usage, and tokens are counted by the reference tokenizer; without `temperature` the model has its "
        "own (the preflight omits it automatically if the server refuses it).",
        [],
    )
    chunk_tokens: Literal["none", "usage", "ids", "timings"] = _key(
        "What the server is asked for so that the tokens of each chunk are counted and not estimated: "
        "`usage` (`stream_options.continuous_usage_stats`: vLLM, SGLang), `ids` (`return_token_ids`: vLLM), "
        "`timings` (`timings_per_token`: llama-server). It costs bytes in every chunk.",
        "none",
    )
    extra_body: dict[str, Any] = _key("Further fields of every request body, sent as they are.", {})
    session_header: HeaderNameOrNone = _key(
        "Header that says, with each turn of a session, which session it is of, for routers that keep a "
        'session on one replica. `""`: none is sent.',
        SESSION_HEADER,
    )

    def contradictions(self, at: str) -> Iterator[str]:
        if set(self.omit) & self.extra_body.keys():
            yield f"{at}.omit and {at}.extra_body name the same field: choose one"
        chunked = f"{at}.chunk_tokens"
        for name in CHUNK_TOKEN_FIELDS[self.chunk_tokens]:
            if name in self.extra_body:
                yield f"{chunked} and {at}.extra_body both send {name}: choose one"
            if name in self.omit:
                yield f"{chunked} is {self.chunk_tokens}, which needs {name}: take it out of {at}.omit"
        if self.session_header.lower() in OWN_HEADERS:
            yield f"{at}.session_header: header {self.session_header!r} is set by the load generator itself"
        yield from _unsendable(self.extra_body, f"{at}.extra_body")


class Reasoning(Table):
    tags: Literal["auto", "think", "kimi", "gpt-oss", "none"] = _key(
        "Tags of reasoning inside visible text. `auto`: those that a reply begins with.", "auto"
    )
    starts_thinking: bool = _key(
        "`true`: every reply begins in its reasoning, without an opening tag. Needs `tags` by name.", False
    )
    end_reason: Text | None = _key(
        "Where the server says why the reasoning of a reply ended: `field:choices.0.think_end`, "
        "`header:X-Think-End`, `metric:SERIES{LABEL}`, a counter of its metrics page by reason."
    )
    natural_end_reasons: list[Text] = _key(
        "Reasons by which the model ended it itself; all others are the server's force.", ["converged"]
    )
    critical_evictions: Text | None = _key(
        "Where the server counts evictions in the output phase: `field:…`, `header:…`, `metric:SERIES` of "
        "its metrics page."
    )

    def contradictions(self, at: str) -> Iterator[str]:
        if self.starts_thinking and self.tags in ("auto", "none"):
            yield f"{at}.starts_thinking needs the form of the closing tag: set {at}.tags to one by name"
        for name, series in (("end_reason", r"[^\s{}]+\{[^\s{}]+\}"), ("critical_evictions", r"[^\s{}]+")):
            of_page = "metric:NAME{LABEL}" if name == "end_reason" else "metric:NAME"
            forms = f"field:NAME, header:NAME, {of_page}"
            yield from _no_place(self, name, f"{_PLACE}|metric:{series}", forms, at)


class ServerTimes(Table):
    queue_wait: Text | None = _key(
        "Where the server, or the gateway before it, says how long a request waited to be scheduled: "
        "`field:x_groq.usage.queue_time`, `header:X-Queue-Time`, `header:Server-Timing:queue`."
    )
    prefill: Text | None = _key(
        "Where it says how long it took from there to the first token, in the same forms."
    )
    unit: Literal["s", "ms", "us", "ns"] = _key(
        "Unit of both. The durations of `Server-Timing` are ms.", "ms"
    )

    def contradictions(self, at: str) -> Iterator[str]:
        forms = "field:NAME, header:NAME, header:Server-Timing:ENTRY"
        for name in ("queue_wait", "prefill"):
            yield from _no_place(self, name, _PLACE, forms, at)
        if self.model_fields_set == {"unit"}:
            yield f"{at}.unit alone says nothing: which time is it that of?"


class Prices(Table):
    input_per_million: float | None = _key("Price of a million input tokens.", ge=0)
    output_per_million: float | None = _key("Price of a million output tokens.", ge=0)
    currency: Text = _key("Currency of all prices. Default: `USD`.", "USD")
    per_hour: float | None = _key(
        "Price of an hour of the whole system, for comparisons of systems and `tokens_per_dollar`.", gt=0
    )
    date: Text | None = _key("Day on which that price was taken.")

    def contradictions(self, at: str) -> Iterator[str]:
        both = {"input_per_million": self.input_per_million, "output_per_million": self.output_per_million}
        given = [name for name, price in both.items() if price is not None]
        if len(given) == 1:
            yield f"{at}.{given[0]} alone gives no cost: state both prices, 0 for a free one"

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """The price of so many tokens, in ``currency``, where both prices are given."""
        assert self.input_per_million is not None
        assert self.output_per_million is not None
        return (input_tokens * self.input_per_million + output_tokens * self.output_per_million) / 1e6


class Telemetry(Table):
    """What is sampled of the machine during each load; an empty table is enough."""

    url: Text | list[Text] | None = _key(
        "Prometheus page, or several, of the machine: DCGM exporter, node exporter, Kepler."
    )
    command: list[Text] | None = _key(
        "A command that writes what it sees of the machine, one JSON object a line.", min_length=1
    )
    this_host: bool | None = _key(
        "Whether the devices of this host are the SUT's: GPUs by NVML and AMD SMI, RAPL, psutil. Default: "
        "where the SUT answers on this host."
    )
    interval_s: float = _key("Seconds from one reading to the next. Default: 0.5.", 0.5, gt=0, le=1)


WAYS = ("url", "command", "control", "request", "preset")
"""The ways to reach a variant; each has exactly one. ``url`` beside ``command`` says where that one
answers."""

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_OF_A_COMMAND = ("cwd", "env", "health", "log", "concurrent")


class Call(Table):
    """An HTTP call to the SUT, or to whatever administers it."""

    method: Literal["POST", "GET", "PUT", "PATCH", "DELETE"] = _key(
        "Method of the call. Default: `POST`.", "POST"
    )
    path: Path | None = _key("Path on the server of the SUT.")
    url: Text | None = _key("Or a whole URL, of an administrative server.")
    body: dict[str, Any] | None = _key("JSON body, if there is one.")
    expect: int | None = _key("Status that means success. Default: any of 200 to 299.", ge=100, le=599)

    def contradictions(self, at: str) -> Iterator[str]:
        if (self.path is None) == (self.url is None):
            yield f"{at}: give either path or url"
        yield from _unsendable({"json": self.body or {}}, f"{at}.body")


class Profile(Table):
    """How ``--llm-profile`` switches the engine's profiler on and off."""

    start: Call = _key(
        "Call that switches it on, with the keys of `control` of a variant. Default: `POST /start_profile`.",
        Call(path="/start_profile"),
    )
    stop: Call = _key("Call that switches it off. Default: `POST /stop_profile`.", Call(path="/stop_profile"))
    start_command: list[Text] | None = _key(
        "Command in place of the call `start`, program and arguments apart.", min_length=1
    )
    stop_command: list[Text] | None = _key("Command in place of the call `stop`.", min_length=1)
    seconds: float = _key("How long load is sent meanwhile. Default: 5.", 5.0, gt=0, le=600)
    timeout_s: float = _key("How long each call or command may take. Default: 60.", 60.0, gt=0, le=3600)
    files: Text | None = _key(
        "Pattern of the files that the profiler writes, such as `/tmp/traces/*.json.gz`; `**` is any folders."
    )

    def contradictions(self, at: str) -> Iterator[str]:
        for name in ("start", "stop"):
            if f"{name}_command" in self.model_fields_set and name in self.model_fields_set:
                yield f"{at}.{name} and {at}.{name}_command are both given: choose one"
        if (self.start_command is None) != (self.stop_command is None):
            yield f"{at}.start_command and {at}.stop_command belong together: give both"


class Health(Table):
    path: Path = _key(
        "Path that answers with 200 to 299 once the server can be used. Default: `/health`.", "/health"
    )
    timeout_s: Annotated[float, Field(gt=0)] = _key(
        "How long to wait for that, in seconds. Default: 600.", 600.0
    )


class FurtherRequest(Table):
    extra_body: dict[str, Any] = _key("Further fields of every request body, over those of `[request]`.", {})
    headers: dict[HeaderName, EnvRef] = _key('Further headers, each as `name = { env = "VARIABLE" }`.', {})

    def contradictions(self, at: str) -> Iterator[str]:
        yield from _unsendable(self.extra_body, f"{at}.extra_body")


class VariantTable(Table):
    """One variant. Exactly one of ``url``, ``command``, ``control``, ``request`` and ``preset``."""

    url: Text | None = _key(
        "Another endpoint. Beside `command`: where the launched server answers. Default there: "
        "`http://127.0.0.1:{port}/v1`."
    )
    command: list[Text] | None = _key(
        "A server to launch, program and arguments apart; `{port}` is a free port of this host.", min_length=1
    )
    cwd: Text | None = _key("Directory in which the command runs.")
    env: dict[EnvName, str] = _key("Variables of the command, in addition to those of this process.", {})
    health: Health = Health()
    log: Text | None = _key("File for what the command writes. Default: a temporary file.")
    concurrent: bool = _key(
        "`true`: may run at the same time as other launched variants. Else one runs at a time.", False
    )
    control: Call | None = None
    restore: Call | None = None
    request: FurtherRequest | None = None
    preset: Text | None = _key(
        "Options of the embedded engine over those of the endpoint, as `prefix_caching=on`."
    )
    reset: Reset = Reset()
    sut: System = _key("Keys of `[sut]` that differ in this variant, `prefix_caching` say.", System())
    guardrails: Guardrails = _key("Keys of `[guardrails]` that differ in this variant.", Guardrails())

    @property
    def way(self) -> str:
        """The member of ``WAYS`` by which the variant is reached."""
        return next(way for way in ("command", *WAYS) if getattr(self, way) is not None)

    def contradictions(self, at: str) -> Iterator[str]:
        name = at.removeprefix("variants.")
        if not _NAME.match(name):
            yield f"variants.{name!r}: a name has letters, digits, dots, dashes and underscores"
        ways = [way for way in WAYS if getattr(self, way) is not None]
        if not ways:
            yield f"{at} says not how it is reached: give one of {', '.join(WAYS)}"
        elif len(ways) > 1 and ways != ["url", "command"]:
            yield f"{at} is reached in {len(ways)} ways ({', '.join(ways)}): choose one"
        if self.command is None:
            for key in _OF_A_COMMAND:
                if key in self.model_fields_set:
                    yield f"{at}.{key} needs a command, and none is given"
        elif self.url is None and not any(PORT in word for word in (*self.command, *self.env.values())):
            yield f"{at}.command: name its port with {PORT}, in command or env, or give url"
        if self.restore is not None and self.control is None:
            yield f"{at}.restore undoes a control call, but none is given"


class Variants(Table):
    """The table ``[variants]`` as a whole, so that mistakes carry the name of their variant."""

    variants: dict[str, VariantTable] = Field(default_factory=dict)


class SUTTables(Variants):
    """A whole SUT file."""

    production_sample_check: Text | None = _key(
        "Where to find a check against samples of production traffic."
    )
    sut: System = System()
    tokenizer: Tokenizer = Tokenizer()
    clock: Clock = Clock()
    network: Network = Network()
    guardrails: Guardrails = Guardrails()
    warmup: Warmup = Warmup()
    publication: Publication = Publication()
    isolation: Isolation = Isolation()
    endpoint: Endpoint = Endpoint()
    request: Request = Request()
    reasoning: Reasoning = Reasoning()
    server_times: ServerTimes = ServerTimes()
    prices: Prices = Prices()
    profile: Profile = Profile()
    telemetry: Telemetry | None = None
    limits: dict[str, dict[str, dict[str, float]]] = _key(
        "Limits of tests at a place, `[limits.h100.test_batch]`: a number for each metric, in its unit. The "
        "accelerator or `--llm-place` chooses the place.",
        {},
    )

    def contradictions(self, at: str) -> Iterator[str]:  # noqa: ARG002 - it is the top
        request, endpoint = self.request, self.endpoint
        if request.prompt == "token_ids" and endpoint.api not in _TAKE_TOKEN_IDS:
            told = f"request.prompt is token_ids, which {endpoint.api} cannot carry"
            yield f'{told}: endpoint.api = "openai-completions"'
        if request.prompt == "text" and endpoint.api == "sglang-grpc":
            yield 'endpoint.api is sglang-grpc, which takes no text: request.prompt = "token_ids"'
        chunked = ("auto", "openai-chat", "openai-completions")
        if CHUNK_TOKEN_FIELDS[request.chunk_tokens] and endpoint.api not in chunked:
            told = f"request.chunk_tokens is {request.chunk_tokens}, which {endpoint.api} does not have"
            yield f"{told}: leave it out"
        if request.session_header.lower() in map(str.lower, endpoint.headers):
            named = request.session_header
            yield f"request.session_header and endpoint.headers both name {named}: choose one"


def inner_table(annotation: Any) -> type[Table] | None:
    """The table class that a field may hold; None if it holds none."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    tables = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, Table)]
    return tables[0] if tables else None


def table_at(path: Sequence[int | str]) -> type[Table] | None:
    """The class of the table at ``path`` from the top of the file; None if there is none."""
    table: type[Table] | None = SUTTables
    if path[:1] == ["variants"]:
        table, path = VariantTable, path[2:]
    for part in path:
        field = table.model_fields.get(str(part)) if table else None
        table = inner_table(field.annotation) if field else None
    return table


def reference_rows(table: type[Table] = SUTTables, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, values, meaning) of every key, in the order of the reference page."""
    for name, field in table.model_fields.items():
        inner = inner_table(field.annotation)
        if name == "variants":  # a page of their own
            continue
        if inner is not None and field.description is None:
            yield from reference_rows(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", values_of(field.annotation), field.description or ""


_WORDS: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}


def values_of(annotation: Any) -> str:
    """The values that a key of this type may have, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return "any value"
    if origin is Annotated:
        return values_of(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(values_of(argument) for argument in arguments if argument is not NoneType)
    if origin is list:
        return f"list of {values_of(arguments[0])}"
    if origin is dict or inner_table(annotation) is not None:
        return "table"
    return _WORDS[annotation]
