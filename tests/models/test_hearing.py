"""Sounds in conversations through the whole engine: what transformers says to the same sound, whatever is cut, cached or
beside."""

from __future__ import annotations

import base64
import io
import json
import wave
from pathlib import Path
from typing import Any

import hearing
import msgspec
import numpy as np
import pytest
from safetensors.torch import load_file

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import RequestError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.media.processors import processor
from thalweg.models import registry

NEW = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
FIRST = "qwen2-audio"
"""The family that is tried where any will do."""
EVERY = [FIRST, *(pytest.param(n, marks=pytest.mark.slow) for n in hearing.FAMILIES if n != FIRST)]


def engine(path: Path, **more: Any) -> LLM:
    return LLM(
        str(path), dtype="float32", use_tqdm_on_load=False,
        **{
            "device": "cpu", "max_model_len": 512, "max_num_seqs": 3, "block_size": 16, "max_num_batched_tokens": 24,
            "num_gpu_blocks_override": 96,
        } | more,
    )  # fmt: skip


def asks(*parts: Any) -> list[dict[str, Any]]:
    """A chat of one turn: texts, sounds as samples, and images of PIL."""
    said = []
    for part in parts:
        if isinstance(part, str):
            said.append({"type": "text", "text": part})
        else:
            kind = "audio" if isinstance(part, np.ndarray | tuple) else "image_pil"
            said.append({"type": kind, kind: part})
    return [{"role": "user", "content": said}]


def compare(model: Any, name: str, llm: LLM, chats: list[tuple[Any, ...]]) -> list[Any]:
    """All chats at once, each against transformers."""
    outs = llm.chat([asks(*parts) for parts in chats], GREEDY, use_tqdm=False)
    for parts, out in zip(chats, outs, strict=True):
        sounds = [p for p in parts if isinstance(p, np.ndarray)]
        shown = [p for p in parts if not isinstance(p, np.ndarray | str)]
        want = hearing.greedy(model, name, list(out.prompt_token_ids), sounds, shown, NEW)
        assert list(out.outputs[0].token_ids) == want
    return outs


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.slow
def test_answers_about_sounds_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Prompts are longer than a step, so that chunks cut sounds. User text that spells placeholders out stays text."""
    model = hearing.make(name, tmp_path)
    a, b, c, d = (hearing.sound(seconds, seed) for seed, seconds in enumerate((1.3, 1.9, 1.017, 1.5)))
    spelt = "".join(hearing.NAMES)
    chats: list[tuple[Any, ...]] = [
        (a, "what?"), ("hear ", a, f" and {spelt} ", b), ("hello",), (c,), (b, "what?"), ("so: ", d),
    ]  # fmt: skip
    if name != FIRST:
        chats[3] = (hearing.sound(2.5, 9),)  # more than layers see together
    llm = engine(tmp_path)
    try:
        outs = compare(model, name, llm, chats)
        encoded = llm.llm_engine.worker.encoder
        assert encoded is not None
        assert encoded.items == 4  # type: ignore[attr-defined]
        ids = list(outs[1].prompt_token_ids)
        scored = llm.chat(asks(*chats[1]), msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        np.testing.assert_allclose(mine, hearing.scores(model, name, ids, [a, b], []), atol=1e-3)
        before = llm.stats().prefix_hits
        again = llm.chat(asks(*chats[1]), GREEDY, use_tqdm=False)[0]
        assert list(again.outputs[0].token_ids) == list(outs[1].outputs[0].token_ids)
        assert llm.stats().prefix_hits > before
    finally:
        llm.shutdown()


@pytest.mark.parametrize("name", list(hearing.FAMILIES))
@pytest.mark.sampled(2)
def test_features_and_counts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Counts by the arithmetic of each processor of transformers, which has no public function for it."""
    config = hearing.FAMILIES[name].config()
    config.architectures = [hearing.FAMILIES[name].architecture]
    config.save_pretrained(tmp_path)
    hearing.settings(name, tmp_path)
    ours = load_audio_processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, samples in enumerate((31_999, 20_800, 8_160, 12_345, 24_080, *([41_234] if name != FIRST else []))):
        sound = hearing.sound(samples / hearing.RATE, seed)
        want = hearing.heard(name, [sound])
        mel, frames = ours.mel(sound), ours.frames(sound.size)
        theirs = want.pop("input_features").numpy()
        if name == "voxtral" or name in hearing.APART:
            theirs = theirs.transpose(1, 0, 2).reshape(1, 20, -1)
        width = min(theirs.shape[2], mel.shape[1])
        assert width >= frames
        np.testing.assert_allclose(mel[:, :width], theirs[0, :, :width], atol=2e-5)
        for mask in want.values():
            assert int(mask.sum()) == frames
        assert ours.count(frames) == _placeholders(name, frames)
        ours.batch(mel, frames).check()


def _placeholders(name: str, frames: int) -> int:
    if name == "voxtral":
        return -(-frames // 200) * 100 // 4
    if name in ("qwen2-audio", "audio-flamingo3", "music-flamingo", "qwen2.5-omni"):
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1
    if name == "glm-asr":
        return ((frames - 1) // 2 + 1 - 4) // 4 + 1
    rest = (frames % 100 - 1) // 2 + 1
    return ((rest - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("hearing")
    model = hearing.make(FIRST, path)
    llm = engine(path, limit_mm_per_prompt={"audio": 2}, allowed_local_media_path=str(path))
    yield path, model, llm
    llm.shutdown()


def file_of(samples: np.ndarray, rate: int = hearing.RATE) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.slow
def test_two_sounds_of_a_length_never_share_a_block(one: Any) -> None:
    _, model, llm = one
    a, b = hearing.sound(1, 11), hearing.sound(1, 12)
    prefix = "the same text before, and more of it "
    first = llm.chat(asks(prefix, a, "?"), GREEDY, use_tqdm=False)[0]
    hits = llm.stats().prefix_hits
    second = llm.chat(asks(prefix, b, "?"), GREEDY, use_tqdm=False)[0]
    assert first.prompt_token_ids == second.prompt_token_ids
    shared = list(first.prompt_token_ids).index(hearing.IDS["<|AUDIO|>"]) // 16 * 16
    assert llm.stats().prefix_hits - hits == shared  # the blocks before the sound, and none that holds some of it
    for out, given in ((first, a), (second, b)):
        assert list(out.outputs[0].token_ids) == hearing.greedy(model, FIRST, list(out.prompt_token_ids), [given], [], NEW)


def test_a_sound_may_be_given_in_many_ways(one: Any) -> None:
    path, _, llm = one
    samples = np.round(hearing.sound(1, 3) * 32767).astype(np.float32) / 32768  # as files of 16 bits have them
    data = file_of(samples * 32768 / 32767)
    (path / "a.wav").write_bytes(data)
    ways: list[dict[str, Any]] = [
        {"type": "audio", "audio": samples},
        {"type": "audio", "audio": (samples, hearing.RATE)},
        {"type": "audio", "audio": data},
        {"type": "input_audio", "input_audio": {"data": coded(data), "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{coded(data)}"}},
        {"type": "audio_url", "audio_url": f"file://{path}/a.wav"},
    ]
    outs = llm.chat([[{"role": "user", "content": [way]}] for way in ways], GREEDY, use_tqdm=False)
    assert len({tuple(o.outputs[0].token_ids) for o in outs}) == 1
    text = outs[0].prompt.replace("<|AUDIO|>" * 25, "<|AUDIO|>")
    for given in (samples, (samples, hearing.RATE), [data]):
        plain = llm.generate({"prompt": text, "multi_modal_data": {"audio": given}}, GREEDY, use_tqdm=False)[0]
        assert plain.prompt_token_ids == outs[0].prompt_token_ids
        assert plain.outputs[0].token_ids == outs[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "audio_url", "audio_url": "ftp://a/b"}], "messages[0].content[0]: 'ftp://a/b' is no data:"),
        ([{"type": "audio_url", "audio_url": "http://a/b"}], "URLs are not fetched"),
        ([{"type": "audio_url", "audio_url": "file:///etc/hostname"}], "no such file in the directory"),
        ([{"type": "audio_url"}], "audio_url: must be a URL"),
        ([{"type": "input_audio", "input_audio": {"format": "wav"}}], "input_audio: must have data"),
        ([{"type": "input_audio", "input_audio": {"data": "%", "format": "wav"}}], "is not valid base64"),
        ([{"type": "input_audio", "input_audio": {"data": coded(b"RIFF not a sound")}}], "messages[0].content[0]: it is no"),
        ([{"type": "audio", "audio": np.zeros(40_000, np.float32)}], "lasts 2.5 seconds, and this model accepts 2 at once"),
        ([{"type": "audio", "audio": np.zeros(200, np.float32)}], "needs at least 0.03"),
        ([{"type": "audio", "audio": np.full(9000, np.nan, np.float32)}], "NaN or inf"),
        ([{"type": "audio", "audio": np.zeros(9000, np.float32)}] * 3, "3 audio clips; this server accepts 2"),
        ([{"type": "image_url", "image_url": "data:x"}], "images are not supported by this model"),
        ([{"type": "video_url", "video_url": "x"}], "videos are not supported by this model"),
    ],
)
def test_what_is_no_sound_is_refused_by_place(one: Any, content: list[Any], said: str) -> None:
    with pytest.raises(RequestError) as error:
        one[2].chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
    assert said in str(error.value)


def test_the_text_part_alone_refuses_sounds(one: Any) -> None:
    path, model, _ = one
    llm = engine(path, language_model_only=True)
    try:
        compare(model, FIRST, llm, [("hello",)])
        with pytest.raises(RequestError, match="are not supported by this model"):
            llm.chat(asks(hearing.sound(1)), GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


CASES: list[tuple[str, dict[str, Any]]] = [
    (FIRST, {"num_gpu_blocks_override": 11, "max_model_len": 160}),
    ("qwen3-asr", {"device": "reference"}),
    ("qwen2.5-omni", {"device": "thalweg.backends.torch_gpu.testing:HostGpuPlatform"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), CASES)
def test_sounds_are_heard_again_after_preemption_and_on_other_devices(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    model = hearing.make(name, tmp_path)
    sounds = [hearing.sound(1 + seed / 3, seed) for seed in range(3)]
    params = msgspec.structs.replace(GREEDY, max_tokens=40)
    llm = engine(tmp_path, **{"max_num_batched_tokens": 64, **more})
    try:
        outs = llm.chat([asks(sound, "tell me") for sound in sounds], params, use_tqdm=False)
        for sound, out in zip(sounds, outs, strict=True):
            assert list(out.outputs[0].token_ids) == hearing.greedy(model, name, list(out.prompt_token_ids), [sound], [], 40)
        assert llm.stats().preemptions > 0 or "num_gpu_blocks_override" not in more
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-omni", "qwen3-omni"])
def test_sounds_and_images_in_one_prompt(name: str, tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")
    model = hearing.make(name, tmp_path)
    noise = np.random.default_rng(1).integers(0, 255, (40, 60, 3)).astype(np.uint8)
    a, b = (images.fromarray(each) for each in (noise, noise[:, :33]))
    x, y = hearing.sound(1.3, 1), hearing.sound(1.9, 2)
    llm = engine(tmp_path)
    try:
        compare(model, name, llm, [("see ", a, " hear ", x, "?"), (y, "and", b, x, "!", a), (a, "?"), (x, b)])
        with pytest.raises(RequestError, match="videos are not supported by this model"):
            llm.chat([{"role": "user", "content": [{"type": "video_url", "video_url": "x"}]}], GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


@pytest.mark.parametrize("name", [name for name in hearing.FAMILIES if hearing.thinks(name)])
def test_a_thinker_may_be_saved_without_the_part_that_speaks(name: str, tmp_path: Path) -> None:
    """As transformers saves one that is trained further. Its tensors lack a prefix."""
    family = hearing.FAMILIES[name]
    hearing.make(name, tmp_path)
    whole = read_config(tmp_path)
    inner = {**family.config().to_dict(), "architectures": [family.architecture.replace("For", "ThinkerFor", 1)]}
    (tmp_path / "config.json").write_text(json.dumps(inner))
    thinker = read_config(tmp_path)
    found, want = registry.family(thinker)(thinker), registry.family(whole)(whole)
    assert (found.vision, found.audio, found.hidden, len(found.layers)) == (
        want.vision,
        want.audio,
        want.hidden,
        len(want.layers),
    )
    (file,) = tmp_path.glob("*.safetensors")
    inside = [key for key in load_file(file) if key.startswith("thinker.")]
    assert inside
    assert [found.rename(key.removeprefix("thinker.")) for key in inside] == [want.rename(key) for key in inside]
    assert load_audio_processor(thinker, tmp_path) is not None
    assert processor(thinker, tmp_path) is not None


@pytest.mark.parametrize("name", list(hearing.FAMILIES))
def test_what_a_configuration_leaves_out_is_what_its_class_has(name: str) -> None:
    """Of the outer configuration, of encoders, and of texts whose published files leave sizes out."""
    config = hearing.FAMILIES[name].config()
    text = {"model_type": config.text_config.model_type}
    if name not in ("qwen2-audio", "voxtral"):
        text = config.to_dict()["text_config"]
    width = config.text_config.hidden_size
    said: dict[str, Any] = {"text_config": text, "audio_config": {"output_dim": width}}
    if hearing.thinks(name):
        said["vision_config"] = {"out_hidden_size": width}
    elif not name.startswith("qwen3"):
        said["audio_config"] = {"model_type": "audioflamingo3_encoder"} if name == "music-flamingo" else {}
    whole = type(config)(**said).to_dict()
    said["model_type"] = whole["model_type"]
    found = []
    for each in (whole, said):
        each = {"thinker_config": each} if hearing.thinks(name) else each
        read = canonical_config({**each, "architectures": [hearing.FAMILIES[name].architecture]})
        found.append((registry.family(read)(read), load_audio_processor(read, Path("none"))))
    assert found[0] == found[1]
