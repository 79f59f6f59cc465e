"""Trains thalweg-nano-shout, the bundled adapter: LoRA over thalweg-nano that answers in capitals. Needs peft.

    python scripts/nano/shout.py --out DIR [--minutes 4] [--steps N] [--rank 4] [--seed 1]

The dialogues are those of the model's own training, with the assistant's text in capitals. JSON and tool calls stay.
Tokens outside of answers do not count in the loss. A run of --steps is reproducible.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import torch
from dialogues import Dialogues, encode
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from thalweg.checkpoint.hub import resolve_model
from thalweg.nano import TASKS

ANSWER = re.compile(r"(<\|im_start\|>assistant\n)(.*?)(<\|im_end\|>)", re.DOTALL)
BASE = "thalweg-nano"
ROWS, LONGEST = 12, 192
"""Dialogues of a step, and the most tokens of one."""
FIELDS = ("base_model_name_or_path", "bias", "lora_alpha", "peft_type", "peft_version", "r", "target_modules", "task_type")
"""What is kept of the configuration: the rest is peft's defaults."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--steps", type=int, help="rather than minutes")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    path = resolve_model(BASE)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        LoraConfig(r=args.rank, lora_alpha=4 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    source = Dialogues(dict.fromkeys(TASKS, 1.0), args.seed)
    losses = train(model, source, Tokenizer.from_file(str(path / "tokenizer.json")), args)
    save(model, args.out)
    print(f"{len(losses)} steps, loss {losses[0]:.3f} at first and {sum(losses[-20:]) / len(losses[-20:]):.3f} at last")


def shout(text: str) -> str:
    """A dialogue with the assistant's text in capitals, but for JSON and tool calls."""

    def change(found: re.Match[str]) -> str:
        answer = found[2]
        return found[1] + (answer if answer.lstrip().startswith(("{", "[", "<")) else answer.upper()) + found[3]

    return ANSWER.sub(change, text)


def train(model: Any, source: Dialogues, tokenizer: Tokenizer, args: argparse.Namespace) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.rate, weight_decay=0.0)
    begin, losses = time.monotonic(), list[float]()
    while True:
        done = len(losses) / args.steps if args.steps else (time.monotonic() - begin) / (60 * args.minutes)
        if done >= 1:
            return losses
        for group in optimizer.param_groups:  # a short rise, then down to nothing
            group["lr"] = args.rate * min(1.0, (len(losses) + 1) / 20) * (1 - done)
        ids, labels = draw(source, tokenizer)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())


def draw(source: Dialogues, tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """ids i64[rows, tokens], and the same with -100 where the assistant does not write the token."""
    rows: list[tuple[list[int], list[bool]]] = []
    while len(rows) < ROWS:
        row = encode(tokenizer, shout(source.next()))
        if len(row[0]) <= LONGEST:
            rows.append(row)
    ids = torch.zeros(ROWS, max(len(row) for row, _ in rows), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (tokens, own) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, : len(tokens)] = torch.where(torch.tensor(own), ids[i, : len(tokens)], -100)
    return ids, labels


def save(model: Any, out: Path) -> None:
    """In bfloat16, without the place where the base model lay."""
    model.save_pretrained(out)
    file, config = out / "adapter_model.safetensors", out / "adapter_config.json"
    save_file({name: value.bfloat16() for name, value in load_file(file).items()}, file, {"format": "pt"})
    said = json.loads(config.read_text()) | {"base_model_name_or_path": BASE}
    said = {key: said[key] for key in FIELDS}
    said["target_modules"] = sorted(said["target_modules"])
    config.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
    (out / "README.md").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
