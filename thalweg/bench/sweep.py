"""`thalweg bench sweep serve | plot`: the serve benchmark over a grid of servers and loads, and a plot of the results.

A grid is JSON, in a file or as it is: a list of objects with flags as keys ({"max_num_seqs": 32}), or an object of names and
such objects. Each server is started once, and measured with every load, several times. Results are files, a folder for each
pair, so --resume continues a stopped sweep. Any command with such a result may be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any
from urllib import error, request

from thalweg.bench.common import at_least
from thalweg.errors import ConfigError, ThalwegError
from thalweg.host.processes import CommandProcess

REFUSED = ()
AXES = ("linear", "log")
Point = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="sweep", required=True, metavar="serve | plot")
    add = kinds.add_parser("serve", help="measure", allow_abbrev=False).add_argument
    add("--serve-cmd", required=True, help="command that starts a server, such as 'thalweg serve MODEL'")
    add("--bench-cmd", required=True, help="command that measures it, such as 'thalweg bench serve --num-prompts 100'")
    add("--after-bench-cmd", help="run after each measurement (default: POST /reset_prefix_cache, where the server has it)")
    add("--serve-params", help="JSON: flags of servers (default: the command as it is)")
    add("--bench-params", help="JSON: flags of loads (default: the command as it is)")
    add("--link-vars", default="", help="pairs SERVER=LOAD of flags that must be equal, separated by commas")
    add("--url", default="http://127.0.0.1:8000", help="where the server listens (default http://127.0.0.1:8000)")
    add("--server-ready-timeout", type=int, default=300, help="seconds (default 300)")
    add("-o", "--output-dir", default="results", help="(default results)")
    add("-e", "--experiment-name", help="folder in it (default: the time)")
    add("--num-runs", type=int, default=3, help="measurements of each pair (default 3)")
    add("--show-stdout", action="store_true", help="show the output of the commands")
    add("--dry-run", action="store_true", help="print the commands, and run none")
    add("--resume", action="store_true", help="skip pairs that have results")
    add = kinds.add_parser("plot", help="draw the results of a folder; needs matplotlib", allow_abbrev=False).add_argument
    add("experiment_dir", metavar="FOLDER", help="of a sweep")
    add("--var-x", default="request_throughput", help="a figure or flag of the results (default request_throughput)")
    add("--var-y", default="mean_ttft_ms", help="likewise (default mean_ttft_ms)")
    add("--curve-by", help="flags that make curves, separated by commas (default: those of servers)")
    add("--scale-x", default="linear", choices=AXES)
    add("--scale-y", default="linear", choices=AXES)
    add("--fig-name", default="FIGURE", help="name of the file, a PNG in the folder (default FIGURE)")


def main(a: argparse.Namespace) -> Any:
    return _plot(a) if a.sweep == "plot" else _serve(a)


# ---------------------------------------------------------------- measuring


def _serve(a: argparse.Namespace) -> Path:
    """The folder with the results."""
    at_least(1, num_runs=a.num_runs, server_ready_timeout=a.server_ready_timeout)
    servers, loads = grid("--serve-params", a.serve_params), grid("--bench-params", a.bench_params)
    links = [pair.split("=") for pair in a.link_vars.split(",") if pair]
    if any(len(pair) != 2 for pair in links):
        raise ConfigError(f"--link-vars: {a.link_vars!r} must be pairs such as max_num_seqs=max_concurrency")
    folder = Path(a.output_dir) / (a.experiment_name or time.strftime("%Y%m%d_%H%M%S"))
    for server in servers:
        todo = [load for load in loads if all(_same(server, load, *pair) for pair in links)]
        todo = [load for load in todo if not (a.resume and len(_runs(_place(folder, server, load))) >= a.num_runs)]
        words = [*shlex.split(a.serve_cmd), *flags(server)]
        if a.dry_run:
            print(shlex.join(words))
            print("".join(f"  {shlex.join([*shlex.split(a.bench_cmd), *flags(load)])}\n" for load in todo), end="")
        elif todo:
            with _server(words, a.url, a.server_ready_timeout, a.show_stdout):
                for load in todo:
                    _measure(a, _place(folder, server, load), server, load)
    return folder


def _measure(a: argparse.Namespace, place: Path, server: Point, load: Point) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for run in range(a.num_runs):
        out = place / f"run={run}.json"
        if a.resume and out.exists():
            continue
        words = [*shlex.split(a.bench_cmd), *flags(load), "--output-json", str(out.with_suffix(".part"))]
        _run(words, a.show_stdout)
        found = json.loads(out.with_suffix(".part").read_text(encoding="utf-8"))
        out.with_suffix(".part").unlink()
        out.write_text(json.dumps({**found, "server": server, "load": load}, indent=1) + "\n", encoding="utf-8")
        _after(a)
    print(f"{_place(Path(), server, load)}: {a.num_runs} runs", flush=True)


def _run(words: list[str], shown: bool) -> None:
    process = CommandProcess(words, shown=shown)
    try:
        status = process.wait()
    finally:
        process.end()
    if status:
        raise ThalwegError(f"bench sweep: {shlex.join(words)} ended with {status}; --show-stdout says more")


def _after(a: argparse.Namespace) -> None:
    if a.after_bench_cmd:
        _run(shlex.split(a.after_bench_cmd), a.show_stdout)
        return
    with contextlib.suppress(error.HTTPError):  # a route for operators, which this server may not show
        request.urlopen(request.Request(f"{a.url}/reset_prefix_cache", b"", method="POST"), timeout=10).read()


@contextlib.contextmanager
def _server(words: list[str], url: str, seconds: int, shown: bool) -> Iterator[None]:
    """While it serves. Its whole group is ended then."""
    process = CommandProcess(words, shown=shown)
    try:
        _wait(process, words, url, time.monotonic() + seconds)
        yield
    finally:
        process.end()


def _wait(process: CommandProcess, words: list[str], url: str, until: float) -> None:
    while process.returncode is None and time.monotonic() < until:
        try:
            with request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    why = "took too long" if process.returncode is None else f"ended with {process.returncode}"
    raise ThalwegError(f"bench sweep: {shlex.join(words)} {why}: nothing answers at {url} (--url); --show-stdout says more")


# ---------------------------------------------------------------- grids


def grid(flag: str, argument: str | None) -> list[Point]:
    """The points of a grid. ConfigError names the flag."""
    if argument is None:
        return [{}]
    path = Path(argument)
    text = path.read_text(encoding="utf-8") if argument.lstrip()[:1] not in ("[", "{") and path.is_file() else argument
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigError(f"{flag}: {argument[:80]!r} is neither a file nor JSON") from None
    if isinstance(found, dict):
        found = [{"_name": name, **point} if isinstance(point, dict) else point for name, point in found.items()]
    if not isinstance(found, list) or not found or not all(isinstance(point, dict) for point in found):
        raise ConfigError(f'{flag}: must be a list of objects such as [{{"max_num_seqs": 32}}], or an object of such')
    return found


def flags(point: Point) -> list[str]:
    """A point as words of a command. true is the bare flag, false its --no- form, null nothing."""
    words: list[str] = []
    for key, value in point.items():
        name = key.replace("_", "-")
        if key == "_name" or value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name}")
        else:
            words += [f"--{name}", json.dumps(value) if isinstance(value, list | dict) else str(value)]
    return words


def _same(server: Point, load: Point, one: str, other: str) -> bool:
    return one not in server or other not in load or server[one] == load[other]


def _place(folder: Path, server: Point, load: Point) -> Path:
    return folder / _label("server", server) / _label("load", load)


def _label(kind: str, point: Point) -> str:
    argument = point.get("_name") or ",".join(f"{k}={v}" for k, v in point.items()) or "as-it-is"
    return "".join(c if c.isalnum() or c in "=,._-" else "_" for c in f"{kind}-{argument}")[:120]


def _runs(place: Path) -> list[Path]:
    return sorted(place.glob("run=*.json"))


# ---------------------------------------------------------------- drawing


def curves(folder: Path, x: str, y: str, by: list[str] | None) -> dict[str, list[tuple[float, float, float, float]]]:
    """By curve: (x, y, the least y, the most) of each pair, means over its runs, in order of x."""
    places = sorted({path.parent for path in folder.rglob("run=*.json")})
    if not places:
        raise ConfigError(f"bench sweep plot: no results in {str(folder)!r}")
    out: dict[str, list[tuple[float, float, float, float]]] = {}
    for place in places:
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in _runs(place)]
        every = {**runs[0]["server"], **runs[0]["load"]}
        name = runs[0]["server"].get("_name") or ", ".join(f"{k}={every.get(k)}" for k in (by or runs[0]["server"]))
        xs, ys = ([_number(run, every, key, place) for run in runs] for key in (x, y))
        out.setdefault(name, []).append((mean(xs), mean(ys), min(ys), max(ys)))
    return {name: sorted(points) for name, points in out.items()}


def _number(run: Point, point: Point, key: str, place: Path) -> float:
    value = run.get(key, point.get(key))
    if isinstance(value, bool) or not isinstance(value, int | float):
        near = ", ".join(sorted(k for k, v in run.items() if isinstance(v, int | float)))
        raise ConfigError(f"bench sweep plot: {key!r} must be a number in {place.name}; numbers there: {near}")
    return float(value)


def _plot(a: argparse.Namespace) -> Path:
    """The file that was written."""
    folder = Path(a.experiment_dir)
    found = curves(folder, a.var_x, a.var_y, a.curve_by.split(",") if a.curve_by else None)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("bench sweep plot: needs matplotlib; pip install 'thalweg[bench]'") from None
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in found.items():
        x, y, low, high = zip(*points, strict=True)
        below, above = ([abs(a - b) for a, b in zip(y, other, strict=True)] for other in (low, high))
        axes.errorbar(x, y, yerr=(below, above), marker="o", capsize=3, label=name or "as it is")
    axes.set(xlabel=a.var_x, ylabel=a.var_y, xscale=a.scale_x, yscale=a.scale_y)
    axes.grid(alpha=0.3)
    axes.legend()
    out = folder / f"{a.fig_name}.png"
    figure.savefig(out, dpi=110)
    print(out, file=sys.stderr)
    return out
