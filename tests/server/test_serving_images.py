"""Images over HTTP: `thalweg serve` with a small model that sees, behind the official clients."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from test_serve_process import Process

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import seeing  # noqa: E402

pytestmark = pytest.mark.slow  # a server, and a model that is made for it
NEW = 8


def picture(seed: int) -> Any:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (28, 28, 3)).astype(np.uint8))


def coded(image: Any) -> str:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode()


A, B = picture(1), picture(2)
URL = f"data:image/png;base64,{coded(A)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    path = tmp_path_factory.mktemp("seeing")
    model = seeing.make("llava", path)
    process = Process(
        str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "256", "--served-model-name", "m",
        "--limit-mm-per-prompt", '{"image": 2}', "--num-gpu-blocks-override", "64",
    )  # fmt: skip
    try:
        yield process.url(), model
    finally:
        process.end()


def chat(url: str, *urls: str, text: str = "?") -> Any:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], temperature=0,
        max_tokens=NEW, extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip


def test_every_dialect_takes_images(server: tuple[str, Any]) -> None:
    url, model = server
    made = chat(url, URL)
    ids = made.prompt_token_ids
    assert ids.count(seeing.IDS["<image>"]) == 16
    assert made.usage.prompt_tokens == len(ids)
    assert made.choices[0].token_ids == seeing.greedy(model, "llava", ids, [A], NEW)
    both = chat(url, URL, f"data:image/png;base64,{coded(B)}")
    assert both.choices[0].token_ids == seeing.greedy(model, "llava", both.prompt_token_ids, [A, B], NEW)
    said = made.choices[0].message.content

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    parts: list[Any] = [{"type": "input_image", "image_url": URL, "detail": "auto"}, {"type": "input_text", "text": "?"}]
    answer = client.responses.create(
        model="m", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=NEW,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert (answer.output_text, answer.usage and answer.usage.input_tokens) == (said, len(ids))

    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    blocks: list[Any] = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": coded(A)}},
        {"type": "text", "text": "?"},
    ]
    counted = claude.messages.count_tokens(model="m", messages=[{"role": "user", "content": blocks}])
    message = claude.messages.create(
        model="m",
        messages=[{"role": "user", "content": blocks}],
        max_tokens=NEW,
        extra_body={"top_k": 1},
    )
    found = message.usage.cache_read_input_tokens or 0  # of the same image in a prompt before
    assert found
    assert counted.input_tokens == message.usage.input_tokens + found == len(ids)
    assert message.content


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (["http://127.0.0.1/a.png"], "URLs are not fetched"),
        (["data:image/png;base64,AAAA"], "is no image that is read here"),
        ([URL[:-400]], "damaged or incomplete"),
        ([URL] * 3, "3 images; this server accepts 2"),
    ],
)
def test_bad_images_are_the_clients_errors(server: tuple[str, Any], urls: list[str], said: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        chat(server[0], *urls)
    assert said in str(error.value)
    assert httpx.get(f"{server[0]}/readyz").status_code == 200
    assert chat(server[0], URL).choices[0].finish_reason == "length"


def test_a_request_may_have_settings_of_its_own(server: tuple[str, Any]) -> None:
    """The colour behind a transparent image. Wrong settings are named before the image is read."""
    url, model = server
    clear = A.convert("RGBA")
    clear.putalpha(Image.fromarray(np.full((28, 28), 90, np.uint8)))
    shown = Image.new("RGB", (28, 28), (10, 200, 30))
    shown.paste(clear, mask=clear.getchannel("A"))
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def answer(data: str, said: dict[str, Any]) -> Any:
        part: Any = {"type": "image_url", "image_url": {"url": data}}
        return client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": [part]}], temperature=0, max_tokens=NEW,
            extra_body={"ignore_eos": True, "return_token_ids": True, "media_io_kwargs": said},
        )  # fmt: skip

    data = f"data:image/png;base64,{coded(clear)}"
    made = answer(data, {"image": {"rgba_background_color": [10, 200, 30]}})
    assert made.choices[0].token_ids == seeing.greedy(model, "llava", made.prompt_token_ids, [shown], NEW)
    with pytest.raises(openai.BadRequestError, match="media_io_kwargs: video: num_frames must be a whole number") as error:
        answer("data:image/png;base64,AAAA", {"video": {"num_frames": 0}})
    assert error.value.param == "media_io_kwargs"
    for refused in ({"media_io_kwargs": {"image": {}}}, {"media_io_kwargs": {"video": {"fps": 1}}}):
        with pytest.raises(openai.BadRequestError, match="media_io_kwargs is not supported by this version"):
            client.completions.create(model="m", prompt="a", max_tokens=1, extra_body=refused)
