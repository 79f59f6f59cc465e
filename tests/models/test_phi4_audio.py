"""The audio of Phi-4-multimodal through the whole engine, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hearing
import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from test_hearing import GREEDY, NEW, asks
from zoo import SMALL, spread

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import pillow_processors
from test_images import picture

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.models import registry

TOKEN, IMAGE, BINS, SIDE = hearing.IDS["<|AUDIO|>"], hearing.IDS["<|image_pad|>"], 80, 28
HEARD = {
    "hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 2, "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32, "nemo_conv_channels": 6, "input_size": BINS, "bias_max_distance": 7,
    "audio_token_id": TOKEN,
}  # fmt: skip
SEEN = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": SIDE,
    "crop_size": SIDE, "patch_size": 7, "image_token_id": IMAGE,
}  # fmt: skip


def make(path: Path, **more: Any) -> Any:
    config = transformers.Phi4MultimodalConfig(
        **{
            **SMALL, "vocab_size": 288, "max_position_embeddings": 1024, "original_max_position_embeddings": 1024,
            "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": hearing.IDS["<|im_end|>"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
        vision_config=SEEN, audio_config={**HEARD, **more},
    )  # fmt: skip
    model = transformers.Phi4MultimodalForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 5)
    generator = torch.Generator().manual_seed(6)
    heard = model.model.embed_tokens_extend.audio_embed.encoder
    heard.encoder_embedding.global_mean.uniform_(4, 12, generator=generator)
    heard.encoder_embedding.global_invstd.uniform_(0.1, 0.4, generator=generator)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    seer().save_pretrained(path)
    hearing.write_tokenizer(path)
    return model


def seer() -> Any:
    made = pillow_processors.processor("phi4_multimodal", "Phi4MultimodalImageProcessor")
    return made(size={"height": SIDE, "width": SIDE}, patch_size=7, dynamic_hd=6)


def features(sound: np.ndarray) -> Any:
    """Of one clip. Clips that are padded for others have other vectors."""
    return transformers.Phi4MultimodalFeatureExtractor(feature_size=BINS)(sound, sampling_rate=16_000, return_tensors="pt")


@torch.no_grad()
def given(model: Any, ids: list[int], parts: tuple[Any, ...]) -> dict[str, Any]:
    """A prompt's embeddings, with each clip encoded separately, and its mask."""
    tokens = torch.tensor([ids])
    embeds, part = model.get_input_embeddings()(tokens), model.model.embed_tokens_extend
    images = [p for p in parts if not isinstance(p, str | np.ndarray)]
    sounds = [p for p in parts if isinstance(p, np.ndarray)]
    made = seer()(images=images, return_tensors="pt") if images else {}
    if images:
        embeds = part.image_embed(tokens, embeds, made["image_pixel_values"], made["image_sizes"], made["image_attention_mask"])
    vectors = []
    for sound in sounds:
        heard, own = features(sound), torch.tensor([[TOKEN]])
        count = int(heard["audio_embed_sizes"][0])
        vectors.append(part.audio_embed(
            own.expand(1, count), torch.zeros(1, count, embeds.shape[-1]), heard["audio_input_features"],
            heard["audio_embed_sizes"], None, "vision" if images else "speech",
        )[0])  # fmt: skip
    if vectors:
        embeds = embeds.masked_scatter((tokens == TOKEN).unsqueeze(-1).expand_as(embeds), torch.cat(vectors))
    return {"inputs_embeds": embeds, "attention_mask": torch.ones_like(tokens)}


KINDS: dict[str, dict[str, Any]] = {
    "transformers": {},
    "symmetric": {"bias_symmetric": True, "bias_max_distance": 501, "kernel_size": 5, "depthwise_multiplier": 2},
    "authors": {},
}


def publish(path: Path) -> None:
    """As the authors publish it."""
    file = path / "config.json"
    said = json.loads(file.read_text())
    heard = said.pop("audio_config")
    inner = {theirs: heard.pop(ours) for theirs, ours in (
        ("attention_dim", "hidden_size"), ("attention_heads", "num_attention_heads"), ("linear_units", "intermediate_size"),
        ("depthwise_seperable_out_channel", "depthwise_separable_out_channel"),
    )}  # fmt: skip
    inner["nemo_conv_settings"] = {"conv_channels": heard.pop("nemo_conv_channels")}
    inner["relative_attention_bias_args"] = {"type": "t5", "t5_bias_max_distance": heard.pop("bias_max_distance")}
    said["audio_processor"] = {"name": "cascades", "config": {**heard, **inner, "causal": True, "input_layer": "nemo_conv"}}
    said["embd_layer"] = said.pop("vision_config") | {"embedding_cls": "image_audio"}
    file.write_text(json.dumps({**said, "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}))
    (file,) = path.glob("*.safetensors")
    made = load_file(file)
    for ours, theirs in THEIRS:
        made = {name.replace(ours, theirs): tensor for name, tensor in made.items()}
    ours = ".audio_embed.encoder.encoders."
    for old, new in (*((f"{part}_proj", f"linear_{part}") for part in "qkv"), ("o_proj", "linear_out")):
        made = {name.replace(old, new) if ours in name else name: tensor for name, tensor in made.items()}
    save_file(made, file)


THEIRS = (
    ("img_projection_up", "img_projection.0"), ("img_projection_down", "img_projection.2"),
    ("global_img_feature_extensor", "glb_GN"), ("sub_img_feature_extensor", "sub_GN"),
    ("feed_forward_in.gate_up_proj", "feed_forward_in.net.0.linear"), ("feed_forward_in.down_proj", "feed_forward_in.net.2"),
    ("feed_forward_out.gate_up_proj", "feed_forward_out.net.0.linear"),
    ("feed_forward_out.down_proj", "feed_forward_out.net.2"),
    ("up_proj_for_speech", "audio_projection.speech.0"), ("down_proj_for_speech", "audio_projection.speech.2"),
    ("up_proj_for_vision_speech", "audio_projection.vision.0"), ("down_proj_for_vision_speech", "audio_projection.vision.2"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_answers_about_clips_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Distances beyond the table, several clips, images with clips, and a clip of two windows."""
    model = make(tmp_path, **KINDS[kind])
    if kind == "authors":
        publish(tmp_path)
    a, b, c, long = (hearing.sound(seconds, seed) for seed, seconds in enumerate((1.3, 0.96, 0.05, 41.0)))
    image = picture(60, 40, 1)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=768, max_num_batched_tokens=24,
              use_tqdm_on_load=False)  # fmt: skip
    try:
        chats: list[tuple[Any, ...]] = [
            (a, "what?"), ("hear ", b, " and ", c), ("hello",), ("see ", image, " and hear ", a), (image, "what?"), (long, "so")
        ]  # fmt: skip
        outs = llm.chat([asks(*parts) for parts in chats], GREEDY, use_tqdm=False)
        for parts, out in zip(chats, outs, strict=True):
            ids = list(out.prompt_token_ids)
            want = model.generate(**given(model, ids, parts), max_new_tokens=NEW, do_sample=False)
            assert list(out.outputs[0].token_ids) == want[0].tolist()
        for parts in (chats[1], chats[3], chats[5]):
            scored = llm.chat(asks(*parts), msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
            ids = list(scored.prompt_token_ids)
            with torch.no_grad():
                logits = model(**given(model, ids, parts)).logits[0, :-1].log_softmax(-1)
            mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
            np.testing.assert_allclose(mine, logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0], atol=1e-3)
        both = {"multi_modal_data": {"audio": [a, b], "image": image}}
        one, other = ("{}<|image_pad|>{} and {}", "{}<|image_1|>{} and {}")
        written = [one.format("so: ", "<|AUDIO|>", "<|AUDIO|>"), other.format("so: ", "<|audio_1|>", "<|audio_2|>")]
        made = llm.generate([{"prompt": text, **both} for text in written], GREEDY, use_tqdm=False)
        assert made[0].prompt_token_ids == made[1].prompt_token_ids
        with pytest.raises(RequestError, match="number placeholders from 1 on, each once and in order"):
            llm.generate({"prompt": other.format("", "<|audio_2|>", "<|audio_1|>"), **both}, GREEDY, use_tqdm=False)
        with pytest.raises(RequestError, match="needs at least"):
            llm.chat(asks(hearing.sound(0.02)), GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


def test_spectra_and_counts_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = load_audio_processor(read_config(tmp_path), tmp_path)
    for seed, seconds in enumerate((0.025, 0.5, 1.234)):
        sound = hearing.sound(seconds, seed)
        want = features(sound)
        made = ours.mel(sound)
        np.testing.assert_allclose(made.T, want["audio_input_features"][0], atol=1e-3)
        assert ours.count(ours.frames(sound.size)) == int(want["audio_embed_sizes"][0])


def test_absent_keys_of_audio_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    whole = transformers.Phi4MultimodalConfig()
    whole.architectures = ["Phi4MultimodalForCausalLM"]
    whole.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    found = []
    for config in (said, {**said, "audio_config": {}}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        made = load_audio_processor(read, tmp_path)
        assert made is not None
        found.append((registry.family(read)(read).audio, msgspec.structs.asdict(made)))
    assert found[0] == found[1]
