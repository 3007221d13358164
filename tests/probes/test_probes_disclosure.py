"""The SUT file: every key reaches a fact, every mistake is told at once, and no key leaks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.facts import Fact, Origin
from pytest_llmbench.probes.disclosure import (
    SUTFile,
    read_sut_file,
    read_variants,
    variant_facts,
)
from pytest_llmbench.probes.sut_schema import reference_rows

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "sut.toml"
NO_FACTS = ("endpoint.", "request.", "prices.", "profile.", "telemetry.", "limits")
COMMENTS = ("tokenizer.file", "tokenizer.reference")
"""Facts that the example states in a comment."""


@pytest.fixture
def read(tmp_path):
    def read_text(text: str) -> SUTFile:
        file = tmp_path / "sut.toml"
        file.write_text(text, encoding="utf-8")
        return read_sut_file(file)

    return read_text


def mistakes_of(read, text: str) -> str:
    with pytest.raises(SuiteError) as caught:
        read(text)
    return str(caught.value)


def test_the_example_is_read():
    example = read_sut_file(EXAMPLE)
    assert example.facts.value("sut.boundary") == "model_engine"
    assert example.facts.value("sut.hardware.accelerator_memory_gib") == 80
    assert example.facts.value("tokenizer.special.bos_eos") == "included"
    assert example.facts.value("guardrails.systems") == []
    assert example.facts.value("network.ttft_adjustment") == {
        "applied": False,
        "amount_ms": 0.0,
        "method": "none",
    }
    assert example.tables.endpoint.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert example.header_env == {"x-tenant": "GATEWAY_TENANT"}
    assert example.ca_file == EXAMPLE.parent / "our-ca.pem"
    assert example.tables.request.extra_body == {
        "seed": 7,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert example.tables.request.ignore_eos
    assert example.tables.prices.input_per_million == 0.15


def test_the_example_shows_every_key():
    """Keys that would contradict another one of the example stand there as comments."""
    text = re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    shown = tomllib.loads(text)
    for key, _, _ in reference_rows():
        table = shown
        for part in key.split("."):
            assert part in table, f"{key} is missing from {EXAMPLE.name}"
            table = table[part]


def test_every_key_becomes_a_fact_of_the_same_name():
    facts = read_sut_file(EXAMPLE).facts
    for key, _, _ in reference_rows():
        if key.startswith("network.ttft_adjustment."):
            assert key.split(".")[-1] in facts.value("network.ttft_adjustment")
        elif not key.startswith(NO_FACTS) and key not in COMMENTS:
            assert key in facts
    assert not [key for key in facts if key.startswith(NO_FACTS)]


def test_facts_are_declared_and_name_the_file(read, tmp_path):
    assert read('sut.boundary = "model_engine"').facts == {
        "sut.boundary": Fact("model_engine", Origin.DECLARED, str(tmp_path / "sut.toml"))
    }


def test_an_empty_file_states_nothing(read):
    empty = read("")
    assert len(empty.facts) == 0
    assert empty.tables.endpoint.api == "auto"
    assert empty.tables.request.prompt == "text"
    assert not empty.tables.request.ignore_eos
    assert empty.api_key_file is None


def test_zero_and_false_are_statements(read):
    facts = read("[sut.hardware]\naccelerator_count = 0\n[warmup]\nmodel_loaded = false").facts
    assert facts.value("sut.hardware.accelerator_count") == 0
    assert facts.value("warmup.model_loaded") is False


def test_whole_numbers_do_for_numbers(read):
    assert read("clock.accuracy_ms = 3").facts.value("clock.accuracy_ms") == 3.0


def test_undisclosed_hardware(read):
    facts = read("sut.hardware.disclosed = false").facts
    assert facts.value("sut.hardware.disclosed") is False
    assert facts.value("sut.hardware.accelerator_type") == "undisclosed"


def test_all_mistakes_are_told_at_once(read):
    told = mistakes_of(
        read,
        """
        [sut]
        boundry = "model_engine"
        prefix_caching = "on"
        components = "one"
        [sut.hardware]
        accelerator_count = "8"
        [tokenizer]
        counting_option = "B"
        [guardrail]
        input_filter = "absent"
        """,
    )
    for line in (
        "6 mistakes",
        "sut.boundry: unknown key; did you mean boundary?",
        'sut.prefix_caching is "on": choose one of enabled, disabled',
        'sut.components is "one": give a list',
        'sut.hardware.accelerator_count is "8": give a whole number',
        "guardrail: unknown key; did you mean guardrails?",
        "tokenizer.counting_option is B: name the reference tokenizer",
        "sut.toml",
        "docs/reference/sut-file.md",
    ):
        assert line in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('sut.boundary = "engine"', "did you mean model_engine?"),
        ('sut.model.name = ""', "give text that is not empty"),
        ("sut.model.version = 1.0", "sut.model.version is 1.0: give text in quotes"),
        ("sut.context_limit_tokens = 0", "it must be greater than or equal to 1"),
        ("clock.accuracy_ms = nan", "finite number"),
        ("clock.accuracy_ms = -1", "greater than or equal to 0"),
        ('network.significant = "yes"', "give true or false, without quotes"),
        ('guardrails.systems = "unknown"', "guardrails.systems: give a list of text or `not known`"),
        ("guardrails.systems = [1]", "guardrails.systems: give a list of text or `not known`"),
        ('sut.components = ["a", 2]', "sut.components[1] is 2: give text in quotes"),
        ('sut.model = "llama"', 'sut.model is "llama": give a table'),
        ("sut.model.name = 2026-01-01", "sut.model.name is 2026-01-01"),
        ('sut.boundary = "custom"', "list what lies inside it in sut.components"),
        ('sut.hardware = { disclosed = false, accelerator_type = "H100" }', "accelerator_type is given"),
        ("network.ttft_adjustment.applied = true", "amount_ms is missing"),
        ('endpoint = { api_key_env = "A", api_key_file = "b" }', "both given: choose one"),
        ('endpoint.client_key_file = "b"', "give client_cert_file too"),
        (
            'request = { omit = ["stream_options"], extra_body = { stream_options = { a = 1 } } }',
            "name the same field: choose one",
        ),
        ('endpoint = { insecure = true, ca_file = "b" }', "would not be used"),
        ('request.session_header = "Host"', "is set by the load generator itself"),
        (
            'request.session_header = "X-S"\nendpoint.headers = { x-s = { env = "S" } }',
            "request.session_header and endpoint.headers both name X-S: choose one",
        ),
        ('request.chunk_tokens = "all"', "request.chunk_tokens"),
        (
            'request = { chunk_tokens = "usage", omit = ["stream_options"] }',
            "request.chunk_tokens is usage, which needs stream_options: take it out of request.omit",
        ),
        (
            'request = { chunk_tokens = "ids", extra_body = { return_token_ids = false } }',
            "request.chunk_tokens and request.extra_body both send return_token_ids: choose one",
        ),
        (
            'endpoint.api = "ollama-chat"\nrequest.chunk_tokens = "timings"',
            "request.chunk_tokens is timings, which ollama-chat does not have",
        ),
        ('request.session_header = "a b"', "request.session_header"),
        ('endpoint.api = "openai-chat"\nrequest.prompt = "token_ids"', 'endpoint.api = "openai-completions"'),
        ("prices.input_per_million = 1", "state both prices"),
        ('profile.start_command = ["a"]', "profile.stop_command belong together: give both"),
        (
            'profile.start = {path = "/a"}\nprofile.start_command = ["a"]\nprofile.stop_command = ["b"]',
            "profile.start and profile.start_command are both given: choose one",
        ),
        ("request.extra_body.stream = false", "request.extra_body.stream: the plugin decides this field"),
        (
            "request.extra_body.max_completion_tokens = 8",
            "request.extra_body.max_completion_tokens: the plugin decides this field",
        ),
        (
            "request.extra_body.sampling_params.max_new_tokens = 8",
            "sampling_params.max_new_tokens: the plugin decides how long a reply may be",
        ),
        ("request.extra_body.ignore_eos = true", "set request.ignore_eos"),
        ("request.extra_body.since = 2026-01-01", "cannot be sent as JSON"),
        ("request.extra_body.bias = inf", "cannot be sent as JSON"),
        ("sut = 1\n[tokenizer]\nspecial = 1", "tokenizer.special is 1: give a table"),
        ('endpoint.api_key = "sk-1"', "api_key_env"),
        ('endpoint.api_key = "sk-1"', "api_key_file"),
        ('sut.boundary = "model_engine"\nsut.profile = oops\n', "broken TOML"),
        ('sut.boundary = "model_engine"\nsut.profile = oops\n', "line 2"),
        ('[variant.x]\nurl = "u"', "did you mean variants?"),
        ("reasoning.starts_thinking = true", "set reasoning.tags to one by name"),
        ('reasoning = { tags = "none", starts_thinking = true }', "set reasoning.tags to one by name"),
        ('reasoning.tags = "thinking"', "choose one of auto, think, kimi, gpt-oss, none"),
        ('reasoning.end_reason = "metric:x"', "write one of field:NAME, header:NAME, metric:NAME{LABEL}"),
        ('reasoning.end_reason = "metric:x{}"', "metric:NAME{LABEL}"),
        ('reasoning.critical_evictions = "metric:x{y}"', "field:NAME, header:NAME, metric:NAME"),
        ('reasoning.critical_evictions = "x_total"', "field:NAME, header:NAME, metric:NAME"),
        ('reasoning.critical_evictions = "field: "', "field:NAME, header:NAME, metric:NAME"),
        ('server_times.queue_wait = "x-queue-time"', "queue_wait is 'x-queue-time': write one of"),
        ('server_times.prefill = "metric:x"', "field:NAME, header:NAME, header:Server-Timing:ENTRY"),
        ('server_times.unit = "s"', "server_times.unit alone says nothing"),
        ('server_times = { prefill = "field:x", unit = "min" }', "choose one of s, ms, us, ns"),
    ],
)
def test_one_mistake(read, text, told):
    assert told in mistakes_of(read, text)


@pytest.mark.parametrize(
    "text",
    [
        'endpoint.api_key = "sk-canary-12345"',
        'endpoint.api_key_env = "sk-canary-12345"',
        'endpoint.headers.Authorization = "Bearer sk-canary-12345"',
        'endpoint.headers.Authorization = { env = "sk-canary-12345" }',
        'endpoint.headers.Authorization = { value = "sk-canary-12345" }',
        'endpoint.headers.Authorization = ["sk-canary-12345"]',
        'endpoint.headers = "sk-canary-12345"',
    ],
)
def test_a_key_in_the_file_is_refused_and_not_repeated(read, text):
    told = mistakes_of(read, text)
    assert "sk-canary" not in told
    assert "endpoint." in told


def test_text_that_is_not_utf8_names_the_line(tmp_path):
    file = tmp_path / "sut.toml"
    file.write_bytes(b'# fine\nsut.profile = "\xff"\n')
    with pytest.raises(SuiteError, match="line 2"):
        read_sut_file(file)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SuiteError, match="No such file"):
        read_sut_file(tmp_path / "none.toml")
    with pytest.raises(SuiteError, match="cannot be read"):
        read_sut_file(tmp_path)


def test_paths_start_where_the_file_lies(read, tmp_path):
    file = read('endpoint = { api_key_file = "keys/one", ca_file = "/etc/ca.pem" }')
    assert file.api_key_file == tmp_path / "keys" / "one"
    assert file.ca_file == Path("/etc/ca.pem")


def test_variants_of_the_example():
    variants = read_sut_file(EXAMPLE).tables.variants
    assert {name: table.way for name, table in variants.items()} == {
        "cache_enabled": "command",
        "guardrails_full": "url",
        "low_priority": "request",
        "chunked": "control",
    }
    facts = variant_facts(variants["guardrails_full"], "here")
    assert {key: fact.value for key, fact in facts.items()} == {
        "sut.boundary": "application_gateway",
        "guardrails.input_filter": "enabled",
        "guardrails.output_filter": "enabled",
    }
    assert not [key for key in read_sut_file(EXAMPLE).facts if key.startswith("variants")]


def test_all_mistakes_of_variants_are_told_with_the_others(read):
    told = mistakes_of(
        read,
        """
        sut.prefix_caching = "on"
        [variants."a b"]
        [variants.two]
        url = "http://x/v1"
        preset = "seed=1"
        cwd = "there"
        sut = { prefix_cachin = "on", boundary = "custom" }
        [variants.cmd]
        command = ["serve"]
        healt = 1
        [variants.ctl]
        control = { path = "x" }
        restore = { path = "/a", url = "http://b/" }
        [variants.ask]
        request = { extra_body = { model = 1 }, headers = { x = "sk-canary-1" } }
        reset = { method = "POST" }
        """,
    )
    for line in (
        'sut.prefix_caching is "on"',
        "variants.'a b': a name has letters",
        "variants.a b says not how it is reached: give one of url, command, control, request, preset",
        "variants.two is reached in 2 ways (url, preset): choose one",
        "variants.two.cwd needs a command",
        "variants.two.sut.prefix_cachin: unknown key; did you mean prefix_caching?",
        "variants.two.sut.boundary is custom",
        "variants.cmd.command: name its port",
        "variants.cmd.healt: unknown key; did you mean health?",
        'variants.ctl.control.path is "x": give a path that begins with /',
        "variants.ctl.restore: give either path or url",
        "variants.ask.request.extra_body.model: the plugin decides this field",
        "variants.ask.request.headers.x: not a reference",
        "variants.ask.reset.path is missing",
    ):
        assert line in told
    assert "sk-canary" not in told


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        # what is wrong was given all the same
        ('tokenizer = { counting_option = "B", reference = 3 }', ["tokenizer.reference is 3"]),
        ("variants.x.command = 3", ["variants.x.command is 3"]),
        ('endpoint.reset.path = "x"', ['endpoint.reset.path is "x"']),
        # what is unknown, or wrong in a table within, hides nothing
        (
            'variants.x = { command = ["s"], env = { A = 1 }, hea = 1, sut = { profile = 1 } }',
            [
                "variants.x.env",
                "variants.x.hea",
                "variants.x.sut.profile",
                "variants.x.command: name its port",
            ],
        ),
        (
            'request.prompt = "token_ids"\n'
            'endpoint = { api = "tgi-generate", insecure = true, ca_file = "c" }',
            ["endpoint.insecure is true", "request.prompt is token_ids, which tgi-generate cannot carry"],
        ),
    ],
)
def test_exactly_the_mistakes_that_an_author_made(read, text, mistakes):
    told = mistakes_of(read, text)
    assert all(mistake in told for mistake in mistakes)
    assert re.findall(r"sut.toml: (\d+) mistakes\n", told) == [str(len(mistakes))] * (len(mistakes) > 1)


def test_variants_from_a_hook_are_checked_in_the_same_way():
    assert read_variants({"x": {"preset": "seed=1"}}, "hook")["x"].preset == "seed=1"
    with pytest.raises(SuiteError, match=r"hook: variants\.x\.url is 3"):
        read_variants({"x": {"url": 3}}, "hook")
    with pytest.raises(SuiteError, match=r"variants\.x is 3: give a table"):
        read_variants({"x": 3}, "hook")


def test_environment_values_are_not_repeated(read):
    told = mistakes_of(read, 'variants.x = { command = ["s", "{port}"], env = { KEY = ["sk-canary-1"] } }')
    assert "variants.x.env.KEY" in told
    assert "sk-canary" not in told


@pytest.mark.parametrize("text", ['[json_messages]\ntext = "say"', "json_messages = 1"])
def test_a_table_of_an_earlier_release_says_what_to_do_in_its_place(read, text):
    told = mistakes_of(read, text)
    assert "json_messages: messages over WebSocket that a file describes are no longer measured" in told
    assert "serve OpenAI's Responses" in told
