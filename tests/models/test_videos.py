"""Videos through the whole engine: frames, pixels, text, tokens and log-probabilities are those of transformers."""

from __future__ import annotations

import base64
import functools
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.smolvlm import processing_smolvlm

Image = pytest.importorskip("PIL.Image", reason="videos need Pillow: pip install 'thalweg[video]'")

import pillow_videos  # noqa: E402
import seeing  # noqa: E402

from thalweg import LLM, SamplingParams  # noqa: E402
from thalweg.checkpoint.config import read_config  # noqa: E402
from thalweg.errors import RequestError  # noqa: E402
from thalweg.media.decoders.video_process import choose_views  # noqa: E402
from thalweg.media.kinds.base import MediaSettings, MediaSource  # noqa: E402
from thalweg.media.kinds.video import VideoReader  # noqa: E402
from thalweg.media.patches import merge_order  # noqa: E402
from thalweg.media.videos import AnyVideo, VideoFacts, load_video_processor  # noqa: E402
from thalweg.media.videos.stills import spell  # noqa: E402
from thalweg.models import registry  # noqa: E402

NEW, FPS = 6, 4.0
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, prompt_logprobs=0)
ELSE = "{% elif p.type == 'video' %}MARKER{% else %}"
PAIRS = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
SQUARE = {"size": {"height": 28, "width": 28}}


@dataclass(frozen=True)
class Watching:
    """module, name: transformers' video processor, made with `settings`. asked: how many frames. marker: in templates. writer:
    transformers' class that writes placeholders, and what it holds."""

    module: str
    name: str
    settings: dict[str, Any]
    marker: str
    writer: str
    asked: dict[str, Any] = field(default_factory=dict)
    holds: dict[str, Any] = field(default_factory=dict)


PAD = "<|vision_start|><|video_pad|><|vision_end|>"
CASES = {
    "qwen2-vl": Watching(
        "qwen2_vl", "Qwen2VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 4096}}, PAD,
        "Qwen2VLProcessor", {"fps": 2.0},
    ),
    "qwen2.5-vl": Watching(
        "qwen2_vl", "Qwen2VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 1024}, "fps": 2.0}, PAD,
        "Qwen2_5_VLProcessor",
    ),
    "qwen3-vl": Watching(
        "qwen3_vl", "Qwen3VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}}, PAD,
        "Qwen3VLProcessor", {"num_frames": 5}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "qwen3.5": Watching(
        "qwen3_vl", "Qwen3VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 20_000, "longest_edge": 40_000}}, PAD,
        "Qwen3VLProcessor", {}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "qwen4-exp": Watching(
        "qwen3_vl", "Qwen3VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}}, PAD,
        "Qwen3VLProcessor", {}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "cohere-compass": Watching(
        "cohere_compass", "CohereCompassVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}},
        "<|VISION_START|><|VIDEO_PAD|><|VISION_END|>", "CohereCompassProcessor", {"num_frames": 4},
        {"vision_start_token": "<|VISION_START|>", "vision_end_token": "<|VISION_END|>"},
    ),
    "cosmos3": Watching(
        "qwen3_vl", "Qwen3VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}}, PAD,
        "Qwen3VLProcessor", {"num_frames": 3}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "cosmos3-edge": Watching(
        "cosmos3_edge", "Cosmos3EdgeVideoProcessor",
        {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 4096}}, PAD, "Cosmos3EdgeProcessor",
        {}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "lfm3-vl": Watching(
        "qwen3_vl", "Qwen3VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}}, PAD,
        "Lfm3VlProcessor", {}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "glm4v": Watching(
        "glm4v", "Glm4vVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}}, "<|video|>",
        "Glm4vProcessor", {}, {"image_token": "<|image_pad|>"},
    ),
    "glm4v-moe": Watching(
        "glm46v", "Glm46VVideoProcessor",
        {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 4096}, "video_processor_type": "Glm46VVideoProcessor"},
        "<|video|>", "Glm46VProcessor", {}, {"image_token": "<|image_pad|>"},
    ),
    "glm4.6v": Watching(
        "glm46v", "Glm46VVideoProcessor",
        {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 4096}, "video_processor_type": "Glm46VVideoProcessor"},
        "<|video|>", "Glm46VProcessor", {}, {"image_token": "<|image_pad|>"},
    ),
    "internvl": Watching(
        "internvl", "InternVLVideoProcessor", SQUARE, "<video>", "InternVLProcessor", {"num_frames": 5},
        {"start_image_token": "<img>", "end_image_token": "</img>", "image_token": "<IMG_CONTEXT>", "image_seq_length": 4},
    ),
    "llava-onevision": Watching(
        "llava_onevision", "LlavaOnevisionVideoProcessor", SQUARE, "<video>", "LlavaOnevisionProcessor", {"num_frames": 3},
        {"num_image_tokens": 16},
    ),
    "smolvlm": Watching(
        "smolvlm", "SmolVLMVideoProcessor",
        {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28},
         "video_sampling": {"fps": 1, "max_frames": 4, "video_size": {"longest_edge": 56}}},
        "<video>", "SmolVLMProcessor", {},
        {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>", "image_token": "<image>",
         "image_seq_len": 1},
    ),
    "nemotron-omni": Watching(
        "nemotron_h_omni", "NemotronH_Omni_Reasoning_V3VideoProcessor",
        {"patch_size": 4, "video_target_num_patches": 60, "norm_mean": [0.4] * 3, "norm_std": [0.6] * 3}, "<video>",
        "NemotronH_Omni_Reasoning_V3Processor", {"num_frames": 3},
        {"image_start_token": "<img>", "image_end_token": "</img>", "image_token": "<image>", "video_temporal_patch_dim": 2},
    ),
    "perception-lm": Watching(
        "perception_lm", "PerceptionLMVideoProcessor", SQUARE, "<|video|>", "PerceptionLMProcessor", {"num_frames": 3},
        {"patch_size": 7, "pooling_ratio": 2},
    ),
    "interns2-preview": Watching(
        "qwen3_vl", "Qwen3VLVideoProcessor", {**PAIRS, "size": {"shortest_edge": 256, "longest_edge": 8192}}, PAD,
        "Qwen3VLProcessor", {}, {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    ),
    "gemma4": Watching(
        "gemma4", "Gemma4VideoProcessor", {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}, "<|video|>",
        "Gemma4Processor", {"num_frames": 3}, {"boi_token": "<|image>", "eoi_token": "<image|>"},
    ),
    "gemma4-together": Watching(
        "gemma4", "Gemma4VideoProcessor", {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}, "<|video|>",
        "Gemma4Processor", {"num_frames": 2}, {"boi_token": "<|image>", "eoi_token": "<image|>"},
    ),
}  # fmt: skip


RECURRENT = ("interns2-preview", "lfm3-vl", "nemotron-omni", "qwen3.5", "qwen4-exp")


def scene(count: int, width: int, height: int, seed: int = 0) -> np.ndarray:
    """u8[frames, height, width, 3]: smooth colours that move."""
    rng = np.random.default_rng(seed)
    noise = [Image.fromarray(rng.integers(0, 255, (4, 5, 3)).astype(np.uint8)).resize((width, height)) for _ in range(count)]
    return np.stack([np.asarray(each) for each in noise])


def processors(name: str, path: Path) -> tuple[AnyVideo, Any]:
    """Ours from the files in the folder, which are written there, and transformers'."""
    case = CASES[name]
    seeing.settings(name, path)
    (path / "video_preprocessor_config.json").write_text(json.dumps(case.settings))
    ours = load_video_processor(read_config(path), path)
    assert ours is not None
    theirs = pillow_videos.load(case.module, case.name)(**case.settings)
    if sampling := case.settings.get("video_sampling"):
        theirs.num_frames, theirs.fps = sampling["max_frames"], sampling["fps"]
    return ours, theirs


def written(name: str, metadata: Any, made: dict[str, Any], reads: Any) -> str:
    """The text of transformers' processor."""
    case = CASES[name]
    kind = getattr(transformers, case.writer)
    whole = kind.__new__(kind)
    for key, value in {"video_processor": reads, "video_token": "<|video_pad|>", **case.holds}.items():
        setattr(whole, key, value)
    processing_smolvlm.num2words = spell  # a package that is not installed
    made = {**made, "video_metadata": [metadata]}
    if "video_grid_thw" in made:
        made["video_grid_thw"] = made["video_grid_thw"].numpy()
    more = {"num_frames": len(metadata.frames_indices), "video_metadata": metadata} if "num_tokens" in made else {}
    return str(whole.replace_video_token(made, 0, **more))


LENGTHS = ((12, 60, 40, 4.0), (3, 33, 50, 25.0), (200, 20, 90, 7.5), (90, 64, 64, 1.0), (2000, 40, 40, 0.4), (2, 30, 29, 30.0))


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.sampled(3)
def test_frames_and_their_text_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of short, long, slow and odd videos. Pixels too, of the first."""
    ours, theirs = processors(name, tmp_path)
    ours = ours.with_rate(CASES[name].asked)
    for n, (total, width, height, fps) in enumerate(LENGTHS):
        film = np.broadcast_to(scene(1, width, height), (total, height, width, 3)) if n else scene(total, width, height)
        asked = {k: min(v, total) if k == "num_frames" else v for k, v in CASES[name].asked.items()}
        if total < {"qwen2-vl": 4, "qwen2.5-vl": 4, "glm4v-moe": 4, "glm4.6v": 4}.get(name, 0):
            continue  # theirs refuses these
        metadata, made = theirs.read(film, fps, **asked)
        facts = VideoFacts(total, fps, width, height)
        chosen, views = choose_views(ours, facts)
        assert chosen == metadata.frames_indices.tolist()
        facts = VideoFacts(total, fps, width, height, tuple(chosen))
        text = written(name, metadata, made, theirs)
        assert ours.write_text(facts, lambda token: seeing.NAMES[token - 256]) == text
        if n == 0:
            frames = [Image.fromarray(film[i]) for i in chosen]
            for size in views[0].sizes:
                frames = [each.resize(size, Image.Resampling(ours.frames.resample)) for each in frames]
            shown = [np.asarray(each) for each in frames] + [np.asarray(frames[-1])] * (-len(frames) % ours.group)
            groups = [tuple(shown[i : i + ours.group]) for i in range(0, len(shown), ours.group)]
            rows = [ours.preprocess(*each) for each in zip(groups, ours.facts(facts), strict=True)]
            mine = np.concatenate([r.value[r.keep] if ours.group == 2 or name == "cosmos3-edge" else r.value for r in rows])
            np.testing.assert_allclose(mine, patches_of(name, made), atol=1e-5)


def patches_of(name: str, made: dict[str, Any]) -> np.ndarray:
    """Patches of transformers' frames, in our order."""
    if "video_grid_thw" in made:
        return made["pixel_values_videos"].numpy()
    if "num_tokens" in made:  # pairs of frames
        frames = made["pixel_values_videos"].numpy()
        frames = np.concatenate([frames, frames[-1:]])[: len(frames) // 2 * 2 + len(frames) % 2 * 2]
        rows, columns = (edge // 4 for edge in frames.shape[2:])
        cut = frames.reshape(len(frames) // 2, 6, rows, 4, columns, 4).transpose(0, 2, 4, 1, 3, 5)
        ordered = cut.reshape(len(cut), rows * columns, -1)[:, merge_order(rows, columns, 2)]
        return ordered.reshape(-1, ordered.shape[-1])
    if "video_position_ids" in made:
        there = (made["video_position_ids"] >= 0).all(-1)
        return 2 * (made["pixel_values_videos"][there].numpy() - 0.5)
    frames = made.get("pixel_values_videos", made.get("pixel_values"))[0].numpy()
    cut = frames.reshape(len(frames), 3, 4, 7, 4, 7).transpose(0, 2, 4, 1, 3, 5).reshape(len(frames), 16, -1)
    if name in ("internvl", "perception-lm"):
        cut = np.concatenate([np.zeros_like(cut[:, :1]), cut], 1)
    return cut.reshape(-1, cut.shape[-1])


def test_omni_models_embed_pairs_of_frames_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    seeing.settings("nemotron-omni", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    found = []
    for frames in (2, None, 3):
        config["vision_config"]["video_temporal_patch_size"] = frames
        if frames is None:
            del config["vision_config"]["video_temporal_patch_size"]
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        videos = load_video_processor(read, tmp_path)
        assert videos is not None
        found.append((videos.group, registry.family(read)(read).vision.video[1]))  # type: ignore[union-attr]
    assert found == [(2, 96), (2, 96), (3, 144)]


def test_numbers_in_words() -> None:
    assert [spell(n) for n in (0, 7, 13, 20, 64, 100, 121, 768)] == [
        "zero", "seven", "thirteen", "twenty", "sixty-four", "one hundred", "one hundred and twenty-one",
        "seven hundred and sixty-eight",
    ]  # fmt: skip


# ------------------------------------------------------------ the engine


def encode(film: np.ndarray, kind: str = "mp4", fps: int = int(FPS)) -> bytes:
    av = pytest.importorskip("av", reason="videos need PyAV: pip install 'thalweg[video]'")
    codec, pixels = {"mp4": ("libx264", "yuv420p"), "webm": ("libvpx-vp9", "yuv420p"), "gif": ("gif", "rgb8")}[kind]
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = film.shape[2], film.shape[1], pixels
        for each in film:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(each, format="rgb24").reformat(format=pixels)))
        container.mux(stream.encode())
    return out.getvalue()


def decode(data: bytes) -> np.ndarray:
    import av

    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def part(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + base64.b64encode(data).decode()}}


def list_vectors(method: Any, *args: Any, **more: Any) -> Any:
    """The output of `get_video_features`, with a tensor for each group of frames."""
    made = method(*args, **more)
    made.pooler_output = list(made.pooler_output)
    return made


def model_of(name: str, path: Path) -> tuple[Any, Any]:
    """The model of transformers, saved, and its video processor."""
    model = seeing.make(name, path)
    if name == "nemotron-omni":  # transformers concatenates a tensor as if it were a list of tensors
        for part in (each for each in model.modules() if hasattr(each, "get_video_features")):
            part.get_video_features = functools.partial(list_vectors, part.get_video_features)
    reads = processors(name, path)[1]
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    added = ELSE.replace("MARKER", CASES[name].marker)
    tokenizer["chat_template"] = tokenizer["chat_template"].replace("{% else %}", added, 1)
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return model, reads


def engine(name: str, path: Path, **more: Any) -> LLM:
    return LLM(
        str(path), dtype="float32", device="cpu", max_model_len=512, max_num_seqs=3, block_size=16, use_tqdm_on_load=False,
        **{"max_num_batched_tokens": 80 if name == "gemma4-together" else 48, "num_gpu_blocks_override": 96,
           "media_io_kwargs": {"video": CASES[name].asked} if CASES[name].asked else None}
        | ({"mamba_block_size": 32, "num_gpu_blocks_override": 200} if name in RECURRENT else {}) | more,
    )  # fmt: skip


class Oracle:
    """transformers' model on videos, without its cache, and with the positions of the authors' code in Qwen2-VL and 2.5."""

    def __init__(self, name: str, model: Any, reads: Any, film: np.ndarray, fps: float) -> None:
        self.name, self.model, self.reads, self.film, self.fps = name, model, reads, film, fps

    def given(self, ids: list[int], images: list[Any]) -> dict[str, Any]:
        name = self.name
        out = seeing.given(name, ids, images)
        metadata, made = self.reads.read(self.film, self.fps, **CASES[name].asked)
        made = {k: v for k, v in made.items() if k not in ("num_soft_tokens_per_video", "num_patches", "num_tokens")}
        if name == "internvl":
            frames = made.pop("pixel_values_videos")[0]
            out["pixel_values"] = torch.cat([*([out["pixel_values"]] if images else []), frames])
        out |= {k: v if isinstance(v, torch.Tensor) else torch.tensor(v) for k, v in made.items()}
        tokens = out["input_ids"]
        shown = seeing.IDS["<|image_pad|>" if "glm" in name else "<|video_pad|>"]
        types = 2 * (tokens == shown).int()
        if "glm" not in name:
            types += (tokens == seeing.IDS[seeing.FAMILIES[name].token]).int()
        if name not in seeing.ONE_AXIS and ("video_grid_thw" in out or "video_position_ids" in out):
            out["mm_token_type_ids"] = types
        if name in ("qwen2-vl", "qwen2.5-vl"):
            seconds = 2 / metadata.sampled_fps * 4 if name == "qwen2.5-vl" else 1
            out["position_ids"] = positions(types[0].tolist(), out, seconds)
        return out

    @torch.no_grad()
    def logits(self, ids: list[int], images: list[Any]) -> torch.Tensor:
        found: torch.Tensor = self.model(**self.given(ids, images), use_cache=False).logits[0].log_softmax(-1)
        return found

    def check(self, out: Any, images: list[Any]) -> None:
        prompt, tokens = list(out.prompt_token_ids), list(out.outputs[0].token_ids)
        want = self.logits(prompt + tokens, images)
        assert want[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
        mine = [each[token].logprob for each, token in zip(out.prompt_logprobs[1:], prompt[1:], strict=True)]
        scores = want[: len(prompt) - 1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        np.testing.assert_allclose(mine, scores.numpy(), atol=5e-4)


def positions(types: list[int], given: dict[str, Any], seconds: float) -> torch.Tensor:
    """i64[3, 1, tokens]: time, rows and columns. A picture or a video begins behind everything before it, along all axes."""
    grids = {1: given.get("image_grid_thw"), 2: given.get("video_grid_thw")}
    found, at, last = [], 0, 0
    seen = {1: 0, 2: 0}
    while at < len(types):
        if types[at] == 0:
            found.append((last, last, last))
            at, last = at + 1, last + 1
            continue
        times, rows, columns = grids[types[at]][seen[types[at]]].tolist()
        seen[types[at]] += 1
        own = [
            (last + int(np.float32(t) * np.float32(seconds)), last + y, last + x)
            for t in range(times) for y in range(rows // 2) for x in range(columns // 2)
        ]  # fmt: skip
        found += own
        at, last = at + len(own), max(map(max, own)) + 1
    return torch.tensor(found).T[:, None]


@pytest.mark.slow
@pytest.mark.sampled(1, 12)
@pytest.mark.parametrize("name", list(CASES))
def test_answers_about_videos_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Chunks cut videos, images stand before and behind them, and a second request hits the prefix cache."""
    data = encode(scene(12, 60, 40, 3))
    oracle = Oracle(name, *model_of(name, tmp_path), decode(data), FPS)
    image = Image.fromarray(scene(1, 30, 40, 5)[0])
    still, text = {"type": "image_pil", "image_pil": image}, {"type": "text", "text": "?"}
    chats: list[tuple[list[Any], list[Any]]] = [([], [part(data), text]), ([image], [text, part(data), still])]
    if name in ("nemotron-omni", "smolvlm", "glm4v", "glm4v-moe", "glm4.6v", "internvl"):
        chats = chats[:1]  # images and videos share a token, and theirs mixes them up
    llm = engine(name, tmp_path)
    try:
        asked = [[{"role": "user", "content": content}] for _, content in chats]
        for (images, _), out in zip(chats, llm.chat(asked, GREEDY, use_tqdm=False), strict=True):
            oracle.check(out, images)
        hits = llm.stats().prefix_hits
        again = llm.generate(
            {"prompt": f"<|im_start|>user\n{CASES[name].marker}?", "multi_modal_data": {"video": data}}, GREEDY, use_tqdm=False
        )[0]
        oracle.check(again, [])
        assert llm.stats().prefix_hits >= hits
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_what_is_wrong_with_a_video_is_said(tmp_path: Path) -> None:
    """Containers and codecs that are not decoded, damage, sizes, and too many."""
    model_of("qwen2-vl", tmp_path)
    data = encode(scene(12, 60, 40))
    llm = engine("qwen2-vl", tmp_path, limit_mm_per_prompt={"video": 1})
    cases = [
        ([part(b"#EXTM3U\nfile:///etc/passwd\n")], "is no video that is decoded here: send MP4, WebM or an animated GIF"),
        ([part(data[:400])], "is a damaged or incomplete video"),
        ([part(encode(scene(2, 2000, 2)))], "is 2000 x 2 pixels: more than 200 times"),
        ([part(data), part(data)], "2 videos; this server accepts 1"),
        ([{"type": "video_url"}], "video_url: must be a URL"),
        ([{"type": "video_url", "video_url": "http://a/b.mp4"}], "URLs are not fetched"),
    ]
    try:
        for content, words in cases:
            with pytest.raises(RequestError, match=words):
                llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


def test_files_without_a_video_are_named_as_such(tmp_path: Path) -> None:
    """Sound only, a cut file, and a playlist. None of them ends the process that decodes."""
    av = pytest.importorskip("av", reason="videos need PyAV: pip install 'thalweg[video]'")
    sound, ours = io.BytesIO(), processors("qwen2-vl", tmp_path)[0]
    with av.open(sound, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 16000
        container.mux([*stream.encode(silence), *stream.encode()])
    data = encode(scene(6, 40, 30))
    reader = VideoReader("video", ours, MediaSettings(kept_bytes=0))
    try:
        for file, said in (
            (sound.getvalue(), "here: has no video stream"),
            (data[: len(data) // 2], "damaged or incomplete"),
            (b"#EXTM3U\nfile:///etc/hostname\n", "is no video that is decoded here"),
        ):
            with pytest.raises(RequestError, match=said):
                reader.read(MediaSource("video", "here"), file)
        assert reader.read(MediaSource("video", "here"), data).facts.total == 6
    finally:
        reader.close()


@pytest.mark.slow
def test_a_video_of_an_earlier_turn_is_not_decoded_again(tmp_path: Path) -> None:
    """Unless the cache was cleared, or is off."""
    data, (ours, _) = encode(scene(6, 40, 30)), processors("qwen2-vl", tmp_path)
    source = MediaSource("video", "here")
    for kept in (1 << 20, 0):
        reader = VideoReader("video", ours, MediaSettings(kept_bytes=kept))
        try:
            first = reader.read(source, data)
            assert (reader.read(source, data) is first) == bool(kept)
            reader.forget()
            assert reader.read(source, data) is not first
        finally:
            reader.close()


@pytest.mark.slow
def test_a_request_may_choose_its_frames(tmp_path: Path) -> None:
    """In place of the operator's number. Frames kept for another choice are not its answer."""
    data, (ours, _) = encode(scene(12, 40, 30)), processors("qwen2-vl", tmp_path)
    reader = VideoReader("video", ours, MediaSettings(kept_bytes=1 << 20, decoding={"video": {"num_frames": 4}}))
    try:
        for decoding, frames in (({}, 4), ({"num_frames": 8}, 8), ({"fps": 0.5}, 4), ({}, 4), ({"num_frames": 8}, 8)):
            found = reader.read(MediaSource("video", "here", decoding=decoding), data)
            assert len(found.facts.chosen) == frames
            assert sum(map(len, found.groups)) == frames
    finally:
        reader.close()
