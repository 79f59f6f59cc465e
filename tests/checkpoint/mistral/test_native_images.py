"""Models that see as Mistral publishes them: names of tensors, orders of rows, and where placeholders lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_model import PARAMS, log_probabilities, make, save

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

from thalweg import LLM, SamplingParams  # noqa: E402
from thalweg.checkpoint.config import read_config  # noqa: E402
from thalweg.errors import CheckpointError, UnsupportedModelError  # noqa: E402
from thalweg.media.processors import Pixtral, processor  # noqa: E402
from thalweg.models.registry import family  # noqa: E402

IMG, BREAK, END = 10, 12, 13
SEES: dict[str, Any] = {
    "hidden_size": 32, "num_channels": 3, "image_size": 28, "patch_size": 7, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "rope_theta": 10_000.0, "image_token_id": IMG, "image_break_token_id": BREAK,
    "image_end_token_id": END, "adapter_bias": True,
}  # fmt: skip
MERGES = {
    "mm_projector_id": "patch_merge", "spatial_merge_size": 2, "add_pre_mm_projector_layer_norm": True, "adapter_bias": False,
    "max_image_size": 56,
}  # fmt: skip
LAID = [
    (16, 1024, 1, 1, 1, 1, 1), (16, 1024, 1, 17, 33, 2, 3), (16, 1024, 1, 300, 200, 19, 13), (16, 1024, 1, 1024, 1024, 64, 64),
    (16, 1024, 1, 1500, 1000, 64, 43), (16, 1024, 1, 57, 1999, 2, 64), (16, 1024, 1, 3000, 15, 64, 1),
    (14, 1540, 2, 17, 33, 1, 2), (14, 1540, 2, 300, 200, 11, 8), (14, 1540, 2, 1500, 1000, 54, 36),
    (14, 1540, 2, 57, 1999, 2, 55), (14, 56, 2, 1500, 1000, 2, 2), (14, 56, 2, 57, 1999, 1, 2), (14, 56, 2, 3000, 15, 2, 1),
]  # fmt: skip
"""Patch, longest edge, merge, width, height: placeholders of a row, and rows, as the image encoder of mistral-common 1.13 gives
them. A break is behind each row, and the end behind the last."""


def weights_of(s: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Of the encoder, by Mistral's names."""
    g, d, f, p = torch.Generator().manual_seed(9), s["hidden_size"], s["intermediate_size"], s["patch_size"]
    shapes: dict[str, tuple[int, ...]] = {"vision_encoder.patch_conv": (d, 3, p, p), "vision_encoder.ln_pre": (d,)}
    for i in range(s["num_hidden_layers"]):
        at = f"vision_encoder.transformer.layers.{i}."
        shapes |= {f"{at}attention_norm": (d,), f"{at}ffn_norm": (d,), f"{at}feed_forward.w2": (d, f)}
        shapes |= {f"{at}attention.w{n}": (d, d) for n in "qkvo"} | {f"{at}feed_forward.w{n}": (f, d) for n in "13"}
    if s.get("mm_projector_id"):
        group = s["spatial_merge_size"] ** 2
        shapes |= {"patch_merger.merging_layer": (d, d * group), "pre_mm_projector_norm": (d,)}
    shapes |= {"vision_language_adapter.w_in": (PARAMS["dim"], d), "vision_language_adapter.w_out": (PARAMS["dim"],) * 2}
    made = {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        made[f"{name}.weight"] = 1 + 0.2 * drawn if len(shape) == 1 else drawn * 1.2 / drawn[0].numel() ** 0.5
    for name in ("w_in", "w_out") if s["adapter_bias"] else ():
        made[f"vision_language_adapter.{name}.bias"] = torch.empty(PARAMS["dim"]).normal_(0, 0.3, generator=g)
    return made


def vectors(w: dict[str, torch.Tensor], s: dict[str, Any], pixels: np.ndarray) -> torch.Tensor:
    """What the encoder gives of u8[height, width, 3], by the definition of mistral-inference."""
    mean, std = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
    x = (torch.tensor(pixels) / 255 - mean) / std
    grid = torch.nn.functional.conv2d(x.permute(2, 0, 1)[None], w["vision_encoder.patch_conv.weight"], stride=s["patch_size"])[
        0
    ]
    (d, rows, columns), heads = grid.shape, s["num_attention_heads"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[f"{name}.weight"]

    freqs = 1.0 / s["rope_theta"] ** (torch.arange(0, d // heads, 2).float() / (d // heads))
    down, across = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
    angle = torch.cat([down.reshape(-1, 1) * freqs[0::2], across.reshape(-1, 1) * freqs[1::2]], -1)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    h = norm(grid.flatten(1).T, "vision_encoder.ln_pre")
    for i in range(s["num_hidden_layers"]):
        at = f"vision_encoder.transformer.layers.{i}."
        y = norm(h, f"{at}attention_norm")
        q, k, v = ((y @ w[f"{at}attention.w{n}.weight"].T).view(len(y), heads, -1) for n in "qkv")
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(2) for t in (q, k)
        )
        shares = (torch.einsum("qhd,khd->hqk", q, k) / (d // heads) ** 0.5).softmax(-1)
        h = h + torch.einsum("hqk,khd->qhd", shares, v).flatten(1) @ w[f"{at}attention.wo.weight"].T
        y = norm(h, f"{at}ffn_norm")
        gate, up = y @ w[f"{at}feed_forward.w1.weight"].T, y @ w[f"{at}feed_forward.w3.weight"].T
        h = h + (torch.nn.functional.silu(gate) * up) @ w[f"{at}feed_forward.w2.weight"].T
    if s.get("mm_projector_id"):
        n = s["spatial_merge_size"]
        tiles = norm(h, "pre_mm_projector_norm").T.reshape(1, d, rows, columns)
        h = torch.nn.functional.unfold(tiles, n, stride=n)[0].T @ w["patch_merger.merging_layer.weight"].T
    for name in ("w_in", "w_out"):
        at = f"vision_language_adapter.{name}"
        h = h @ w[f"{at}.weight"].T + w.get(f"{at}.bias", torch.zeros(()))
        h = torch.nn.functional.gelu(h) if name == "w_in" else h
    return h


@pytest.mark.slow  # an engine each
@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, MERGES], ids=["pixtral", "merging"])
def test_images_are_seen_as_the_definition_says(changes: dict[str, Any], tmp_path: Path) -> None:
    sees = SEES | changes
    weights = make(tmp_path, vision_encoder=sees)
    seen = weights_of(sees)
    save(tmp_path, weights | seen)
    image = Image.fromarray(np.random.default_rng(3).integers(0, 255, (21, 40, 3)).astype(np.uint8))
    llm = LLM(str(tmp_path), device="reference", dtype="float32", max_model_len=96, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=0, detokenize=False)
    (out,) = llm.generate({"prompt": "see [IMG] what", "multi_modal_data": {"image": image}}, params, use_tqdm=False)
    llm.shutdown()
    ids, new = list(out.prompt_token_ids), list(out.outputs[0].token_ids)
    size = (42, 28) if changes else (28, 21)
    rows = [*[IMG] * (size[0] // (14 if changes else 7)), BREAK] * (size[1] // (14 if changes else 7))
    at = ids.index(IMG)
    assert ids[at : at + len(rows)] == [*rows[:-1], END]
    laid = vectors(seen, sees, np.asarray(image.resize(size, Image.Resampling.BICUBIC)))
    want = log_probabilities(weights, ids + new[:-1], laid=(IMG, laid))
    assert want[len(ids) - 1 :].argmax(-1).tolist() == new
    mine = [each[token].logprob for each, token in zip(out.prompt_logprobs[1:], ids[1:], strict=True)]
    np.testing.assert_allclose(mine, want[np.arange(len(ids) - 1), ids[1:]], atol=1e-3)


@pytest.mark.parametrize("row", LAID, ids=str)
def test_placeholders_lie_as_mistral_common_has_them(row: tuple[int, ...], tmp_path: Path) -> None:
    patch, longest, merge, width, height, columns, rows = row
    changes = {**(MERGES if merge > 1 else {}), "patch_size": patch, "image_size": longest, "max_image_size": longest}
    make(tmp_path, tokenizer="", vision_encoder=SEES | changes)
    p = processor(read_config(tmp_path / "params.json"), tmp_path / "params.json")
    assert isinstance(p, Pixtral)
    assert p.text((width, height), "#") == "[IMG_BREAK]".join(["#" * columns] * rows) + "[IMG_END]"


@pytest.mark.parametrize(
    ("said", "error", "word"),
    [
        ({"mm_projector_id": "other"}, UnsupportedModelError, "mm_projector_id"),
        (SEES | {"add_pre_mm_projector_layer_norm": True}, UnsupportedModelError, "mm_projector_id"),
        (SEES | {"image_token_id": "ten"}, CheckpointError, "image_token_id"),
        (SEES | {"adapters": 3}, UnsupportedModelError, "adapters"),
        ([1], CheckpointError, "vision_encoder"),
    ],
)
def test_what_is_said_of_encoders_is_checked(said: Any, error: type[Exception], word: str, tmp_path: Path) -> None:
    make(tmp_path, tokenizer="", vision_encoder=said)

    def read() -> None:
        config = read_config(tmp_path / "params.json")
        family(config)(config)
        processor(config, tmp_path / "params.json")

    with pytest.raises(error, match=word):
        read()
