"""Images, sounds and videos of the rows of a data set: each form that is read, and each that is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import Modality, Piece
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
    rows, pieces, steps = rows_with_media([of_sharegpt4v], table, IMAGE)
    assert (rows[0]["prompt"], rows[0]["answer"]) == ("What is it?", "A cat.")
    assert [each.payload() for each in pieces[0]] == [PNG]
    assert len(steps) == 2
    of_mmmu = {"question": "Is <image 1> like <image 2>?", "a": url("image/png", PNG), "b": None}
    rows, pieces, steps = rows_with_media([of_mmmu], table, {"image": ["a", "b"]})
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
    rows, pieces, steps = rows_with_media([row], table, {})
    assert (rows[0]["prompt"], rows[0]["answer"]) == ("Listen and look.", "Yes.")
    assert steps == ("first message of the user as prompt, length of the answer to it as output limit",)
    assert [(each.modality, each.payload()) for each in pieces[0]] == [("image", PNG), ("audio", WAV)]


def test_rows_of_text_are_as_they_were(table: Path) -> None:
    row = {"prompt": "Keep <image> here", "image": "nowhere.png"}
    assert rows_with_media([row], table, {}) == ([row], [()], ())
    both = {"problem": "1 + 1", "messages": [{"role": "user", "content": "another"}]}
    assert rows_with_media([both], table, {}) == ([both], [()], ())


def test_all_rows_that_are_wrong_are_named_at_once(table: Path) -> None:
    values = [
        "coco/one.png", "coco/two.png", "text.png", "notes.txt", "https://host/cat.png", 7, None,
        url("image/png", WAV), "data:image/png;base64,!!", url("audio/wav", WAV), "coco\0.png",
    ]  # fmt: skip
    unknown = {"messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": "x"}]}]}
    with pytest.raises(SuiteError, match="row 0: a part of type 'audio_url' is not sent"):
        rows_with_media([unknown], table, {})
    with pytest.raises(SuiteError) as caught:
        rows_with_media([{"prompt": "x", "image": value} for value in values], table, IMAGE)
    said = str(caught.value)
    for number, why in {
        1: "there is no file", 2: "is no image", 3: "is none of .png", 4: "is not fetched", 5: "is no text",
        6: "has nothing under image", 7: "is no image", 8: "is no base64", 9: "give data:image/FORMAT",
    }.items():  # fmt: skip
        (line,) = [each for each in said.splitlines() if f"row {number}," in each or f"row {number} " in each]
        assert why in line
    assert "row 10" in said
    assert "row 0" not in said


def test_of_many_wrong_rows_ten_are_told(table: Path) -> None:
    with pytest.raises(SuiteError, match="and 5 more"):
        rows_with_media([{"image": "gone.png"}] * 15, table, IMAGE)
