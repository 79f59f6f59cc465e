"""Images through the whole engine: what transformers says to the same picture, whatever is cut, cached or beside."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing  # noqa: E402
from lora_files import write_adapter  # noqa: E402
from PIL import ImageOps  # noqa: E402

from thalweg import LLM, LoRARequest, SamplingParams  # noqa: E402
from thalweg.checkpoint.config import read_config  # noqa: E402
from thalweg.engine.control.parts.axes import compute_shifts  # noqa: E402
from thalweg.engine.control.request import Request  # noqa: E402
from thalweg.engine.messages import Input, TokenSampling  # noqa: E402
from thalweg.errors import ConfigError, RequestError  # noqa: E402
from thalweg.media import patches  # noqa: E402
from thalweg.media.decoders.image_process import pictures  # noqa: E402
from thalweg.media.kinds.image import compute_axes  # noqa: E402
from thalweg.media.processors import processor  # noqa: E402
from thalweg.models import registry  # noqa: E402

NEW = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
SIZES = ((60, 40), (33, 50), (90, 30), (29, 28))
FIRST = "llava"
"""The family that is tried where any will do."""


def picture(width: int, height: int, seed: int = 0) -> Any:
    noise = np.random.default_rng(seed).integers(0, 255, (height // 4 + 1, width // 4 + 1, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)


def file_of(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind, **options)
    return out.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def asks(*parts: Any) -> list[dict[str, Any]]:
    """A chat of one turn: texts, and images of PIL."""
    said = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image_pil", "image_pil": p} for p in parts]
    return [{"role": "user", "content": said}]


def seen(image: Any, ours: Any) -> tuple[tuple[np.ndarray, ...], tuple[int, int]]:
    """What is read of a file of this image: views, and its size."""
    done = pictures(file_of(image), ours, 1 << 20)
    return tuple(np.frombuffer(v.data, np.uint8).reshape(v.height, v.width, 3) for v in done.views), done.size


def engine(path: Path, **more: Any) -> LLM:
    return LLM(
        str(path), dtype="float32", use_tqdm_on_load=False,
        **{
            "device": "cpu",
            "max_model_len": 512, "max_num_seqs": 3, "block_size": 16, "max_num_batched_tokens": 24,
            "num_gpu_blocks_override": 64,
        } | more,
    )  # fmt: skip


@pytest.mark.sampled(1, 12)
@pytest.mark.parametrize("name", [FIRST, *(n for n in seeing.FAMILIES if n != FIRST)])
@pytest.mark.slow
def test_answers_about_images_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Prompts are longer than a step, so that chunks cut images. User text that spells placeholders out stays text. Families of
    known parts are asked half as much."""
    model = seeing.make(name, tmp_path)
    a, b, c, d = (picture(*size, seed) for seed, size in enumerate(SIZES))
    spelt = "".join(seeing.NAMES if name == "ovis2" else seeing.NAMES[:23])  # those after them are its own
    chats = [
        ([a], asks(a, "what?")), ([a, b], asks("see ", a, f" and {spelt} ", b)), ([], asks("hello")), ([c], asks(c, c.mode)),
        ([b], asks(b, "what?")), ([d], asks("so: ", d)),
    ]  # fmt: skip
    chats = chats[:3] if name in seeing.MORE else chats
    more = {
        "qwen3.5": {"mamba_block_size": 32, "num_gpu_blocks_override": 160},
        "gemma4-together": {"max_num_batched_tokens": 80},
        "minicpm-ocr": {"max_model_len": 1000, "mamba_block_size": 32, "num_gpu_blocks_override": 300},
        "minicpm-v4.6": {"max_model_len": 640, "mamba_block_size": 32, "num_gpu_blocks_override": 200},
        "llama4": {"max_model_len": 700, "num_gpu_blocks_override": 200},
        "lfm2-vl": {"max_model_len": 640, "mamba_block_size": 32, "num_gpu_blocks_override": 200},
        "deepseek-ocr": {"max_model_len": 1024, "num_gpu_blocks_override": 200},
        "deepseek-ocr2": {"max_model_len": 1024, "num_gpu_blocks_override": 200},
        "paligemma": {"max_num_batched_tokens": 500},
        "paligemma2": {"max_num_batched_tokens": 500},
    }
    llm = engine(tmp_path, **more.get(name, seeing.FAMILIES[name].engine))
    try:
        outs = llm.chat([chat for _, chat in chats], GREEDY, use_tqdm=False)
        for (images, _), out in zip(chats, outs, strict=True):
            want = seeing.greedy(model, name, list(out.prompt_token_ids), images, NEW)
            assert list(out.outputs[0].token_ids) == want
        if name == "minicpm-v4.6":  # the only one that counts the images of a prompt
            assert [f"<image_id>{i}</image_id><image>" in str(outs[1].prompt) for i in range(3)] == [True, True, False]
        encoded = llm.llm_engine.worker.encoder
        assert encoded is not None
        assert encoded.items == (2 if name in seeing.MORE else 4)  # type: ignore[attr-defined]
        ids = list(outs[1].prompt_token_ids)
        scored = llm.chat(chats[1][1], msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
        mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
        np.testing.assert_allclose(mine, seeing.scores(model, name, ids, [a, b]), atol=1e-3)
        before = llm.stats().prefix_hits
        again = llm.chat(chats[1][1], GREEDY, use_tqdm=False)[0]
        assert list(again.outputs[0].token_ids) == list(outs[1].outputs[0].token_ids)
        assert llm.stats().prefix_hits > before
    finally:
        llm.shutdown()


@pytest.mark.sampled(1, 12)
@pytest.mark.parametrize("name", [FIRST, *(n for n in seeing.FAMILIES if n != FIRST)])
def test_pixels_and_counts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    seeing.settings(name, tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (7, 40), (1, 1), (50, 1), (1, 40))):
        if min(width, height) < seeing.LEAST.get(name, 1):
            continue
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        want = seeing.read(name, [image])
        made = ours.preprocess(views, size)
        np.testing.assert_allclose(*seeing.same_pixels(name, made, want), atol=2e-6)
        if made.mix is None:
            assert len(made.keep) % ours.count(size) == 0
        else:
            assert len(made.mix) == ours.count(size)
        text = ours.text(size, seeing.FAMILIES[name].token)
        assert text == (seeing.written(name, image) or text)
        assert sum(text.count(seeing.NAMES[i - 256]) for i in (ours.token, *ours.others)) == ours.count(size)
        patches.batch(made).check()


def test_settings_may_be_in_the_file_of_the_whole_processor(tmp_path: Path) -> None:
    """As the authors of DeepSeek-OCR have them, without a part for images."""
    seeing.settings("deepseek-ocr", tmp_path)
    before = processor(read_config(tmp_path), tmp_path)
    (tmp_path / "preprocessor_config.json").rename(tmp_path / "processor_config.json")
    assert processor(read_config(tmp_path), tmp_path) == before is not None


@pytest.mark.parametrize(
    ("name", "key", "value", "field"),
    [
        ("dots-ocr", "max_pixels", 1024, "most"),
        ("minicpm-ocr", "max_slice_nums", 2, "most"),
        ("deepseek-ocr", "max_patches", 9, "most"),
    ],
)
def test_processor_settings_of_the_operator_are_read(name: str, key: str, value: int, field: str, tmp_path: Path) -> None:
    seeing.settings(name, tmp_path)
    ours = processor({**read_config(tmp_path), "mm_processor_kwargs": {key: value}}, tmp_path)
    assert getattr(ours, field) == value


def odd_files() -> dict[str, bytes]:
    image, rng = picture(60, 40, 3), np.random.default_rng(1)
    shine = Image.fromarray(rng.integers(0, 255, (40, 60)).astype(np.uint8))
    clear, grey, turned = image.convert("RGBA"), image.convert("LA"), Image.Exif()
    clear.putalpha(shine)
    grey.putalpha(shine)
    turned[0x0112] = 6  # by a quarter
    return {
        "transparent": file_of(clear), "transparent webp": file_of(clear, "WEBP", lossless=True), "grey": file_of(grey),
        "palette": file_of(image.convert("P"), transparency=3), "one colour": file_of(image.convert("L"), transparency=100),
        "one bit": file_of(image.convert("1")), "cmyk": file_of(image.convert("CMYK"), "JPEG"),
        "upright by exif": file_of(image, "JPEG", exif=turned), "gif": file_of(image, "GIF"),
    }  # fmt: skip


def test_odd_files_are_seen_as_transformers_sees_them(tmp_path: Path) -> None:
    """Files of 16 bits are not among them: their shades are kept here, where transformers makes almost all of them white."""
    theirs = seeing.processor("gemma3")
    seeing.settings("gemma3", tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for kind, data in odd_files().items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        done = pictures(data, ours, 1 << 20)
        views = [np.frombuffer(v.data, np.uint8).reshape(v.height, v.width, 3) for v in done.views]
        want = theirs(images=[image], return_tensors="np")
        np.testing.assert_allclose(
            *seeing.same_pixels("gemma3", ours.preprocess(views, done.size), want), atol=2e-6, err_msg=kind
        )
        assert done.size == image.size


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("seeing")
    model = seeing.make(FIRST, path)
    llm = engine(path, limit_mm_per_prompt={"image": 2}, allowed_local_media_path=str(path))
    yield path, model, llm
    llm.shutdown()


@pytest.mark.slow
def test_two_images_of_a_size_never_share_a_block(one: Any) -> None:
    _, model, llm = one
    a, b = picture(28, 28, 11), picture(28, 28, 12)
    prefix = "the same text before, and more of it "
    first = llm.chat(asks(prefix, a, "?"), GREEDY, use_tqdm=False)[0]
    hits = llm.stats().prefix_hits
    second = llm.chat(asks(prefix, b, "?"), GREEDY, use_tqdm=False)[0]
    assert first.prompt_token_ids == second.prompt_token_ids
    shared = list(first.prompt_token_ids).index(seeing.IDS["<image>"]) // 16 * 16
    assert llm.stats().prefix_hits - hits == shared  # the blocks before the image, and none that shows some of it
    for out, image in ((first, a), (second, b)):
        assert list(out.outputs[0].token_ids) == seeing.greedy(model, FIRST, list(out.prompt_token_ids), [image], NEW)


def test_an_image_may_be_given_in_many_ways(one: Any) -> None:
    path, _, llm = one
    image = picture(28, 28, 3)
    (path / "a.png").write_bytes(file_of(image))
    ways: list[dict[str, Any]] = [
        {"type": "image_pil", "image_pil": image},
        {"type": "image", "image": np.asarray(image)},
        {"type": "image", "image": file_of(image, "WEBP", lossless=True)},
        {"type": "image_url", "image_url": {"url": url(file_of(image, "GIF") if False else file_of(image))}},
        {"type": "input_image", "image_url": url(file_of(image))},
        {"type": "image_url", "image_url": {"url": f"file://{path}/a.png"}},
        {"type": "image", "source": {"type": "base64", "data": base64.b64encode(file_of(image)).decode()}},
    ]
    outs = llm.chat([[{"role": "user", "content": [way]}] for way in ways], GREEDY, use_tqdm=False)
    assert len({tuple(o.outputs[0].token_ids) for o in outs}) == 1
    text = outs[0].prompt.replace("<image>" * 16, "<image>")
    plain = llm.generate({"prompt": text, "multi_modal_data": {"image": image}}, GREEDY, use_tqdm=False)[0]
    assert plain.prompt_token_ids == outs[0].prompt_token_ids
    assert plain.outputs[0].token_ids == outs[0].outputs[0].token_ids


def test_a_template_that_reads_strings_is_given_signs_of_images(one: Any) -> None:
    """As InternVL's own templates are: parts are joined by ends of lines, and what a user writes is no sign."""
    _, _, llm = one
    source = "{% for m in messages %}<|im_start|>{{ m['role'] + '\\n' + m['content'] }}<|im_end|>{% endfor %}"
    chat = asks(picture(28, 28, 3), "not <image>")
    out = llm.chat(chat, GREEDY, chat_template=source, use_tqdm=False)[0]
    assert out.prompt == f"<|im_start|>user\n{'<image>' * 16}\nnot <image><|im_end|>"
    assert list(out.prompt_token_ids).count(seeing.IDS["<image>"]) == 16


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "image_url", "image_url": "ftp://a/b"}], "messages[0].content[0]: 'ftp://a/b' is no data:"),
        ([{"type": "image_url", "image_url": "http://a/b"}], "URLs are not fetched"),
        ([{"type": "image_url", "image_url": "file:///etc/hostname"}], "no such file in the directory"),
        ([{"type": "image_url", "image_url": url(b"not an image")}], "is no image that is read here"),
        ([{"type": "image_url", "image_url": url(file_of(picture(60, 60))[:-300])}], "damaged or incomplete"),
        ([{"type": "image_url", "image_url": url(file_of(picture(2000, 4)))}], "is 2000 x 4 pixels: more than 200 times"),
        ([{"type": "image_url"}], "image_url: must be a URL"),
        ([{"type": "image_pil", "image_pil": picture(9, 9)}] * 3, "3 images; this server accepts 2"),
        ([{"type": "video_url", "video_url": "x"}], "videos are not supported by this model"),
    ],
)
def test_what_is_no_image_is_refused_by_place(one: Any, content: list[Any], said: str) -> None:
    with pytest.raises(RequestError) as error:
        one[2].chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
    assert said in str(error.value)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3-vl", {"num_gpu_blocks_override": 11, "max_model_len": 160}),
    ("gemma3", {"num_gpu_blocks_override": 7, "max_model_len": 96}),
    ("gemma3", {"additional_config": {"isa": "none"}}),
    ("gemma4-together", {"device": "reference", "max_num_batched_tokens": 80}),
    ("qwen2.5-vl", {"device": "thalweg.backends.torch_gpu.testing:HostGpuPlatform"}),
]
"""A family for each kind of positions and of attention."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), CASES)
def test_images_are_seen_again_after_preemption_and_on_other_devices(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    model = seeing.make(name, tmp_path)
    images = [picture(*size, seed) for seed, size in enumerate(SIZES[:3])]
    params = msgspec.structs.replace(GREEDY, max_tokens=40)
    llm = engine(tmp_path, **{"max_num_batched_tokens": 64, **more})
    try:
        outs = llm.chat([asks(image, "tell me") for image in images], params, use_tqdm=False)
        for image, out in zip(images, outs, strict=True):
            assert list(out.outputs[0].token_ids) == seeing.greedy(model, name, list(out.prompt_token_ids), [image], 40)
        assert llm.stats().preemptions > 0 or "num_gpu_blocks_override" not in more
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_a_marker_that_is_no_token_stays_text_where_users_write_it(tmp_path: Path) -> None:
    """Aya Vision's templates write <image>, which its vocabulary does not have."""
    model, image = seeing.make("aya-vision", tmp_path), picture(60, 40)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"<image>"', '"<unused>"'))
    llm = engine(tmp_path)
    try:
        out = llm.chat(asks("an <image> or ", image, " not <image>"), GREEDY, use_tqdm=False)[0]
        assert out.prompt is not None
        assert out.prompt.count("<image>") == 2
        want = seeing.greedy(model, "aya-vision", list(out.prompt_token_ids), [image], NEW)
        assert list(out.outputs[0].token_ids) == want
    finally:
        llm.shutdown()


def test_the_text_part_alone_refuses_images(one: Any) -> None:
    path, model, _ = one
    llm = engine(path, language_model_only=True)
    try:
        out = llm.chat(asks("hello"), GREEDY, use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == seeing.greedy(model, FIRST, list(out.prompt_token_ids), [], NEW)
        with pytest.raises(RequestError, match="are not supported by this model"):
            llm.chat(asks(picture(28, 28)), GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(seeing.MORE))
def test_the_text_part_alone_leaves_every_tensor_of_the_encoder(name: str, tmp_path: Path) -> None:
    seeing.settings(name, tmp_path)
    config = read_config(tmp_path)
    spec, text = (registry.family(c)(c) for c in (config, {**config, "language_model_only": True}))
    assert spec.vision is not None
    assert text.vision is None

    def held(tree: Any) -> Any:
        for each in tree.values() if isinstance(tree, dict) else ():
            yield from held(each)
        yield from [s.within.name if s.within else s.name for s in getattr(tree, "sources", ())]

    names = set(held(spec.vision.weights(spec.hidden)))
    assert names
    assert not {n for n in names if text.rename(n) is not None}


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl", "glm4v"])
def test_positions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family = seeing.FAMILIES[name]
    config = family.config()
    model = transformers.AutoModelForImageTextToText.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(tmp_path)
    seeing.processor(name).save_pretrained(tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    token, ids, items, grids = seeing.IDS[family.token], [5, 6, 7], list[Input](), list[list[int]]()
    for seed, (width, height) in enumerate(SIZES):
        views, size = seen(picture(width, height, seed), ours)
        count = ours.count(size)
        places = np.arange(len(ids), len(ids) + count, dtype=np.int32)
        axes, extent = compute_axes(ours, size, places)
        items.append(Input(kind="image", digest=b"", positions=places, data=views, size=size, axes=axes, extent=extent))
        ids += [token] * count + [9] * (1 + seed % 3)
        columns, rows = ours.grid(size) or (0, 0)
        grids.append([1, rows * ours.merge, columns * ours.merge])  # type: ignore[union-attr]
    said = torch.tensor([ids])
    want, delta = model.model.get_rope_index(said, (said == token).int(), image_grid_thw=torch.tensor(grids))
    request = Request(
        1, TokenSampling(max_tokens=1), len(ids), (0, 0), b"", True, 999, 0.0, np.array(ids, np.int32), inputs=tuple(items)
    )
    shift, after = compute_shifts(request)
    np.testing.assert_array_equal(shift + np.arange(len(ids))[:, None], want[:, 0].T.numpy())
    assert after == int(delta[0])


@pytest.mark.slow
def test_a_request_with_an_image_has_the_default_adapter_of_images(one: Any, tmp_path: Path) -> None:
    """If it names none. Others have none."""
    path, a = one[0], picture(*SIZES[0])
    see, other = (write_adapter(path, tmp_path / name, i, 4, ("mlp.down_proj",)) for i, name in enumerate(("see", "other")))
    llm = engine(path, enable_lora=True, max_loras=2, default_mm_loras={"image": str(see)})
    named = [LoRARequest(name, i, str(folder)) for i, (name, folder) in enumerate((("a", see), ("b", other)), 1)]
    chats = [asks(a, "what?")] * 3 + [asks("hello")]
    outputs = llm.chat(chats, GREEDY, use_tqdm=False, lora_request=[None, *named, None])
    llm.shutdown()
    assert [o.lora_request and o.lora_request.lora_name for o in outputs] == ["image", "a", "b", None]
    default, first, second = (list(o.outputs[0].token_ids) for o in outputs[:3])
    assert default == first != second
    with pytest.raises(ConfigError, match="default_mm_loras: 'smell' is no kind of media; there are audio, image, video"):
        engine(path, enable_lora=True, default_mm_loras={"smell": str(see)})
    with pytest.raises(ConfigError, match="default_mm_loras: adapters need enable_lora"):
        engine(path, default_mm_loras={"image": str(see)})
