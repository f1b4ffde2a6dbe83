"""Write the tables of keys in docs/problems.md from the schema: `python docs/keys.py`."""

from __future__ import annotations

import typing
from pathlib import Path

from pilescore.problems.schema import DESCRIBED, Table, expected

PAGE = Path(__file__).parent / "problems.md"
START, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"


def tables() -> str:
    """Return every table of a problem file with its keys, as Markdown."""
    parts = []
    for name, kinds in DESCRIBED.items():
        parts.append(f"### {f'`{name}`' if name else 'At the top'}\n\n| key | what it holds |\n|---|---|\n")
        shared = [key for key in kinds[0].model_fields if all(key in kind.model_fields for kind in kinds)]
        rows = [_row(kinds[0], key, "") for key in shared if key != "type"]
        for kind in kinds if len(kinds) > 1 else ():
            values = " or ".join(f"`{each}`" for each in typing.get_args(kind.model_fields["type"].annotation))
            own = [key for key in kind.model_fields if key not in shared]
            rows.append(f"| `type` = {values} | {kind.__doc__} |\n")
            rows += [_row(kind, key, "&ensp;") for key in own]
        parts.append("".join(rows) + "\n")
    return "".join(parts)


def _row(kind: type[Table], key: str, indent: str) -> str:
    field = kind.model_fields[key]
    default = field.get_default()
    note = (
        " **(needed)**" if field.is_required() else f" Default: {default!r}." if isinstance(default, int | str) else ""
    )
    text = expected(kind, key).replace("|", "\\|")
    return f"| {indent}`{key}` | {text[0].upper()}{text[1:]}.{note} |\n"


def page(text: str) -> str:
    """Return the page with its tables renewed."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + tables() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
