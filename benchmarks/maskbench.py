"""Real JSON schemas of maskbench: how many are served, what is accepted of their instances, and what compiling and masks cost.

    git clone https://github.com/guidance-ai/jsonschemabench
    python benchmarks/maskbench.py --data jsonschemabench/maskbench/data --sample 700

A schema goes the way of a request: judged in a process with limits, then compiled, as the engine does. Instances follow token
by token, with a mask before each. An invalid one that is accepted is a fault, and the exit status is 1. A valid one that is
not may have been narrowed (docs/structured-output.md): it is counted. The bundled model's vocabulary is small: --tokenizer
names another.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.config import EngineArgs
from thalweg.engine.planning import described
from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import source_of
from thalweg.grammar.judge import Judge
from thalweg.grammar.source import Asked, GrammarError, Source, Vocabulary
from thalweg.text.grammar import vocabulary

LONGEST = 16
"""Bytes of a token that an instance is cut into."""


@dataclass
class Found:
    served: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    valid: Counter[bool] = field(default_factory=Counter)
    """Of valid instances: accepted or not."""
    invalid: Counter[bool] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Files with an invalid instance that was accepted."""
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)


def words_of(path: Path) -> Vocabulary:
    tokenizer = load_tokenizer(path)
    return vocabulary(tokenizer, tokenizer.vocab_size, tuple(tokenizer.eos_ids))


class Cut:
    """Texts as tokens, the longest first: any cut is one that a model may write."""

    def __init__(self, words: Vocabulary) -> None:
        special = set(words.special)
        self._ids = {token: i for i, token in enumerate(words.tokens) if token and i not in special}

    def __call__(self, text: bytes) -> list[int]:
        out, at = [], 0
        while at < len(text):
            size = next(n for n in range(min(LONGEST, len(text) - at), 0, -1) if text[at : at + n] in self._ids)
            out.append(self._ids[text[at : at + size]])
            at += size
        return out


def follow(source: Source, compiler: Compiler, tokens: Sequence[int], times: list[float]) -> bool:
    """Is the text accepted, whole? times: microseconds of its masks, added to."""
    matcher = compiler.compile(source.text)
    for token in tokens:
        began = time.perf_counter()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        times.append((time.perf_counter() - began) * 1e6)
        if matcher.is_error() or not mask[token // 32] >> np.uint32(token % 32) & 1:
            return False
        matcher.consume_tokens([token])
    return bool(matcher.is_accepting())


def schemas(folder: Path, count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SystemExit(f"--data: no JSON files in {folder}")
    for file in random.Random(seed).sample(files, min(count, len(files))) if count else files:
        yield file.name, json.loads(file.read_text(encoding="utf-8"))


def measure(args: argparse.Namespace) -> Found:
    words = words_of(args.tokenizer or described.find(EngineArgs()))
    compiler, cut, found = Compiler(words), Cut(words), Found()
    judge = Judge(lambda: words)
    try:
        for i, (name, held) in enumerate(schemas(args.data, args.sample, args.seed)):
            asked = Asked(kind="json", text=json.dumps(held["schema"]))
            try:
                source = judge.source(asked)
            except GrammarError as e:
                found.refused[e.why[:60]] += 1
                continue
            found.served += 1
            began = time.perf_counter()
            compiler.try_first(source_of(asked).text)
            found.compile_ms.append((time.perf_counter() - began) * 1e3)
            for test in held.get("tests", ()):
                text = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
                accepted = follow(source, compiler, cut(text), found.mask_us)
                (found.valid if test["valid"] else found.invalid)[accepted] += 1
                if accepted and not test["valid"]:
                    found.wrong.append(name)
            if i % 100 == 99:
                print(f"{i + 1} schemas, {found.served} served", file=sys.stderr, flush=True)
    finally:
        judge.close()
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="maskbench/data of a checkout")
    parser.add_argument("--sample", type=int, default=700, help="schemas, 0: all (default 700)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="a directory with tokenizer.json (default: the bundled model's)")
    args = parser.parse_args(words)
    f = measure(args)
    total = f.served + sum(f.refused.values())
    print(f"{f.served} of {total} schemas served ({f.served / total:.1%})")
    for why, count in f.refused.most_common(8):
        print(f"  {count:4} refused: {why}")
    print(f"invalid instances: {f.invalid[True]} accepted, {f.invalid[False]} rejected {' '.join(f.wrong[:5])}")
    print(f"valid instances: {f.valid[True]} accepted, {f.valid[False]} rejected")
    for name, values, unit in (("compile and first mask", f.compile_ms, "ms"), ("mask", f.mask_us, "us")):
        p = np.percentile(values or [0.0], [50, 95, 99, 100])
        print(f"{name}: p50 {p[0]:.2f}, p95 {p[1]:.2f}, p99 {p[2]:.2f}, most {p[3]:.1f} {unit} of {len(values)}")
    return 1 if f.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
