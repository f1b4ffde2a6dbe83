"""Generate the tables of keys in docs/problems.md from the schema: `python docs/keys.py`."""

from __future__ import annotations

import json
import typing
from pathlib import Path

from pilescore.problems.schema import DOCUMENTED, TomlTable, expected

PAGE = Path(__file__).parent / "problems.md"
START, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"


def tables() -> str:
    """Return Markdown tables of the keys of every table of a problem file."""
    parts = []
    for name, kinds in DOCUMENTED.items():
        parts.append(f"### {f'`{name}`' if name else 'Top level'}\n\n| key | value |\n|---|---|\n")
        shared = [key for key in kinds[0].model_fields if all(key in kind.model_fields for kind in kinds)]
        rows = [_row(kinds[0], key, "") for key in shared if key != "type"]
        for kind in kinds if len(kinds) > 1 else ():
            values = " or ".join(f"`{each}`" for each in typing.get_args(kind.model_fields["type"].annotation))
            own = [key for key in kind.model_fields if key not in shared]
            rows.append(f"| `type` = {values} | {kind.__doc__} |\n")
            rows += [_row(kind, key, "&ensp;") for key in own]
        parts.append("".join(rows) + "\n")
    return "".join(parts)


def _row(kind: type[TomlTable], key: str, indent: str) -> str:
    field = kind.model_fields[key]
    default = field.get_default()
    shown = f" Default: {json.dumps(default)}." if isinstance(default, int | str) else ""  # as TOML writes it
    note = " **(required)**" if field.is_required() else shown
    text = expected(kind, key).replace("|", "\\|")
    return f"| {indent}`{key}` | {text[0].upper()}{text[1:]}.{note} |\n"


def page(text: str) -> str:
    """Return the page with new tables."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + tables() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
