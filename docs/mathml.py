"""An MkDocs hook that converts LaTeX between dollar signs to MathML, so pages need no script for formulas."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FUNCTION = re.compile(r"(\\(?:log|det|exp))\b(?! *\()")  # MathML would set the next symbol without a space
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Replace the formulas that arithmatex has marked."""
    return FORMULA.sub(mathml, html)


def mathml(found: re.Match[str]) -> str:
    """Return the MathML element for one formula: display style for `$$…$$`, inline otherwise."""
    latex = FUNCTION.sub(r"\1\\,", unescape(found[2]))
    return convert(latex, display="block" if found[1] == "div" else "inline")
