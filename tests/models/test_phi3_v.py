"""Phi-3.5-vision against the same network of transformers' parts, as transformers does not have the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import seeing
import torch
import transformers
from PIL import Image, ImageOps
from safetensors.torch import save_file
from seeing_parts import CLIP, IDS, TEXT
from test_images import GREEDY, asks, engine, picture, seen
from torch import nn
from zoo import spread

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.media.joined_patches import together
from thalweg.media.patches import PatchInputs, batch
from thalweg.media.processors import processor
from thalweg.models import registry

TOKEN = "<|image|>"
SIDE, PATCH, WIDE = 28, 7, 32
EYE = {**{k: v for k, v in CLIP.items() if k != "model_type"}, "image_size": SIDE, "patch_size": PATCH}
SIZES = ((60, 40), (33, 50), (90, 20), (29, 28), (28, 28), (200, 10), (31, 97), (3, 100))
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class Parts(nn.Module):
    """The features of a picture's squares -> vectors."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.img_processor = transformers.CLIPVisionModel._from_config(
            transformers.CLIPVisionConfig(**EYE), attn_implementation="eager"
        )
        self.sub_GN, self.glb_GN = (nn.Parameter(torch.zeros(*[1] * ones, 4 * WIDE)) for ones in (3, 2))
        self.img_projection = nn.Sequential(nn.Linear(4 * WIDE, out), nn.GELU(), nn.Linear(out, out))

    def forward(self, squares: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """squares: [1 + rows * columns, 3, SIDE, SIDE], the whole picture first."""
        found = self.img_processor(squares, output_hidden_states=True).hidden_states[-2][:, 1:]
        half = SIDE // PATCH // 2
        found = found.view(-1, half, 2, half, 2, WIDE).transpose(2, 3).reshape(-1, half, half, 4 * WIDE)
        tiles = found[1:].view(rows, columns, half, half, -1).transpose(1, 2).reshape(rows * half, columns * half, -1)
        lines = [torch.cat([each, self.sub_GN[0].expand(len(each), 1, -1)], 1).flatten(0, 1) for each in (tiles, found[0])]
        return self.img_projection(torch.cat([lines[0], self.glb_GN[0], lines[1]]))


class Phi3V(transformers.Phi3ForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.vision_embed_tokens = Parts(config.hidden_size)

    @torch.no_grad()
    def answers(self, ids: list[int], images: list[Any], most: int) -> torch.Tensor:
        x, shown = self.model.embed_tokens(torch.tensor([ids])), torch.tensor([ids]) == IDS[TOKEN]
        found = [self.model.vision_embed_tokens(*squares(image, most)) for image in images]
        if found:
            x = x.masked_scatter(shown.unsqueeze(-1), torch.cat(found))
        made: torch.Tensor = self(inputs_embeds=x).logits[0]
        return made


def squares(image: Any, most: int) -> tuple[torch.Tensor, int, int]:
    """As the authors' code makes them of a picture, with their rows and columns."""
    turned = image.width < image.height
    image = image.transpose(Image.Transpose.TRANSPOSE) if turned else image
    ratio, scale = image.width / image.height, 1
    while scale * math.ceil(scale / ratio) <= most:
        scale += 1
    width = (scale - 1) * SIDE
    image = image.resize((width, int(width / ratio)), Image.Resampling.BILINEAR)
    less = -image.height % SIDE
    image = ImageOps.expand(image, (0, less // 2, 0, less - less // 2), (255, 255, 255))
    image = image.transpose(Image.Transpose.TRANSPOSE) if turned else image
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    values = (values - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    whole = nn.functional.interpolate(values[None], (SIDE, SIDE), mode="bicubic")
    rows, columns = image.height // SIDE, image.width // SIDE
    tiles = values.view(3, rows, SIDE, columns, SIDE).permute(1, 3, 0, 2, 4).reshape(-1, 3, SIDE, SIDE)
    return torch.cat([whole, tiles]), rows, columns


def make(path: Path, most: int = 4) -> Phi3V:
    """A small model in its authors' format."""
    config = transformers.Phi3Config(**{**TEXT, "tie_word_embeddings": False}, sliding_window=None, attn_implementation="eager")
    model = Phi3V(config).to(torch.float32).eval()
    spread(model, 7)
    names = {k: k.replace("img_processor.", "img_processor.vision_model.") for k in model.state_dict()}
    save_file({names[k]: v.contiguous() for k, v in model.state_dict().items()}, path / "model.safetensors")
    said = {
        **config.to_dict(), "architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v", "image_token_id": IDS[TOKEN],
        "img_processor": {"image_dim_out": WIDE, "model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model",
                          "num_img_tokens": 144, **EYE},
        "embd_layer": {"embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
                       "use_hd_transform": True, "with_learnable_separator": True},
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(said))
    (path / "preprocessor_config.json").write_text(json.dumps({"num_crops": most, "image_mean": MEAN, "image_std": STD}))
    seeing.write_tokenizer(path, TOKEN)
    return model


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    make(tmp_path)
    found = processor(read_config(tmp_path), tmp_path)
    assert found is not None
    return found


def arrays(ours: Any, image: Any) -> PatchInputs:
    views, size = seen(image, ours)
    made: PatchInputs = ours.preprocess(views, size)
    assert made.mix is not None
    assert len(made.mix) == ours.count(size)
    return made


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_the_authors_steps(size: tuple[int, int], ours: Any) -> None:
    image = picture(*size)
    want, rows, columns = squares(image, ours.most)
    want = torch.cat([want[1:], want[:1]])
    patches = (
        want.view(-1, 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        .permute(0, 2, 4, 1, 3, 5)
        .reshape(len(want), -1, 3 * PATCH**2)
    )
    mine = arrays(ours, image).value.reshape(len(want), -1, 3 * PATCH**2)[:, 1:]
    np.testing.assert_allclose(mine, patches.numpy(), atol=2e-5)
    half = SIDE // PATCH // 2
    assert ours.count(size) == (rows * columns + 1) * half**2 + 1 + (rows + 1) * half


def test_images_of_a_batch_keep_their_learned_vectors(ours: Any) -> None:
    """Two of them are numbered behind all computed ones."""
    each = [arrays(ours, picture(*size)) for size in SIZES[:2]]
    made = together(each, 4)
    batch(made).check()
    count = len(made.keep) // 4
    assert made.mix is not None
    assert sorted(set(made.mix[:, 0].tolist())) == list(range(count + 2))


@pytest.mark.slow
def test_answers_are_those_of_the_same_network(tmp_path: Path) -> None:
    model, (a, b) = make(tmp_path), (picture(60, 40, 1), picture(33, 50, 2))
    llm = engine(tmp_path)
    try:
        chats = [([a], asks(a, f"what {TOKEN}?")), ([a, b], asks("see ", a, " and ", b)), ([], asks("hello"))]
        outs = llm.chat([chat for _, chat in chats], GREEDY, use_tqdm=False)
        for (images, _), out in zip(chats, outs, strict=True):
            ids = list(out.prompt_token_ids)
            for token_id in out.outputs[0].token_ids:
                assert int(model.answers(ids, images, 4)[-1].argmax()) == token_id
                ids.append(token_id)
        scored = llm.chat(chats[1][1], msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        ids = list(scored.prompt_token_ids)
        mine = [each[token_id].logprob for each, token_id in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        want = model.answers(ids, [a, b], 4)[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        np.testing.assert_allclose(mine, want.numpy(), atol=2e-4)
    finally:
        llm.shutdown()


def test_another_order_of_views_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    config = {**read_config(tmp_path), "embd_layer": {"hd_transform_order": "glb_sub"}}
    with pytest.raises(UnsupportedModelError, match="in the order sub_glb are supported"):
        registry.family(config)(config)
