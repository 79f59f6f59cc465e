"""The chart's value `resources` for a model, from its memory plan.

Run: python resources.py MODEL [--cpus N] [--resource NAME] [flags of `thalweg plan`]
Without --resource: for servers on processors, with memory for the plan and PROCESSES. With it, for example nvidia.com/gpu: the
number of accelerators that share the model. Their plan says nothing about host memory, so that is left to you.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from typing import Any

GIB = 1 << 30
PROCESSES = 2 * GIB
"""Server, engine, standby process and sandboxes beyond the plan. `thalweg serve` of the bundled model holds 0.4 GiB in all."""


def derive_resources(plan: dict[str, Any], cpus: int, resource: str) -> dict[str, Any]:
    """plan: as `thalweg plan --json` prints it. ValueError where the model does not fit."""
    if not plan["fits"]:
        raise ValueError(f"the model does not fit; {plan['fewest_devices']} devices hold it (--tensor-parallel-size)")
    if resource:
        return {"limits": {resource: plan["devices"]}}
    memory = f"{math.ceil((max(plan['total'], plan['loading']) * plan['devices'] + PROCESSES) / GIB)}Gi"
    return {"requests": {"cpu": cpus, "memory": memory}, "limits": {"memory": memory}}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--cpus", type=int, default=4, help="cores of a pod on processors")
    parser.add_argument("--resource", default="", help="the accelerator's name in Kubernetes, such as nvidia.com/gpu")
    args, flags = parser.parse_known_args(words)
    ended = subprocess.run(
        [sys.executable, "-m", "thalweg", "plan", "--json", *flags], capture_output=True, text=True, check=False
    )
    try:
        plan = json.loads(ended.stdout)
        print(f"resources: {json.dumps(derive_resources(plan, args.cpus, args.resource))}")
    except ValueError as e:
        print(ended.stderr.strip() or e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
