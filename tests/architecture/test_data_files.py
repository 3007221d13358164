"""Files beside the code, style sheets and catalogues: each is read, and the wheel has them all."""

from __future__ import annotations

import importlib.resources
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
    """What is installed has all files of the repository: the tests run on a wheel, as users do."""
    source = Path(__file__).parents[2] / PACKAGE.name
    kept = {path.relative_to(source) for path in source.rglob("*") if path.suffix in BESIDE}
    assert {path.relative_to(PACKAGE) for path in data_files()} == kept
