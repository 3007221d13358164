"""Images, sounds and videos in the prompts of any workload of single requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.messages import SUFFIXES, Modality, Piece, modalities_of
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.workloads.adapted import Adapted, seconds_law
from pytest_llmbench.workloads.lengths import Fixed, LengthLaw, law_of, specification_of
from pytest_llmbench.workloads.stream import BulkRandom, derived_seed, single_requests

_KEYS: Mapping[Modality, frozenset[str]] = {
    "image": frozenset({"count", "width", "height", "files", "repeated"}),
    "audio": frozenset({"count", "seconds", "files", "repeated"}),
    "video": frozenset({"count", "files", "repeated"}),
}
_MOST_PIXELS = 64_000_000
_MOST_MS = 3_600_000
_WELL_KNOWN = 8
"""Different pieces among those that are repeated."""


@dataclass(frozen=True, slots=True)
class MediaLaw:
    """How many pieces of one modality a request has, and what they are."""

    modality: Modality
    count: LengthLaw = Fixed(1)
    width: LengthLaw = Fixed(512)
    height: LengthLaw = Fixed(512)
    milliseconds: LengthLaw = Fixed(5000)
    files: tuple[str, ...] = ()
    """Files to choose from; none: pieces are made."""
    repeated: float = 0.0
    """Share of the pieces that are among a few that come again and again, as a cache of an engine likes."""

    def pieces(self, seed: int) -> Iterator[tuple[Piece, ...]]:
        """The pieces of request 0, 1, …"""
        generator = BulkRandom(derived_seed(seed, f"{self.modality}s"))
        known = [self._piece(generator) for _ in range(_WELL_KNOWN)] if self.repeated else []
        while True:
            found = []
            for _ in range(self.count.draw(generator)):
                again = bool(known) and generator.random() < self.repeated
                found.append(known[generator.randint(0, len(known) - 1)] if again else self._piece(generator))
            yield tuple(found)

    def _piece(self, generator: BulkRandom) -> Piece:
        if self.files:
            return Piece(self.modality, path=self.files[generator.randint(0, len(self.files) - 1)])
        seed = generator.randint(0, 2**32 - 2)
        if self.modality == "image":
            return Piece("image", seed, self.width.draw(generator), self.height.draw(generator))
        return Piece("audio", seed, milliseconds=self.milliseconds.draw(generator))

    def specification(self) -> Mapping[str, Any]:
        sizes = {"image": ("width", "height"), "audio": ("milliseconds",)}.get(self.modality, ())
        if self.files:
            source: dict[str, Any] = {"files": len(self.files)}
        else:
            source = {name: _spec(getattr(self, name)) for name in sizes}
        return {"count": _spec(self.count), **source, "repeated": self.repeated}


def _spec(law: LengthLaw) -> dict[str, Any]:
    told = specification_of(law, "")
    return {"type": told["type"], "params": told["params"]}


def media_law(modality: Modality, given: Any) -> MediaLaw:
    """The law by an argument of ``make_workload``: a number of pieces, or a mapping with ``count``, ``width``
    and ``height`` in pixels, ``seconds``, ``files`` (a folder, a file, or a list of them) and ``repeated``.
    Raises SuiteError with all mistakes."""
    keys = _KEYS[modality]
    if not isinstance(given, Mapping):
        given = {"count": given}
    mistakes = [
        f"unknown key {shown(key)}: there are {', '.join(sorted(keys))}" for key in given.keys() - keys
    ]
    laws: dict[str, Any] = {}
    for key in ("count", "width", "height", "seconds"):
        if key not in given or key not in keys:
            continue
        try:
            made = seconds_law(given[key], key) if key == "seconds" else law_of(given[key], key)
        except SuiteError as error:
            mistakes.append(f"{key}: {error.what}")
            continue
        laws["milliseconds" if key == "seconds" else key] = made
    files = given.get("files")
    if files is not None:
        laws["files"], wrong = _files(modality, files)
        mistakes += wrong
    elif modality == "video":
        mistakes.append("videos cannot be generated: give files, a folder or a list")
    share = given.get("repeated", 0.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        mistakes.append(f"repeated is {shown(share)}: give a share from 0 to 1")
    law = MediaLaw(modality, **laws)
    width, height = law.width.bounds[1], law.height.bounds[1]
    if width * height > _MOST_PIXELS:
        mistakes.append(f"images of up to {width} x {height} pixels: at most {_MOST_PIXELS:,} pixels")
    if law.milliseconds.bounds[1] > _MOST_MS:
        mistakes.append(f"sounds of more than {_MOST_MS // 60_000} minutes")
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=f"{modality}s of a workload")
    return replace(law, repeated=float(share))


def _files(modality: Modality, given: Any) -> tuple[tuple[str, ...], list[str]]:
    """The files, and mistakes."""
    known = SUFFIXES[modality]
    found: list[str] = []
    mistakes = []
    for each in [given] if isinstance(given, str | Path) else given:
        path = Path(each)
        if path.is_dir():
            inside = sorted(str(one) for one in path.iterdir() if one.suffix.lower() in known)
            mistakes += [] if inside else [f"{path} has no file of {', '.join(known)}"]
            found += inside
        elif not path.is_file():
            mistakes.append(f"there is no file {path}")
        elif path.suffix.lower() not in known:
            mistakes.append(f"{path} must end with one of {', '.join(known)}")
        else:
            found.append(str(path))
    return tuple(found), mistakes


@dataclass(frozen=True, slots=True)
class WithMedia(Adapted):
    """The base workload with pieces beside its prompts, drawn from generators of their own.

    A request without a class of its own is of the class of its modalities, ``image``, ``audio+image`` or
    ``text``, so reports show each mix apart.
    """

    base: Workload
    laws: tuple[MediaLaw, ...]

    def __post_init__(self) -> None:
        stated, mistakes = self.base.specification(), []
        if "media" in stated:
            mistakes.append("its prompts have pieces already")
        if "exact" in stated["input_length"]:
            mistakes.append("prompts of exact lengths have no room for pieces: leave out exact = true")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"workload {self.base.name!r}")

    @property
    def name(self) -> str:
        return f"{self.base.name} (with {', '.join(f'{law.modality}s' for law in self.laws)})"

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        drawn = zip(*(law.pieces(seed) for law in self.laws), strict=True)
        for request, groups in zip(single_requests(self.base, seed), drawn, strict=False):
            if request.messages is not None:
                raise SuiteError(
                    "its prompts are messages with roles: pieces need a prompt of one text",
                    where=f"workload {self.base.name!r}",
                )
            pieces = tuple(piece for group in groups for piece in group)
            label = request.class_label or modalities_of(pieces)
            yield replace(request, media=pieces, class_label=label)

    def specification(self) -> Mapping[str, Any]:
        media = {law.modality: law.specification() for law in self.laws}
        rule = f"prompts with {', '.join(f'{law.modality}s' for law in self.laws)}"
        return self.declared({"what": "media", "rule": rule}, media=media)
