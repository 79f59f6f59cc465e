"""Quantised checkpoints written from the definition of their format, where no library here writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from zoo import SMALL, spread

from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.load import load_params
from thalweg.models.weights import walk
from thalweg.quantization import registry
from thalweg.quantization.format import Format

DEVICE = load("reference").open(Place())
LAYER = "model.layers.0.mlp.down_proj"
Written = Mapping[str, torch.Tensor]
"""The tensors of one layer, by suffix."""


def reader(description: Mapping[str, Any], tensors: Written, layer: str = LAYER) -> Format:
    """The reader of a file with one quantised layer."""
    stored = {f"{layer}.{k}": (str(v.dtype).removeprefix("torch."), tuple(v.shape)) for k, v in tensors.items()}
    made = registry.of_checkpoint({"quantization_config": {**description, "stored": stored}})
    assert made is not None
    return made


def read(made: Format, tensors: Written, shape: tuple[int, int], layer: str = LAYER) -> QTensor:
    """The weight, after the checks that the loader does."""
    parts = made.parts(layer, shape)
    for suffix, part in parts.items():
        if suffix in tensors:
            assert tuple(tensors[suffix].shape) in part.shapes, suffix
            assert not part.dtypes or str(tensors[suffix].dtype).removeprefix("torch.") in part.dtypes, suffix
        else:
            assert part.optional, suffix
    assert tensors.keys() <= parts.keys()
    got = made.read(layer, shape, lambda suffix: tensors[suffix])
    assert got.format == made.of("linear", f"{layer}.weight")
    return got


def dense(w: QTensor) -> torch.Tensor:
    return dequantise(w.data, w.format.group, torch.float32)


def drawn(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of different size."""
    values = np.random.default_rng(seed).normal(size=(rows, columns)) * np.logspace(-2, 0, rows)[:, None]
    return torch.from_numpy(values.astype(np.float32))


def source(folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32, **more: Any) -> Path:
    """A small model whose layers have 64 or 96 inputs."""
    import transformers

    wide = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    config = (
        transformers.LlamaConfig(**SMALL | wide | more)
        if family == "llama"
        else transformers.Qwen3MoeConfig(**SMALL | wide | experts | more)
    )
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    spread(made, 11)
    path = folder / family
    made.to(dtype).save_pretrained(path)
    return path


def rewrite(
    path: Path, out: Path, description: Mapping[str, Any], write: Callable[[str, torch.Tensor], Written | None]
) -> Path:
    """The checkpoint of `path` in `out`, its layers' weights as `write` has them; None: the layer stays dense."""
    tensors = {}
    for name, t in load_file(path / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        made = None
        if t.dim() == 2 and not layer.endswith(("lm_head", "embed_tokens", "mlp.gate")):
            made = write(layer, t)
        tensors |= {name: t} if made is None else {f"{layer}.{k}": v.contiguous() for k, v in made.items()}
    out.mkdir()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": dict(description)}))
    return out


def model(path: Path) -> tuple[Any, Any]:
    from thalweg.checkpoint.config import read_config

    config = read_config(path, None, registry.check)
    made = build(
        config, binder=Binder(()), attention=DEVICE.attention, mesh=Mesh(), dtype="float32", max_len=64, block_tokens=4
    )
    return made, config


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Every quantised weight of a checkpoint, turned back, by the layer's name; as the loader reads them."""
    made, _ = model(path)
    files, found = Files(made, open_checkpoint(path), DEVICE), {}
    for _, spec in walk(made.specs):
        if spec.sources and spec.format != DENSE:
            whole = dense(files.read(spec, 0))
            parts = whole.split([s.shape[0] for s in spec.sources])
            found |= {s.name.removesuffix(".weight"): part for s, part in zip(spec.sources, parts, strict=True)}
    return found


def counted(path: Path) -> tuple[int, int]:
    """Bytes of the weights, as the plan counts them from headers, and as they are held."""
    from thalweg.models import registry as families
    from thalweg.models import sizes

    made, config = model(path)
    held = {t.data_ptr(): t.nbytes for _, t in walk(load_params(made, path, DEVICE, progress=False))}
    spec = families.family(config)(config)
    return sizes.weight_bytes(spec, "float32", 64, use=registry.scheme(config, None)), sum(held.values())


def logprobs(path: Path, device: str = "reference", prompt: tuple[int, ...] = (5, 9, 33, 70, 201, 17, 90)) -> torch.Tensor:
    """Of every token of the prompt but the first."""
    from thalweg import LLM, SamplingParams

    llm = LLM(str(path), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
    return torch.tensor([step[t].logprob for step, t in zip(out.prompt_logprobs[1:], prompt[1:], strict=True)])


def simulated(
    path: Path, layers: Mapping[str, torch.Tensor], round_inputs: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    prompt: tuple[int, ...] = (5, 9, 33, 70, 201, 17, 90),
) -> torch.Tensor:  # fmt: skip
    """The same by transformers, with these weights in place of the dense ones, and inputs of their layers rounded."""
    from zoo import load_reference

    oracle = load_reference(path, torch.float32)
    modules = dict(oracle.named_modules())
    with torch.inference_mode():
        for layer, weight in layers.items():
            if layer not in modules:
                continue
            modules[layer].weight.data = weight
            if round_inputs is not None:
                modules[layer].register_forward_pre_hook(lambda _, args, name=layer: (round_inputs(name, args[0]),))
        logits = oracle(torch.tensor([prompt])).logits[0]
        return logits.log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
