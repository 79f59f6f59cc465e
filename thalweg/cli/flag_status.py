"""`thalweg flags [NAME]`: every flag of vLLM's `serve`, honoured or refused, and the count of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from textwrap import fill

from thalweg.cli.flags import Parser
from thalweg.options.flag import Flag
from thalweg.options.table import GONE, TIERS, table

FATES = ("honoured", "refused")
ABOUT = """Every known flag of `vllm serve`, and every flag of thalweg: honoured, or refused with the reason and the
alternative. Tiers: core (a server on one machine), scale (many devices or machines), specialist (one model or
vendor)."""


def run(words: list[str]) -> int:
    parser = Parser(prog="thalweg flags", description=" ".join(ABOUT.split()), allow_abbrev=False)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a flag, a group, a tier, or a word of the text")
    parser.add_argument("--status", action="store_true", help="only the counts")
    parser.add_argument("--only", choices=FATES, help="only flags of one fate")
    own = {option for action in parser._actions for option in action.option_strings}
    namespace = parser.parse_args([w if w.partition("=")[0] in own else w.lstrip("-") for w in words])
    every = sorted(table().values(), key=lambda f: (f.option.group in GONE, f.name))
    chosen = every if namespace.name is None else _matching(every, namespace.name)
    if not chosen:
        parser.error(f"NAME: no flag, group, tier or text matches {namespace.name!r}")
    if namespace.only:
        chosen = [f for f in chosen if f.is_supported is (namespace.only == "honoured")]
    if not namespace.status:
        print("\n".join(_line(f) for f in chosen))
        print()
    print(summary(chosen))
    return 0


def _matching(flags: Sequence[Flag], name: str) -> list[Flag]:
    word = name.lower().lstrip("-").replace("_", "-").removeprefix("no-")
    exact = [f for f in flags if word == f.name or f"--{word}" in f.option.aliases or f"-{word}" in f.option.aliases]
    return (
        exact
        or [f for f in flags if word in (f.option.group.lower(), f.option.tier)]
        or [f for f in flags if word in f.name or name.lower() in f.option.help.lower()]
    )


def _line(flag: Flag) -> str:
    fate = "honoured" if flag.is_supported else "gone    " if flag.option.group in GONE else "refused "
    head = f"{fate}  {', '.join(flag.spellings)}"
    width = max(60, shutil.get_terminal_size().columns - 2)
    text = flag.option.help if flag.is_supported else f"{flag.option.help}. {flag.refusal[:1].upper()}{flag.refusal[1:]}"
    return head + "\n" + fill(text, width, initial_indent=" " * 10, subsequent_indent=" " * 10)


def counts(flags: Iterable[Flag]) -> dict[str, tuple[int, int]]:
    """By tier: how many are honoured, of how many. Those the field has removed are left out."""
    here = [f for f in flags if f.option.group not in GONE]
    found = {tier: [f for f in here if f.option.tier == tier] for tier in TIERS}
    return {tier: (sum(f.is_supported for f in fs), len(fs)) for tier, fs in found.items() if fs}


def summary(flags: Sequence[Flag]) -> str:
    """Counts by tier, a line each, and their sum."""
    by_tier = counts(flags)
    lines = [f"{tier:11} {honoured:4} of {total:4} honoured" for tier, (honoured, total) in by_tier.items()]
    sums = [sum(n) for n in zip(*by_tier.values(), strict=True)] or [0, 0]
    gone = sum(f.option.group in GONE for f in flags)
    beside = f", and {gone} that vLLM has removed are known" if gone else ""
    return "\n".join([*lines, f"{'together':11} {sums[0]:4} of {sums[1]:4} honoured, the others refused with a reason{beside}"])
