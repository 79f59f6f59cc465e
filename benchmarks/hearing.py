"""Whisper on one device: how much faster than its sound a transcript is made, beside transformers, turns taken run by run.

    python benchmarks/hearing.py [--model DIR | --shape tiny.en] [--device cpu] [--windows 4] [--tokens 60] [--repeats 3]

Every window is 30 seconds of noise, and every transcript has so many tokens. Shapes have random weights, so their words mean
nothing and their times do. The real-time factor is seconds of sound per second of work. The kernels of each part are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

from thalweg import LLM, SamplingParams
from thalweg.backends.host import cores
from thalweg.engine.planning.arguments import engine_args
from thalweg.engine.worker.build import build
from thalweg.media.mel import RATE, log_mel

SHAPES = {"tiny": (384, 6, 4), "tiny.en": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12), "medium": (1024, 16, 24)}
"""Width, heads, layers of each side."""
START = 50257


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path)
    p.add_argument("--shape", choices=SHAPES, default="tiny.en")
    p.add_argument("--device", default="cpu")
    p.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    p.add_argument("--windows", type=int, default=4)
    p.add_argument("--tokens", type=int, default=60)
    p.add_argument("--repeats", type=int, default=3)
    args = p.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        path = args.model or shape(args.shape, Path(scratch))
        print(json.dumps(compare(args, path), indent=2))


def shape(name: str, folder: Path) -> Path:
    width, heads, layers = SHAPES[name]
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
             (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))}  # fmt: skip
    config = transformers.WhisperConfig(vocab_size=51864 + (not name.endswith(".en")), d_model=width, **sizes)
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    return folder


def compare(args: argparse.Namespace, path: Path) -> dict[str, object]:
    options = {"model": str(path), "device": args.device, "dtype": args.dtype, "skip_tokenizer_init": True,
               "max_num_seqs": args.windows, "enable_prefix_caching": False, "use_tqdm_on_load": False}  # fmt: skip
    plan = build(engine_args(options)).plan
    llm = LLM(**options)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(path, dtype=getattr(torch, args.dtype)).eval()
    rng, times = np.random.default_rng(0), dict[str, list[float]]()
    for repeat in range(args.repeats + 1):  # the first is not counted: it warms up
        sounds = [(0.1 * rng.normal(size=30 * RATE)).astype(np.float32) for _ in range(args.windows)]
        runs: list[tuple[str, Callable[[], None]]] = [
            ("thalweg", partial(ours, llm, sounds, args.tokens)), ("first", partial(ours, llm, sounds, 1)),
            ("transformers", partial(theirs, model, sounds, args.tokens)),
        ]  # fmt: skip
        for name, run in runs:
            begin = time.monotonic()
            run()
            if repeat:
                times.setdefault(name, []).append(time.monotonic() - begin)
    found = {name: statistics.median(t) for name, t in times.items()}
    seconds = 30 * args.windows
    kinds = ("attention", "cross_attention", "cross_write", "activation", "layer_norm", "linear")
    return {
        "windows": args.windows, "tokens": args.tokens, "dtype": args.dtype,
        "real-time factor": {name: round(seconds / t, 2) for name, t in found.items() if name != "first"},
        "share of time until the first token": round(found["first"] / found["thalweg"], 2),
        "times faster than transformers": round(found["transformers"] / found["thalweg"], 2),
        "kernels": sorted({line.partition(";")[0] for line in plan if line.partition("(")[0] in kinds}),
    }  # fmt: skip


def ours(llm: LLM, sounds: list[np.ndarray], tokens: int) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    requested = [{"prompt_token_ids": [START], "multi_modal_data": {"audio": s}} for s in sounds]
    llm.generate(requested, params, use_tqdm=False)


@torch.inference_mode()
def theirs(model: transformers.WhisperForConditionalGeneration, sounds: list[np.ndarray], tokens: int) -> None:
    """One static batch, with as many threads as thalweg's compiled kernels have. Torch's own operations in thalweg have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    mel = torch.from_numpy(np.stack([log_mel(s, model.config.num_mel_bins, 3000) for s in sounds])).to(model.dtype)
    heard, cache = model.model.encoder(mel), None
    ids = torch.full((len(sounds), 1), START)
    for _ in range(tokens):
        out = model(encoder_outputs=heard, decoder_input_ids=ids, past_key_values=cache, use_cache=True)
        ids, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
    torch.set_num_threads(before)


if __name__ == "__main__":
    main()
