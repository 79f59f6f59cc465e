"""`thalweg eval nano` for every format, as one table: the bundled model as it is, rounded as it is loaded, and written by
`thalweg quantize`.

Asks the same held-out prompts of all. Written models are calibrated on the tasks' training split. Exit status 1 if an 8-bit
format is more than 1 point below bfloat16, or one of 4 bits in groups more than 3 below.

    python ci/eval_formats.py [--n 100] [--json FILE] [--only NAME ...] [--device cpu]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg.checkpoint.hub import resolve_model
from thalweg.cli.eval import engine
from thalweg.config import EngineArgs
from thalweg.nano import score
from thalweg.nano.tasks import TASKS, generate
from thalweg.options.model import BUNDLED
from thalweg.quantize.formats import choose_format
from thalweg.quantize.run import Options, quantize

EIGHT, FOUR = 0.01, 0.03
"""How much less of the answers may be right than of the dense model's."""
EXAMPLES = 16
"""Of each task, in the calibration text."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    allowed: float
    online: str | None = None
    written: tuple[str, str] | None = None
    """Format and method of `thalweg quantize`."""


ROWS = (
    Row("bf16", 0.0),
    Row("int8", EIGHT, "int8"), Row("w8a16", EIGHT, "w8a16"), Row("fp8", EIGHT, "fp8"),
    Row("fp8_per_block", EIGHT, "fp8_per_block"),
    Row("w4a16", FOUR, "w4a16"), Row("w4a8", FOUR, "w4a8"), Row("mxfp4", FOUR, "mxfp4"), Row("nvfp4", FOUR, "nvfp4"),
    Row("W8A8 rtn", EIGHT, written=("W8A8", "rtn")), Row("FP8_BLOCK rtn", EIGHT, written=("FP8_BLOCK", "rtn")),
    *(Row(f"W4A16 {m}", FOUR, written=("W4A16", m)) for m in ("rtn", "awq", "gptq")),
    *(Row(f"W4A16_ASYM {m}", FOUR, written=("W4A16_ASYM", m)) for m in ("rtn", "awq", "gptq")),
)  # fmt: skip


def calibration(file: Path) -> Path:
    """Conversations of the training split, as the model's template writes them."""
    from thalweg.llm import LLM

    llm = LLM(BUNDLED, device="reference", max_model_len=64, max_num_seqs=1)
    tokenizer, parts = llm.get_tokenizer(), []
    for i, task in itertools.product(range(EXAMPLES), TASKS):
        (e,) = itertools.islice(generate(task, "train", 1000 + i), 1)
        (prompt,) = llm.preprocess_chat(list(e.messages), tools=list(e.tools) or None)
        parts.append(tokenizer.decode(prompt["prompt_token_ids"], skip_special_tokens=False) + e.answer)
    llm.shutdown()
    file.write_text("\n".join(parts), encoding="utf-8")
    return file


def judged(args: EngineArgs, n: int, tasks: Sequence[str]) -> dict[str, float]:
    with engine(args) as answer:
        return {s.task: s.accuracy for s in score.scores(answer, tasks, n, 0)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="held-out prompts per task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--only", nargs="+", default=[r.name for r in ROWS], help="rows, beside bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        text = calibration(Path(folder) / "text")
        for row in ROWS:
            if row.name not in ("bf16", *args.only):
                continue
            model, start, outputs = BUNDLED, time.monotonic(), None
            if row.written is not None:
                model = str(Path(folder) / row.name.replace(" ", "-"))
                options = Options(
                    form=choose_format(row.written[0], None), name=row.written[0], method=row.written[1], calibration=text
                )
                report = quantize(resolve_model(BUNDLED), Path(model), options, progress=False)
                lost = [e.outputs for e in report.layers if e.outputs is not None]
                outputs = sum(lost) / len(lost)
            more: dict[str, Any] = {"quantization": row.online, "device": args.device, "use_tqdm_on_load": False}
            right = judged(EngineArgs(model=model, **more), args.n, score.check_tasks(args.tasks))
            average = sum(right.values()) / len(right)
            found.append({"format": row.name, "allowed": row.allowed, "average": average, "tasks": right, "outputs": outputs,
                          "seconds": round(time.monotonic() - start, 1)})  # fmt: skip
            print(f"{row.name}: {100 * average:.1f} %", file=sys.stderr, flush=True)
            if args.json:
                args.json.write_text(json.dumps({"n": args.n, "device": args.device, "rows": found}, indent=1) + "\n")
    print(table(found))
    return int(any(r["average"] < found[0]["average"] - r["allowed"] for r in found[1:]))


def table(found: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| format          | right % | below bf16 | may be | outputs' error % |",
        "|-----------------|--------:|-----------:|-------:|-----------------:|",
    ]
    for r in found:
        below = 100 * (found[0]["average"] - r["average"])
        outputs = "" if r["outputs"] is None else f"{100 * r['outputs']:.1f}"
        lines.append(
            f"| {r['format']:15} | {100 * r['average']:7.1f} | {below:10.1f} | {100 * r['allowed']:6.0f} | {outputs:>16} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
