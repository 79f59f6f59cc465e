"""GOT-OCR 2: SAM encoder, two convolutions and a linear layer, Qwen2 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families import qwen2
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import outer_config, vision_config
from thalweg.models.families.towers.sam import sam
from thalweg.models.spec import ModelSpec, SamSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.multi_modal_projector."
TEXT = {
    "vocab_size": 151_860, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_key_value_heads": 16, "max_position_embeddings": 32_768, "rope_theta": 1e6,
}  # fmt: skip


def got_ocr2(config: Config) -> ModelSpec:
    if "model_type" not in config:  # then the whole part may be absent, and its defaults are those of this family
        config = {**TEXT, **config}
    tied = outer_config(config).get("tie_word_embeddings", True)
    return seeing(qwen2.qwen2({**config, "tie_word_embeddings": tied}), config, tower)


def tower(config: Config) -> tuple[SamSpec, tuple[str, ...]]:
    hidden = hidden_size(config)
    projector = ProjectorSpec(root=ROOT, steps=(ProjectorLayer("multimodal_projector", hidden, hidden, True),))
    section = vision_config(config)
    channels = section.get("output_channels", 256)
    convs = ((f"{ROOT}conv_upsampler1", 2 * channels), (f"{ROOT}conv_upsampler2", hidden))
    return sam(section, convs=convs, projector=projector), ()
