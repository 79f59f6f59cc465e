"""Every architecture name of other engines and of transformers has a fate here: a family, a stated reason why there is none, or
the fallback to transformers, which decides when a model is loaded. `architecture_names.json` has the names, by their source.

python ci/architecture_names.py            # counts by source; exit status 1 with the names that have no fate
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from thalweg.checkpoint.tail import GENERATES
from thalweg.models import names, registry

LISTS = Path(__file__).with_suffix(".json")
OF_TRANSFORMERS = "transformers"
"""Names of this source are classes that the fallback inspects, where they generate."""


def fate_of(name: str, source: str) -> str:
    """native, fallback, refused, or unknown."""
    if registry.has(name):
        return "native"
    missing = names.missing(name)
    if missing is not None:
        return "fallback" if missing.fallback else "refused"
    return "fallback" if source.startswith(OF_TRANSFORMERS) and name.endswith(GENERATES) else "unknown"


def fates() -> dict[str, dict[str, str]]:
    """Source -> name -> fate."""
    lists = json.loads(LISTS.read_text(encoding="utf-8"))
    return {source: {name: fate_of(name, source) for name in each} for source, each in lists.items()}


def main() -> int:
    unknown: list[str] = []
    for source, each in fates().items():
        count = Counter(each.values())
        print(f"{source}: {len(each)} names, " + ", ".join(f"{n} {fate}" for fate, n in sorted(count.items())))
        unknown += [name for name, fate in each.items() if fate == "unknown"]
    if unknown:
        print(f"no family and no reason in thalweg/assets/models.json: {', '.join(sorted({*unknown}))}", file=sys.stderr)
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
