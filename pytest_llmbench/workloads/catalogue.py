"""Workloads by name, and the check that every custom one passes before it is used."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.request import Answers, Workload
from pytest_llmbench.workloads.adapted import Cuts, SameLengths, WithCuts, WithFixedOutput
from pytest_llmbench.workloads.lengths import Choice, Fixed, check_specification
from pytest_llmbench.workloads.long_context import LONG_CONTEXT, LONG_CONTEXT_UNIFORM, LongContextWorkload
from pytest_llmbench.workloads.mixture import CHAT_AND_REASONING, LARGEST_WEIGHT, Mixture, Part, SessionMix
from pytest_llmbench.workloads.profiles import PREFIX, ProfileWorkload, profile_workload, profiles
from pytest_llmbench.workloads.stream import streamed
from pytest_llmbench.workloads.synthetic import (
    ARITHMETIC,
    RESERVED_NAMES,
    SYNTHETIC_SKEWED,
    SYNTHETIC_UNIFORM,
    SyntheticWorkload,
)

if TYPE_CHECKING:
    from pytest_llmbench.workloads.sessions import OwnSessions

WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        known.name: known
        for known in (
            SYNTHETIC_UNIFORM,
            SYNTHETIC_SKEWED,
            LONG_CONTEXT,
            LONG_CONTEXT_UNIFORM,
            CHAT_AND_REASONING,
            ARITHMETIC,
        )
    }
)
"""Name → workload, for those that need nothing but a name."""

_SYNTHETIC: Final = {known.name: known for known in (SYNTHETIC_UNIFORM, SYNTHETIC_SKEWED)}

FROM_DATASETS: Final = ("conversation", "code-completion")
"""Reference workloads that need a data set."""

_MEMBERS = ("name", "standard", "requests", "specification")

Mix = Mapping[str, "float | tuple[str | Workload, float]"]
"""The parts of a mixture: name of a workload → weight, or label → (workload, weight)."""


def workload(wanted: str | Workload | Mix) -> Workload:
    """The workload called ``wanted``, a mixture of several, or ``wanted`` itself, checked to be complete.

    ``{"sessions": {"turns": 5, …}}`` describes sessions. Raises SuiteError for an unknown name, for a
    reference workload whose data set is not given, for a custom workload that is not fully specified
    (section 4.3.1), and with all mistakes of a mixture.
    """
    if isinstance(wanted, Mapping):
        if "sessions" not in wanted:
            return mixed(wanted)
        from pytest_llmbench.workloads.sessions import described_sessions

        return described_sessions(wanted)
    return _named(wanted) if isinstance(wanted, str) else _checked(wanted)


def with_cuts(base: Workload, cuts: Cuts) -> Workload:
    """The workload with some of its requests or turns cut by users. SuiteError for one that has cuts already,
    and for sessions of the author's own class."""
    if streamed(base).unit == "request":
        return WithCuts(base, cuts)
    own = _own_sessions(base)
    if own is None or own.cuts is not None:
        raise SuiteError(
            "cuts can be added to sessions of laws and of traces, once", where=f"workload {shown(base.name)}"
        )
    return own.replaced(name=f"{base.name} (with cuts)", cuts=cuts)


def with_answers(base: Workload, answers: Answers) -> Workload:
    """The workload of sessions with these answers in its history. SuiteError for any other workload."""
    own = _own_sessions(base)
    if own is None:
        raise SuiteError(
            "answers applies to sessions: turns of a conversation read them, single requests do not",
            where=f"workload {shown(base.name)}",
        )
    return own.replaced(answers=answers)


def _own_sessions(base: Workload) -> OwnSessions | None:
    from pytest_llmbench.workloads.sessions import OwnSessions

    return base if isinstance(base, OwnSessions) else None


_OF_MAKE_WORKLOAD = frozenset(
    {"input_tokens", "output_tokens", "prefix_tokens", "prefix_fraction", "prefixes", "salt"}
)
"""Keywords of ``make_workload``, which authors write as keys of a mapping."""
_MEANT_FOR_MAKE_WORKLOAD = {"input": "input_tokens", "output": "output_tokens", "prefix": "prefix_tokens"}
"""What authors shorten them to."""


def mixed(parts: Mix, name: str = "") -> Mixture | SessionMix:
    """The mixture of ``{"profile:CHAT": 0.6, "rag": (mine, 0.4)}``; weights are relative to each other. If
    all parts are of sessions, each session is from one of them; else their turns are single requests.

    Called ``0.6 profile:CHAT + 0.4 rag`` where it has no name. Raises SuiteError with all mistakes.
    """
    made, mistakes = mixture_parts(parts)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="mixture of workloads")
    # A whole number may be too large to be written as any other; the mixture refuses it.
    weights = [max(-LARGEST_WEIGHT, min(part.weight, LARGEST_WEIGHT)) for part in made]
    called = " + ".join(f"{trimmed(weight)} {part.name}" for weight, part in zip(weights, made, strict=True))
    return mixture_of(name or called, made)


def mixture_of(name: str, parts: Sequence[Part]) -> Mixture | SessionMix:
    """The mixture of parts: of whole sessions if all of them are of sessions, else of single requests."""
    of_sessions = all(streamed(part.workload).unit == "session" for part in parts)
    return (SessionMix if of_sessions and parts else Mixture)(name, tuple(parts))


def mixture_parts(parts: Mix) -> tuple[list[Part], list[str]]:
    """The parts of :func:`mixed`, and the mistakes in the others, in words."""
    made: list[Part] = []
    mistakes: list[str] = []
    given: Mapping[Any, Any] = parts  # a marker is not typed
    if given and set(given) <= _OF_MAKE_WORKLOAD | set(_MEANT_FOR_MAKE_WORKLOAD):
        keywords = ((_MEANT_FOR_MAKE_WORKLOAD.get(name, name), shown(value)) for name, value in given.items())
        wanted = ", ".join(f"{name}={value}" for name, value in keywords)
        return [], [f"a mapping is a mixture of workloads; write make_workload({wanted})"]
    for label, entry in given.items():
        pair = isinstance(entry, tuple | list) and len(entry) == 2
        wanted, weight = entry if pair else (label, entry)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            mistakes.append(f"part {shown(label)} is {shown(entry)}: give (workload, weight), or a weight")
            continue
        if not isinstance(label, str):
            mistakes.append(f"part {shown(label)}: the label must be a text")
            continue
        try:
            made.append(Part(label, workload(wanted), weight))
        except SuiteError as error:
            remedy = f" ({error.remedy})" if error.remedy else ""
            mistakes.append(f"part {shown(label)}: {error.what}{remedy}")
    return made, mistakes


def reference_variant(name: str, specification: Mapping[str, Any]) -> Workload | None:
    """The reference workload with this name and specification, made anew from the latter.

    Knows the request classes of the fairness test, a fixed output (AMB-11) and the lengths of Long Context;
    None for anything else, and for a specification that no reference workload has.
    """
    try:
        made = _made_anew(name, specification)
    except (SuiteError, KeyError, TypeError, ValueError):
        return None  # the specification comes from a stored report and may say anything
    if made is None or _as_json(made.specification()) != _as_json(specification):
        return None
    return made


def _made_anew(name: str, specification: Mapping[str, Any]) -> Workload | None:
    made = WORKLOADS.get(name)
    if name == "long-context":
        params = specification["input_length"]["params"]
        law = Choice(tuple(params["choice"])) if "choice" in params else Fixed(params["tokens"])
        made = LongContextWorkload(law)
    if "classes" in specification and name in _SYNTHETIC:
        from pytest_llmbench.workloads.mixture import ClassMix, RequestClass

        classes = [
            RequestClass(each["name"], tuple(each["input"]), tuple(each["output"]), each["share"])
            for each in specification["classes"]
        ]
        made = ClassMix(tuple(classes), _SYNTHETIC[name])
    changes = specification.get("deviations", ())
    if made is not None and any("lengths_seed" not in change for change in changes):
        made = WithFixedOutput(made, specification["output_length"]["params"]["tokens"])
    for seed in (change["lengths_seed"] for change in changes if "lengths_seed" in change):
        made = made and SameLengths(streamed(made), seed)
    return made


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _named(name: str) -> Workload:
    if name in WORKLOADS:
        return WORKLOADS[name]
    if name.startswith(PREFIX):
        return profile_workload(name)
    if name.startswith("session:"):
        from pytest_llmbench.workloads.sessions import named_sessions

        return named_sessions(name)
    available = f"available: {', '.join(WORKLOADS)}, {PREFIX}{{{','.join(profiles())}}}"
    if name in FROM_DATASETS:
        raise SuiteError(
            f"workload {name!r} needs a data set, which is not bundled and not given",
            remedy="name its file in the [workloads] section of a TOML file and pass that with "
            "--llm-workloads FILE, or give a workload object (fixture llm_workload, hook "
            f"pytest_llmbench_workloads); {available} without one",
        )
    close = difflib.get_close_matches(name.lower().replace("_", "-"), RESERVED_NAMES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise SuiteError(f"unknown workload {shown(name)}", remedy=f"{hint}{available}")


def _checked(candidate: Workload) -> Workload:
    if _is_reference(candidate):
        return candidate
    where = f"workload {shown(getattr(candidate, 'name', candidate))}"
    if inspect.isclass(candidate):
        raise SuiteError("a class, not a workload", where=where, remedy=f"write {candidate.__name__}(…)")
    missing = [f"it has no {member}" for member in _MEMBERS if not hasattr(candidate, member)]
    if missing:
        remedy = "a workload has name, standard, requests(count, seed) and specification()"
        raise SuiteError.from_mistakes(missing, where=where, remedy=remedy)
    mistakes = check_specification(candidate)
    if candidate.name in RESERVED_NAMES or candidate.standard:
        mistakes.append("it claims to be a reference workload: choose another name and let standard be False")
    if not _is_as_it_says(candidate):
        mistakes.append(
            f"it claims to be a profile and is not as the catalogue has it: names that begin with {PREFIX!r} "
            "belong to the profiles, and only they state profiles"
        )
    if mistakes:
        remedy = "a custom workload must be fully specified (section 4.3.1 of the draft)"
        raise SuiteError.from_mistakes(mistakes, where=where, remedy=remedy)
    return candidate


def _is_as_it_says(candidate: Workload) -> bool:
    """Whether a workload that claims to be a profile is that of the catalogue, except for changes that its
    specification declares."""
    if sources := streamed(candidate).sources:
        if len(sources) > 1 and candidate.name.startswith(PREFIX):  # a mixture has a name of its own
            return False
        return all(map(_is_as_it_says, sources))
    if isinstance(candidate, ProfileWorkload):
        return candidate.profile == profiles().get(candidate.profile.code)
    return not candidate.name.startswith(PREFIX) and "profiles" not in candidate.specification()


def _is_reference(candidate: Workload) -> bool:
    """Whether its type guards the reference names itself: none of these types can be made with such a name
    and other parameters."""
    while type(candidate) is WithFixedOutput:
        candidate = candidate.base
    if type(candidate) in (SyntheticWorkload, LongContextWorkload):
        return candidate.standard
    from pytest_llmbench.workloads.dataset import CodeCompletionWorkload, ConversationWorkload
    from pytest_llmbench.workloads.mixture import ClassMix

    return type(candidate) in (ClassMix, ConversationWorkload, CodeCompletionWorkload) and candidate.standard
