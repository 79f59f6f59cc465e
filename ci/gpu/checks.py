"""Does a device serve what the reference serves? Whole requests of the bundled model, in float32, as JSON.

    python ci/gpu/checks.py --device cuda [--output-json FILE]

greedy: the tokens of the reference, computed on the host. random: the same seeds give the same tokens there. captured: with and
without graphs, every token and every bit of the log probabilities. crowd: a request alone and among others, likewise.
Exit status: 0 if every check that applies holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from thalweg import LLM, SamplingParams
from thalweg.hal import discovery

Story = list[tuple[list[int], list[float]]]
"""Per request: its tokens, and their log probabilities."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to check: a name, or package.module:Class")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each request")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    report = check(args.device, args.requests, args.tokens)
    text = json.dumps(report, indent=2)
    print(text)
    if args.output_json:
        args.output_json.write_text(text + "\n")
    return 0 if all(c["holds"] is not False for c in report["checks"].values()) else 1


def check(device: str, requests: int, tokens: int) -> dict[str, Any]:
    checks: dict[str, dict[str, Any]] = {}
    for name, temperature in (("greedy", 0.0), ("random", 0.9)):
        want, _ = serve("reference", requests, tokens, temperature)
        got, plan = serve(device, requests, tokens, temperature)
        checks[name] = compare(got, want, exact=False)
        if name == "greedy":
            alone, _ = serve(device, 1, tokens, temperature)
            checks["crowd"] = compare(got[:1], alone)
            checks["captured"] = captured(device, got, requests, tokens)
    return {"device": device, "checks": checks, "kernel_plan": plan}


def captured(device: str, got: Story, requests: int, tokens: int) -> dict[str, Any]:
    """`got`, which may come from graphs, beside the same without them."""
    options = discovery.load(device).options
    if options is None or not hasattr(options, "graphs"):
        return {"holds": None, "why": "this platform captures no graphs"}
    eager, _ = serve(device, requests, tokens, 0.0, additional_config={"graphs": False})
    return compare(got, eager)


def serve(device: str, requests: int, tokens: int, temperature: float, **args: Any) -> tuple[Story, list[str]]:
    """The same requests for the same numbers; the first is the same whatever the number."""
    draws = [np.random.default_rng(i) for i in range(requests)]
    prompts = [{"prompt_token_ids": rng.integers(1, 200, int(rng.integers(3, 150))).tolist()} for rng in draws]
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=tokens + i, ignore_eos=True, logprobs=0)
        for i in range(requests)
    ]
    llm = LLM(device=device, dtype="float32", max_model_len=512, enable_prefix_caching=False, **args)
    try:
        outputs = [r.outputs[0] for r in llm.generate(prompts, params, use_tqdm=False)]
        story = [(list(o.token_ids), [p[t].logprob for t, p in zip(o.token_ids, o.logprobs, strict=True)]) for o in outputs]
        return story, llm.kernel_plan
    finally:
        llm.shutdown()


def compare(got: Story, want: Story, exact: bool = True) -> dict[str, Any]:
    """Tokens must be equal; with `exact` the bits of their log probabilities too."""
    first = [
        next((i for i, (a, b) in enumerate(zip(g, w, strict=True)) if a != b), None)
        for (g, _), (w, _) in zip(got, want, strict=True)
    ]
    same = [(g, w) for (_, g), (_, w), f in zip(got, want, first, strict=True) if f is None]
    worst = max((abs(a - b) for g, w in same for a, b in zip(g, w, strict=True)), default=0.0)
    return {
        "holds": all(f is None for f in first) and (worst == 0 or not exact),
        "requests": len(got),
        "tokens_differ_from": {str(i): f for i, f in enumerate(first) if f is not None},
        "largest_logprob_difference": worst,
    }


if __name__ == "__main__":
    sys.exit(main())
