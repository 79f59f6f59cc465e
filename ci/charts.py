"""The Helm chart and the manifests of examples/, checked without a cluster.

Run: python ci/charts.py [--write] [--environment FOLDER]
  --write        write examples/kubernetes/NAME.yaml from the chart and values/NAME.yaml. Without: they must be equal
  --environment  a virtual environment that is kept. Default: a temporary one
  --definition FILE --version V --source TEXT  print the reduced schema of a CustomResourceDefinition (charts/schemas)

`helm lint --strict`, `helm template`, then each object against its schema: those of Kubernetes by `kubernetes-validate
--strict`, custom resources by the definitions in charts/schemas, and their pod templates by that of Kubernetes. Helm and the
schemas come from the registry of packages, into the virtual environment: 80 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from charts.check import check_objects, find_manifests, read_objects
from charts.definitions import reduce_definition
from charts.tools import ToolError, Tools

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "kubernetes"


def main(words: Sequence[str]) -> int:
    """0: every manifest is valid, and the rendered ones are up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the rendered manifests")
    parser.add_argument("--environment", type=Path, help="folder of a virtual environment, which is kept; default: temporary")
    parser.add_argument("--definition", type=Path, help="reduce this CustomResourceDefinition, and print it")
    parser.add_argument("--version", default="v1", help="of the definition")
    parser.add_argument("--source", default="", help="repository, commit and path of the definition")
    args = parser.parse_args(words)
    if args.definition:
        print(json.dumps(reduce_definition(args.definition.read_text(), args.version, args.source), indent=0))
        return 0
    with tempfile.TemporaryDirectory() as work:
        try:
            return _run(Tools.install(args.environment or Path(work) / "environment"), write=args.write)
        except ToolError as e:
            print(f"charts: {e}", file=sys.stderr)
            return 1


def _run(tools: Tools, *, write: bool) -> int:
    problems = tools.lint(FOLDER / "thalweg", FOLDER / "values" / "server.yaml")
    for values in sorted((FOLDER / "values").glob("*.yaml")):
        text = tools.render(FOLDER / "thalweg", values)
        target = FOLDER / values.name
        if write:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            problems.append(f"{target.relative_to(ROOT)} differs from the chart; run `python ci/charts.py --write`")
    for path in find_manifests(ROOT / "examples"):
        objects = read_objects(path)
        found = [*check_objects(objects), *tools.validate(objects)]
        print(f"{path.relative_to(ROOT)}: {len(objects)} objects, {len(found)} problems", flush=True)
        problems += [f"{path.relative_to(ROOT)}: {each}" for each in found]
    print("\n".join(problems), file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
