"""llama.cpp as an oracle: its quantiser and its log-probabilities, from a wheel of PyPI in a separate environment.

`install` makes that environment once. `quantise` and `score` start this file there, because its libraries need no thalweg.

    python ci/llamacpp.py FOLDER quantise SOURCE TARGET Q4_K_M
    echo '[[1, 2, 3]]' | python ci/llamacpp.py FOLDER score MODEL [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "cyllama==0.2.18"
"""llama.cpp in a wheel for glibc 2.17 and later. Its later versions have none for Linux."""
KINDS = {"Q8_0": 7, "Q4_K_S": 14, "Q4_K_M": 15, "Q6_K": 18}
"""Numbers of llama.cpp's file types."""


def install(folder: Path) -> Path:
    """The Python of an environment in `folder` with llama.cpp. RuntimeError if there is no wheel for this machine."""
    python = folder / "llamacpp-env" / "bin" / "python"
    if not (folder / "llamacpp-env" / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", PACKAGE, "numpy"]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{PACKAGE} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        (python.parent.parent / "ready").touch()
    return python


def quantise(python: Path, source: Path, target: Path, kind: str) -> Path:
    """A GGUF file in one of llama.cpp's file types ("Q4_K_M"), written once."""
    if not target.exists():
        partial = target.with_suffix(".partial")
        subprocess.run([str(python), __file__, ".", "quantise", str(source), str(partial), kind], check=True)
        partial.rename(target)
    return target


def score(python: Path, model: Path, prompts: Sequence[Sequence[int]], threads: int = 2) -> list[list[float]]:
    """For each prompt the log-probability of every token after the first, each given those before it."""
    command = [str(python), __file__, ".", "score", str(model), "--threads", str(threads)]
    done = subprocess.run(command, input=json.dumps(prompts), stdout=subprocess.PIPE, text=True, check=True)
    found: list[list[float]] = json.loads(done.stdout)
    return found


def _quantise(source: str, target: str, kind: str) -> None:
    from cyllama.llama import llama_cpp  # type: ignore[import-not-found]

    llama_cpp.disable_logging()
    params = llama_cpp.LlamaModelQuantizeParams()
    params.ftype, params.nthread = KINDS[kind], 2
    llama_cpp.model_quantize(source, target, params)


def _score(file: str, prompts: Sequence[Sequence[int]], threads: int) -> list[list[float]]:
    import numpy as np
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()

    class Model(llama_cpp.LlamaModel):  # type: ignore[misc]
        @property
        def n_vocab(self) -> int:  # the context reads this attribute, which the package's class lacks
            return int(self.get_vocab().n_vocab)

    model = Model(file, llama_cpp.LlamaModelParams(), verbose=False)
    params = llama_cpp.LlamaContextParams()
    params.n_ctx = params.n_batch = params.n_ubatch = max(map(len, prompts))
    params.n_threads = params.n_threads_batch = threads
    context = llama_cpp.LlamaContext(model, params, verbose=False)
    found = []
    for prompt in prompts:
        context.kv_cache_clear()
        batch = llama_cpp.LlamaBatch(n_tokens=len(prompt), embd=0, n_seq_max=1, verbose=False)
        batch.set_batch(list(prompt), 0, True)
        context.decode(batch)
        of = []
        for i, token in enumerate(prompt[1:]):
            row = np.array(context.get_logits_ith(i), np.float64)
            top = row.max()
            of.append(float(row[token] - top - np.log(np.exp(row - top).sum())))
        found.append(of)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    command = parser.add_subparsers(dest="command", required=True)
    writes = command.add_parser("quantise")
    writes.add_argument("source")
    writes.add_argument("target")
    writes.add_argument("kind")
    scores = command.add_parser("score")
    scores.add_argument("model")
    scores.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.folder != Path():  # not in the environment yet
        python = install(given.folder)
        return subprocess.run([str(python), __file__, ".", *sys.argv[2:]], check=False).returncode
    if given.command == "quantise":
        _quantise(given.source, given.target, given.kind)
    else:
        print(json.dumps(_score(given.model, json.load(sys.stdin), given.threads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
