"""Writes the checkpoints of tests/quantization/data with the libraries that define their formats, none of which tests need.

    python -m venv oracle && oracle/bin/pip install -r tests/quantization/oracles.txt
    oracle/bin/pip install --no-deps auto-gptq==0.7.1
    TORCHDYNAMO_DISABLE=1 oracle/bin/python tests/quantization/write_ints.py [LIBRARY ...]

Every folder holds config.json, model.safetensors and oracle.json: the versions, and of each weight the SHA-256 of what the
library makes of it in float32. Where a library computes by another formula (`near`), oracle.safetensors has the values.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data"
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
         "tie_word_embeddings": True}  # fmt: skip
KEPT = ("q_proj", "k_proj", "down_proj")
"""Layers whose values are kept, where sums of them would not do."""
Dense = Callable[[Mapping[str, torch.Tensor], str, torch.Size], "torch.Tensor | None"]
"""(tensors, layer, shape) -> the weight in float32, None where it is dense."""


@torch.no_grad()
def source(folder: Path) -> Path:
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES), dtype=torch.float32)
    g = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.add_(torch.empty_like(p).normal_(0, 0.2, generator=g))
        else:
            p.normal_(0, 0.4 if "embed" in name else 1.2 / p.shape[1] ** 0.5, generator=g)
    model.to(torch.float16).save_pretrained(folder)
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({str(i): i for i in range(SIZES["vocab_size"])}, unk_token="0")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def keep(name: str, folder: Path, plain: Path, dense: Dense, packages: list[str], near: bool = False) -> None:
    """The files that tests read, of what a library saved in `folder`."""
    out = DATA / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(folder / "model.safetensors", out)
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors, shapes, made = load_file(folder / "model.safetensors"), load_file(plain / "model.safetensors"), {}
    for weight, want in shapes.items():
        layer = weight.removesuffix(".weight")
        if layer.endswith("_proj") and (got := dense(tensors, layer, want.shape)) is not None:
            assert (got.dtype, got.shape) == (torch.float32, want.shape), (name, layer)
            assert (got - want).norm() < (1.5 if name == "hqq-1" else 0.6) * want.norm(), (name, layer)
            if not near or layer.endswith(KEPT):
                made[weight] = got.contiguous()
    assert made, name
    if near:
        save_file(made, out / "oracle.safetensors")
    versions = {p: version(p) for p in ["torch", "transformers", *packages]}
    sums = {} if near else {w: digest(t) for w, t in made.items()}
    (out / "oracle.json").write_text(json.dumps({"versions": versions, "near": near, "sha256": sums}, indent=1) + "\n")
    print(name, sum(f.stat().st_size for f in out.iterdir()), flush=True)


def digest(weight: torch.Tensor) -> str:
    """Of float32 values; -0 counts as 0."""
    return hashlib.sha256((weight + 0.0).contiguous().numpy().tobytes()).hexdigest()


def _auto_gptq() -> Any:
    """One file of the package, which as a whole needs an older transformers."""
    site = Path(transformers.__file__).parents[1]
    found = next(
        p for s in [site, *map(Path, sys.path)] if (p := s / "auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py").is_file()
    )
    spec = importlib.util.spec_from_file_location("qlinear_cuda_old", found)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.QuantLinear


def _words(kind: str, bits: int, group: int) -> Dense:
    """Weights of layers in words of 32 bits: the library's own product with the identity, its scales made float32."""

    def dense(tensors: Mapping[str, torch.Tensor], layer: str, shape: torch.Size) -> torch.Tensor | None:
        if f"{layer}.qweight" not in tensors:
            return None
        parts = {k: tensors[f"{layer}.{k}"] for k in ("qweight", "qzeros", "scales", "g_idx") if f"{layer}.{k}" in tensors}
        parts["scales"] = parts["scales"].float()
        if kind == "awq":
            from auto_round.export.export_to_awq.utils import dequantize_gemm

            return dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], bits, group).T
        if kind == "auto_gptq":
            made = _auto_gptq()(bits, group, shape[1], shape[0], False, weight_dtype=torch.float32)
        else:
            from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

            module = qlinear_torch if kind == "v2" else qlinear_torch_zp
            made = module.QuantLinear(bits, group, shape[1], shape[0], False)
        for k, v in parts.items():
            setattr(made, k, v)
        return made(torch.eye(shape[1])).T

    return dense


def auto_round(plain: Path, folder: Path) -> None:
    from auto_round import AutoRound

    cases = {  # name -> (format, bits, symmetric, group, how the library reads it)
        "gptq-4-sym": ("auto_gptq", 4, True, 32, "auto_gptq"), "gptq-4-asym": ("auto_gptq", 4, False, 32, "auto_gptq"),
        "gptq-3-asym": ("auto_gptq", 3, False, 32, "auto_gptq"), "gptq-2-asym": ("auto_gptq", 2, False, 32, "auto_gptq"),
        "gptq-8-row": ("auto_gptq", 8, True, -1, "auto_gptq"),
        "awq-asym": ("auto_awq", 4, False, 32, "awq"), "awq-sym": ("auto_awq", 4, True, 32, "awq"),
        "auto-round-4": ("auto_round", 4, False, 32, "v2"), "auto-round-2": ("auto_round", 2, True, 32, "?"),
        "auto-round-3": ("auto_round", 3, True, 32, "?"), "auto-round-5": ("auto_round", 5, False, 32, "?"),
        "auto-round-awq": ("auto_round:auto_awq", 4, False, 32, "awq"),
    }  # fmt: skip
    for name, (layout, bits, sym, group, how) in cases.items():
        AutoRound(str(plain), bits=bits, group_size=group, sym=sym, iters=0, disable_opt_rtn=True).quantize_and_save(
            str(folder / name), format=layout
        )
        made = next(p.parent for p in sorted((folder / name).rglob("model.safetensors")))
        said = json.loads((made / "config.json").read_text())["quantization_config"]
        if how == "?":
            how = "v1" if said["packing_format"] == "auto_round:auto_gptq" else "v2"
        keep(name, made, plain, _words(how, bits, group), ["auto-round"] + ["auto-gptq"] * (how == "auto_gptq"))


def auto_round_fp8(plain: Path, folder: Path) -> None:
    from auto_round import AutoRound

    name = "auto-round-fp8"
    AutoRound(str(plain), scheme="FP8_BLOCK", iters=0, disable_opt_rtn=True).quantize_and_save(str(folder), format="auto_round")
    made = next(p.parent for p in sorted(folder.rglob("model.safetensors")) if p.parent != plain)

    def dense(tensors: Mapping[str, torch.Tensor], layer: str, shape: torch.Size) -> torch.Tensor:
        """By the definition: the one block of so small a matrix is partial."""
        return tensors[f"{layer}.weight"].float() * tensors[f"{layer}.weight_scale_inv"].float()

    keep(name, made, plain, dense, ["auto-round"])


def bitsandbytes(plain: Path, folder: Path) -> None:
    import bitsandbytes.functional as F
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

    def four(tensors: Mapping[str, torch.Tensor], layer: str, shape: torch.Size) -> torch.Tensor:
        parts = {k.removeprefix(f"{layer}."): v for k, v in tensors.items() if k.startswith(f"{layer}.weight.")}
        state = F.QuantState.from_dict(parts, torch.device("cpu"))
        absmax = state.absmax
        if state.nested:
            absmax = F.dequantize_blockwise(absmax, state.state2) + state.offset
        raw = tensors[f"{layer}.weight"].view(torch.uint8).reshape(-1)
        # Not dequantize_4bit: its processor kernel takes blocks by rows, and is wrong where those cross rows (96 inputs).
        return _dequantize_4bit_compute(raw, absmax, state.code, state.blocksize, shape, torch.float32)

    def eight(tensors: Mapping[str, torch.Tensor], layer: str, shape: torch.Size) -> torch.Tensor:
        return F.int8_vectorwise_dequant(tensors[f"{layer}.weight"], tensors[f"{layer}.SCB"])

    cases = {
        "bnb-nf4": ({"bnb_4bit_quant_type": "nf4"}, four),
        "bnb-nf4-double": ({"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, four),
        "bnb-fp4-double": ({"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}, four),
        "bnb-nf4-words": ({"bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.bfloat16}, four),
        "bnb-int8": ({}, eight),
    }
    for name, (said, dense) in cases.items():
        how = transformers.BitsAndBytesConfig(load_in_4bit=dense is four, load_in_8bit=dense is eight, **said)
        model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=how, dtype=torch.float32)
        model.save_pretrained(folder / name)  # before any product: those repack the weights in place
        keep(name, folder / name, plain, dense, ["bitsandbytes"], near=dense is eight)


def torchao(plain: Path, folder: Path) -> None:
    from torchao import quantization as ao

    cases = {
        "torchao-int8": ao.Int8WeightOnlyConfig(version=2),
        "torchao-int8-dynamic": ao.Int8DynamicActivationInt8WeightConfig(version=2),
        "torchao-fp8": ao.Float8WeightOnlyConfig(),
    }
    for name, how in cases.items():
        said = transformers.TorchAoConfig(how)
        model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=said, dtype=torch.float32)
        model.save_pretrained(folder / name)
        held = {n: p.data.dequantize() for n, p in model.named_parameters() if hasattr(p.data, "dequantize") and "_proj" in n}
        keep(name, folder / name, plain, lambda tensors, layer, shape, held=held: held[f"{layer}.weight"].float(), ["torchao"])


def hqq(plain: Path, folder: Path) -> None:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

    for bits, group in ((8, 32), (4, 32), (3, 32), (2, 16), (1, 16), (4, None)):
        name = f"hqq-{bits}" if group else f"hqq-{bits}-row"
        how, tensors, dense = BaseQuantizeConfig(nbits=bits, group_size=group, axis=1), {}, {}
        how["weight_quant_params"]["optimize"] = bits != 8
        for key, weight in load_file(plain / "model.safetensors").items():
            layer = key.removesuffix(".weight")
            if not layer.endswith("_proj"):
                tensors[key] = weight
                continue
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight.data = weight.float()
            made = HQQLinear(linear, how, compute_dtype=torch.float32, device="cpu", initialize=True)
            made.encoded_state_dict = True
            tensors |= {f"{layer}.{k}": v for k, v in made.state_dict().items() if isinstance(v, torch.Tensor)}
            dense[layer] = Quantizer.dequantize(made.W_q.data, made.meta).detach()
        out = folder / name
        out.mkdir(parents=True)
        save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, out / "model.safetensors", {"format": "pt"})
        config = json.loads((plain / "config.json").read_text())
        said = {"quant_method": "hqq", "quant_config": how, "skip_modules": ["lm_head"]}
        (out / "config.json").write_text(json.dumps(config | {"quantization_config": said}, default=str))
        keep(name, out, plain, lambda tensors, layer, shape, dense=dense: dense[layer], ["hqq"], near=True)


def bitnet(plain: Path, folder: Path) -> None:
    from transformers.integrations.bitnet import pack_weights, unpack_weights

    for kind in ("bitlinear", "autobitlinear"):
        tensors = {}
        for key, weight in load_file(plain / "model.safetensors").items():
            layer = key.removesuffix(".weight")
            if not layer.endswith("_proj"):
                tensors[key] = weight
                continue
            scale = weight.float().abs().mean().reshape(1)
            tensors[key] = pack_weights((weight.float() / scale).round().clamp(-1, 1))
            tensors[f"{layer}.weight_scale"] = 1 / scale if kind == "bitlinear" else scale
        out = folder / kind
        out.mkdir(parents=True)
        save_file({k: v.contiguous() for k, v in tensors.items()}, out / "model.safetensors", {"format": "pt"})
        config = json.loads((plain / "config.json").read_text())
        said = {"quant_method": "bitnet", "linear_class": kind, "quantization_mode": "offline"}
        (out / "config.json").write_text(json.dumps(config | {"quantization_config": said}))

        def dense(tensors: Mapping[str, torch.Tensor], layer: str, shape: torch.Size, kind: str = kind) -> torch.Tensor:
            codes, scale = unpack_weights(tensors[f"{layer}.weight"], torch.float32), tensors[f"{layer}.weight_scale"]
            return codes * (1 / scale) if kind == "bitlinear" else codes * scale

        keep(kind, out, plain, dense, [])


WRITERS = {f.__name__: f for f in (auto_round, auto_round_fp8, bitsandbytes, torchao, hqq, bitnet)}


def main() -> None:
    for name in sys.argv[1:] or WRITERS:
        with tempfile.TemporaryDirectory() as folder:
            WRITERS[name](source(Path(folder) / "plain"), Path(folder))


if __name__ == "__main__":
    main()
