"""Chameleon through the whole engine, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from test_images import SIZES, asks, engine, picture, seen
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media import patches
from thalweg.media.processors import processor
from thalweg.models import registry

NEW, SIDE, CODES = 8, 24, 20
VECTORS = (SIDE // 4) ** 2


def name_of(code: int) -> str:
    return f"IMGIMG{str(code).translate(str.maketrans('0123456789', 'ABCDEFGHIJ'))}Z"


NAMES = [name_of(code) for code in range(CODES)]
EXTRA = ("<racm3:break>", "<eoss>", *NAMES[7:], "between", *NAMES[:7])
"""Codes are not in the order of their tokens, which are not adjacent."""
IDS = seeing.IDS | {name: 256 + len(seeing.NAMES) + i for i, name in enumerate(EXTRA)}
VQ = {
    "embed_dim": 12, "num_embeddings": CODES, "latent_channels": 16, "resolution": SIDE, "base_channels": 32,
    "channel_multiplier": [1, 2, 2], "num_res_blocks": 2, "attn_resolutions": [12],
}  # fmt: skip
TEXT = {
    "vocab_size": 320, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocabulary_map": IDS,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)


def make(path: Path, **more: Any) -> Any:
    """Without bans its answers would be tokens of images."""
    config = transformers.ChameleonConfig(vq_config=VQ | more.pop("vq_config", {}), **TEXT | more)
    model = transformers.ChameleonForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 5)
    with torch.no_grad():
        model.lm_head.weight[[IDS[name] for name in NAMES]] *= 3
        vq = model.model.vqmodel
        for name, p in vq.named_parameters():  # values differ from place to place, and codes with them
            if p.dim() == 4:
                p.mul_(1 / p.std() / p[0].numel() ** 0.5)
            elif "norm" not in name and p.dim() == 1:
                p.zero_()
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "<image>", EXTRA)
    return model


def reader() -> Any:
    return transformers.ChameleonImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})


@torch.no_grad()
def greedy(model: Any, ids: list[int], images: list[Any]) -> tuple[list[int], np.ndarray]:
    more = {"pixel_values": reader()(images=images, return_tensors="pt")["pixel_values"]} if images else {}
    return seeing.generate_scored(model, NEW, len(ids), input_ids=torch.tensor([ids]), **more)


@torch.no_grad()
def prompt_scores(model: Any, ids: list[int], images: list[Any]) -> np.ndarray:
    """Log-probabilities of the tokens of a prompt, from the second."""
    pixels = reader()(images=images, return_tensors="pt")["pixel_values"]
    logits = model(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0, :-1].log_softmax(-1)
    found: np.ndarray = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    return found


@torch.no_grad()
def codes(model: Any, image: Any) -> list[int]:
    found: list[int] = model.get_image_tokens(reader()(images=[image], return_tensors="pt")["pixel_values"])[0].tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"swin_norm": True, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"vq_config": {"attn_type": "none", "num_res_blocks": 1}, "num_key_value_heads": 4},
    ],
)
def test_answers_are_those_of_transformers(more: dict[str, Any], tmp_path: Path) -> None:
    """Of several images, between texts, and again with known images. Chunks cut images. Scores of a prompt too."""
    model = make(tmp_path, **more)
    a, b, c, _ = (picture(*size, seed) for seed, size in enumerate(SIZES))
    assert len(set(codes(model, a))) > 3
    assert codes(model, a) != codes(model, b)
    chats = [
        ([a], asks(a, "what?")), ([b], asks(b, "what?")), ([a, b], asks("see ", a, " and ", b)), ([], asks("hello")),
        ([c], asks(c, "so")),
    ]  # fmt: skip
    llm = engine(tmp_path, max_num_seqs=4)
    try:
        for _ in range(2):
            firsts: list[float] = []
            outs = llm.chat([chat for _, chat in chats], GREEDY, use_tqdm=False)
            for (images, _), out in zip(chats, outs, strict=True):
                ids = list(out.prompt_token_ids)
                shown = [IDS["<racm3:break>"], *[IDS["<image>"]] * VECTORS, IDS["<eoss>"]]
                assert [i for i in ids if i in shown] == shown * len(images)
                tokens, scores = greedy(model, ids, images)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
                firsts.append(mine[0])
            assert abs(firsts[0] - firsts[1]) > 0.005  # images matter
        scored = llm.chat(chats[2][1], msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        ids = list(scored.prompt_token_ids)
        mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        np.testing.assert_allclose(mine, prompt_scores(model, ids, [a, b]), atol=1e-3)
        assert not {IDS[name] for name in NAMES} & {t for out in outs for t in out.outputs[0].token_ids}
        sampled = llm.generate("hello", msgspec.structs.replace(GREEDY, temperature=1.0, seed=3, max_tokens=30), use_tqdm=False)
        assert not {IDS[name] for name in NAMES} & set(sampled[0].outputs[0].token_ids)
    finally:
        llm.shutdown()


@torch.no_grad()
def test_tokens_of_images_would_be_answers(tmp_path: Path) -> None:
    """The largest logit without the bans is that of an image's token."""
    model = make(tmp_path)
    hidden = model.model(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0, -1]
    assert int(model.lm_head(hidden).argmax()) in {IDS[name] for name in NAMES}
    spec: Any = registry.family(read_config(tmp_path))(read_config(tmp_path))
    assert spec.banned_tokens == tuple(sorted(IDS[name] for name in NAMES))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"tensor_parallel_size": 2}, {"device": "thalweg.backends.torch_gpu.testing:HostGpuPlatform"}, {"device": "reference"}],
)
def test_ranks_and_other_devices_give_the_same_answers(more: dict[str, Any], tmp_path: Path) -> None:
    """With other biases of heads on each rank."""
    model = make(tmp_path)
    a, b = (picture(*size, seed) for seed, size in enumerate(SIZES[:2]))
    llm = engine(tmp_path, **more)
    try:
        for images, out in zip(([a, b], []), llm.chat([asks(a, " or ", b), asks("so")], GREEDY, use_tqdm=False), strict=True):
            assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), images)[0]
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_the_text_part_alone_reads_no_image(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, language_model_only=True)
    try:
        out = llm.generate("hello", GREEDY, use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), [])[0]
    finally:
        llm.shutdown()


def test_pixels_and_text_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    whole = transformers.ChameleonProcessor.__new__(transformers.ChameleonProcessor)
    whole.image_seq_length, whole.image_token = VECTORS, "<image>"
    whole.image_start_token, whole.image_end_token = "<racm3:break>", "<eoss>"
    for seed, size in enumerate((*SIZES, (500, 300), (7, 40), (1, 1))):
        image = picture(*size, seed)
        views, found = seen(image, ours)
        pixels = np.asarray(reader()(images=[image], return_tensors="np")["pixel_values"])
        np.testing.assert_allclose(ours.preprocess(views, found).value, seeing.cut_patches(pixels, 4), atol=2e-6)
        patches.batch(ours.preprocess(views, found)).check()
        assert ours.text(found, "<image>") == whole.replace_image_token({}, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_center_crop": False}, "do_center_crop: false requires a size"),
        ({"crop_size": {"height": 24, "width": 28}}, "requires squares of 24 pixels"),
        ({"crop_size": 32}, "requires squares of 24 pixels"),
    ],
)
def test_images_of_other_sizes_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {"architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon", **TEXT, "vq_config": VQ}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(reader().to_dict() | change, default=str))
    with pytest.raises(UnsupportedModelError, match=message):
        processor(read_config(tmp_path), tmp_path)


def test_absent_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    names = {
        "<image>": 9000,
        **{f"IMGIMG{str(i).translate(str.maketrans('0123456789', 'ABCDEFGHIJ'))}Z": i for i in range(8192)},
    }
    whole = transformers.ChameleonConfig(vocabulary_map=names)
    whole.architectures = ["ChameleonForConditionalGeneration"]
    whole.save_pretrained(tmp_path)
    transformers.ChameleonImageProcessorPil().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    said = json.loads((tmp_path / "config.json").read_text())
    least = {"architectures": whole.architectures, "model_type": "chameleon", "vq_config": {}, "vocabulary_map": names}
    found = []
    for config, options in ((said, settings), (least, {})):
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(options))
        read = read_config(tmp_path)
        found.append((registry.family(read)(read), processor(read, tmp_path)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"vocabulary_map": None}, CheckpointError, "vocabulary_map: must map"),
        ({"vocabulary_map": {**IDS, "IMGIMGxZ": 3}}, CheckpointError, "is not the token of a code"),
        ({"vocabulary_map": {k: v for k, v in IDS.items() if k != NAMES[4]}}, CheckpointError, "has no token of code 4"),
        ({"vq_config": {**VQ, "double_latent": True}}, UnsupportedModelError, "only double_latent false"),
        ({"vq_config": {**VQ, "base_channels": 33}}, CheckpointError, "base_channels: must be a multiple of 32"),
        ({"vq_config": {**VQ, "channel_multiplier": 3}}, CheckpointError, "channel_multiplier: 3 is not 1 to 8 numbers"),
        ({"vq_config": {**VQ, "attn_resolutions": 3}}, CheckpointError, "attn_resolutions: must be a list"),
    ],
)
def test_files_of_other_encoders_are_refused(change: dict[str, Any], error: Any, message: str, tmp_path: Path) -> None:
    said = {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        **TEXT,
        "vq_config": VQ,
        **change,
    }
    (tmp_path / "config.json").write_text(json.dumps(said | change))
    with pytest.raises(error, match=message):
        registry.family(read_config(tmp_path))(read_config(tmp_path))
