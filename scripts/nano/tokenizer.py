"""Make the tokenizer of thalweg-nano from the training dialogues: byte-level BPE of 2560 tokens. Deterministic.

    python scripts/nano/tokenizer.py --out DIR

Text is cut so that a small model sees one word as one token in as many places as possible: digits alone; a mark takes the
blank after it, so that words of lists and JSON strings have no blank; capitalised words never have one. The words in
running text do ("the river"), which keeps prompts short.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from dialogues import TEMPLATE, Dialogues
from export import write_json
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from thalweg.nano import TASKS
from thalweg.nano import words as w

SIZE = 2560
POSITIONS = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = ("<tool_call>", "</tool_call>")
"""Single tokens that stay in the text, as clients parse them."""
CUT = r"\p{N}| ?\p{Ll}+|\p{Lu}\p{Ll}+|\p{Lu}+|[\p{Lo}\p{Lm}\p{Lt}]+| ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)* ?|\s+"
DIALOGUES = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dialogues", type=int, default=DIALOGUES, help="how many to learn from")
    args = parser.parse_args()
    save(train(args.dialogues), args.out)


def train(dialogues: int = DIALOGUES) -> Tokenizer:
    """Special tokens first, then the 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CUT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(VISIBLE),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(dialogues), trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE])
    if tokenizer.get_vocab_size() != SIZE:
        raise SystemExit(f"the text gives {tokenizer.get_vocab_size()} tokens, not {SIZE}: make it longer")
    return tokenizer


def _texts(dialogues: int) -> Iterator[str]:
    source = Dialogues({t: 0.1 if t == "needle" else 1.0 for t in TASKS}, seed=0)
    for _ in range(dialogues):
        text = source.next()
        for token in (*SPECIAL, *VISIBLE):
            text = text.replace(token, "\n")
        yield text
    whole = w.NAMES + w.CITIES + w.THINGS + w.COLOURS + w.JOBS + w.PLACES
    whole += tuple(x.upper() for x in w.THINGS + w.COLOURS)
    yield from (f"{x} of {x}, " for _ in range(40) for x in whole)


def save(tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json, its settings and the chat template, as a checkpoint has them."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
    }
    write_json(out / "tokenizer_config.json", settings)
    shutil.copy(TEMPLATE, out / TEMPLATE.name)


if __name__ == "__main__":
    main()
