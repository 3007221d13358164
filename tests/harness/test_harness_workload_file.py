"""``--llm-workloads``: length laws, data sets and traces from a TOML file; every mistake at once."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import make_workload
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.model.messages import Piece
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.request import Workload
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.dataset import CodeCompletionWorkload
from pytest_llmbench.workloads.trace import TraceWorkload
from pytest_llmbench.workloads.trace_sessions import TraceSessionWorkload


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_text(text: str) -> dict[str, Workload]:
        file = tmp_path / "workloads.toml"
        file.write_text(text, encoding="utf-8")
        return read_workload_file(file)

    return read_text


def rows_file(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_every_length_law(read: Any) -> None:
    made = read(
        """
        [workloads.chat]
        input_tokens = { kind = "lognormal", mu = 5.5, sigma = 1.0, min = 32, max = 4096 }
        output_tokens = 128
        [workloads.mixed]
        input_tokens = { kind = "choice", tokens = [10, 20] }
        output_tokens = { kind = "empirical", tokens = [5, 6], weights = [1.0, 3.0] }
        [workloads.flat]
        kind = "synthetic"
        input_tokens = { kind = "uniform", min = 1, max = 3 }
        output_tokens = { kind = "normal", mean = 8, sd = 2.0, min = 4, max = 12 }
        [workloads.plain]
        input_tokens = { kind = "fixed", tokens = 7 }
        output_tokens = 1
        """
    )
    assert {name: workload.name for name, workload in made.items()} == {
        name: name for name in ("chat", "mixed", "flat", "plain")
    }
    assert not any(workload.standard for workload in made.values())
    assert made["chat"].specification()["input_length"]["type"] == "lognormal"
    assert {request.input_tokens for request in made["mixed"].requests(50, 1)} == {10, 20}
    assert {request.max_tokens for request in made["mixed"].requests(50, 1)} == {5, 6}
    assert {request.input_tokens for request in made["plain"].requests(5, 1)} == {7}


def test_all_mistakes_at_once(read: Any) -> None:
    with pytest.raises(SuiteError) as caught:
        read(
            """
            [workloads.a]
            input_tokens = 5
            [workloads.b]
            input_tokens = { kind = "uniform", min = 1, tokens = 4 }
            output_tokens = 5
            [workloads.c]
            kind = "dataset"
            path = "none.jsonl"
            dataset = "D"
            version = "1"
            subset_method = "all"
            [workloads.d]
            kind = "trace"
            output_tokens = 4
            [workloads.synthetic-uniform]
            input_tokens = { kind = "uniform", min = 9, max = 4 }
            output_tokens = 5
            """
        )
    told = str(caught.value)
    for line in (
        "workloads.a: output_tokens is missing",
        "workloads.b: length law uniform: max is missing, tokens has no meaning here",
        "none.jsonl: cannot be read",
        "workloads.d: output_tokens has no meaning for kind 'trace'",
        "workloads.d: path is missing",
        "workloads.synthetic-uniform: ",
        "workload file ",
    ):
        assert line in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[workloads.a]\nkinds = 1", "workloads.a.kinds: unknown key"),
        ("[workloads.a]\ninput_tokens = 0", "workloads.a.input_tokens"),
        ("[workload.a]\ninput_tokens = 4", "workload: unknown key"),
        ("[workloads", "broken TOML"),
    ],
)
def test_one_mistake(read: Any, text: str, told: str) -> None:
    with pytest.raises(SuiteError, match=told.replace("[", r"\[")):
        read(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        read_workload_file(tmp_path / "none.toml")


CONVERSATIONS = [
    {"conversations": [{"from": "human", "value": f"Question {n}?"}, {"from": "gpt", "value": "Yes, so."}]}
    for n in range(4)
] + [{"conversations": [{"from": "human", "value": "nobody answers"}]}]


def test_the_reference_workload_conversation(read: Any, tmp_path: Path) -> None:
    path = rows_file(tmp_path, "sharegpt.jsonl", CONVERSATIONS)
    made = read(
        """
        [workloads.conversation]
        kind = "conversation"
        path = "sharegpt.jsonl"
        version = "2023-04-12"
        subset = "vicuna_cleaned"
        subset_method = "all"
        """
    )["conversation"]
    assert made.standard
    dataset = made.specification()["dataset"]
    assert dataset["name"] == "ShareGPT"
    assert dataset["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "left out" in dataset["preprocessing"][0]
    assert {request.max_tokens for request in made.requests(4, 1)} == {4}


def test_without_the_data_set_no_claim_to_the_name(read: Any, tmp_path: Path) -> None:
    rows_file(tmp_path, "mine.jsonl", CONVERSATIONS)
    table = (
        'kind = "conversation"\npath = "mine.jsonl"\ndataset = "Mine"\nversion = "1"\nsubset_method = "all"'
    )
    with pytest.raises(SuiteError, match="'conversation' is made of ShareGPT"):
        read(f"[workloads.conversation]\n{table}")
    mine = read(f"[workloads.my-chats]\n{table}")["my-chats"]
    assert not mine.standard
    assert mine.name == "my-chats"


def test_code_completion(read: Any, tmp_path: Path) -> None:
    body = "\n".join(f"    total_{n} = compute_something_long(total_{n}, {n})" for n in range(120))
    rows = [
        {"content": f'def work_{n}(a, b):\n    """Documented {n}."""\n{body}\n', "lang": "Python"}
        for n in range(12)
    ]
    rows_file(tmp_path, "stack.jsonl", rows)
    made = read(
        """
        [workloads.code-completion]
        kind = "code-completion"
        path = "stack.jsonl"
        version = "v1.2"
        subset_method = "first 12 files"
        languages = ["Python"]
        """
    )["code-completion"]
    assert isinstance(made, CodeCompletionWorkload)
    assert made.standard
    assert len(made.functions) == 12
    assert made.functions[3].prompt == 'def work_3(a, b):\n    """Documented 3."""\n'
    assert "signature and documentation" in made.specification()["dataset"]["preprocessing"][0]


def test_prompts_of_a_data_set(read: Any, tmp_path: Path) -> None:
    rows_file(tmp_path, "math.jsonl", [{"problem": "1 + 1?", "solution": "It is two."}, {"problem": "2?"}])
    head = '[workloads.math]\nkind = "dataset"\npath = "math.jsonl"\ndataset = "MATH-500"\nversion = "1"\n'
    head += 'subset_method = "all"\n'
    with pytest.raises(SuiteError, match="1 of 2 rows have no answer"):
        read(head)
    made = read(head + 'max_tokens = 64\ndomain = "mathematics"\nshuffled = false\n')["math"]
    assert [request.text for request in made.requests(3, 1)] == ["1 + 1?", "2?", "1 + 1?"]
    assert {request.max_tokens for request in made.requests(3, 1)} == {64}
    assert made.specification()["content"]["domain"] == "mathematics"


def test_traces(read: Any, tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:04.4799600,31,8\n"
    )
    made = read(
        """
        [workloads.azure]
        kind = "trace"
        path = "azure.csv"
        dataset = "AzureLLMInferenceTrace_code"
        version = "2023"
        subset_method = "all"
        """
    )["azure"]
    assert isinstance(made, TraceWorkload)
    assert made.offsets_ns == (0, 500_000_000)
    assert [request.input_tokens for request in made.requests(2, 1)] == [48, 31]


AGENTS = """
    [workloads.agents]
    kind = "trace"
    sessions = true
    path = "agents.jsonl"
    dataset = "two agents and a chat"
    version = "1"
    subset_method = "all"
    preprocessing = ["by hand"]
"""


def test_sessions_of_a_trace(read: Any, tmp_path: Path) -> None:
    """The example of the documentation."""
    example = Path(__file__).parents[2] / "docs/examples/agents.jsonl"
    path = tmp_path / "agents.jsonl"
    path.write_bytes(example.read_bytes())
    made = read(AGENTS)["agents"]
    assert isinstance(made, TraceSessionWorkload)
    assert made.offsets_ns == (0, 700_000_000, 1_500_000_000)
    assert [[turn.wait_for for turn in each.turns] for each in made.sessions] == [
        [(), (1,), (1,), (2, 3)], [(), (1,), (2,)], [(), (1,)]
    ]  # fmt: skip
    assert [turn.pause_ms for turn in made.sessions[0].turns] == [0, 250, 900, 10]
    kept = [request.turn.kept_tokens for request in made.requests(9, 1) if request.turn is not None]
    assert kept == [0, 1024, 1024, 1400, 0, 1024, 0, 0, 300]
    dataset = made.specification()["dataset"]
    assert dataset["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert dataset["preprocessing"][0] == "by hand"
    assert any("wait for those they name" in step for step in dataset["preprocessing"])
    single = read(AGENTS.replace("sessions = true", "sessions = false"))["agents"]
    assert isinstance(single, TraceWorkload)


_PAGE = Path(__file__).parents[2] / "docs/how-to/measure-sessions.md"
LIBRARY = re.findall(r"^```toml\n(\[workloads\.clerks\].*?)^```", _PAGE.read_text("utf-8"), re.M | re.S)[0]


def test_messages_of_a_trace(read: Any, tmp_path: Path) -> None:
    """The example of the documentation."""
    example = Path(__file__).parents[2] / "docs/examples/conversations.jsonl"
    (tmp_path / "conversations.jsonl").write_bytes(example.read_bytes())
    made = read(LIBRARY)["clerks"]
    assert isinstance(made, TraceSessionWorkload)
    assert [len(each.turns) for each in made.sessions] == [3, 2, 3]
    assert made.shuffled
    assert made.offsets_ns == ()
    agent = made.sessions[2].turns[-1].messages
    assert agent is not None
    assert [message.role for message in agent.messages] == ["system", "user", *("assistant", "tool") * 2]
    assert "find_book" in agent.tools
    steps = made.specification()["dataset"]["preprocessing"]
    assert "messages are sent as they are, with their roles" in steps


def test_messages_are_of_sessions_and_of_formats_that_have_them(read: Any, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="messages are for sessions: add sessions = true"):
        read(LIBRARY.replace("sessions = true", "sessions = false"))
    (tmp_path / "conversations.jsonl").write_text('{"timestamp": 1, "input_length": 5, "output_length": 5}')
    with pytest.raises(SuiteError, match="its format, mooncake, has no messages to send"):
        read(LIBRARY)


def test_sessions_are_for_traces_that_have_them(read: Any, tmp_path: Path) -> None:
    (tmp_path / "agents.jsonl").write_text('{"timestamp": 1, "input_length": 5, "output_length": 5}')
    with pytest.raises(SuiteError, match="none of its 1 requests has a session"):
        read(AGENTS)
    with pytest.raises(SuiteError, match="sessions has no meaning for kind 'synthetic'"):
        read("[workloads.a]\nsessions = true\ninput_tokens = 4\noutput_tokens = 4")
    with pytest.raises(SuiteError, match=r"workloads\.agents\.sessions is 'yes'"):
        read(AGENTS.replace("= true", '= "yes"'))


def test_a_table_has_images_and_sounds_as_make_workload_does(read: Any, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(Piece("image", 3, 56, 28).payload())
    made = read(
        """
        [workloads.drawn]
        input_tokens = 20
        output_tokens = 5
        images = { count = 2, width = { kind = "uniform", min = 64, max = 128 }, height = 32 }
        audio = { seconds = [0.5, 1.0], repeated = 0.5 }
        [workloads.counted]
        input_tokens = 20
        output_tokens = 5
        images = 1
        [workloads.files]
        input_tokens = 20
        output_tokens = 5
        images = { files = "one.png" }
        """
    )
    drawn = make_workload(
        "drawn",
        input_tokens=20,
        output_tokens=5,
        images={"count": 2, "width": (64, 128), "height": 32},
        audio={"seconds": (0.5, 1.0), "repeated": 0.5},
    )
    assert [each.media for each in made["drawn"].requests(9, 3)] == [
        each.media for each in drawn.requests(9, 3)
    ]
    assert [(each.width, each.height) for each in made["counted"].requests(1, 3)[0].media] == [(512, 512)]
    assert [each.path for each in made["files"].requests(1, 3)[0].media] == [str(tmp_path / "one.png")]


def test_mistakes_of_media_in_tables_are_told_at_once(read: Any) -> None:
    with pytest.raises(SuiteError) as caught:
        read(
            """
            [workloads.a]
            input_tokens = 20
            output_tokens = 5
            images = { colour = 3 }
            [workloads.b]
            input_tokens = 20
            output_tokens = 5
            images = { files = "gone.png" }
            audio = { width = 3 }
            """
        )
    said = str(caught.value)
    for part in ("workloads.a.images.colour: unknown key", "there is no file", "unknown key 'width'"):
        assert part in said


def of_images(tmp_path: Path, **more: str) -> str:
    (tmp_path / "one.png").write_bytes(Piece("image", 3, 56, 28).payload())
    rows = [{"question": f"What is {n}?", "answer": "A cat.", "image": "one.png"} for n in range(4)]
    rows_file(tmp_path, "rows.jsonl", [row | more for row in rows])
    return """
        [workloads.cats]
        kind = "dataset"
        path = "rows.jsonl"
        dataset = "cats"
        version = "1"
        subset_method = "all"
        image_field = "image"
        """


def test_rows_with_images_are_sent_and_replayed_alike(read: Any, tmp_path: Path) -> None:
    made = read(of_images(tmp_path))["cats"]
    requests = made.requests(4, 3)
    assert {request.class_label for request in requests} == {"image"}
    assert made.specification()["media"] == {"image": {"files": 4}}
    plan = LoadPlan("test", made, ClosedLoop(1), 4, 1)
    replayed = ReplayEngine(parse_scenario("fast")).run(plan).records
    with EmbeddedEngine.start("fast") as engine:
        target = Target.parse(engine.url)
        with LoadGenerator(target, OpenAIChat(), model=engine.model) as generator:
            served = generator.run(plan).records
    assert replayed.counts()["ok"] == served.counts()["ok"] == 4
    assert replayed.input_tokens.tolist() == served.input_tokens.tolist()


def test_a_row_without_its_image_is_named_before_any_load(read: Any, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"(?s)workloads\.cats.*row 0, image: there is no file"):
        read(of_images(tmp_path, image="gone.png"))
