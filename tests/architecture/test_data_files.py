"""Files beside the code, style sheets and catalogues: each is read, and the wheel has them all."""

from __future__ import annotations

import importlib.resources
import subprocess
import tomllib
from pathlib import Path

import pytest_llmbench

PACKAGE = Path(pytest_llmbench.__file__).parent
BESIDE = (".js", ".css", ".toml", ".yaml")


def data_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in BESIDE)


def test_each_is_named_by_a_module_of_its_folder_and_found_as_a_resource() -> None:
    assert {path.name for path in data_files()} >= {"report.css", "report.js", "pytest_html.css"}
    for path in data_files():
        assert any(f'"{path.name}"' in module.read_text("utf-8") for module in path.parent.glob("*.py"))
        package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        assert importlib.resources.files(package).joinpath(path.name).read_text("utf-8").strip()


def test_the_wheel_leaves_none_out() -> None:
    """It is made of all files of the package but those that git ignores."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"] == {"targets": {"wheel": {"packages": [PACKAGE.name]}}}
    ignored = subprocess.run(
        ["git", "check-ignore", *data_files()], cwd=PACKAGE.parent, capture_output=True, check=False
    )
    assert (ignored.returncode, ignored.stdout) == (1, b"")
