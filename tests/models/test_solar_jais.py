"""Solar Pro, Jais and PLaMo 3 against Llama, GPT-2 and Gemma 3 of transformers, changed to what they compute."""

from __future__ import annotations

import pytest
import torch
import transformers
from test_by_other_names import compared, joined, write_published
from torch import Tensor, nn
from zoo import SMALL, VOCAB, spread

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry


def test_solar_mixes_its_stream_with_those_of_earlier_layers(tmp_path):
    """Llama whose stream is changed before some of its layers."""
    settings = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 6}, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 8)
    skips = {"bskcn_1": [1, 3], "bskcn_2": [2], "bskcn_3": [2, 4], "bskcn_4": [4, 5], "bskcn_tv": [0.9, 0.7]}
    config = {
        **settings.to_dict(),
        **skips,
        "architectures": ["SolarForCausalLM"],
        "model_type": "solar",
        "rope_parameters": None,
        "rope_theta": 10000.0,
    }
    write_published(tmp_path / "s", model, config, dict)
    saved: dict[str, Tensor] = {}

    def before(i: int, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0]
        for save in ("bskcn_1", "bskcn_2"):
            if i in skips[save]:
                saved[save] = x
        for read, save in (("bskcn_3", "bskcn_1"), ("bskcn_4", "bskcn_2")):
            if i in skips[read]:
                x = 0.7 * saved[save] + (1 - 0.7) * x
        return x, *args[1:]

    for i, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda module, args, i=i: before(i, args))
    compared(tmp_path / "s", lambda ids: model(torch.tensor([ids])).logits[0])
    read = read_config(tmp_path / "s")
    for wrong, words in (({"bskcn_3": [0]}, "bskcn_3: layer 0"), ({"bskcn_tv": 0.7}, "bskcn_tv"), ({"bskcn_2": 3}, "bskcn_2")):
        with pytest.raises(CheckpointError, match=words):
            registry.family(read)({**read, **wrong})


class SwiGLU(nn.Module):
    """The MLP of Jais on a GPT-2 that has none."""

    def __init__(self, up: nn.Module, gate: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.c_fc, self.c_fc2, self.c_proj = up, gate, down

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x) * nn.functional.silu(self.c_fc2(x)))


@pytest.mark.parametrize("old", [True, False])
def test_jais_is_gpt_2_with_alibi_and_swiglu(old, tmp_path):
    settings = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=48, n_head=6, n_layer=2, n_positions=256, attn_implementation="eager"
    )
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    kind = transformers.pytorch_utils.Conv1D
    for block in model.transformer.h:
        block.mlp = SwiGLU(kind(40, 48), kind(40, 48), kind(48, 40))
    spread(model, 9)
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    config = {
        "architectures": ["JAISLMHeadModel"], "model_type": "jais", "vocab_size": VOCAB, "n_embd": 48, "n_head": 6,
        "n_layer": 2,
        "n_positions": 256, "n_inner": 40, "activation_function": "swiglu", "position_embedding_type": "alibi",
        "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "alibi_scaling": None,
    }  # fmt: skip
    if old:
        config |= {"scale_qk_dot_by_d": True, "embeddings_scale": 2.5, "width_scale": 0.4}
    else:
        config |= {
            "mup_scale_qk_dot_by_d": True, "mup_embeddings_scale": 2.5, "mup_output_alpha": 1.6, "mup_width_scale": 0.25,
        }  # fmt: skip
    write_published(tmp_path / "j", model, config, lambda tensors: {n: t for n, t in tensors.items() if ".wpe." not in n})
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])[:, None, None]

    def logits(ids: list[int]) -> Tensor:
        at, embedded = torch.arange(len(ids)), 2.5 * model.transformer.wte(torch.tensor([ids]))
        falls = (slopes * (at[None] - at[:, None])).masked_fill(at[None] > at[:, None], -torch.inf)[None]
        return 0.4 * model(inputs_embeds=embedded, attention_mask=falls).logits[0]

    with torch.no_grad():
        for block in model.transformer.h:  # scores divided by the whole head size, not by its root
            block.attn.c_attn.weight[:, :48] /= 8**0.5
            block.attn.c_attn.bias[:48] /= 8**0.5
    compared(tmp_path / "j", logits)
    read = read_config(tmp_path / "j")
    for key, value in (("alibi_scaling", {"factor": 2}), ("reorder_and_upcast_attn", True)):
        with pytest.raises(UnsupportedModelError, match=key):
            registry.family(read)({**read, key: value})


def plamo3(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Norms without the part of their weights that PLaMo adds, and embeddings with Gemma's factor."""
    out = {}
    names = {
        "input_layernorm": ("pre_mixer_norm", 1.0), "post_attention_layernorm": ("post_mixer_norm", 1 / 5),
        "pre_feedforward_layernorm": ("pre_mlp_norm", 1.0), "post_feedforward_layernorm": ("post_mlp_norm", 5**-1.5),
    }  # fmt: skip
    for name, t in joined(tensors, "qkv_proj", grouped=False).items():
        *at, kind, _ = name.split(".")
        if kind in names:
            kind, offset = names[kind]
            t = t + 1 - offset
        if kind == "gate_proj":
            kind, t = "gate_up_proj", torch.cat([t, tensors[name.replace("gate_proj", "up_proj")]])
        elif kind == "up_proj":
            continue
        t = t * 48**0.5 if kind == "embed_tokens" else t
        out[".".join([*at, kind, "weight"]).replace("layers.", "layers.layers.").replace("self_attn", "mixer")] = t
    return out


@pytest.mark.parametrize("stretched", [False, True])
def test_plamo_3_is_gemma_3_with_other_offsets_of_norms(stretched, tmp_path):
    full = {"rope_type": "default", "rope_theta": 5e4}
    if stretched:
        full |= {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False, "beta_fast": 32.0,
            "beta_slow": 1.0,
        }  # fmt: skip
    settings = transformers.Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 4}, head_dim=16, query_pre_attn_scalar=16, sliding_window=9,
        hidden_activation="silu", attn_implementation="eager", tie_word_embeddings=False, final_logit_softcapping=None,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 10)
    config = {
        **SMALL, "architectures": ["Plamo3ForCausalLM"], "model_type": "plamo3", "num_hidden_layers": 4, "head_dim": 16,
        "window_size": 9, "sliding_window_pattern": 2, "rope_theta": 5e4, "rope_local_theta": 100.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "hidden_activation": "swiglu", "rope_scaling_factor": 1, "initial_context_length": None,
    }  # fmt: skip
    if stretched:
        config |= {"rope_scaling_factor": 4, "initial_context_length": 16}
    write_published(tmp_path / "p", model, config, plamo3)
    compared(tmp_path / "p", lambda ids: model(torch.tensor([ids])).logits[0])
    read = read_config(tmp_path / "p")
    assert registry.family(read)({**read, "window_size": None, "sliding_window": [9, None] * 2}) == registry.family(read)(read)
    for key, value in (("scale_embedding", True), ("hidden_activation", "gelu")):
        with pytest.raises(UnsupportedModelError, match=key):
            registry.family(read)({**read, key: value})
