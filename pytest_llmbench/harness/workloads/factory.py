"""What the ``llm_workload`` fixture calls: makes a named or a custom workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pytest_llmbench.errors import SuiteError, as_python
from pytest_llmbench.model.request import Answers, Workload
from pytest_llmbench.workloads.adapted import Salted, SharedPrefix, WithFixedOutput, cuts_of
from pytest_llmbench.workloads.catalogue import (
    Mix,
    mixture_of,
    mixture_parts,
    with_answers,
    with_cuts,
    workload,
)
from pytest_llmbench.workloads.lengths import Fixed, LengthLaw, law_of
from pytest_llmbench.workloads.profiles import PREFIX
from pytest_llmbench.workloads.synthetic import RESERVED_NAMES, SyntheticWorkload

Lengths = int | tuple[int, int] | Sequence[int] | Mapping[int, float] | LengthLaw

Seconds = float | tuple[float, float] | Sequence[float]

_CUSTOM = "custom"
_DEFAULT = "synthetic-uniform"
_STAND_IN = SyntheticWorkload("stand-in", Fixed(1), Fixed(1))
"""Stands in for a base that is wrong, so that mistakes in what is changed about it are found as well."""
_Made = TypeVar("_Made")


def make_workload(
    name: str | Workload | Mix = "synthetic-uniform",
    *,
    input_tokens: Lengths | None = None,
    output_tokens: Lengths | None = None,
    mix: Mix | None = None,
    prefix_tokens: Lengths | None = None,
    prefix_fraction: float | None = None,
    prefixes: int | None = None,
    salt: str | None = None,
    cut_share: float | None = None,
    cut_after_s: Seconds | None = None,
    answers: Answers | None = None,
    images: int | Mapping[str, Any] | None = None,
    audio: int | Mapping[str, Any] | None = None,
    videos: Mapping[str, Any] | None = None,
) -> Workload:
    """Make a workload by name, or a custom one. Every argument adds to it.

    - ``input_tokens``, ``output_tokens``: random ids with these lengths: a number, a pair (uniform), a list,
      a histogram (length → weight), or any law of ``workloads.lengths``. ``output_tokens`` alone, as a
      number, replaces the output limits of the named workload after all draws (AMB-11).
    - ``mix``: ``{"chat": ("synthetic-uniform", 0.6), "long": (mine, 0.4)}``, parts by label with weights; a
      weight alone where the label is a name, ``{"profile:CHAT": 0.6, "profile:RAGN": 0.4}``.
    - ``prefix_tokens``, ``prefix_fraction``, ``prefixes`` (1): this share of requests begins with one of the
      prefixes.
    - ``salt``: a different beginning for every request, so that no prefix cache helps.
    - ``cut_share``, ``cut_after_s``: users cut this share of the requests that many seconds after submission.
    - ``images``, ``audio``, ``videos``: pieces beside each prompt: how many, or a mapping with ``count``,
      ``width`` and ``height`` (512 pixels), ``seconds`` (5), ``files``, and ``repeated``, the share that
      comes again and again. All but the last two are numbers or distributions, as lengths.
    - ``answers``: ``"live"``: sessions read what the server answered; ``"live-compared"``: compared too.

    A custom workload is called ``name``, if that is a name of its own. Raises SuiteError with all mistakes.
    """
    mistakes = _Mistakes()
    input_tokens, output_tokens = as_python(input_tokens), as_python(output_tokens)
    prefix_tokens, prefixes = as_python(prefix_tokens), as_python(prefixes)
    own = (
        name if isinstance(name, str) and not (name in RESERVED_NAMES or name.startswith(PREFIX)) else _CUSTOM
    )
    changed = mix is not None or prefix_tokens is not None or (None not in (input_tokens, output_tokens))
    # A name of one's own names what is made here; a reference name or an object is what it is made from.
    start: str | Workload | Mix = _DEFAULT if changed and own != _CUSTOM else name
    sharing = _sharing(mistakes, prefix_tokens, prefix_fraction, prefixes)
    made = _base(mistakes, start, own, (input_tokens, output_tokens), mix) or _STAND_IN
    if sharing is not None:
        made = mistakes.noting(partial(SharedPrefix, own, made, **sharing)) or made
    if salt is not None:
        made = mistakes.noting(partial(Salted, made, salt)) or made
    if (cuts := mistakes.noting(partial(cuts_of, cut_share, cut_after_s))) is not None:
        made = mistakes.noting(partial(with_cuts, made, cuts)) or made
    media = {"image": images, "audio": audio, "video": videos}
    if any(given is not None for given in media.values()):
        made = mistakes.noting(partial(_with_media, made, media)) or made
    if answers is not None:
        made = mistakes.noting(partial(with_answers, made, answers)) or made
    mistakes.raise_if_any()
    return workload(made)


def _with_media(base: Workload, given: Mapping[Any, Any]) -> Workload:
    from pytest_llmbench.workloads.media import WithMedia, media_law  # few loads have pieces

    mistakes = _Mistakes()
    laws = [
        mistakes.noting(partial(media_law, modality, value))
        for modality, value in given.items()
        if value is not None
    ]
    mistakes.raise_if_any()
    return WithMedia(base, tuple(law for law in laws if law is not None))


class _Mistakes:
    """Collects the mistakes of several parts, to be raised together."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def noting(self, make: Callable[[], _Made]) -> _Made | None:
        """The result of ``make``; None, with its mistakes noted, if it raises SuiteError."""
        try:
            return make()
        except SuiteError as error:
            remedy = f" ({error.remedy})" if error.remedy else ""
            where = f"{error.where}: " if error.where else ""
            self.found.append(f"{where}{error.what}{remedy}")
            return None

    def raise_if_any(self) -> None:
        if self.found:
            raise SuiteError.from_mistakes(self.found, where="llm_workload")


def _base(
    mistakes: _Mistakes,
    start: str | Workload | Mix,
    own: str,
    lengths: tuple[Lengths | None, Lengths | None],
    mix: Mix | None,
) -> Workload | None:
    inputs, outputs = lengths
    if mix is not None:
        if lengths != (None, None):
            mistakes.found.append(
                "mix and lengths exclude each other: give the parts of the mix their lengths"
            )
        parts, wrong = mixture_parts(mix)
        mistakes.found += wrong
        return None if wrong else mistakes.noting(partial(mixture_of, own, parts))
    if inputs is not None and outputs is not None:
        input_law, output_law = _law(mistakes, inputs, "input"), _law(mistakes, outputs, "output")
        if input_law is None or output_law is None:
            return None
        return mistakes.noting(partial(SyntheticWorkload, own, input_law, output_law))
    found = mistakes.noting(partial(workload, start))
    if found is None or (inputs is None and outputs is None):
        return found
    if not isinstance(outputs, int) or isinstance(outputs, bool):
        mistakes.found.append("a custom workload needs both input_tokens and output_tokens")
        return None
    return mistakes.noting(partial(WithFixedOutput, found, outputs))


def _sharing(
    mistakes: _Mistakes, tokens: Lengths | None, fraction: float | None, prefixes: int | None
) -> dict[str, Any] | None:
    if tokens is None:
        if fraction is not None or prefixes is not None:
            mistakes.found.append("shared prefixes need prefix_tokens, the length of a prefix")
        return None
    law = _law(mistakes, tokens, "prefix")
    return {
        "prefix_tokens": law or Fixed(1),
        "fraction": 1.0 if fraction is None else fraction,
        "prefixes": 1 if prefixes is None else prefixes,
    }


def _law(mistakes: _Mistakes, lengths: Any, side: str) -> LengthLaw | None:
    return mistakes.noting(partial(law_of, lengths, f"{side}_tokens"))
