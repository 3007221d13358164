"""Images, sounds and videos beside prompts: what is drawn, what is made, and what is refused."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import make_workload
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import Piece
from pytest_llmbench.workloads.media import media_law
from pytest_llmbench.workloads.sequence import sequence_sha256


def seen(**given: Any) -> list[tuple[Piece, ...]]:
    made = make_workload("mine", input_tokens=20, output_tokens=5, **given)
    return [request.media for request in made.requests(60, 7)]


def test_an_image_is_a_png_of_its_size_and_its_seed() -> None:
    piece = Piece("image", 5, 30, 20)
    data = piece.payload()
    assert data == piece.payload() != Piece("image", 6, 30, 20).payload()
    assert (data[:8], data[12:16]) == (b"\x89PNG\r\n\x1a\n", b"IHDR")
    assert struct.unpack(">IIBB", data[16:26]) == (30, 20, 8, 2)
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    assert len(rows) == 20 * (1 + 3 * 30)
    assert zlib.crc32(data[37 : 41 + length]) == struct.unpack(">I", data[41 + length : 45 + length])[0]
    assert len(zlib.compress(rows, 9)) > 0.95 * 20 * 3 * 30, "nothing can be left out of noise"


def test_a_sound_is_a_wav_of_its_length() -> None:
    with wave.open(io.BytesIO(Piece("audio", 5, milliseconds=1500).payload())) as sound:
        assert (sound.getnframes(), sound.getframerate(), sound.getnchannels()) == (24_000, 16_000, 1)


def test_numbers_and_sizes_are_drawn_apart_from_the_prompts() -> None:
    plain = make_workload("mine", input_tokens=(10, 30), output_tokens=5)
    rich = make_workload(
        "mine", input_tokens=(10, 30), output_tokens=5, images={"count": (1, 3), "width": (64, 128)}, audio=1
    )
    texts = [request.token_ids for request in plain.requests(60, 7)]
    requests = rich.requests(60, 7)
    assert [request.token_ids for request in requests] == texts
    assert [request.media for request in rich.requests(40, 7)] == [each.media for each in requests[:40]]
    images = [[piece for piece in each.media if piece.modality == "image"] for each in requests]
    assert {len(each) for each in images} == {1, 2, 3}
    assert all(64 <= piece.width <= 128 and piece.height == 512 for each in images for piece in each)
    assert len({piece.seed for each in images for piece in each}) == sum(map(len, images))
    assert {request.class_label for request in requests} == {"audio+image"}
    assert sequence_sha256(requests) != sequence_sha256(plain.requests(60, 7))
    count = rich.specification()["media"]["image"]["count"]
    assert count == {"type": "uniform", "params": {"min": 1, "max": 3, "mean": 2.0}}
    assert not rich.standard


def test_some_come_again_and_again() -> None:
    pieces = [piece for each in seen(images={"repeated": 0.5}) for piece in each]
    again = [piece for piece in pieces if pieces.count(piece) > 1]
    assert len(set(again)) <= 8
    assert 15 <= len(again) <= 45


def test_files_are_chosen_from_a_folder(tmp_path: Path) -> None:
    for name in ("a.png", "b.JPG", "note.txt", "c.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    images = {piece for each in seen(images={"files": tmp_path}) for piece in each}
    assert {(Path(piece.path).name, piece.format, piece.payload()) for piece in images} == {
        ("a.png", "png", b"a.png"),
        ("b.JPG", "jpeg", b"b.JPG"),
    }
    (video,) = {piece for each in seen(videos={"files": [tmp_path / "c.mp4"]}) for piece in each}
    assert (video.modality, video.format) == ("video", "mp4")


@pytest.mark.parametrize(
    ("given", "complaints"),
    [
        ({"images": 0}, ["images of a workload: count: tokens is 0"]),
        ({"images": {"wide": 5, "repeated": 2}}, ["unknown key 'wide'", "repeated is 2"]),
        ({"images": {"width": 20_000, "height": 20_000}}, ["at most 64,000,000 pixels"]),
        ({"audio": {"seconds": 0}}, ["seconds: seconds is 0"]),
        ({"audio": {"seconds": 7200}}, ["more than 60 minutes"]),
        ({"videos": {"count": 1}}, ["videos cannot be generated"]),
        ({"images": {"files": "no.png"}, "audio": {"files": __file__}}, ["no file no.png", "of .wav"]),
    ],
)  # fmt: skip
def test_mistakes_are_told_together(given: Mapping[str, Any], complaints: list[str]) -> None:
    with pytest.raises(SuiteError) as caught:
        make_workload("mine", input_tokens=20, output_tokens=5, **given)
    assert all(complaint in str(caught.value) for complaint in complaints), caught.value


def test_what_cannot_have_pieces() -> None:
    once = make_workload("mine", input_tokens=20, output_tokens=5, images=1)
    for base in (once, "chat-sessions"):
        with pytest.raises(SuiteError):
            make_workload(base, audio=1).requests(1, 7)
    assert len(list(islice(media_law("image", 1).pieces(3), 4))) == 4
