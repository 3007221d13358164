"""Images, sounds and videos of the rows of a data set: each form that is read, and each that is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import Modality, Piece
from pytest_llmbench.store.datasets import PROMPT_FIELDS, exercises, scored_prompts
from pytest_llmbench.store.media_rows import rows_with_media

PNG = Piece("image", 3, 56, 28).payload()
WAV = Piece("audio", 3, milliseconds=400).payload()
IMAGE: dict[Modality, list[str]] = {"image": ["image"]}


def url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "coco").mkdir()
    (tmp_path / "coco" / "one.png").write_bytes(PNG)
    (tmp_path / "text.png").write_text("no image")
    return tmp_path / "rows.jsonl"


def test_columns_of_paths_and_urls_as_sharegpt4v_and_mmmu_have_them(table: Path) -> None:
    of_sharegpt4v = {
        "image": "coco/one.png",
        "conversations": [
            {"from": "human", "value": "What is it?\n<image>"},
            {"from": "gpt", "value": "A cat."},
        ],
    }
    rows, pieces, steps, _ = rows_with_media([of_sharegpt4v], table, IMAGE)
    assert (rows[0]["prompt"], rows[0]["answer"]) == ("What is it?", "A cat.")
    assert [each.payload() for each in pieces[0]] == [PNG]
    assert len(steps) == 2
    of_mmmu = {"question": "Is <image 1> like <image 2>?", "a": url("image/png", PNG), "b": None}
    rows, pieces, steps, _ = rows_with_media([of_mmmu], table, {"image": ["a", "b"]})
    assert rows[0]["question"] == "Is  like ?"
    assert steps == ("places of images, sounds and videos taken out of the prompts",)
    assert [(each.format, each.payload()) for each in pieces[0]] == [("png", PNG)]


def test_parts_of_a_chat_message(table: Path) -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "Listen and look."},
        {"type": "image_url", "image_url": {"url": url("image/png", PNG)}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
    ]
    row = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "Yes."}]}
    rows, pieces, steps, _ = rows_with_media([row], table, {})
    assert (rows[0]["prompt"], rows[0]["answer"]) == ("Listen and look.", "Yes.")
    assert steps == ("first message of the user as prompt, length of the answer to it as output limit",)
    assert [(each.modality, each.payload()) for each in pieces[0]] == [("image", PNG), ("audio", WAV)]


def test_rows_of_text_are_as_they_were(table: Path) -> None:
    row = {"prompt": "Keep <image> here", "image": "nowhere.png"}
    assert rows_with_media([row], table, {}) == ([row], [()], (), [])
    both = {"problem": "1 + 1", "messages": [{"role": "user", "content": "another"}]}
    assert rows_with_media([both], table, {}) == ([both], [()], (), [])


def test_all_rows_that_are_wrong_are_named_at_once(table: Path) -> None:
    values = [
        "coco/one.png", "coco/two.png", "text.png", "notes.txt", "https://host/cat.png", 7, None,
        url("image/png", WAV), "data:image/png;base64,!!", url("audio/wav", WAV), "coco\0.png",
    ]  # fmt: skip
    unknown = {"messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": "x"}]}]}
    ((_, told),) = rows_with_media([unknown], table, {}).mistakes
    assert told.startswith(
        "row 0, a part of type 'audio_url': it cannot be sent; known types are text, image_url, "
    )
    said = dict(rows_with_media([{"prompt": "x", "image": each} for each in values], table, IMAGE).mistakes)
    for number, why in {
        1: "there is no file", 2: "is not image data", 3: "must end with one of .png", 4: "is not fetched",
        5: "is not a text", 6: "has nothing under image", 7: "is not image data", 8: "is not base64",
        9: "give data:image/FORMAT", 10: "coco",
    }.items():  # fmt: skip
        assert why in said.pop(number)
    assert said == {}


def test_mistakes_of_pieces_and_of_prompts_are_told_together_in_the_order_of_rows(table: Path) -> None:
    rows = [{"prompt": "x", "image": "gone.png"}, {"image": "coco/one.png"}, {"image": "lost.png"}]
    read, _, _, wrong = rows_with_media(rows, table, IMAGE)
    with pytest.raises(SuiteError) as caught:
        exercises(read, table, answered=True, further=wrong)
    listed = [each.split("- ")[1].split(":")[0] for each in str(caught.value).splitlines() if "- " in each]
    assert [each.split(";")[0].removesuffix(f" under {' or '.join(PROMPT_FIELDS)}") for each in listed] == [
        "3 of 3 rows have no answer to set the output length",
        "row 0, image", "row 1 has no text", "row 2, image", "row 2 has no text",
    ]  # fmt: skip
    with pytest.raises(
        SuiteError, match=r"5 mistakes(?s:.)*row 0, image(?s:.)*row 0 has no text under answer"
    ):
        scored_prompts(read, table, "exact", 10, further=wrong)


def test_of_many_wrong_rows_ten_are_told(table: Path) -> None:
    read, _, _, wrong = rows_with_media([{"prompt": "x", "image": "gone.png"}] * 15, table, IMAGE)
    with pytest.raises(SuiteError, match="and 5 more"):
        exercises(read, table, further=wrong)
