"""The process that validates grammars: `python -m thalweg.grammar.cell`. It reads a vocabulary, then jobs.

A job converts a client's grammar, compiles it and computes its first mask. Jobs over their time limit are killed, and the
memory limit is the process's: the library is native code, which nothing else interrupts.

A fork runs the jobs. Building the library's tokenizer costs more than most jobs, so a killed job must not cost the next one a
new tokenizer.
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
"""Bytes of growth after which a process retires: retained memory counts against the next job."""
TOO_DEEP = "nested too deeply"


def judge(requested: GrammarRequest, compiler: Compiler) -> GrammarSource:
    """A source that compiles and has a first mask. GrammarError, of a schema always with a pointer."""
    source = source_of(requested)
    try:
        compiler.try_first(source.text)
    except GrammarError as e:
        pointer = locate_error(requested, compiler, e.why) if requested.kind == "json" else e.pointer
        raise GrammarError(e.why, pointer) from None
    return source


def _work(compiler: Compiler, requested: GrammarRequest) -> GrammarSource:
    """As `judge`, with TaskRefusedError for every rejection."""
    try:
        return judge(requested, compiler)
    except GrammarError as e:
        raise TaskRefusedError("grammar", e.why, e.pointer) from None
    except RecursionError:
        raise TaskRefusedError("grammar", TOO_DEEP) from None
    except MemoryError:
        raise
    except BaseException as e:
        # The library's own faults do not derive from Exception. Its state may be inconsistent after one.
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
