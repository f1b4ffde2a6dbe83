"""A hook of MkDocs: LaTeX between dollars becomes MathML when the site is built, so that reading it needs no script."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FUNCTION = re.compile(r"(\\(?:log|det|exp))\b(?! *\()")  # MathML sets what follows close by
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Replace what arithmatex has marked."""
    return FORMULA.sub(mathml, html)


def mathml(found: re.Match[str]) -> str:
    """Return the element for one formula: a block of its own for `$$…$$`."""
    latex = FUNCTION.sub(r"\1\\,", unescape(found[2]))
    return convert(latex, display="block" if found[1] == "div" else "inline")
