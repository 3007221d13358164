"""What a server that gives the key back puts where: sessions of pytest, and a search of all they left.

``PYTHONPATH=tests python tests/hostile/canary_table.py --write`` writes its table in
tests/hostile/tables.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hostile_run import ARTEFACTS, Left, Session, alone_in
from hostile_server import ENCODINGS, Behaviour, Reply, encoded, event, serving, stream, traces, words

PAGE = Path(__file__).parent / "tables.md"
BEGIN, END = "<!-- canaries: tests/hostile/canary_table.py --write -->\n", "<!-- end of canaries -->"
KEY = "sk-canary/7A+q<\"x'-9b3Z5w"
"""A header holds no other signs."""


def _padded(key: str, number: int) -> str:
    """So that what is cut at 300 or 80 characters is cut within the key."""
    text = encoded(key, number)
    return f"{'.' * (265 - len(text) // 2)} {text}"


CHANNELS: dict[str, Behaviour] = {
    "500": lambda key, n: (500, "application/json", json.dumps({"error": encoded(key, n)}).encode()),
    "500, cut": lambda key, n: (500, "text/plain", _padded(key, n).encode()),
    "401": lambda key, n: (401, "application/json", json.dumps({"detail": encoded(key, n)}).encode()),
    "in-band error": lambda key, n: stream(
        event({"error": {"message": encoded(key, n), "type": encoded(key, n)}})
    ),
    "garbage event": lambda key, n: stream(f"data: {encoded(key, n)}\n\n".encode()),
    "finish reason": lambda key, n: stream(words(finish=encoded(key, n))),
    "name of a figure": lambda key, n: stream(
        words(more={"timings": {encoded(key, n): 1}, "metrics": encoded(key, n)})
    ),
    "redirect": lambda key, n: (302, "text/plain", f"http://127.0.0.1:9/{encoded(key, 1)}".encode()),
    "type of the content": lambda key, n: (200, f"text/{encoded(key, 1)}", b"{}"),
}


def _all_channels(key: str, number: int) -> Reply:
    """Every channel with every encoding, one after the other."""
    return list(CHANNELS.values())[number % len(CHANNELS)](key, number // len(CHANNELS))


SESSIONS: dict[str, tuple[Behaviour, int]] = {
    **{f"preflight: {name}": (behaviour, 0) for name, behaviour in CHANNELS.items()},
    "load: 500, cut": (CHANNELS["500, cut"], 12),
    "load: finish reason": (CHANNELS["finish reason"], 12),
    "load: everything": (_all_channels, 12),
}
"""What the server does, and from which completion on."""


COLUMNS: dict[str, tuple[str, ...]] = {
    "terminal": ("terminal", "standard error"),
    "JUnit": ("junit.xml",),
    "pytest-html": ("pytest.html",),
    "report.html": ("out/report.html",),
    "report.json": ("out/report.json",),
    "other texts": (
        "out/summary.md",
        "out/minimum.txt",
        "out/ci/github-annotations.txt",
        "out/ci/gitlab-metrics.txt",
        "out/ci/bencher.json",
        "out/ci/github-action-benchmark-smaller.json",
        "out/ci/github-action-benchmark-bigger.json",
        "out/ci/ctrf-report.json",
    ),
    "records": (),
}
"""Files of each; records are all the others."""


def kept(name: str, session: Session, *more: str) -> Left:
    """A session of pytest on the server of that name, told to show as much as it can."""
    behaviour, honest = SESSIONS[name]
    with serving(behaviour, honest=honest) as endpoint:
        return session(endpoint, *ARTEFACTS, "-vv", "-l", "--tb=long", *more, key=KEY)


def row(left: Left) -> list[str]:
    """For each column the spellings of the key that were found in it, of all that were looked for."""
    named = {file for files in COLUMNS.values() for file in files}
    cells = []
    for files in COLUMNS.values():
        texts = [
            text for name, text in left.texts.items() if name in files or (not files and name not in named)
        ]
        found = {spelling for text in texts for spelling in traces(text, KEY)}
        cells.append(f"{len(found)} of {len(ENCODINGS)}" if texts else "–")
    return cells


def table(found: Mapping[str, Left]) -> list[str]:
    lines = ["| the key comes back in | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    return lines + [f"| {name} | {' | '.join(row(left))} |" for name, left in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    asked = parser.parse_args()
    found = {}
    for name in SESSIONS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = kept(name, alone_in(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        found["load: everything, under pytest-xdist"] = kept(
            "load: everything", alone_in(Path(folder)), "-n", "2"
        )
    lines = table(found)
    print("\n".join(lines))
    if asked.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2], "utf-8")
    return int(any(traces(text, KEY) for left in found.values() for text in left.texts.values()))


if __name__ == "__main__":
    sys.exit(main())
