"""The process in which grammars are judged: `python -m thalweg.grammar.cell`. First a vocabulary comes, then jobs.

To judge is to convert what a client asked for, to compile it and to make its first mask. What takes too much time is
killed, and what takes too much memory cannot have it: the library is native code, which nothing else interrupts.
"""

from __future__ import annotations

import gc
import sys

import msgspec

from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import located, source_of
from thalweg.grammar.source import Asked, GrammarError, Source, Vocabulary
from thalweg.grammar.wire import Job, Judged, Refused, frame
from thalweg.host.confined import Confined, write

KEPT_BYTES = 128 << 20
"""Bytes of growth after which a process retires: what it keeps counts against the next job."""
TOO_DEEP = "nested too deeply"


def judged(asked: Asked, compiler: Compiler) -> Source:
    """A source that compiles and has a first mask. GrammarError, of a schema always with a pointer."""
    source = source_of(asked)
    try:
        compiler.try_first(source.text)
    except GrammarError as e:
        pointer = located(asked, compiler, e.why) if asked.kind == "json" else e.pointer
        raise GrammarError(e.why, pointer) from None
    return source


def _answer(process: Confined, compiler: Compiler, job: Job) -> Judged | Refused:
    with process.limited(job.seconds, job.wall, job.memory):
        try:
            source = judged(job.asked, compiler)
        except GrammarError as e:
            return Refused("grammar", e.why, e.pointer, last=process.grown() > KEPT_BYTES)
        except RecursionError:
            return Refused("grammar", TOO_DEEP)
        except MemoryError:
            process.limit_memory(None)
            return Refused("limit", f"used more than {job.memory >> 20} MiB of memory", last=True)
        except BaseException as e:
            # The library reports its own faults as exceptions that are no Exception. What it holds may be in disorder.
            return Refused("grammar", f"cannot be compiled ({type(e).__name__})", last=True)
    return Judged(source, last=process.grown() > KEPT_BYTES)


def main() -> int:
    process = Confined()
    decoder: msgspec.msgpack.Decoder[Vocabulary | Job] = msgspec.msgpack.Decoder(Vocabulary | Job)
    compiler = None
    confined = False
    try:
        while (body := process.next()) is not None:
            message = decoder.decode(body)
            if isinstance(message, Vocabulary):
                compiler = Compiler(message)
                gc.freeze()
                continue
            assert compiler is not None, "a vocabulary comes first"
            if not confined:
                process.settle()
                process.confine()
                confined = True
            reply = _answer(process, compiler, message)
            write(frame(reply))
            if reply.last:
                return 0
    except OSError:  # the parent is gone
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
