"""The example of a kind of media outside the repository, installed as a package: an animation answers as its frames do."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
import httpx  # noqa: E402
import seeing  # noqa: E402
from installed import installed  # noqa: E402
from test_serve_process import Process  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "animation"
MOST_LINES = 250
FRAMES, SHOWN, NEW = 7, 3, 8
TEMPLATE = "{% elif p.type == 'animation' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}"
SCRIPT = """
import json, sys
from thalweg import LLM, SamplingParams
from thalweg.errors import ConfigError, RequestError
path, work = sys.argv[1], json.load(open(sys.argv[2]))
options = dict(device="cpu", dtype="float32", max_model_len=448, max_num_seqs=3, use_tqdm_on_load=False)
llm = LLM(path, limit_mm_per_prompt={"animation": 1, "image": 8}, media_io_kwargs={"animation": {"num_frames": 3}}, **options)
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
answers = []
for content in work["asked"]:
    messages = [{"role": "user", "content": content}]
    (out,) = llm.chat(messages, params, use_tqdm=False)
    answers.append([list(out.prompt_token_ids), list(out.outputs[0].token_ids)])
prompt = "<|vision_start|><|video_pad|><|vision_end|>?"
with open(work["file"], "rb") as f:
    (out,) = llm.generate({"prompt": prompt, "multi_modal_data": {"animation": f.read()}}, params, use_tqdm=False)
refused = []
for content in work["refused"]:
    try:
        llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
    except RequestError as e:
        refused.append(str(e))
try:
    LLM(path, media_io_kwargs={"animation": {"num_frames": 0}}, **options)
except ConfigError as e:
    refused.append(str(e))
print(json.dumps([answers, [list(out.prompt_token_ids), list(out.outputs[0].token_ids)], refused]))
"""


def film() -> bytes:
    """Frames of few colours, so that a GIF holds them exactly."""
    rng = np.random.default_rng(3)
    colours = rng.integers(0, 255, (16, 3)).astype(np.uint8)
    frames = [Image.fromarray(colours[rng.integers(0, 16, (6, 8))].repeat(4, 0).repeat(4, 1)) for _ in range(FRAMES)]
    out = io.BytesIO()
    frames[0].save(out, format="GIF", save_all=True, append_images=frames[1:], duration=100)
    return out.getvalue()


def frames_of(data: bytes, numbers: list[int]) -> list[Any]:
    """As Pillow reads them in this process."""
    found = []
    with Image.open(io.BytesIO(data)) as image:
        for i in numbers:
            image.seek(i)
            found.append(image.convert("RGB"))
    return found


def url(image: Any) -> str:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(transformers' model, the frames that are shown, what the script printed, what a server answered)."""
    path, folder = tmp_path_factory.mktemp("seeing"), tmp_path_factory.mktemp("animation")
    model = seeing.make("qwen2.5-vl", path)
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    tokenizer["chat_template"] = tokenizer["chat_template"].replace("{% else %}", TEMPLATE, 1)
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    data = film()
    (folder / "film.gif").write_bytes(data)
    shown, (other,) = frames_of(data, [0, FRAMES // 2, FRAMES - 1]), frames_of(data, [1])
    animation = {"type": "animation_url", "animation_url": {"url": "data:image/gif;base64," + base64.b64encode(data).decode()}}
    broken = {
        "type": "animation_url",
        "animation_url": {"url": "data:image/gif;base64," + base64.b64encode(data[:60]).decode()},
    }
    still = {"type": "image_url", "image_url": {"url": url(other)}}
    stills = [{"type": "image_url", "image_url": {"url": url(frame)}} for frame in shown]
    text = {"type": "text", "text": "?"}
    asked = [[animation, text], [*stills, text], [still, animation, text, still], [still, *stills, text, still]]
    work = {"asked": asked, "file": str(folder / "film.gif"), "refused": [[animation, animation], [text, broken]]}
    (folder / "work.json").write_text(json.dumps(work))
    command = [sys.executable, "-c", SCRIPT, str(path), str(folder / "work.json")]
    variables = installed(EXAMPLE, folder)
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    process = Process(
        str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "448",
        "--media-io-kwargs", '{"animation": {"num_frames": 3}}', **variables,
    )  # fmt: skip
    try:
        body = {"messages": [{"role": "user", "content": asked[0]}], "temperature": 0, "max_tokens": NEW, "ignore_eos": True}
        answer = httpx.post(f"{process.url()}/v1/chat/completions", json={**body, "return_token_ids": True}, timeout=60)
    finally:
        process.end()
    return model, shown, json.loads(done.stdout.strip().splitlines()[-1]), answer.json()


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_animation/*.py")) < MOST_LINES


@pytest.mark.slow
def test_an_animation_answers_as_its_frames_do(said: Any) -> None:
    """Among images, too, which share its token and its encoder. The oracle is transformers' model on the frames."""
    model, shown, ((animation, stills, among, apart), program, _), served = said
    assert animation == stills
    assert among == apart
    assert [served["prompt_token_ids"], served["choices"][0]["token_ids"]] == animation
    assert animation[1] == seeing.greedy(model, "qwen2.5-vl", animation[0], shown, NEW)
    assert program[1] == seeing.greedy(model, "qwen2.5-vl", program[0], shown, NEW)
    assert program[1] != seeing.greedy(model, "qwen2.5-vl", program[0], shown[::-1], NEW), "frames change nothing"


@pytest.mark.slow
def test_what_is_wrong_with_an_animation_is_said(said: Any) -> None:
    several, broken, frames = said[2][2]
    assert several == "messages: 2 animations; this server accepts 1 in one prompt (--limit-mm-per-prompt)"
    assert broken.startswith("messages[0].content[1]: is ")
    assert "media_io_kwargs: animation: num_frames must be a whole number from 1 to 64, not 0" in frames


def test_without_it_animations_are_refused() -> None:
    from thalweg.config import EngineArgs, check_args
    from thalweg.errors import ConfigError

    with pytest.raises(ConfigError, match="'animation': 1 is not like"):
        check_args(EngineArgs(model="m", limit_mm_per_prompt={"animation": 1}))
