"""Audio encoders, most with Whisper's layers and another end: two convolutions over time, or three over time and frequency."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, outer_config, sees_all, size
from thalweg.models.spec import AudioSpec, Conv, Layer, LayerNorm, Norms, ProjectorSpec, Rope, UngatedMLP
from thalweg.models.spec.vision import ProjectorLayer

EPS = 1e-5
BINS, SOURCES = 128, 1500
TOWER = "audio_tower."


def audio_config(config: Config) -> Config:
    """`audio_config`, with Whisper's names for sizes. CheckpointError if there is none."""
    found = outer_config(config).get("audio_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: audio_config: missing")
    if found.get("scale_embedding"):
        raise UnsupportedModelError("config.json: audio_config: scale_embedding is not supported by this version")
    names = {
        "hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers",
        "intermediate_size": "encoder_ffn_dim",
    }  # fmt: skip
    return {**{new: found[old] for old, new in names.items() if old in found}, **found}


def qwen2_audio(config: Config) -> AudioSpec:
    """Neighbours are averaged before the last norm."""
    section = audio_config(config)
    hidden = size(section, "d_model", 1280)
    projector = ProjectorSpec(
        root="model.", group=2, join="mean", after=(LayerNorm(f"{TOWER}layer_norm", hidden, EPS),),
        steps=(ProjectorLayer("multi_modal_projector.linear", hidden, hidden_size(config), True),),
    )  # fmt: skip
    return _whisper(section, hidden, projector, learned=True)


def voxtral(config: Config) -> AudioSpec:
    """Neighbours are joined, as many as the encoder's inner size has room for."""
    section = audio_config(config)
    hidden, text = size(section, "d_model", 1280), hidden_size(config)
    projector = ProjectorSpec(
        root="model.", group=downsample_factor(section), before=LayerNorm(f"{TOWER}layer_norm", hidden, EPS),
        steps=(
            ProjectorLayer("multi_modal_projector.linear_1", hidden * downsample_factor(section), text, False,
                 act(outer_config(config), "projector_hidden_act", "gelu")),
            ProjectorLayer("multi_modal_projector.linear_2", text, text, False),
        ),
    )  # fmt: skip
    return _whisper(section, hidden, projector, learned=True)


def audio_flamingo3(config: Config) -> AudioSpec:
    """As Qwen2-Audio's, with two layers behind it."""
    section, around = audio_config(config), outer_config(config)
    hidden, text, bias = size(section, "d_model", 1280), hidden_size(config), flag(around, "projector_bias", True)
    projector = ProjectorSpec(
        root="model.", group=2, join="mean", after=(LayerNorm(f"{TOWER}layer_norm", hidden, EPS),),
        steps=(
            ProjectorLayer("multi_modal_projector.linear_1", hidden, text, bias, act(around, "projector_hidden_act", "gelu")),
            ProjectorLayer("multi_modal_projector.linear_2", text, text, bias),
        ),
    )  # fmt: skip
    return _whisper(section, hidden, projector, learned=True)


def glm_asr(config: Config) -> AudioSpec:
    """Half of each head turns by its place, and as many neighbours are joined as the inner size has room for."""
    section = audio_config(config)
    hidden, heads, inner = (
        size(section, "d_model", 1280),
        size(section, "encoder_attention_heads", 20),
        size(section, "encoder_ffn_dim", 5120),
    )
    rope = section.get("rope_parameters") if isinstance(section.get("rope_parameters"), dict) else section
    share = real(rope, "partial_rotary_factor", default=0.5)  # type: ignore[arg-type]
    mixer = sees_all(heads, hidden, bias=True, key_bias=False, out_bias=True)
    turned = Rope({"rope_type": "default", "rope_theta": 1e4}, int(mixer.head_dim * share), 1, given=True)
    layer = Layer(
        replace(mixer, rope=turned, kv_heads=size(section, "num_key_value_heads", heads)),
        UngatedMLP(inner=inner, act=act(section, "hidden_act", "gelu"), bias=True),
        Norms(mixer=LayerNorm("input_layernorm", hidden, EPS), ffn=LayerNorm("post_attention_layernorm", hidden, EPS)),
    )  # fmt: skip
    text, name = hidden_size(config), "multi_modal_projector.linear_"
    projector = ProjectorSpec(
        root="model.", group=downsample_factor(section), before=LayerNorm(f"{TOWER}norm", hidden, EPS),
        steps=(
            ProjectorLayer(f"{name}1", inner, 2 * text, True, act(outer_config(config), "projector_hidden_act", "gelu")),
            ProjectorLayer(f"{name}2", 2 * text, text, True),
        ),
    )  # fmt: skip
    return AudioSpec(
        bins=_bins(section), hidden=hidden, layers=(layer,) * integer(section, "encoder_layers", default=32),
        projector=projector, convs=(Conv("conv1", _bins(section), hidden, 1), Conv("conv2", hidden, hidden, 2)),
    )  # fmt: skip


def downsample_factor(section: Config) -> int:
    """Neighbours in one vector of Voxtral's projector. section: `audio_config`."""
    hidden, inner = size(section, "d_model", 1280), size(section, "encoder_ffn_dim", 5120)
    if inner % hidden:
        raise CheckpointError(
            f"config.json: audio_config: intermediate_size ({inner}) is no multiple of hidden_size ({hidden})"
        )
    return inner // hidden


def qwen2_5_omni(config: Config) -> AudioSpec:
    """Sinusoidal positions, counted from 0 in each chunk, and no attention between chunks."""
    section = audio_config(config)
    hidden = size(section, "d_model", 1280)
    projector = ProjectorSpec(
        root=f"model.{TOWER}", group=2, join="mean", after=(LayerNorm("ln_post", hidden, EPS),),
        steps=(ProjectorLayer("proj", hidden, _out(config, section), True),),
    )  # fmt: skip
    return _whisper(section, hidden, projector, learned=False)


def qwen3(config: Config, within: bool = True) -> AudioSpec:
    """Three convolutions over time and frequency. within: the last layers belong to the encoder itself."""
    section = audio_config(config)
    hidden, channels, bins = size(section, "d_model", 1280), size(section, "downsample_hidden_size", 480), _bins(section)
    names = ("proj1", "proj2") if within else ("linear_1", "linear_2")
    names = tuple(f"{TOWER if within else 'multi_modal_projector.'}{name}" for name in names)  # type: ignore[assignment]
    function = act(section, "activation_function", "gelu")
    projector = ProjectorSpec(
        root="model.", before=LayerNorm(f"{TOWER}ln_post", hidden, EPS),
        steps=(ProjectorLayer(names[0], hidden, hidden, True, function), ProjectorLayer(names[1], hidden, _out(config, section),
        True)),
    )  # fmt: skip
    high = bins
    for _ in range(3):
        high = -(-high // 2)
    return AudioSpec(
        bins=bins, hidden=hidden, layers=_layers(section, hidden, key_bias=True), projector=projector,
        convs=tuple(Conv(f"conv2d{i}", 1 if i == 1 else channels, channels, 2, flat=True) for i in (1, 2, 3)),
        out=ProjectorLayer("conv_out", channels * high, hidden),
    )  # fmt: skip


def _whisper(section: Config, hidden: int, projector: ProjectorSpec, learned: bool) -> AudioSpec:
    more = (
        {"places": "embed_positions", "rows": size(section, "max_source_positions", SOURCES)} if learned else {"masked": True}
    )
    return AudioSpec(
        bins=_bins(section), hidden=hidden, layers=_layers(section, hidden, key_bias=False), projector=projector,
        convs=(Conv("conv1", _bins(section), hidden, 1), Conv("conv2", hidden, hidden, 2)), **more,
    )  # fmt: skip


def _layers(section: Config, hidden: int, key_bias: bool) -> tuple[Layer, ...]:
    layer = Layer(
        sees_all(
            size(section, "encoder_attention_heads", 20), hidden, bias=True, key_bias=key_bias, out_bias=True, out="out_proj"
        ),
        UngatedMLP(
            inner=size(section, "encoder_ffn_dim", 5120), act=act(section, "activation_function", "gelu"), bias=True, name=""
        ),
        Norms(mixer=LayerNorm("self_attn_layer_norm", hidden, EPS), ffn=LayerNorm("final_layer_norm", hidden, EPS)),
    )
    return (layer,) * integer(section, "encoder_layers", default=32)


def _bins(section: Config) -> int:
    return size(section, "num_mel_bins", BINS)


def _out(config: Config, section: Config) -> int:
    out = size(section, "output_dim", hidden_size(config))
    if out != hidden_size(config):
        raise CheckpointError(f"config.json: audio_config: output_dim: {out} is not hidden_size, {hidden_size(config)}")
    return out
