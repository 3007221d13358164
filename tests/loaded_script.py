"""Programs of this repository that are in no package, and whose functions tests call."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def loaded(script: str) -> ModuleType:
    """By its path below the root of the repository."""
    path = ROOT / script
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and named tuples look there
    spec.loader.exec_module(module)
    return module
