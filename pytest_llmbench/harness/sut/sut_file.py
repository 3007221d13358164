"""What the SUT file says to the harness itself, rather than to a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.probes.disclosure import read_sut_file


@dataclass(frozen=True)
class Prices:
    input_per_million: float
    output_per_million: float
    currency: str

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """What so many tokens cost."""
        return (input_tokens * self.input_per_million + output_tokens * self.output_per_million) / 1e6


def prices_of(settings: Settings) -> Prices | None:
    """Prices of the SUT file, if it gives any."""
    if settings.sut is None:
        return None
    prices = read_sut_file(settings.sut).prices
    if prices.input_per_million is None or prices.output_per_million is None:
        return None
    return Prices(prices.input_per_million, prices.output_per_million, prices.currency)


@dataclass(frozen=True)
class HourlyPrice:
    """What a whole system costs, for comparisons (section 6.2)."""

    dollars: float
    date: str | None


def hourly_price(file: Path | None) -> HourlyPrice | None:
    """The price per hour in dollars; None where the SUT file gives none, or gives it in another currency."""
    if file is None:
        return None
    prices = read_sut_file(file).prices
    if prices.per_hour is None or prices.currency != "USD":
        return None
    return HourlyPrice(prices.per_hour, prices.date)
