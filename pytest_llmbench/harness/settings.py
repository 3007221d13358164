"""The options of a session, validated in one place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.harness.allowance import Budgets
from pytest_llmbench.methodology.parameters import LARGEST, LARGEST_SEED, MOST_RUNS, seconds_of
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import HostLimits, named_values
from pytest_llmbench.redaction import keep_secrets_of
from pytest_llmbench.stats.spectral import Intervals
from pytest_llmbench.store.files import STORAGE

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)=(?P<rest>.+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST = 4096
"""The most characters of an option; paths cannot be longer either."""
VARIANT = "variant:"
"""Prefix by which ``--llm-baseline-endpoint`` names a variant of the SUT."""
BASE_MODEL = "base-model"
"""What ``--llm-baseline-endpoint`` calls the same requests to the same system without the adapters."""
AUTO, BY_SEED = "auto", "seed"
"""What ``--llm-prompts`` says beside a name."""
_PROMPTS = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
FAILED = "failed"
"""What ``--llm-profile`` says beside the id of a test."""
CAPS = tuple(each.name for each in fields(Budgets))
"""Names of ``--llm-caps``: x is the field ``max_x``."""
KEPT = ("full", "compact", "none")
"""What ``--llm-records`` keeps of single requests."""
BESIDE = {"events": "events", "sequence": "export_sequence"}
"""What ``--llm-records`` writes beside the records of single requests, and its field."""
DEFAULT_SEED = 42
"""The default seed of the draft."""


class Settings(BaseModel):
    """Options of the command line and the ini file. Field ``x_y`` is option ``--llm-x-y`` and ini
    ``llm_x_y``; ``max_x`` is x of ``--llm-caps``, and ``--llm-records`` also switches ``events`` and
    ``export_sequence`` on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = None
    endpoints: tuple[str, ...] = ()
    """All systems as ``URL`` or ``NAME=URL``, if there are several; the first is ``endpoint``."""
    suts: tuple[str, ...] = ()
    """The files of the systems as ``NAME=FILE``, if there are several."""
    model: str | None = None
    api: str = "auto"
    http: Literal["1.1", "2"] = "1.1"
    """HTTP version of the measured requests."""
    sut: Path | None = None
    scale: Scale = "standard"
    plan: bool = False
    report: Path | None = None
    runs: int | None = Field(default=None, ge=1, le=MOST_RUNS)
    budget: str | None = None
    """Time that the tests with one load may take together, such as ``5m``."""
    baseline_endpoint: str | None = None
    calibrate: bool = False
    save: str | None = None
    autosave: bool = False
    compare: str | None = None
    compare_fail: tuple[str, ...] = ()
    compare_confirm: str | None = None
    """The sessions in which a regression has to show, ``2/3``: two of the last three."""
    accept: str | None = None
    """The reason for which the saved session is the new level."""
    waive: tuple[str, ...] = ()
    storage: str = STORAGE
    """The folder of the baselines, or the store that has them, ``NAME:WHERE``."""
    send: str | None = None
    """The receiver of the figures, ``NAME:WHERE``."""
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    place: str = ""
    """Names of the place, with commas between, by which markers choose their numbers."""
    prompts: str = Field(default=AUTO, pattern=_PROMPTS)
    """The name of the requests: ``auto``, ``seed``, or the user's own (:func:`prompts_of`)."""
    new_prompts: str = Field(default="", exclude=True)
    """Their name in this session, where ``auto`` gives a server new ones; empty: those of the seed."""
    intervals: Intervals = "analytic"
    inconclusive: Literal["fail", "pass"] = "fail"
    exit_codes: bool = False
    require: bool = False
    proxy: str | None = None
    """The URL of the HTTP proxy to measure through, or ``env``; None: no proxy."""
    imported: Path | None = Field(default=None, alias="import")
    """A list of tests that is collected as well."""
    insecure: bool = False
    """Whether the certificates of servers are left unchecked."""
    api_key_file: Path | None = None
    workloads: Path | None = None
    records: Literal["full", "compact", "none"] = "compact"
    export_sequence: bool = False
    events: bool = False
    profile: str | None = None
    """What is profiled: the tests that ``failed``, or the one of this node id."""
    allow_overload: bool = False
    workers: int | str = 1
    """How many measuring processes run on this machine, or the :class:`RaySpec` of those on a cluster."""
    timeout: float | None = Field(default=None, gt=0, le=LARGEST, allow_inf_nan=False)
    """Time limit of a request in seconds; None: the usual deadlines."""
    wait: float = Field(default=0, ge=0, le=LARGEST, allow_inf_nan=False)
    """How long to wait for an endpoint that is still starting, in seconds."""
    remeasure: int = Field(default=2, ge=0, le=20)
    host_limits: str | None = None
    """What this machine is held to, where that is not as usual: see :meth:`HostLimits.parse`."""
    worker_cpus: str = "none"
    max_requests: int = Field(default=1_000_000, ge=1)
    max_tokens: int = Field(default=2_000_000_000, ge=1)
    max_seconds: float = Field(default=86_400, gt=0, allow_inf_nan=False)
    max_rate: float = Field(default=10_000, gt=0, allow_inf_nan=False)
    max_concurrency: int = Field(default=10_000, ge=1)

    @field_validator("*", mode="before")
    @classmethod
    def _text_is_one_line(cls, given: Any) -> Any:
        """Refuse text that no command line can hold, which may come from an ini file, and line breaks."""
        for text in given if isinstance(given, tuple | list) else (given,):
            if not isinstance(text, str):
                continue
            if not text.strip():
                raise ValueError("it is blank")
            if _CONTROL.search(text):
                raise ValueError("it contains a line break or another control character")
            if len(text) > _LONGEST:
                raise ValueError(f"it is longer than {_LONGEST:,} characters")
        return given

    @field_validator("workers", mode="plain")
    @classmethod
    def _workers_are_here_or_on_a_cluster(cls, given: Any) -> int | str:
        # Imported here, as below: sessions without these options place nothing.
        from pytest_llmbench.generator.workers.placement import MOST_WORKERS, RaySpec, is_ray

        if is_ray(given):
            try:
                return str(RaySpec.parse(given))
            except SuiteError as error:
                raise ValueError(f"{error.what}; {error.remedy}") from None
        try:
            number = int(given)
        except (TypeError, ValueError):
            number = -1
        if not 0 <= number <= MOST_WORKERS:
            raise ValueError(
                f"give a number of processes on this machine, at most {MOST_WORKERS}, or "
                "ray[:ADDRESS][?workers=N]"
            )
        return number

    @field_validator("host_limits")
    @classmethod
    def _host_limits_are_some(cls, given: str | None) -> str | None:
        if given is not None:
            HostLimits.parse(given)
        return given

    @field_validator("worker_cpus", mode="after")
    @classmethod
    def _worker_cpus_are_ours(cls, given: str) -> str:
        from pytest_llmbench.generator.workers.placement import usable_cpus

        try:
            usable_cpus(given)
        except SuiteError as error:
            raise ValueError(f"{error.what}; {error.remedy}") from None
        return given

    @model_validator(mode="after")
    def _cores_are_of_worker_processes_here(self) -> Self:
        if self.worker_cpus.strip().lower() in ("", "none"):
            return self
        if isinstance(self.workers, str):
            raise ValueError(
                "--llm-worker-cpus places processes of this machine: leave it out with --llm-workers=ray, "
                "whose cluster places the workers (ray?cpus=C reserves C cores for each)"
            )
        if self.workers == 0:
            raise ValueError(
                "--llm-worker-cpus needs worker processes: leave it out, or give --llm-workers=1"
            )
        return self

    @model_validator(mode="after")
    def _files_need_a_place(self) -> Self:
        for part, name in BESIDE.items():
            if getattr(self, name) and self.report is None:
                raise ValueError(f"--llm-records={part} needs --llm-report, the directory for its files")
        return self

    @model_validator(mode="before")
    @classmethod
    def _the_first_of_several_systems(cls, given: Any) -> Any:
        changed = dict(given)
        if given.get("endpoint"):
            changed["endpoint"] = named(str(given["endpoint"]))[1]
        if given.get("endpoints") and given.get("sut"):
            # Files of several systems go by name; the session's own is that of the first, or of all.
            first = named(str(given["endpoints"][0]))[0]
            changed["suts"] = tuple(given.get("suts") or (str(given["sut"]),))
            files = dict(map(named, changed["suts"]))
            changed["sut"] = files.get(first, files.get(""))
        return changed

    @property
    def budgets(self) -> Budgets:
        return Budgets(
            self.max_requests, self.max_tokens, self.max_seconds, self.max_rate, self.max_concurrency
        )

    def profiles(self, nodeid: str, *, failed: bool) -> bool:
        """Whether a test is to be profiled. The id of a parametrised test means each of its cases."""
        if self.profile == FAILED:
            return failed
        return self.profile in (nodeid, nodeid.partition("[")[0])

    @property
    def saves(self) -> bool:
        """Whether the session saves a baseline. By default it saves none with several systems."""
        return self.save is not None or (self.autosave and len(self.endpoints) < 2 and not self.calibrate)

    @property
    def folder(self) -> Path:
        """The folder that baselines are read from and written to."""
        if ":" not in self.storage:
            return Path(self.storage)
        from pytest_llmbench.store.elsewhere import folder_of

        return folder_of(self.storage)

    @property
    def names_baselines(self) -> bool:
        """Whether an option is about baselines, and may be wrong."""
        given = (self.compare, self.compare_confirm, self.accept)
        return self.saves or bool(self.compare_fail or self.waive) or given != (None, None, None)

    @property
    def compares_runs(self) -> bool:
        """Whether runs are compared with those of another session or arm, now or later."""
        return self.saves or self.calibrate or (self.compare or self.baseline_endpoint) is not None

    @property
    def cpus(self) -> tuple[int, ...]:
        """The cores that measuring processes are kept on, in turn; empty: where the system puts them."""
        if self.worker_cpus.strip().lower() in ("", "none"):
            return ()
        from pytest_llmbench.generator.workers.placement import usable_cpus

        return usable_cpus(self.worker_cpus)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of all systems that the options name."""
        given = (self.endpoint, self.baseline_endpoint, *(named(each)[1] for each in self.endpoints))
        return tuple(dict.fromkeys(url for url in given if url))

    @field_validator("budget")
    @classmethod
    def _budget_is_a_time(cls, given: str | None) -> str | None:
        if given is not None and seconds_of(given) <= 0:
            raise ValueError("give a time above 0")
        return given

    @model_validator(mode="after")
    def _secrets_of_urls_stay_here(self) -> Self:
        elsewhere = (given.partition(":")[2] for given in (self.storage, self.send or ""))
        for url in (*self.urls, *elsewhere):
            keep_secrets_of(url)
        return self

    @model_validator(mode="after")
    def _a_comparison_needs_runs(self) -> Self:
        several = self.baseline_endpoint is not None or len(self.endpoints) > 1 or self.calibrate
        if several and self.runs is not None and self.runs < FEWEST_RUNS:
            raise ValueError(
                f"--llm-runs: {self.runs} cannot tell a change from noise; that takes at least {FEWEST_RUNS} "
                f"runs of each arm: give {FEWEST_RUNS} or more, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _systems_are_compared_with_each_other(self) -> Self:
        others = ("baseline_endpoint", "save", "compare")
        beside = ["--llm-" + name.replace("_", "-") for name in others if getattr(self, name) is not None]
        if len(self.endpoints) > 1 and beside:
            raise ValueError(
                f"{', '.join(beside)}: not possible with several systems; give --llm-endpoint once"
            )
        if self.calibrate and (beside or len(self.endpoints) > 1):
            other = ", ".join(beside) or "several --llm-endpoint"
            raise ValueError(f"--llm-calibrate measures one system alone: leave out {other}")
        if self.suts and len(self.endpoints) < 2:
            count = len(self.suts)
            raise ValueError(f"--llm-sut is given {count} times: give one, or an --llm-endpoint for each")
        return self

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from raw option values; SuiteError with every mistake and the option's name."""
        given = {name: value for name, value in options.items() if value not in (None, "")}
        mistakes = _take_apart(given)
        try:
            settings = cls(**given)
        except ValidationError as error:
            mistakes += map(_explain, error.errors())
        if mistakes:
            raise SuiteError.from_mistakes(mistakes)
        return settings


def named(text: str) -> tuple[str, str]:
    """Split ``NAME=URL`` into (name, URL). The name is empty where there is none, as in
    ``replay:fast?seed=1``."""
    found = _NAMED.fullmatch(text)
    return (found["name"], found["rest"]) if found else ("", text)


def _take_apart(options: dict[str, Any]) -> list[str]:
    """Put the parts of ``caps`` and ``records`` into their fields; returns the mistakes. Of several texts a
    later one overrides an earlier one part by part: a cap of the ini file holds beside others of the command
    line."""
    mistakes = []
    for text in _texts(options.pop("caps", ())):
        try:
            given = named_values(text, CAPS, "cap")
        except ValueError as error:
            mistakes.append(f"--llm-caps: {error}, got {shown(text)}")
        else:
            options |= {f"max_{name}": value for name, value in given.items()}
    for text in _texts(options.pop("records", ())):
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            if part in BESIDE:
                options[BESIDE[part]] = True
            elif part in KEPT:
                options["records"] = part
            else:
                known = (*KEPT, *BESIDE)
                close = difflib.get_close_matches(part, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                mistakes.append(f"--llm-records: unknown value {shown(part)}; {hint}")
        if len(kinds := sorted(set(parts) & set(KEPT))) > 1:
            mistakes.append(f"--llm-records: {' and '.join(kinds)} exclude each other: give one")
    return mistakes


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


_WANTED = {
    "float_parsing": "give a number",
    "float_type": "give a number",
    "finite_number": "give a finite number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "int_type": "give a whole number",
    "greater_than": "give a number above {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than_equal": "give {le} or less",
    "literal_error": "give {expected}",
    "string_pattern_mismatch": "use at most 64 letters, digits, dots, dashes and underscores",
}
"""What an option needs, by pydantic's type of the mistake."""


def _explain(detail: Any) -> str:
    if not detail["loc"]:  # of several options together: the rule names them
        return str(detail["ctx"]["error"])
    name = str(detail["loc"][0])
    cap = name.removeprefix("max_")
    option = f"--llm-caps: {cap}" if cap in CAPS else "--llm-" + name.replace("_", "-")
    ours = detail.get("ctx", {}).get("error")
    if isinstance(ours, ValueError):
        what = str(ours)
    elif detail["type"] in _WANTED:
        limits = detail.get("ctx", {}).items()
        what = _WANTED[detail["type"]].format_map(
            {key: limit if isinstance(limit, str) else trimmed(limit) for key, limit in limits}
        )
    else:
        what = detail["msg"].lower()
    return f"{option}: {what}, got {shown(detail['input'])}"
