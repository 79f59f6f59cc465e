"""What constrained sequences cost the others: tokens a second of each, without and with a share that follows a schema.

The control plane alone, on the null platform, whose steps take the time they are told to. So nothing of a model is in it,
and all of scheduling and masks is. Tokens are random. So a schema has to choose nearly every one. "Any text" allows nearly
all, as a schema does with a model that keeps to it by itself.

Last come the steps of a record with fixed keys, in the tokens of the bundled model, without jumps and with them.

    python benchmarks/structured.py --share 0.2 --depth 2 --step-ms 10
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.bench.host import null_config, null_executor
from thalweg.checkpoint.hub import resolve_model
from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import source_of
from thalweg.grammar.grammars import Grammars
from thalweg.grammar.source import GrammarRequest, GrammarSource, GrammarVocabulary
from thalweg.options.model import BUNDLED
from thalweg.text.grammar import vocabulary as vocabulary_of
from thalweg.text.tokenizer import load_tokenizer

ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
ANY_TEXT = r"(?s:.)+"
SCHEMA = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": ITEM, "minItems": 1000}},
    "required": ["items"],
    "additionalProperties": False,
}


RECORD = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 12},
        "is_active": {"type": "boolean"},
        "account_number": {"type": "string", "pattern": "^[0-9]{6}$"},
        "preferred_language": {"enum": ["english", "german", "french"]},
        "last_payment_date": {"type": "string", "pattern": "^202[0-9]-0[1-9]$"},
    },
    "required": ["customer_name", "is_active", "account_number", "preferred_language", "last_payment_date"],
    "additionalProperties": False,
}


def vocabulary(size: int) -> GrammarVocabulary:
    """Bytes, and random words: what masks cost goes by how many there are."""
    rng = random.Random(1)
    words = {bytes([i]): None for i in range(256)}
    while len(words) < size - 1:
        word = bytes(rng.choice(b'abcdefghijklmnopqrstuvwxyz0123456789{}",:. -_') for _ in range(rng.randrange(2, 9)))
        words[word] = None
    return GrammarVocabulary(tokens=[*words, b"<eos>"], special=[size - 1], eos=[size - 1])


def rates(args: argparse.Namespace, constrained: int, grammar: GrammarSource, grammars: Grammars) -> dict[str, float]:
    """Tokens a second of a free sequence and of a constrained one, and steps a second."""
    config = null_config(seqs=args.seqs, max_len=args.tokens + 32, depth=args.depth)
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, vocab=args.vocab))
    core = EngineCore(null_executor(config, vocab=args.vocab, base=args.step_ms / 1000), grammars=grammars)
    requests = []
    for i in range(args.seqs):
        mine = grammar if i < constrained else None
        sampling = TokenSampling(max_tokens=args.tokens, grammar=mine, eos_ids=(args.vocab - 1,) if mine is not None else ())
        requests.append(EngineRequest(handle=i, tokens=np.arange(i, i + 8, dtype=np.int32), prompt_len=8, sampling=sampling))
    core.add(requests)
    while core.scheduler.waiting or core.scheduler._prefilling:
        core.step()
    for _ in range(8):
        core.step()
    counts, steps, begin = np.zeros(args.seqs, np.int64), 0, time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        out = core.step()
        if out is None or out.finished:
            break
        np.add.at(counts, out.handles, 1)
        steps += 1
    took = time.perf_counter() - begin
    free = counts[constrained:].mean() / took if constrained < args.seqs else 0.0
    return {"free": free, "constrained": counts[:constrained].mean() / took if constrained else 0.0, "steps": steps / took}


def steps_of(args: argparse.Namespace, jump: bool) -> tuple[int, int, list[list[int]]]:
    """Steps in which four records are done, tokens of them all, and the tokens of each."""
    tokenizer = load_tokenizer(Path(resolve_model(BUNDLED)))
    words = vocabulary_of(tokenizer, tokenizer.vocab_size, [0])
    vocab = len(words.tokens)
    config = null_config(seqs=4, max_len=400, depth=args.depth)
    config = msgspec.structs.replace(
        config, model=msgspec.structs.replace(config.model, vocab=vocab),
        scheduler=msgspec.structs.replace(config.scheduler, jump_forward=jump),
    )  # fmt: skip
    core = EngineCore(null_executor(config, vocab=vocab, base=0.001), grammars=Grammars(lambda: words))
    form = source_of(GrammarRequest(kind="json", text=json.dumps(RECORD), compact=True))
    sampling = TokenSampling(max_tokens=300, grammar=form, eos_ids=(0,))
    core.add(
        [EngineRequest(handle=i, tokens=np.arange(i, i + 8, dtype=np.int32), prompt_len=8, sampling=sampling) for i in range(4)]
    )
    answers: list[list[int]] = [[] for _ in range(4)]
    while core.has_work:
        out = core.step()
        for handle, token in zip(out.handles.tolist(), out.tokens.tolist(), strict=True) if out is not None else ():
            answers[handle].append(token)
    return core.stats().steps, sum(map(len, answers)), answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    words = vocabulary(args.vocab)
    result = Compiler(words)
    forms = [
        source_of(GrammarRequest(kind="json", text=json.dumps(SCHEMA))),
        source_of(GrammarRequest(kind="regex", text=ANY_TEXT)),
    ]
    for form in forms:
        result.try_first(form.text)
    grammars = Grammars(lambda: words)
    some = round(args.share * args.seqs)
    rows: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        alone, chosen = rates(args, 0, forms[0], grammars), rates(args, some, forms[0], grammars)
        allowed = rates(args, some, forms[1], grammars)
        rows.append({
            "alone": alone["free"], "beside": chosen["free"], "chosen": chosen["constrained"],
            "beside allowed": allowed["free"], "allowed": allowed["constrained"],
        })  # fmt: skip
    middle = {k: float(np.median([r[k] for r in rows])) for k in rows[0]}
    print(f"{args.seqs} sequences, {some} with a schema, depth {args.depth}, steps of {args.step_ms:g} ms, {args.vocab} tokens")
    print(f"free, nobody constrained     {middle['alone']:8.1f} tokens/s each")
    answers = {
        "free, beside a schema": "beside",
        "free, beside any text": "beside allowed",
        "any text": "allowed",
        "a schema": "chosen",
    }
    for label, name in answers.items():
        print(f"{label:28} {middle[name]:8.1f} tokens/s each   {middle[name] / middle['alone']:6.1%}")
    (without, tokens, texts), (jumps, _, same) = steps_of(args, False), steps_of(args, True)
    assert texts == same, "a jump changed a text"
    print(f"four records, {tokens} tokens: {without} steps without jumps, {jumps} with   {jumps / without:6.1%}")


if __name__ == "__main__":
    main()
