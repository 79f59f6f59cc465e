"""Writes the small checkpoints beside it with nvidia-modelopt, which tests read without that package:

    pip install nvidia-modelopt==0.47.0 transformers==5.23.0 && python tests/quantization/modelopt/write.py

Beside each lies what the library makes of it, in oracle.safetensors: logits of its simulated forward pass ("logits", of the
tokens "prompt"), and every 37th value of the weights that it multiplies by, in float32.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
STEP = 37
SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "vocab_size": 32, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
WIDE = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 64}
MORE = {"fp8_pb_wo": WIDE | {"intermediate_size": 192}, "w4a16_awq": WIDE, "w4a8_awq": WIDE}
"""Of formats with 128 inputs to a group: several blocks, of which the last is partial."""
CONFIGS: dict[str, Any] = {
    "fp8": mtq.FP8_DEFAULT_CFG,
    "fp8_per_channel_per_token": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    "fp8_pb_wo": mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
    "nvfp4": mtq.NVFP4_DEFAULT_CFG,
    "nvfp4_mlp_kv": mtq.update_quant_cfg_with_kv_cache_quant(
        copy.deepcopy(mtq.NVFP4_MLP_ONLY_CFG), mtq.FP8_KV_CFG["quant_cfg"]
    ),
    "w4a16_nvfp4": mtq.W4A16_NVFP4_CFG,
    "mxfp8": mtq.MXFP8_DEFAULT_CFG,
    "mxfp4": mtq.MXFP4_DEFAULT_CFG,
    "w4a16_awq": mtq.INT4_AWQ_CFG,
    "w4a8_awq": mtq.W4A8_AWQ_BETA_CFG,
    "w8a8_sq": mtq.INT8_SMOOTHQUANT_CFG,
}


def write(name: str, config: Any) -> None:
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SIZES | MORE.get(name, {})))).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, 0.06)
                p[:, :3] *= 4  # a few large inputs, which methods of smoothing look for
    calibration = torch.randint(3, 32, (4, 16))
    mtq.quantize(model, config, lambda m: m(calibration))
    requantize_resmooth_fused_llm_layers(model)  # as export does: q, k and v share their scales
    prompt = torch.tensor([[5, 9, 30, 3, 17, 22]])
    oracle = {}
    blocks = "fp4" in name or name == "mxfp8"  # their simulation needs a GPU
    with torch.no_grad():
        if not blocks:
            oracle |= {"prompt": prompt, "logits": model(prompt).logits[0].float().contiguous()}
        for layer, module in model.named_modules():
            quantizer = getattr(module, "weight_quantizer", None)
            if quantizer is not None and quantizer.is_enabled and not blocks:
                oracle[f"{layer}.weight"] = quantizer(module.weight).float().reshape(-1)[::STEP].contiguous()
    out = HERE / name
    export_hf_checkpoint(model, dtype=torch.float32, export_dir=out)
    if blocks:
        oracle = read_back(name, load_file(out / "model.safetensors"))
    save_file(oracle, out / "oracle.safetensors")
    (out / "generation_config.json").unlink(missing_ok=True)
    for n, t in load_file(out / "model.safetensors").items():
        if ".layers.0." in n and "norm" not in n:
            print("  ", n, t.dtype, list(t.shape))


def read_back(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the library's own classes of tensors."""
    made = {}
    for key, scale in tensors.items():
        if not key.endswith(".weight_scale"):
            continue
        layer = key.removesuffix(".weight_scale")
        packed = tensors[f"{layer}.weight"]
        if "nvfp4" in name:
            double = tensors[f"{layer}.weight_scale_2"]
            shape = torch.Size((packed.shape[0], 2 * packed.shape[1]))
            dense = NVFP4QTensor(shape, torch.float32, packed).dequantize(
                scale=scale, double_scale=double, block_sizes={-1: 16}
            )
        elif name == "mxfp8":
            dense = MXFP8QTensor(packed.shape, torch.float32, packed).dequantize(scale=scale, block_sizes={-1: 32})
        else:
            shape = torch.Size((packed.shape[0], 2 * packed.shape[1]))
            dense = MXFP4QTensor(shape, torch.float32, packed).dequantize(scale=scale, block_sizes={-1: 32})
        made[f"{layer}.weight"] = dense.float().reshape(-1)[::STEP].contiguous()
    return made


if __name__ == "__main__":
    for name, config in CONFIGS.items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            print(name)
            write(name, config)
            print("  ", json.loads((HERE / name / "config.json").read_text()).get("quantization_config"))
