"""The table of families in docs/models.md, made of the registry and of the first sentence of each family's file.

python ci/model_reference.py            # writes the table
python ci/model_reference.py --check    # exit status 1 where the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from thalweg.engine.planning.served import listing

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
FIRST, LAST = "<!-- families: python ci/model_reference.py -->\n", "<!-- end -->"
HEAD = "| file of `models/families/` | `architectures` in config.json | what it is |\n|---|---|---|\n"


def main(argv: list[str]) -> int:
    """0, or 1 where --check finds an old page."""
    text = page()
    if argv == ["--check"]:
        if PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.name} is old: python ci/model_reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """docs/models.md with a new table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
    return before + FIRST + _table() + LAST + rest.partition(LAST)[2]


def _table() -> str:
    files: dict[tuple[str, str], list[str]] = {}
    for row in listing():
        if row["file"].startswith("thalweg.models.families."):
            files.setdefault((row["file"].rpartition(".")[2], row["what"]), []).append(f"`{row['architecture']}`")
    return HEAD + "".join(f"| `{file}` | {', '.join(names)} | {what} |\n" for (file, what), names in sorted(files.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
