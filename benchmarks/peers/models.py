"""The same random weights in the form each engine reads, made once and kept: the checkpoint by scripts/make_shape_model.py, the
rest from it, by each engine's own converter where it has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import compressed, engines

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TEXT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def checkpoint(shape: str, layers: int | None, folder: Path) -> Path:
    """A bfloat16 checkpoint of a published shape with a tokenizer of the model's size; made if it is not there."""
    out = folder / (f"{shape}-{layers}-layers" if layers else shape)
    if not out.exists():
        partial = _fresh(out)
        _maker().make(shape, partial, layers=layers, tokenizer=True)
        partial.rename(out)
    return out


def shape_of(config: Mapping[str, Any]) -> str:
    """The published shape that a config.json has; "unpublished" if it has none of those known here."""
    shapes = _maker().SHAPES.items()
    return next((name for name, shape in shapes if all(config.get(k) == v for k, v in shape.items())), "unpublished")


def _maker() -> Any:
    """scripts/make_shape_model.py."""
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    import make_shape_model

    return make_shape_model


def prepared(kind: str, source: Path, folder: Path, envs: Path) -> Path:
    """`source` in the form `kind` (of engines.ENGINES[...].weights); a directory or a file, made if it is not there.
    CalledProcessError if an engine's converter fails."""
    if kind == "checkpoint":
        return source
    stamp = zlib.crc32(f"{source.resolve()} {(source / 'model.safetensors').stat().st_mtime_ns}".encode())
    out = folder / f"{source.name}-{stamp:08x}-{kind}{'.gguf' if kind.startswith('gguf') else ''}"
    if out.exists():
        return out
    print(f"making {out.name} ...", file=sys.stderr, flush=True)
    partial = _fresh(out)
    if kind.startswith("gguf"):
        _gguf(kind.removeprefix("gguf-"), source, partial, folder, envs)
    elif kind.startswith("ov-"):
        _openvino(kind.removeprefix("ov-"), source, partial, envs)
    else:
        partial.mkdir()
        compressed.write(kind, source, partial)
        for name in TEXT:
            shutil.copy(source / name, partial / name)
    partial.rename(out)
    return out


def warm(path: Path) -> None:
    """Read the files once, so that they come from memory when an engine loads them."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb", buffering=0) as f:
                while f.read(1 << 24):
                    pass


def _gguf(form: str, source: Path, out: Path, folder: Path, envs: Path) -> None:
    """llama.cpp's own converter, then its own rounding."""
    home = envs / "llamacpp"
    if form == "bf16":
        tool = Path(__file__).parent / "drivers" / "convert_gguf.py"
        _run([engines.python(envs, "llamacpp"), tool, home / "src" / "vendor" / "llama.cpp", source, "--outtype", "bf16",
              "--outfile", out])  # fmt: skip
        return
    wide = prepared("gguf-bf16", source, folder, envs)
    _run([home / "build" / "bin" / "llama-quantize", wide, out, form.upper()])


def _openvino(form: str, source: Path, out: Path, envs: Path) -> None:
    tool = engines.python(envs, "openvino").parent / "optimum-cli"
    task = "text-generation-with-past"
    _run([tool, "export", "openvino", "--model", source, "--task", task, "--weight-format", form, out])


def _run(command: list[str | Path]) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([str(c) for c in command], check=True, env=env, stdout=sys.stderr)


def _fresh(out: Path) -> Path:
    """A name beside `out` that is not in use; what a broken-off run left there is removed."""
    partial = out.with_name(f"partial-{out.name}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    if partial.is_dir():
        shutil.rmtree(partial)
    partial.unlink(missing_ok=True)
    return partial
