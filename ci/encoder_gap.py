"""The longest gap between two tokens of a stream while an image of another request is encoded, and while a text prompt of
as many tokens is computed. A tiny random model with a vision encoder of many patches.

Run: python ci/encoder_gap.py [--patches 10000] [--repeats 5] [--device cpu]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))
STREAM, BEFORE, LENGTH = 400, 60, 4096


def build(folder: Path, patches: int, device: str) -> Any:
    import seeing

    from thalweg import LLM

    kind = seeing.FAMILIES["qwen2.5-vl"]
    side = kind.settings["patch_size"] ** 2
    settings = {**kind.settings, "size": {"shortest_edge": 256, "longest_edge": side * patches}}
    seeing.FAMILIES["qwen2.5-vl"] = dataclasses.replace(kind, settings=settings)
    seeing.make("qwen2.5-vl", folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = LENGTH
    (folder / "config.json").write_text(json.dumps(config))
    return LLM(
        str(folder), device=device, dtype="float32", max_model_len=LENGTH, max_num_seqs=4, use_tqdm_on_load=False,
        enable_prefix_caching=False,
    )  # fmt: skip


def gaps(llm: Any, prompt: Any) -> list[float]:
    """Seconds between tokens of a stream, into which this prompt comes (None: none)."""
    from thalweg import SamplingParams
    from thalweg.params import RequestOutputKind

    engine, times, n = llm.llm_engine, [], 0
    params = SamplingParams(temperature=0, max_tokens=STREAM, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    engine.add_request("stream", {"prompt_token_ids": [7, 8, 9]}, params)
    while engine.has_unfinished_requests():
        for out in engine.step():
            if out.request_id == "stream":
                times.append(time.perf_counter())
                n += 1
        if n == BEFORE and prompt is not None:
            engine.add_request("other", prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
            prompt = None
    return [b - a for a, b in zip(times[BEFORE // 2 :], times[BEFORE // 2 + 1 :], strict=False)]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    import numpy as np
    from PIL import Image

    side = int(args.patches**0.5) * 4
    longest: dict[str, list[float]] = {"nothing": [], "a text prompt": [], "an image": []}
    with tempfile.TemporaryDirectory() as folder:
        llm = build(Path(folder), args.patches, args.device)
        rng = np.random.default_rng(1)
        for _ in range(args.repeats + 1):
            image = Image.fromarray(rng.integers(0, 255, (side, side, 3)).astype(np.uint8))
            shown = {"prompt": "<|vision_start|><|image_pad|><|vision_end|>what?", "multi_modal_data": {"image": image}}
            text = {"prompt_token_ids": rng.integers(3, 200, args.patches // 4 + 2).tolist()}
            for name, prompt in (("nothing", None), ("a text prompt", text), ("an image", shown)):
                longest[name].append(max(gaps(llm, prompt)))
    print(f"{args.patches} patches, {args.patches // 4 + 2} tokens; longest gap of a stream, median of {args.repeats}:")
    found = {name: statistics.median(each[1:]) for name, each in longest.items()}
    for name, seconds in found.items():
        print(f"  {name:14} {1e3 * seconds:8.1f} ms")
    print(f"  image / text: {found['an image'] / found['a text prompt']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
