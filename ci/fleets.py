"""Serving systems of others in front of this server, a row each. `fleets/` has a class per system.

Run: python ci/fleets.py [--only NAME,...] [--claims CLAIM,...] [--checkout NAME=FOLDER] [--environments FOLDER]
     [--markdown] [--keep]

Each system is unmodified, and comes from a registry of packages into a virtual environment for it. Its processes listen on
loopback and end with the script. The bundled model serves. A claim holds when the answers are those of a server without it:
  chat        one answer, with its usage
  stream      the parts of an answer
  tools       conversations with a tool call and its result
  kill -9     every engine is killed in mid-stream, and the stream goes on to the same text
  warm        second turns of conversations are computed where the first were
  warm again  the same, with a new router between the turns: it learns the contents of the caches from events
  servers     a whole prefill or decode server is killed, or stands still, in each phase of a request: it ends with the same
              text, or with an error within the bound of a request, and later requests are answered
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from fleets import FLEETS
from fleets.claims import CLAIMS
from fleets.trial import judge

T = TypeVar("T")


def main(words: Sequence[str]) -> int:
    """0: every claim of every fleet that ran holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(f.name for f in FLEETS)}; default: all")
    parser.add_argument("--environments", type=Path, help="folder of virtual environments, which are kept; default: temporary")
    parser.add_argument("--claims", metavar="CLAIM,...", help=f"of {', '.join(CLAIMS)}; default: all")
    parser.add_argument("--checkout", metavar="NAME=FOLDER", action="append", default=[], help="the repository of a fleet")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/fleets.md")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and print their folder")
    args = parser.parse_args(words)
    claims = _choose(parser, "--claims", args.claims, {claim: claim for claim in CLAIMS})
    for name, _, folder in (given.partition("=") for given in args.checkout):
        for fleet in _choose(parser, "--checkout", name, {f.name: f for f in FLEETS}):
            fleet.checkout = Path(folder).resolve()
    rows = {}
    for fleet in _choose(parser, "--only", args.only, {f.name: f for f in FLEETS}):
        began = time.monotonic()
        results = judge(fleet(), claims, args.environments, keep=args.keep)
        rows[fleet.name] = results
        for claim, why in results.items():
            print(f"{fleet.name:18} {claim:12} {why or 'ok'}", flush=True)
        print(f"{fleet.name:18} {time.monotonic() - began:.0f} s", flush=True)
    if args.markdown:
        print("\n".join(_format(rows)))
    return any(why and not why.startswith("-") for results in rows.values() for why in results.values())


def _choose(parser: argparse.ArgumentParser, flag: str, given: str | None, known: dict[str, T]) -> list[T]:
    names = [n for n in (given or "").split(",") if n]
    if unknown := [n for n in names if n not in known]:
        parser.error(f"{flag}: {', '.join(unknown)} is unknown; choose from {', '.join(known)}")
    return [each for name, each in known.items() if not names or name in names]


def _format(rows: dict[str, dict[str, str]]) -> Iterator[str]:
    yield "| " + " | ".join(("fleet", *CLAIMS)) + " |"
    yield "|---" * (len(CLAIMS) + 1) + "|"
    for name, results in rows.items():
        words = ("yes" if not why else "not shown" if why.startswith("-") else "no" for why in results.values())
        yield f"| {name} | " + " | ".join(words) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
