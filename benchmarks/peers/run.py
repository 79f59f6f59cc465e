"""One comparison: every engine in turn on the same weights and requests, the machine's limits measured between them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import conditions, engines, host, models
from benchmarks.peers.engines import ENGINES, Engine, Limits
from benchmarks.peers.session import PeerError, Session, launch
from benchmarks.peers.workloads import FIRST, START, Workload, counted, disturbed, medians, workloads
from thalweg.bench.common import random_prompts, write

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured of every engine. quiet: a repeat during which others kept more than so many cores busy is made again,
    until there are `repeats` quiet ones or ATTEMPTS times as many; the quietest count. start: new processes are timed too, as
    many as `repeats` unless the first took longer than `start_limit` seconds."""

    workloads: tuple[Workload, ...]
    repeats: int
    quiet: float
    seed: int
    start: bool
    start_limit: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One engine with weights of one form, and how to start it."""

    engine: Engine
    form: str
    command: tuple[str, ...]
    settings: Mapping[str, Any]
    env: Mapping[str, str]
    log: Path
    vocab: int


def main(a: argparse.Namespace) -> dict[str, Any]:
    """Run all, write after every engine what there is; the report. A failure is in its engine's entry, and others go on."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    limits = Limits(cores, a.kv_gib << 30, a.max_model_len)
    every = workloads(a.scale)
    chosen = tuple(every[name] for name in a.workloads if name != START)
    plan = Plan(
        chosen, repeats=a.repeats, quiet=a.quiet, seed=a.seed, start=START in a.workloads, start_limit=a.start_limit,
        timeout=a.timeout,
    )  # fmt: skip
    source = a.model or models.checkpoint(a.shape, a.layers, a.models)
    entries = [entry(ENGINES[name], form, source, a, limits) for form in a.weights for name in a.engines
               if form in ENGINES[name].weights]  # fmt: skip
    ceilings = ["bf16", *(["int8"] if {"int8", "int4"} & set(a.weights) else [])]
    report = heading(a, limits, source)
    report["conditions"].append(conditions.measure(len(cores), ceilings))
    for e in entries:
        print(f"== {e.engine.name} {e.form}", file=sys.stderr, flush=True)
        out = {"engine": e.engine.name, "weights": e.form, "files": e.engine.weights[e.form]}
        report["runs"].append(out)
        try:
            measure(e, plan, out)
        except BaseException:
            out["error"] = "the run was broken off"  # its samples are kept
            write(a.output_json, report)
            raise
        report["conditions"].append(conditions.measure(len(cores), ceilings))
        write(a.output_json, report)
    return report


def heading(a: argparse.Namespace, limits: Limits, source: Path) -> dict[str, Any]:
    """What is the same for all; `conditions` holds one entry more than `runs`: before the first, and after each."""
    config = json.loads((source / "config.json").read_text())
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "machine": host.machine(),
        "shape": models.shape_of(config) if a.model else a.shape, "layers": a.layers, "model": config,
        "scale": a.scale, "repeats": a.repeats, "quiet": a.quiet, "seed": a.seed, "cores": list(limits.cores),
        "kv_gib": a.kv_gib, "max_model_len": limits.max_len, "conditions": [], "runs": [],
    }  # fmt: skip


def entry(engine: Engine, form: str, source: Path, a: argparse.Namespace, limits: Limits) -> Entry:
    weights = models.prepared(engine.weights[form], source, a.models, a.envs)
    config = json.loads((source / "config.json").read_text())
    log = a.logs / f"{engine.name}-{form}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    command = (str(engines.python(a.envs, engine.name)), str(engines.DRIVERS / engine.driver))
    reported = engines.settings(engine, a.envs, weights, form, config, limits)
    return Entry(engine, form, command, reported, engines.environment(engine, a.envs, limits), log, config["vocab_size"])


def measure(e: Entry, plan: Plan, out: dict[str, Any]) -> None:
    """All of the plan with one engine, into `out`; "error" instead of figures if it failed."""
    models.warm(Path(e.settings["model"]))
    try:
        with launch(e.command, e.settings, e.env, e.log, plan.timeout) as session:
            starts = [_started(session, e, plan)]
            out |= {"versions": session.versions, "flags": session.flags, "starts": starts, "samples": {}, "first_tokens": {}}
            _loaded(session, e, plan, out)
            out["memory"] = session.memory()
        while plan.start and len(starts) < plan.repeats and starts[0]["start_s"] <= plan.start_limit:
            with launch(e.command, e.settings, e.env, e.log, plan.timeout) as session:
                starts.append(_started(session, e, plan))
    except PeerError as failure:
        print(failure, file=sys.stderr)
        out["error"] = str(failure)
        return
    out["figures"] = {"load_s": starts[0]["load_s"], **(medians(starts) if plan.start else {})}
    for w in plan.workloads:
        out["figures"] |= medians([w.figures(w, s["seconds"]) for s in counted(out["samples"][w.name], plan.repeats)])
    out["figures"]["peak_rss_mib"] = out["memory"]["peak_rss_mib"]


def _started(session: Session, e: Entry, plan: Plan) -> dict[str, float]:
    """Seconds from starting the process until it was ready, and until the first token it gave."""
    prompt = random_prompts([*FIRST.lengths], e.vocab, frozenset(), plan.seed)[0]["prompt_token_ids"]
    session.ask([prompt], FIRST.new)
    return {"load_s": session.load_seconds, "start_s": session.since_start}


def _loaded(session: Session, e: Entry, plan: Plan, out: dict[str, Any]) -> None:
    """Every workload in turn, after once in short that is not counted; more often than `repeats` where others were busy."""
    for w in plan.workloads:
        for call, prompts in zip(w.calls, w.prompts(e.vocab, plan.seed, -1), strict=True):
            session.ask(prompts, min(call.new, 2))
    for repeat in range(plan.repeats * ATTEMPTS):
        for w in plan.workloads:
            samples = out["samples"].setdefault(w.name, [])
            if sum(disturbed(s) <= plan.quiet for s in samples) < plan.repeats:
                samples.append(_sample(session, e, plan, w, repeat, out["first_tokens"]))


def _sample(session: Session, e: Entry, plan: Plan, w: Workload, repeat: int, firsts: dict[str, list[int]]) -> dict[str, Any]:
    """One repeat of a workload: what was measured, by call. The first token of every answer goes into `firsts`."""
    sample: dict[str, Any] = {"seconds": {}, "cores": {}, "others": {}, "stolen": {}}
    for call, prompts in zip(w.calls, w.prompts(e.vocab, plan.seed, repeat), strict=True):
        m = session.ask(prompts, call.new)
        for key in sample:
            sample[key][call.name] = round(getattr(m, key), 4)
        firsts[f"{w.name}.{call.name}.{repeat}"] = [t[0] for t in m.tokens]
        line = f"{w.name:10} {call.name:6} {m.seconds:9.3f} s, {m.cores:.2f} cores, others {m.others:.2f}"
        print(line, file=sys.stderr, flush=True)
    return sample
