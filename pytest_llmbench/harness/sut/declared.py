"""Declarations about a system: its variants, by the SUT file, by hook and by the embedded engine itself; its
accelerator and its prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.endpoint import SampledMachine
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.facts import Facts, SUTFact
from pytest_llmbench.registry import named

if TYPE_CHECKING:
    from pytest_llmbench.probes.disclosure import SUTFile
    from pytest_llmbench.probes.sut_schema import Prices, VariantTable

HOOK = "pytest_llmbench_variants"


def sut_file_of(settings: Settings) -> SUTFile | None:
    """The SUT file that ``--llm-sut`` names; None without one. Raises SuiteError with all its mistakes."""
    return sut_file_at(settings.sut)


def sut_file_at(path: Path | None) -> SUTFile | None:
    if path is None:
        return None
    # Imported here: where there is no such file, the first request does not wait for what reads it.
    from pytest_llmbench.probes.disclosure import read_sut_file

    return read_sut_file(path)


def accelerator_of(settings: Settings, file: SUTFile) -> str | None:
    """The accelerator that the SUT file declares, or else that which its telemetry sees; None: neither."""
    declared: str | None = file.facts.value(SUTFact.ACCELERATOR_TYPE)
    table, see = file.tables.telemetry, named("machine", "accelerator")
    if declared is not None or table is None or see is None:
        return declared
    here, url = table.this_host, settings.endpoint
    if here is None:
        from pytest_llmbench.probes.host import own_addresses, topology_of  # few are asked for

        host = urlsplit(url or "").hostname  # none of a simulated system
        here = host is not None and topology_of(host, own_addresses()) == "single_machine"
    urls = [table.url] if isinstance(table.url, str) else table.url or []
    found: str | None = see(SampledMachine(tuple(urls), this_host=here))
    return found


@dataclass(frozen=True)
class Variant:
    """The declaration of one variant, before anything is started."""

    name: str
    stated: VariantTable | str
    """The variant's table; for the embedded engine the options of a preset, for which no schema has to be
    imported."""
    facts: Facts
    """Facts that its table declares; they override those of the SUT."""
    folder: Path
    """The folder that its relative paths start from."""

    @property
    def where(self) -> str:
        return f"variant {self.name}"

    @property
    def table(self) -> VariantTable:
        if not isinstance(self.stated, str):
            return self.stated
        from pytest_llmbench.probes.sut_schema import VariantTable

        return VariantTable(preset=self.stated)

    @property
    def preset(self) -> str | None:
        """The options of the embedded engine; None where it is reached otherwise."""
        return self.stated if isinstance(self.stated, str) else self.stated.preset

    @property
    def way(self) -> str:
        """How the SUT is reached: ``preset``, or the way that its table states."""
        return "preset" if isinstance(self.stated, str) else self.stated.way


def declared_variants(sut: SUT, file: SUTFile | None, offered: Mapping[str, Any]) -> dict[str, Variant]:
    """Every variant by name: the embedded engine's own, then those of the SUT file, then those of the hook.

    Raises SuiteError listing every mistake in the hook's, and variants that such an endpoint cannot have.
    """
    engine = sut.is_embedded or sut.is_replay
    if file is None and not offered and not engine:
        return {}
    found: dict[str, Variant] = {}
    here = Path.cwd()
    if engine:
        from pytest_llmbench.simulator.scenario import STANDARD_VARIANTS

        for name, overrides in STANDARD_VARIANTS.items():
            text = "&".join(f"{option}={value}" for option, value in overrides.items())
            found[name] = Variant(name, text, Facts(), here)
    if file is not None or offered:
        # Imported here: most systems have no tables of variants, and their first request waits for no schema.
        from pytest_llmbench.probes.disclosure import read_variants, variant_facts

        if file is not None:
            for name, table in file.tables.variants.items():
                found[name] = Variant(name, table, variant_facts(table, str(file.path)), file.path.parent)
        for name, table in read_variants(offered, HOOK).items():
            found[name] = Variant(name, table, variant_facts(table, HOOK), here)
    mistakes = [
        f"{variant.where} is a preset of the embedded engine, but the endpoint is not the embedded engine"
        if variant.way == "preset"
        else f"{variant.where} is reached by {variant.way}, but a replay has only presets"
        for variant in found.values()
        if (not engine if variant.way == "preset" else sut.is_replay)
    ]
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=sut.endpoint)
    return found


def prices_of(settings: Settings) -> Prices | None:
    """The prices of tokens in the SUT file; None if it gives none."""
    file = sut_file_of(settings)
    return None if file is None or file.tables.prices.input_per_million is None else file.tables.prices


def hourly_price(file: Path | None) -> Prices | None:
    """The price of the system per hour in dollars (section 6.2); None where the SUT file gives none, or gives
    it in another currency."""
    found = sut_file_at(file)
    prices = None if found is None else found.tables.prices
    return None if prices is None or prices.per_hour is None or prices.currency != "USD" else prices
