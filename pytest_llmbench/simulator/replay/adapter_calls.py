"""Adapters that come and go in virtual time while a plan runs, as by the calls of a real load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.observation import AdapterCall
from pytest_llmbench.model.plan import Churn
from pytest_llmbench.simulator.engine.engine import Engine


class AdapterCalls:
    """Unloads and loads adapters of the engines as a plan has it: an unload takes no time, a load
    ``adapter_load_ms``, and a request that names the adapter meanwhile is refused."""

    def __init__(self, churn: Churn, engines: Sequence[Engine], start_ns: int) -> None:
        """Raises SuiteError for adapters that the engines do not have."""
        names, config = [name for name, _ in churn.adapters], engines[0].config
        if unknown := [name for name in names if name not in config.adapter_names]:
            raise SuiteError(
                f"the engine has no adapter {', '.join(unknown)}",
                where="beside",
                remedy="give the embedded engine some: adapters=3 names them adapter-1 to adapter-3",
            )
        self._engines, self._names = engines, cycle(names)
        self._period_ns, self._start_ns = 1e9 / churn.rate, start_ns
        self._load_ns = round(config.adapter_load_ms * 1e6)
        self.absent: set[str] = set()
        """Adapters that are not loaded now."""
        self.done: list[AdapterCall] = []
        self._begun = 0
        self._loading: tuple[str, int] | None = None
        """The adapter that is being loaded, and since when."""
        self.due_ns = self._next_ns()
        """When the next call is sent, or the load under way ends."""

    def _next_ns(self) -> int:
        return self._start_ns + round((self._begun + 1) * self._period_ns)

    def make_due(self, now_ns: int) -> None:
        """Do what is due by now."""
        while self.due_ns <= now_ns:
            if self._loading is None:
                self._swap()
            else:
                self.end()

    def _swap(self) -> None:
        name = next(self._names)
        self._begun += 1
        self.absent.add(name)
        self.done.append(AdapterCall("unload", name, self.due_ns, 0))
        for engine in self._engines:
            engine.unload_adapter(name)
            engine.load_adapter(name)
        self._loading = name, self.due_ns
        self.due_ns += self._load_ns

    def end(self) -> None:
        """End the load of an adapter that is under way, if there is one."""
        if self._loading is None:
            return
        (name, since_ns), self._loading = self._loading, None
        self.absent.discard(name)
        self.done.append(AdapterCall("load", name, since_ns, self._load_ns))
        self.due_ns = max(self.due_ns, self._next_ns())
