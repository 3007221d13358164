"""An HTML page as a reader of its tags sees it."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = ("meta", "br", "hr", "input")


class Page(HTMLParser):
    """The tags, attributes and links that are live, and the headings; raises AssertionError unless tags
    nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.headings: list[str] = []
        self.open: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.scripts += tag == "script"
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "h2":
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {str(value) for name, value in attrs if name in ("href", "src", "xlink:href", "action")}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings[-1] += data
