"""An extension of Griffe: what docstrings have of reStructuredText becomes Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?([^`]+)`")


class DocstringRoles(griffe.Extension):
    """A role, ``:class:`~package.Name```, becomes code, and ``::`` before a block a colon."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe's event: one object of the package has been read."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value).replace("::\n\n", ":\n\n")
