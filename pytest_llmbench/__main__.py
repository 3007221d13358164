"""``pytest-llmbench``, also as ``python -m pytest_llmbench``: what is done outside of a pytest session."""

from __future__ import annotations

import sys

_USAGE = """\
usage: pytest-llmbench selftest [--quick] [--json FILE] [--out DIR] [--no-store]
       pytest-llmbench recompute report.json
       pytest-llmbench recover DIR

commands:
  selftest    what the load generator can be trusted with on this host
  recompute   every figure of a report again from its stored records, and whether they are identical
  recover     the report of a session that was killed, from what it had judged until then

Load tests themselves are run by pytest: pytest --llm-endpoint=URL
"""


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["selftest"]:
        from pytest_llmbench.harness.selftest.report import main as selftest

        return selftest(given[1:])
    if given[:1] == ["recompute"]:
        from pytest_llmbench.harness.recompute import main as recompute

        return recompute(given[1:])
    if given[:1] == ["recover"]:
        from pytest_llmbench.harness.recover import main as recover

        return recover(given[1:])
    asked = given[:1] in (["-h"], ["--help"])
    print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
