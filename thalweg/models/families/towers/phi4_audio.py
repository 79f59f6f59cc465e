"""The audio encoder of Phi-4-multimodal."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.phi4_multimodal import read_settings
from thalweg.models.families.towers.common import act, size
from thalweg.models.spec import WindowConformerSpec


def read_audio(config: Config) -> WindowConformerSpec:
    """Of `audio_config`."""
    section = read_settings(config)
    hidden, heads = size(section, "hidden_size", 1024), size(section, "num_attention_heads", 16)
    if hidden % heads:
        raise CheckpointError(f"config.json: audio_config: {heads} heads do not divide {hidden}")
    if section.get("chunk_size", -1) != -1:
        raise UnsupportedModelError("config.json: audio_config: chunk_size: only -1, attention to the whole clip, is supported")
    for key, ours in (("time_reduction", 8), ("downsample_rate", 1)):
        if section.get(key, ours) != ours:
            raise UnsupportedModelError(f"config.json: audio_config: {key}: only {ours} is supported")
    channels = size(section, "ext_pw_out_channel", 1024)
    outputs = size(section, "depthwise_separable_out_channel", 1024)
    if not hidden == channels == outputs:
        raise UnsupportedModelError(
            "config.json: audio_config: ext_pw_out_channel and depthwise_separable_out_channel must equal hidden_size"
        )
    defaults = {"activation": "swish", "conv_glu_type": "swish", "conv_activation": "swish", "nemo_activation": "relu"}
    first, glu, behind, before = (act(section, key, default) for key, default in defaults.items())
    return WindowConformerSpec(
        bins=size(section, "input_size", 80), hidden=hidden, layers=size(section, "num_blocks", 24), heads=heads,
        inner=size(section, "intermediate_size", 1536), acts=(first, glu, behind, before), channels=channels,
        multiple=integer(section, "depthwise_multiplier", high=64, default=1), outputs=outputs,
        kernel=size(section, "kernel_size", 3), first=size(section, "nemo_conv_channels", 1024), halvings=3,
        reach=size(section, "bias_max_distance", 1000), symmetric=flag(section, "bias_symmetric", False),
    )  # fmt: skip
