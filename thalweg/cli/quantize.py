"""`thalweg quantize MODEL OUT --format F`: a dense checkpoint written again with quantised weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from thalweg.cli import flags
from thalweg.errors import ConfigError

ABOUT = "Write a dense checkpoint again with quantised weights, in the layouts of compressed-tensors, AWQ or GPTQ."


def run(words: list[str]) -> int:
    from thalweg.checkpoint.hub import resolve_model
    from thalweg.quantize.formats import FORMATS, LAYOUTS, METHODS, ORDERS, choose_format

    parser = flags.Parser(prog="thalweg quantize", allow_abbrev=False, description=ABOUT)
    parser.add_argument("model", metavar="MODEL", help="directory or hub id of a dense model")
    parser.add_argument("out", metavar="OUT", type=Path, help="directory to write; it must not exist")
    parser.add_argument("--format", required=True, help=f"what weights are held in: {', '.join(FORMATS)}")
    parser.add_argument(
        "--group-size", type=int, help="inputs that share a scale, of W4A16, W4A16_ASYM and W8A16 (default 128)"
    )
    parser.add_argument(
        "--layout", choices=LAYOUTS, default=LAYOUTS[0],
        help="how files hold 4 and 8 bits: compressed-tensors (the default), awq or gptq",
    )  # fmt: skip
    parser.add_argument("--method", choices=METHODS, default="rtn", help="round to nearest, AWQ or GPTQ (default rtn)")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="text for awq and gptq, and to report outputs' errors")
    parser.add_argument("--num-samples", type=_positive, default=128, help="pieces of that text (default 128)")
    parser.add_argument("--seq-len", type=_positive, default=512, help="tokens of a piece (default 512)")
    parser.add_argument("--actorder", choices=ORDERS, default="static", help="order of inputs in gptq (default static)")
    parser.add_argument(
        "--damp", type=float, default=0.01, help="of gptq: part of the mean added to the Hessian (default 0.01)"
    )
    parser.add_argument("--ignore", nargs="+", default=["lm_head"], metavar="LAYER",
                        help="layers that stay dense, by name or re:PATTERN (default lm_head)")  # fmt: skip
    parser.add_argument("--max-shard-size", type=_positive, default=4 << 30, metavar="BYTES", help="of a file (default 4 GiB)")
    args = parser.parse_args(words)
    if not 0 < args.damp < 1:
        raise ConfigError(f"--damp: must be between 0 and 1, not {args.damp}")
    form = choose_format(args.format, args.group_size, args.layout)
    path = resolve_model(args.model)
    from thalweg.quantize.run import Options, quantize, table

    report = quantize(path, args.out, Options(
        form=form, name=args.format.upper().replace("-", "_"), method=args.method, ignore=args.ignore,
        calibration=args.calibration, samples=args.num_samples, length=args.seq_len, order=args.actorder, damp=args.damp,
        shard_bytes=args.max_shard_size,
    ))  # fmt: skip
    print(table(report))
    print(f"{args.out}: {report.bytes / 1e6:.1f} MB of weights", file=sys.stderr)
    return 0


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
