"""Whether tiles by the number of rows are faster on this device than one tile for any number (`row_tiles`): JSON.

    python ci/gpu/tiles.py --device cuda [--shape llama-1b] [--output-json FILE]

Both settings serve one model in turns, twice each, and the better of the two counts: decode steps of 1, 64 and 256 sequences,
prompts of 512 and 2,048 tokens. A ratio above 1 is in favour of tiles by rows. Greedy tokens of both are compared, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import measure
import numpy as np

from thalweg import SamplingParams
from thalweg.hal import discovery


def figures(path: Path, args: argparse.Namespace, row_tiles: bool) -> tuple[dict[str, float], list[list[int]]]:
    """Seconds by name, and greedy tokens of prompts of several lengths."""
    vocab = json.loads((path / "config.json").read_text())["vocab_size"]
    llm = measure.open_model(path, args, additional_config={"row_tiles": row_tiles})
    try:
        out = {f"decode {n}": measure.steps(llm, vocab, args, n)["seconds"] for n in ((1, 2) if args.quick else (1, 64, 256))}
        for n in (16, 48) if args.quick else (512, 2048):
            measure.generate(llm, vocab, [n], 1)
            out[f"prompt {n}"] = min(measure.generate(llm, vocab, [n], 1, seed=i) for i in range(args.repeats))
        rng = np.random.default_rng(5)
        prompts = [{"prompt_token_ids": rng.integers(2, vocab, n).tolist()} for n in (3, 40, 200)]
        done = llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False), use_tqdm=False
        )
        return out, [list(r.outputs[0].token_ids) for r in done]
    finally:
        llm.shutdown()
        measure.tidy(measure.torch_device(args.device))


def compared(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    best: dict[bool, dict[str, float]] = {True: {}, False: {}}
    tokens: dict[bool, list[list[int]]] = {}
    for row_tiles in (True, False, False, True):
        found, tokens[row_tiles] = figures(path, args, row_tiles)
        held = best[row_tiles]
        held.update({k: min(v, held.get(k, v)) for k, v in found.items()})
    ratio = {k: best[False][k] / v for k, v in best[True].items()}
    return {"row_tiles": best[True], "one_tile": best[False], "ratio": ratio, "same_tokens": tokens[True] == tokens[False]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to measure")
    parser.add_argument("--shape", default="llama-1b", choices=sorted(measure.SHAPES))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    args = argparse.Namespace(
        device=given.device, dtype="bfloat16", length=4096, variant=False, quick=given.quick, repeats=2 if given.quick else 5
    )
    report: dict[str, Any] = {"device": given.device, "shape": given.shape}
    if not hasattr(discovery.load(given.device).options, "row_tiles"):
        report["why"] = f"{given.device} has no row_tiles: none of our tiles serve there"
    else:
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "config.json").write_text(json.dumps(measure.SHAPES[given.shape]))
            report |= compared(Path(scratch), args)
        for name, ratio in report["ratio"].items():
            print(f"{name}: tiles by rows are {ratio:.2f} times as fast as one tile")
        print(f"greedy tokens are {'the same' if report['same_tokens'] else 'NOT the same'}")
    if given.output_json:
        given.output_json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
