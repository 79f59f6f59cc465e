"""Device words belong in thalweg/backends/. This finds them elsewhere in code: imports, attributes, names and strings.

Catches what import rules cannot: `x.cuda()`, `torch.accelerator`, `is_rocm`, a device name in a string. Comments and
docstrings are prose and may say what they like. Run: python ci/device_words.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping

from source import Finding, Source, dotted, imports, main

WORDS = frozenset({
    "cuda", "cudnn", "cublas", "nccl", "nvidia", "nvcc", "ptx",
    "rocm", "hip", "rccl", "amd", "amdgpu", "gfx",
    "tpu", "xla", "libtpu", "pallas",
    "xpu", "sycl", "oneapi", "intel", "mps", "metal", "apple", "npu", "ascend", "cann", "hpu", "gaudi", "habana",
    "neuron", "trainium", "triton", "onednn", "mkldnn", "avx", "amx",
})  # fmt: skip
MODULES = ("torch.accelerator", "torch.cuda", "torch.xpu", "torch.mps", "torch.backends", "torch_xla", "torchax")
ALLOWED: Mapping[str, str] = {
    "thalweg/cli/collect_env.py": "lists the libraries whose versions a bug report needs",
    "thalweg/nano/numbers.py": "the fruit",
    "thalweg/nano/words.py": "the fruit",
}
"""path -> why every word in this file is fine."""


def check(source: Source) -> Iterator[Finding]:
    if source.path.startswith("thalweg/backends/") or source.path in ALLOWED:
        return
    for statement, name in imports(source.tree):
        if any(name == m or name.startswith(m + ".") for m in MODULES):
            yield Finding(source.path, statement.lineno, f"imports {name}: devices are opened in thalweg/backends/ only")
    for node in ast.walk(source.tree):
        yield from _node(source, node)


def _node(source: Source, node: ast.AST) -> Iterator[Finding]:
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Attribute) and dotted(node) in MODULES:
        yield Finding(source.path, line, f"uses {dotted(node)}: ask the hal Device or Platform instead")
        return
    for name in _names(node):
        word = _device_word(name)
        if word:
            yield Finding(source.path, line, f"device word {word!r} in the name {name!r}: ask for a fact, not an identity")
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in source.docs:
        word = _device_word(node.value)
        if word:
            yield Finding(source.path, line, f"device word {word!r} in the string {node.value[:60]!r}")
        if node.value.startswith("thalweg.backends."):
            yield Finding(source.path, line, f"names the backend {node.value!r}: platforms are found by entry points")


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.keyword(arg=str(name)):
            return [name]
        case ast.alias(name=name, asname=other):
            return [n for n in (*name.split("."), other) if n and not name.startswith("thalweg.backends")]
    return []


def _device_word(text: str) -> str:
    """The first device word in a name or text: CamelCase, snake_case and punctuation separate words."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return next((w for w in re.findall(r"[a-z0-9]+", apart.lower()) if w in WORDS), "")


if __name__ == "__main__":
    sys.exit(main(check, "thalweg"))
