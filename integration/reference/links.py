"""Links of a folder of pages: that each leads to a file, and to a place in it."""

from __future__ import annotations

import html.parser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Reader(html.parser.HTMLParser):
    """Collects what a page links to and the places that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name == "id" and value:
                self.places.add(value)


def read(page: Path) -> _Reader:
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def broken(folder: Path) -> list[str]:
    """Every link within the folder that leads nowhere, with its page, and files without a link."""
    pages = {path.resolve(): read(path) for path in sorted(folder.rglob("*.html"))}
    found, reached = [], {(folder / "index.html").resolve()}
    for page, reader in pages.items():
        for link in reader.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            if target != page:
                reached.add(target)
            if not target.is_file():
                found.append(f"{page.name}: no file {link}")
            elif place and target in pages and place not in pages[target].places:
                found.append(f"{page.name}: no place {link}")
    every = {path.resolve() for path in folder.rglob("*") if path.is_file()}
    found += [f"{path.name}: no page links to it" for path in sorted(every - reached)]
    return found
