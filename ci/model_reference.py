"""The tables of docs/models.md: families, of the registry and the first sentence of each family's file, and names that have
none, by reason.

python ci/model_reference.py            # writes the table
python ci/model_reference.py --check    # exit status 1 where the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from thalweg.engine.planning.supported import counts, known_architectures, listing

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
FIRST, LAST = "<!-- families: python ci/model_reference.py -->\n", "<!-- end -->"
NAMES, NAMES_LAST = "<!-- names: python ci/model_reference.py -->\n", "<!-- end of names -->"
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
    """docs/models.md with new tables."""
    text = PAGE.read_text(encoding="utf-8")
    for first, table, last in ((FIRST, _table(), LAST), (NAMES, _names(), NAMES_LAST)):
        before, _, rest = text.partition(first)
        text = before + first + table + last + rest.partition(last)[2]
    return text


def _table() -> str:
    files: dict[tuple[str, str], list[str]] = {}
    for row in listing():
        if row["file"].startswith("thalweg.models.families."):
            files.setdefault((row["file"].rpartition(".")[2], row["what"]), []).append(f"`{row['architecture']}`")
    return HEAD + "".join(f"| `{file}` | {', '.join(names)} | {what} |\n" for (file, what), names in sorted(files.items()))


def _names() -> str:
    found = counts()
    sentence = (
        f"Of {sum(found.values())} names that users of vLLM know, {found['native']} have a family, {found['fallback']} are "
        f"served through transformers' own module, and {found['refused']} are refused (`thalweg models --counts`).\n\n"
        "| `architectures` in config.json | why there is no family |\n|---|---|\n"
    )
    reasons: dict[tuple[bool, str], list[str]] = {}
    for row in known_architectures():
        if row["served"] != "native":
            reasons.setdefault((row["served"] == "refused", row["what"]), []).append(f"`{row['architecture']}`")
    return sentence + "".join(f"| {', '.join(names)} | {why} |\n" for (_, why), names in sorted(reasons.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
