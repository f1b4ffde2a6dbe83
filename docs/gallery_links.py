"""An MkDocs hook that fixes links and images of the gallery, which assume that each page has its own directory."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Make cards link to HTML files, and remove the `srcset` of images."""
    if not page.file.src_uri.startswith("gallery/"):
        return html
    html = re.sub(r'(class="reference internal" href=")(\w+)(?=")', r"\1\2.html", html)
    return re.sub(r' srcset="[^"]*"', "", html)
