"""A hook of MkDocs: links and pictures of the gallery, which are written for pages in directories of their own."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Have cards lead to files, and pictures taken from where they are."""
    if not page.file.src_uri.startswith("gallery/"):
        return html
    html = re.sub(r'(class="reference internal" href=")(\w+)(?=")', r"\1\2.html", html)
    return re.sub(r' srcset="[^"]*"', "", html)
