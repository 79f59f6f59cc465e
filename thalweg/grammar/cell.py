"""The process in which grammars are judged: `python -m thalweg.grammar.cell`. First a vocabulary comes, then jobs.

To judge is to convert what a client asked for, to compile it and to make its first mask. What takes too much time is
killed, and what takes too much memory cannot have it: the library is native code, which nothing else interrupts.

Jobs are done by a fork. To make the library's view of a vocabulary takes longer than to judge most grammars, and so one that
was killed costs the next none of it.
"""

from __future__ import annotations

import gc
import sys
from functools import partial

import msgspec

from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import locate_error, source_of
from thalweg.grammar.source import GrammarError, GrammarRequest, GrammarSource, GrammarVocabulary
from thalweg.host.confined import AGAIN, ConfinedProcess
from thalweg.host.jobs import TaskRefusedError, serve
from thalweg.host.processes import in_forks

KEPT_BYTES = 128 << 20
"""Bytes of growth after which a process retires: what it keeps counts against the next job."""
TOO_DEEP = "nested too deeply"


def judge(asked: GrammarRequest, compiler: Compiler) -> GrammarSource:
    """A source that compiles and has a first mask. GrammarError, of a schema always with a pointer."""
    source = source_of(asked)
    try:
        compiler.try_first(source.text)
    except GrammarError as e:
        pointer = locate_error(asked, compiler, e.why) if asked.kind == "json" else e.pointer
        raise GrammarError(e.why, pointer) from None
    return source


def _work(compiler: Compiler, asked: GrammarRequest) -> GrammarSource:
    """As `judged`. TaskRefusedError."""
    try:
        return judge(asked, compiler)
    except GrammarError as e:
        raise TaskRefusedError("grammar", e.why, e.pointer) from None
    except RecursionError:
        raise TaskRefusedError("grammar", TOO_DEEP) from None
    except MemoryError:
        raise
    except BaseException as e:
        # The library reports its own faults as exceptions that are no Exception. What it holds may be in disorder.
        raise TaskRefusedError("grammar", f"cannot be compiled ({type(e).__name__})", last=True) from None


def main() -> int:
    body = ConfinedProcess().next()
    if body is None:
        return 0
    compiler = Compiler(msgspec.msgpack.decode(body, type=GrammarVocabulary))
    gc.freeze()
    return in_forks(lambda: serve(GrammarRequest, partial(_work, compiler), KEPT_BYTES, retired=AGAIN))


if __name__ == "__main__":
    sys.exit(main())
