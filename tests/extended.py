"""A distribution that adds to the package, made of the page that tells how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest_llmbench

PACKAGE = Path(pytest_llmbench.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "extend.md"
FILES = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', PAGE.read_text("utf-8"), re.M | re.S))


def distribution(folder: Path) -> Path:
    """The folder with that distribution, as an installer leaves it."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    told = folder / "acme-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    points = FILES["pyproject.toml"].partition('entry-points."')[2].replace('"', "")
    (told / "entry_points.txt").write_text(f"[{points}")
    return folder


def python(*arguments: str, path: Path, package: Path = PACKAGE) -> subprocess.CompletedProcess[str]:
    """A process in that folder, with what lies there and this package."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(package.parent)])}
    given = [sys.executable, *arguments]
    return subprocess.run(given, env=env, cwd=path, capture_output=True, text=True, timeout=120, check=False)
