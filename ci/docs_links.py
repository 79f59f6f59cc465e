"""A hook of MkDocs (mkdocs.yml): links that lead out of docs/ become the path they name, for the site holds only docs/.

The files themselves keep their links, which tests/project/test_documents.py follows.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What MkDocs renders of a page."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return LINK.sub(lambda m: inside(m, folder), markdown)


def inside(link: re.Match[str], folder: str) -> str:
    """A link within docs/ as it is; another as its words and the path from the repository's root."""
    path = posixpath.normpath(posixpath.join(folder, link[2]))
    if path.startswith("docs/"):
        return link[0]
    words = link[1].strip("`")
    return f"`{path}`" if words == path else f"{link[1]} (`{path}`)"
