"""A recipe: a load that a list, a configuration or a command line of another tool asks for, in our terms.

Each tool has a table of its words (:class:`Words`); one translator makes recipes of what they say. What it
cannot say here is an obstacle, and the recipe is not measured; what is done otherwise is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from pytest_llmbench.errors import shown
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, open_loop_of
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.workloads.lengths import Fixed, LengthLaw, Normal, Uniform

DOCUMENTS: Final = frozenset({"openai-embeddings", "rerank", "score"})
"""Our names of APIs that generate nothing."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that recipes ask for; equal ones are started once."""

    command: tuple[str, ...]
    """``{port}`` is a free port, ``{settings}`` the path of a file with ``settings``."""
    env: tuple[tuple[str, str], ...] = ()
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """What one tool calls the fields of a load."""

    names: Mapping[str, str]
    """Its name of a parameter, with hyphens → ours (see ``_OURS``); ``""``: it needs nothing here."""
    apis: Mapping[str, str]
    """Its name of an API, ``""`` where it is not given → ours."""
    datasets: Mapping[str, Literal["random", "sharegpt"]]
    """Its name of a kind of prompts, ``""`` where it is not given → ours."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of our fields where the tool's user gives none."""
    spread: Literal["around", "below"] = "around"
    """What ``spread`` r means for a length n: n (1 - r) to n (1 + r), or n r to n."""
    forced_lengths: bool = False
    """Whether replies to random prompts go on to their limit without being asked to."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Its name of a parameter → what is done otherwise here."""


_OURS: Final = frozenset(
    {
        "model", "api", "dataset", "path", "rate", "arrival", "burstiness", "concurrency", "requests",
        "waves", "seconds", "runs", "input", "input_sd", "input_min", "input_max", "output", "output_sd",
        "output_min", "output_max", "spread", "prefix", "prefixes", "temperature", "ignore_eos", "keep_eos",
    }
)  # fmt: skip
"""``waves``: requests are so many times ``concurrency``. ``seconds``: the length of the load. ``keep_eos``:
the reverse of ``ignore_eos``."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One load to measure."""

    name: str
    load: ForeignLoad
    requests: int | None
    """How many; None where the file does not tell, which is an obstacle."""
    api: str
    model: str | None
    lengths: tuple[LengthLaw, LengthLaw] | None = None
    """The laws of random prompts and their replies; None for a data set."""
    prefix: tuple[int, int] | None = None
    """Tokens of a prefix that is put before each prompt, and the number of such prefixes."""
    dataset: Path | None = None
    """A ShareGPT file."""
    runs: int | None = None
    ignore_eos: bool = False
    server: Server | None = None
    """What is launched; None: it has to run already."""
    told: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    """Reasons why the recipe is not measured."""


class Asked(Fields):
    """The parameters of one entry, by our names; messages use the tool's."""

    def __init__(self, words: Words, name: str, given: Mapping[str, Any]) -> None:
        self.words, self.name = words, name
        self.given = {str(key).replace("_", "-"): value for key, value in given.items()}
        told = [key for key in words.names if self.given.get(key) is not None]
        self._keys: dict[str, str] = {words.names[key]: key for key in reversed(told)}
        own = {ours: self.given[key] for ours, key in self._keys.items()}
        super().__init__({**words.defaults, **own}, name)

    def key(self, ours: str) -> str:
        assert ours in _OURS, ours
        return self._keys.get(ours, f"default {ours}")

    def _at(self, name: str) -> str:
        return super()._at(self.key(name))

    def text(self, name: str) -> str:
        return super().text(name) or ""

    def is_set(self, ours: str) -> bool:
        """Whether it is given, without a value too."""
        return self._content.get(ours) not in (None, False)

    def numbers(self, ours: str) -> tuple[Sequence[float | None], bool]:
        """A number, or a list of them to be measured one after another, None where there is none; and
        whether it was a list."""
        value, where = self._content.get(ours), self._at(ours)
        if not isinstance(value, list):
            found = self.number(ours, endless=True)
            if found == 0:
                raise WrongShapeError(f"{where} is 0: give a number above zero")
            return (found,), False
        numbers = [Fields({"entry": each}, where).number("entry", endless=True) for each in value]
        if not numbers or not all(numbers):
            raise WrongShapeError(f"{where} is {shown(value)}: not a list of numbers above zero")
        return numbers, True

    def whole(self, ours: str, value: float) -> int:
        if math.isinf(value) or value != int(value):
            raise WrongShapeError(f"{self._at(ours)} has {trimmed(value)}: not a whole number")
        return int(value)


def recipes_of(
    words: Words, name: str, given: Mapping[str, Any], server: Server | None, folders: Sequence[Path]
) -> Iterator[Recipe]:
    """The recipes of an entry: one for each of its rates with each number in flight.

    ``folders``: where a data set may lie. WrongShapeError, with the tool's name of the field.
    """
    asked = Asked(words, name, given)
    api, what = words.apis.get(asked.text("api")), []
    if api is None:
        what.append(f"{asked.key('api')} {shown(asked.text('api'))}")
    if heat := asked.number("temperature"):
        what.append(f"temperature {trimmed(heat)}: workloads here have 0")
    what += [f"parameter {shown(each)}" for each in asked.given if each not in words.names]
    base = Recipe(
        name,
        ForeignLoad(),
        None,
        api or "",
        asked.text("model") or None,
        runs=asked.count("runs"),
        ignore_eos=asked.is_set("ignore_eos"),
        server=server,
        told=tuple(said for key, said in words.told.items() if key in asked.given),
    )
    if "keep_eos" in words.names.values():
        base = replace(base, ignore_eos=not asked.is_set("keep_eos"))
    base = _with_prompts(base, asked, folders, what)
    (rates, rates_listed), (caps, caps_listed) = asked.numbers("rate"), asked.numbers("concurrency")
    for rate in rates:
        for place, cap in enumerate(caps):
            load, requests, obstacles = _load(asked, rate, cap, place)
            if api in DOCUMENTS and load.arrival is not None and load.concurrency is not None:
                obstacles.append(f"{load.describe()}: only a job of generated replies has both")
            suffix = f"_qps_{math.inf if rate is None else rate:g}" if rates_listed or caps_listed else ""
            suffix += f"_concurrency_{cap:g}" if caps_listed else ""
            yield replace(
                base,
                name=name + suffix,
                load=load,
                requests=requests,
                obstacles=(*obstacles, *what),
            )


def _load(
    asked: Asked, rate: float | None, cap: float | None, place: int
) -> tuple[ForeignLoad, int | None, list[str]]:
    """The load, its number of requests, and obstacles. ``place``: that of ``cap`` among its list."""
    rate = math.inf if rate is None else rate
    cap = None if cap is None or math.isinf(cap) else asked.whole("concurrency", cap)
    requests = _requests(asked, rate, cap, place)
    if requests is None:
        found = open_loop_of(rate, None, cap)
        return found, None, ["a job needs a number of requests, and none is given"]
    most = None if cap is None or (cap >= requests and rate < math.inf) else min(cap, requests)
    load = open_loop_of(rate, asked.number("burstiness", endless=True), most)
    if rate < math.inf and (arrival := asked.text("arrival")):
        known = {"constant": "uniform", "uniform": "uniform", "poisson": "poisson"}
        if arrival not in known:
            return load, requests, [f"{asked.key('arrival')} {shown(arrival)}"]
        load = replace(load, arrival=known[arrival], burstiness=None)
    return load, requests, []


def _requests(asked: Asked, rate: float, cap: int | None, place: int) -> int | None:
    waves, seconds = asked.count("waves"), asked.number("seconds")
    if waves and cap:
        return waves * cap
    if asked.key("requests") in asked.given:
        numbers, listed = asked.numbers("requests")
        found = numbers[place] if listed and place < len(numbers) else numbers[0]
    elif seconds is not None:
        found = max(1.0, round(rate * seconds)) if rate < math.inf else None
    else:
        found = asked.count("requests")
    return None if found is None else asked.whole("requests", found)


def _with_prompts(recipe: Recipe, asked: Asked, folders: Sequence[Path], what: list[str]) -> Recipe:
    """The recipe with its prompts. ``what``: obstacles, which it adds to."""
    name = asked.text("dataset")
    kind = asked.words.datasets.get(name)
    if kind is None:
        known = ", ".join(filter(None, asked.words.datasets))
        what.append(f"{asked.key('dataset')} {shown(name)}: there are {known}")
        return recipe
    if kind == "sharegpt":
        path = Path(asked.text("path") or "ShareGPT_V3_unfiltered_cleaned_split.json").expanduser()
        found = next((folder / path for folder in folders if (folder / path).is_file()), None)
        if found is None:
            what.append(f"the data set {shown(str(path))} is not there")
        said = "short and long conversations of ShareGPT are left out there, here all are taken"
        return replace(recipe, dataset=found, told=(*recipe.told, said))
    lengths = [_lengths(asked, side, what) for side in ("input", "output")]
    if recipe.api in DOCUMENTS and lengths[1] is None:
        lengths[1] = Fixed(1)  # nothing is generated
    if lengths[0] is None or lengths[1] is None:
        what.append("random prompts without a length for input and output")
        return recipe
    prefix = asked.count("prefix")
    return replace(
        recipe,
        lengths=(lengths[0], lengths[1]),
        ignore_eos=recipe.ignore_eos or asked.words.forced_lengths,
        prefix=(prefix, asked.count("prefixes") or 1) if prefix else None,
    )


def _lengths(asked: Asked, side: str, what: list[str]) -> LengthLaw | None:
    mean, sd = asked.number(side), asked.number(f"{side}_sd") or 0.0
    if not mean:
        return None
    low, high = (asked.count(f"{side}_{end}") for end in ("min", "max"))
    if sd:
        return Normal(mean, sd, max(1, low or 1), high or math.ceil(mean + 6 * sd))
    spread = asked.number("spread")
    below = asked.words.spread == "below"
    if spread is None or spread == (1.0 if below else 0.0):
        return Fixed(max(1, round(mean)))
    if spread >= 1:
        what.append(f"{asked.key('spread')} {trimmed(spread)}: it must be below 1")
        return None
    low = math.floor(mean * (spread if below else 1 - spread))
    return Uniform(max(1, low), math.floor(mean) if below else math.ceil(mean * (1 + spread)))
