"""Options are a public surface: help, ini, given twice, wrong values, the plan."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from plugin_suite import Suite, refused

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.plugin.options import NOW, OPTIONS, values

NAMES = (
    "endpoint", "model", "api", "http", "sut", "scale", "plan", "report", "runs", "baseline-endpoint",
    "calibrate", "save", "autosave", "compare", "compare-fail", "compare-confirm", "accept", "waive",
    "storage", "send", "seed", "place", "prompts", "intervals", "inconclusive", "exit-codes", "require",
    "import", "workloads", "records", "profile", "allow-overload", "timeout",
    "wait", "workers", "remeasure",
    "host-limits", "worker-cpus", "caps", "budget", "insecure", "proxy", "api-key-file",
)  # fmt: skip

PLANNED = """
@llmbench.ttft(p99_ms=500, rate=20)
def test_open(): ...

@llmbench.ttft(concurrency=4, requests=100)
def test_closed(): ...

def test_plain():
    raise AssertionError("a plan runs nothing")
"""


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """Listens and would notice a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def assert_nobody_called(server: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        server.accept()


def test_the_options_are_those_of_the_contract() -> None:
    assert tuple(option.name for option in OPTIONS) == NAMES


def test_help_names_every_option(suite: Suite) -> None:
    result = suite.run("--help")
    result.stdout.fnmatch_lines(["LLM serving benchmarks:", *(f"*--llm-{name}*" for name in NAMES)])
    result.stdout.fnmatch_lines(["*llm_endpoint*"])


def test_an_option_given_twice_is_a_mistake(suite: Suite) -> None:
    suite.write("def test_plain(): ...")
    refused(suite.run("--llm-model=a", "--llm-model=b")).fnmatch_lines(
        ["*--llm-model is given 2 times*: give it once"]
    )


def test_a_misspelt_option_is_named_with_the_one_that_is_meant(suite: Suite) -> None:
    suite.write("def test_plain(): ...")
    refused(suite.run("--llm-endpont=replay", "--llm-scal", "quick")).fnmatch_lines(
        ["*no option --llm-endpont; did you mean --llm-endpoint?", "*--llm-scal; did you mean --llm-scale?"]
    )
    suite.write("def test_plain(): ...", "def pytest_addoption(parser): parser.addoption('--llm-jury')")
    suite.run("--llm-jury=twelve").assert_outcomes(passed=1)


def test_wrong_values_are_named(suite: Suite) -> None:
    suite.write(PLANNED)
    refused(suite.run("--llm-plan", "--llm-runs=0", "--llm-seed=-1")).fnmatch_lines(
        ["*--llm-runs*0*", "*--llm-seed*-1*"]
    )


ONE, BASELINE = "--llm-endpoint=replay", "--llm-baseline-endpoint=replay"
SYSTEMS = ("--llm-endpoint=a=replay", "--llm-endpoint=b=replay")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([ONE, "--llm-calibrate", "--llm-runs=2"], "--llm-runs: 2 cannot tell a change from noise*"),
        ([ONE, "--llm-calibrate", BASELINE], "--llm-calibrate measures one system alone*"),
        ([ONE, BASELINE, "--llm-runs=2"], "--llm-runs: 2 cannot tell a *at least 3 runs of each arm*"),
        ([*SYSTEMS, "--llm-runs=2"], "--llm-runs: 2 cannot tell a change from noise*"),
        ([*SYSTEMS, BASELINE], "--llm-baseline-endpoint: not possible with several systems*"),
    ],
)
def test_what_does_not_go_together_is_said_first(suite: Suite, arguments: list[str], told: str) -> None:
    suite.write(PLANNED)
    refused(suite.run(*arguments)).fnmatch_lines([f"*{told}"])


def test_collect_only_touches_no_network(suite: Suite, silent_server: socket.socket) -> None:
    suite.write(PLANNED)
    port = silent_server.getsockname()[1]
    result = suite.run("--collect-only", "-q", f"--llm-endpoint=http://127.0.0.1:{port}/v1")
    assert result.ret == 0
    assert_nobody_called(silent_server)


def test_plan_prints_and_touches_no_network(suite: Suite, silent_server: socket.socket) -> None:
    suite.write(PLANNED)
    port = silent_server.getsockname()[1]
    endpoint = f"--llm-endpoint=http://127.0.0.1:{port}/v1"
    drawn = suite.run("--llm-plan", endpoint)
    drawn.stdout.fnmatch_lines(["*each session draws its own prompts*--llm-prompts=NAME fixes them*"])
    result = suite.run("--llm-plan", endpoint, "--llm-prompts=seed")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*prompts of its own*")
    result.stdout.fnmatch_lines(
        [
            "llmbench plan (scale standard): estimates by dry runs*; nothing is sent",
            "*test_suite.py::test_open",
            "*Time to First Token: open loop, poisson arrivals at 20 req/s, workload synthetic-uniform",
            "*1,104 requests (104 in *), * input and * output tokens, ?? s*",
            "*test_suite.py::test_closed",
            "*closed loop, 4 in flight*",
            "*total of 2 tests: *",
        ]
    )
    assert_nobody_called(silent_server)


def test_plan_knows_the_price(suite: Suite) -> None:
    suite.write(PLANNED)
    (suite.path / "sut.toml").write_text(
        '[prices]\ninput_per_million = 1.0\noutput_per_million = 10.0\ncurrency = "EUR"\n'
    )
    result = suite.run("--llm-plan", "--llm-sut=sut.toml", "-k", "open")
    result.stdout.re_match_lines([r".*total of 1 test: 1,104 requests .* output tokens, .*, [12]\.\d\d EUR"])


def test_ini_settings_stand_behind_the_command_line(suite: Suite) -> None:
    suite.write(PLANNED)
    suite.pytester.makeini(
        "[pytest]\nllm_scale = quick\nllm_plan = true\nasyncio_default_fixture_loop_scope = function\n"
    )
    suite.run("-k", "open").stdout.fnmatch_lines(["llmbench plan (scale quick)*", "*64 requests *"])
    suite.run("-k", "open", "--llm-scale=full").stdout.fnmatch_lines(["*10,20? requests *"])


def test_a_report_directory_that_cannot_be_written_is_said_before_the_run(suite: Suite) -> None:
    suite.write("def test_plain(): raise AssertionError('ran')")
    (suite.path / "file").write_text("in the way")
    result = suite.run("--llm-report=file/out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*file/out*"])
    assert "ran" not in str(result.stdout)


@pytest.mark.parametrize("scheme", ["mqtt://h:1", "ftp://h"])
def test_endpoints_we_do_not_speak_yet(suite: Suite, scheme: str) -> None:
    suite.write("@llmbench.ttft()\ndef test_x(): ...\n")
    refused(suite.run(f"--llm-endpoint={scheme}")).fnmatch_lines(
        ["*supported are http://, https://, sim, replay*"]
    )


def test_an_endpoint_in_process_names_a_module_and_an_attribute(suite: Suite) -> None:
    suite.write("@llmbench.ttft()\ndef test_x(): ...\n")
    refused(suite.run("--llm-endpoint=python:engine")).fnmatch_lines(
        ["*write python:package.module:attribute*"]
    )
    absent = suite.run("--llm-endpoint=python:no_such_engine:generate")
    absent.assert_outcomes(errors=1)
    absent.stdout.fnmatch_lines(["*python:no_such_engine:generate: the module no_such_engine cannot be*"])
    assert "Traceback" not in str(absent.stdout)


def test_the_timeout_is_that_of_the_option(suite: Suite) -> None:
    """Virtual time: no reply of this engine begins within a millisecond."""
    suite.write(PLANNED)
    result = suite.run("--llm-endpoint=replay", "--llm-scale=quick", "--llm-timeout=0.001", "-k", "test_open")
    result.stdout.fnmatch_lines(["*within 0.001 s (between-chunks deadline)*"])
    refused(suite.run("--llm-plan", "--llm-timeout=-1")).fnmatch_lines(
        ["*--llm-timeout: give a number above 0, got*"]
    )


@pytest.mark.parametrize("old", NOW)
def test_an_old_name_gives_the_settings_of_the_new_form(suite: Suite, old: str) -> None:
    def settings(*arguments: str) -> Settings:
        return Settings.from_options(values(suite.pytester.parseconfig("--llm-report=out", *arguments)))

    now = NOW[old]
    value = "7" if now.endswith("=") else ""
    expected = settings(f"--llm-{now}{value}")
    assert expected != settings()
    assert settings(f"--llm-{old}={value}" if value else f"--llm-{old}") == expected
    assert settings("-o", f"llm_{old.replace('-', '_')}={value or 'true'}") == expected
    assert settings("-o", f"llm_{now}{value}") == expected
    assert f"--llm-{old}" not in str(suite.run("--help").stdout)


def test_parts_of_the_command_line_are_put_upon_those_of_the_file(suite: Suite) -> None:
    suite.pytester.makeini(
        "[pytest]\nllm_caps = requests=9,rate=5\nllm_records = full\nllm_max_tokens = 800\n"
    )
    config = suite.pytester.parseconfig("--llm-report=out", "--llm-caps=requests=4", "--llm-records=events")
    settings = Settings.from_options(values(config))
    assert (settings.max_requests, settings.max_rate, settings.max_tokens) == (4, 5, 800)
    assert (settings.records, settings.events, settings.export_sequence) == ("full", True, False)


def test_mistakes_in_parts_are_told_at_once(suite: Suite) -> None:
    suite.write(PLANNED)
    result = suite.run(
        "--llm-plan",
        "--llm-caps=request=4,rat=3,rate=1,rate=2",
        "--llm-records=ful,none,compact",
        "--llm-runs=0",
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = str(result.stderr)
    for part in (
        "--llm-caps: 'request' is not a cap; did you mean requests?; 'rat' is not a cap; did you mean rate?; "
        "rate is given twice",
        "--llm-records: unknown value 'ful'; did you mean full?",
        "--llm-records: compact and none exclude each other: give one",
        "--llm-runs",
    ):
        assert part in told
    empty = suite.run("--llm-plan", "--llm-caps=", "--llm-max-requests=")
    empty.stderr.fnmatch_lines(["*--llm-caps is empty*"])
    blank = suite.run("--llm-plan", "--llm-caps=requests=,tokens=1.5")
    blank.stderr.fnmatch_lines(
        ["*--llm-caps: requests: it is blank*", "*--llm-caps: tokens: give a whole number, got*1.5*"]
    )
