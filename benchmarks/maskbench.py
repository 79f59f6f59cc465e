"""Real JSON schemas of maskbench: how many are served, what is accepted of their instances, and what compiling and masks cost.

    git clone https://github.com/guidance-ai/jsonschemabench
    python benchmarks/maskbench.py --data jsonschemabench/maskbench/data --sample 700

A schema goes the way of a request: judged in a process with limits, then compiled, as the engine does. Instances follow token
by token, with a mask before each. An invalid one that is accepted is a fault, and the exit status is 1, unless a format alone
forbids it: one that is not known is an annotation, and jsonschema takes the instance without formats. A valid one that is not
accepted may have been narrowed (docs/structured-output.md): it is counted. The bundled model's vocabulary is small:
--tokenizer names another.
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
from jsonschema.validators import validator_for

from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config
from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import source_of
from thalweg.grammar.judge import GrammarValidator
from thalweg.grammar.source import GrammarError, GrammarRequest, GrammarSource, GrammarVocabulary
from thalweg.text.grammar import vocabulary
from thalweg.text.tokenizer import Tokenizer


@dataclass
class Found:
    served: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    valid: Counter[bool] = field(default_factory=Counter)
    """Of valid instances: accepted or not."""
    invalid: Counter[bool] = field(default_factory=Counter)
    formats: int = 0
    """Invalid instances that were accepted and that a format alone forbids: one not known here is an annotation."""
    wrong: list[str] = field(default_factory=list)
    """Files with another invalid instance that was accepted."""
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)


def words_of(tokenizer: Tokenizer) -> GrammarVocabulary:
    return vocabulary(tokenizer, tokenizer.vocab_size, tuple(tokenizer.eos_ids))


def follow(source: GrammarSource, compiler: Compiler, tokens: Sequence[int], times: list[float]) -> bool:
    """Is the text accepted, whole? times: microseconds of its masks, added to."""
    matcher = compiler.compile(source.text)
    for token in tokens:
        began = time.perf_counter()
        matcher.compute_bitmask()
        times.append((time.perf_counter() - began) * 1e6)
        # Not by the mask: of text that must come it has one cut alone, and a fault would be to take more than it should.
        if not matcher.consume_tokens([token]):
            return False
    return bool(matcher.is_accepting())


def schemas(folder: Path, count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SystemExit(f"--data: no JSON files in {folder}")
    for file in random.Random(seed).sample(files, min(count, len(files))) if count else files:
        yield file.name, json.loads(file.read_text(encoding="utf-8"))


def measure(args: argparse.Namespace) -> Found:
    tokenizer = load_tokenizer(args.tokenizer or checkpoint_config.find(EngineArgs()))
    words = words_of(tokenizer)
    compiler, found = Compiler(words), Found()
    judge = GrammarValidator(lambda: words)
    try:
        for i, (name, held) in enumerate(schemas(args.data, args.sample, args.seed)):
            requested = GrammarRequest(kind="json", text=json.dumps(held["schema"]))
            try:
                source = judge.source(requested)
            except GrammarError as e:
                found.refused[e.why[:60]] += 1
                continue
            found.served += 1
            began = time.perf_counter()
            compiler.try_first(source_of(requested).text)
            found.compile_ms.append((time.perf_counter() - began) * 1e3)
            for test in held.get("tests", ()):
                text = json.dumps(test["data"], ensure_ascii=False)
                accepted = follow(source, compiler, tokenizer.encode(text, False), found.mask_us)
                if accepted and not test["valid"] and validator_for(held["schema"])(held["schema"]).is_valid(test["data"]):
                    found.formats += 1
                    continue
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
    print(f"accepted, and forbidden by a format that is not known here: {f.formats}")
    print(f"valid instances: {f.valid[True]} accepted, {f.valid[False]} rejected")
    for name, values, unit in (("compile and first mask", f.compile_ms, "ms"), ("mask", f.mask_us, "us")):
        p = np.percentile(values or [0.0], [50, 95, 99, 100])
        print(f"{name}: p50 {p[0]:.2f}, p95 {p[1]:.2f}, p99 {p[2]:.2f}, most {p[3]:.1f} {unit} of {len(values)}")
    return 1 if f.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
