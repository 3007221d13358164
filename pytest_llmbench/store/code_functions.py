"""Functions of source files, up to the point where a model is to complete them (section 4.3.2, AMB-34).

The completion point is the beginning of the body: signature and documentation are the prompt.
"""

from __future__ import annotations

import ast
import re
import textwrap

HOW = "functions extracted; each prompt is signature and documentation, the body is to be completed"
"""Description of the preprocessing, for the report."""

_JAVASCRIPT = re.compile(
    r"(?P<doc>/\*\*(?:[^*/]|/(?!\*\*)|\*(?!/))*+\*/\s{0,99}+)?"
    r"^[ \t]{0,99}+(?:export\s{1,99}+)?(?:default\s{1,99}+)?(?:async\s{1,99}+)?"
    r"function\s{0,99}+\*?\s{0,99}+\w{1,999}+\s{0,99}+(?:<[^>\n]{0,999}+>)?"
    r"\([^)]{0,999}+\)[^{};\n]{0,999}+\{",
    re.MULTILINE,
)


def function_prompts(language: str, text: str) -> list[str]:
    """The beginnings of the functions in a source text, in its order; empty where there are none."""
    if language.lower() == "python":
        return _python(text)
    return [textwrap.dedent(found.group()) + "\n" for found in _JAVASCRIPT.finditer(text)]


def _python(text: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # Python 2, templates, null bytes, generated monsters
        return []
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    prompts = []
    for node in sorted(found, key=lambda node: node.lineno):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        end = _body_begins(node)
        if end > node.lineno:  # a body on the line of the signature leaves nothing to cut
            prompts.append(textwrap.dedent("".join(lines[first - 1 : end - 1])))
    return prompts


def _body_begins(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line of the first statement that is no docstring."""
    if ast.get_docstring(node, clean=False) is None:
        return node.body[0].lineno
    return (node.body[0].end_lineno or node.body[0].lineno) + 1
