"""python -m benchmarks.peers install | run | table | chart; see the package's own words."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks import peers
from benchmarks.peers import chart, host, install, run, table
from benchmarks.peers.engines import ENGINES, FORMS, refuses
from benchmarks.peers.workloads import NAMES
from thalweg.bench.common import at_least, check_output
from thalweg.errors import ConfigError

ENVS = Path("~/.cache/thalweg-peers")
SHAPES = ("qwen3-0.6b", "qwen3-30b-a3b", "llama-3.2-1b")


def main(argv: list[str] | None = None) -> int:
    """0, or 1 if an engine failed; 2 for flags that make no sense."""
    parser = arguments()
    a = parser.parse_args(argv)
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that engines are ended too
    try:
        return int(a.command(a) or 0)
    except ConfigError as e:
        parser.error(str(e))
    finally:
        signal.signal(signal.SIGTERM, before)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=peers.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    add = commands.add_parser("install", help="peers into environments of their own").add_argument
    add("engines", nargs="+", metavar="ENGINE", choices=sorted(install.RECIPES), help=", ".join(install.RECIPES))
    add("--envs", type=_folder, default=_folder(str(ENVS)), help=f"folder of the environments (default {ENVS})")
    add("--jobs", type=int, default=2, help="compilers at once (default 2)")
    _run_arguments(commands.add_parser("run", help="measure engines one after another"))
    show = commands.add_parser("table", help="figures, ratios and conditions of reports")
    show.add_argument("reports", nargs="+", type=Path, metavar="FILE")
    commands.choices["install"].set_defaults(command=_install)
    show.set_defaults(command=_table)
    draw = commands.add_parser("chart", help="thalweg's ratios to its peers as SVG, to standard output")
    draw.add_argument("reports", nargs="+", type=Path, metavar="FILE")
    draw.set_defaults(command=_chart)
    return parser


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_run)
    add = parser.add_argument
    add("--engines", type=_words(ENGINES), default=["thalweg"], help=f"in this order, of {', '.join(ENGINES)}")
    add(
        "--weights",
        type=_words(FORMS),
        default=["bf16"],
        help=f"of {', '.join(FORMS)}; an engine without a form is left out of it",
    )
    add("--workloads", type=_words(NAMES), default=[*NAMES], help=f"of {', '.join(NAMES)} (default: all)")
    add("--shape", choices=SHAPES, default=SHAPES[0], help="random weights of this shape")
    add("--layers", type=int, help="fewer layers than the shape has, for a quick look")
    add(
        "--model",
        type=_folder,
        help="this bfloat16 checkpoint of that shape, instead of making one; one safetensors file, and a tokenizer",
    )
    add("--repeats", type=int, default=3, help="of every workload; figures are medians (default 3)")
    add("--quiet", type=float, default=0.2, help="a repeat in which others kept more cores busy is made again (default 0.2)")
    add("--scale", type=int, default=1, help="divide every length by it, to try things out")
    add("--seed", type=int, default=0)
    add("--kv-gib", type=int, default=4, help="cache of keys and values of every engine (default 4)")
    add("--max-model-len", type=int, default=4096, help="tokens of a request that engines prepare for (default 4096)")
    add(
        "--start-limit",
        type=float,
        default=20,
        help="an engine slower to start than this is started once (seconds; default 20)",
    )
    add("--timeout", type=float, default=600, help="seconds that loading, or one call, may take (default 600)")
    add("--envs", type=_folder, default=_folder(str(ENVS)), help=f"where the peers were installed (default {ENVS})")
    add("--models", type=_folder, help="folder of weights made (default: models, among the environments)")
    add("--logs", type=_folder, help="folder of what the engines print (default: logs, likewise)")
    add("--output-json", metavar="FILE", help="write the report there, anew after every engine")


def _install(a: argparse.Namespace) -> None:
    at_least(1, jobs=a.jobs)
    for name in a.engines:
        try:
            print(install.install(name, a.envs, a.jobs))
        except subprocess.CalledProcessError as e:
            raise SystemExit(f"{name} is not installed: {e}") from None


def _run(a: argparse.Namespace) -> bool:
    """Whether an engine failed."""
    at_least(1, repeats=a.repeats, scale=a.scale, kv_gib=a.kv_gib, layers=a.layers, max_model_len=a.max_model_len)
    check_output(a.output_json)
    for name in a.engines:
        if why := refuses(name, (host.PROC / "cpuinfo").read_text()):
            raise ConfigError(f"--engines: {name}: {why}")
    missing = [n for n in a.engines if ENGINES[n].own_environment and not (a.envs / n / "peer.json").exists()]
    if missing:
        raise ConfigError(f"--engines: not installed in {a.envs}; run: python -m benchmarks.peers install {' '.join(missing)}")
    a.models, a.logs = a.models or a.envs / "models", a.logs or a.envs / "logs"
    report = run.main(a)
    print(table.text([report]))
    return any("error" in r for r in report["runs"])


def _table(a: argparse.Namespace) -> None:
    print(table.text([json.loads(path.read_text()) for path in a.reports]))


def _chart(a: argparse.Namespace) -> None:
    print(chart.svg([json.loads(path.read_text()) for path in a.reports]), end="")


def _words(known: Collection[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        if odd := [w for w in words if w not in known]:
            raise argparse.ArgumentTypeError(f"{odd[0]!r} is none of {', '.join(known)}")
        return words

    return parse


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


if __name__ == "__main__":
    sys.exit(main())
