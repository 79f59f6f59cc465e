"""Wrong values in the files of a model: an error of this project that names the key, never one of Python's."""

from __future__ import annotations

import copy
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import seeing
import test_text_to_text
import wav2vec_zoo
from amounts import some
from transformers.models.auto import modeling_auto
from zoo import ALL, ENCODERS, SMALL

from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config
from thalweg.engine.planning.memory import plan
from thalweg.errors import ThalwegError
from thalweg.media.kinds import load_processors

WRONG = (
    None, True, "x", "", -1, 0, 1, 2, 0.5, -1.5, 10**9, 10**18, 1e308, [], [1], ["x"], [None], {}, {"a": 1}, [[1]], [-1],
    [10**9] * 3, {"height": -1, "width": 5}, {"longest_edge": 0},
)  # fmt: skip
KINDS = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def describe(name: str, directory: Path) -> Path:
    """The files of a model without its weights."""
    room, _, family = name.partition(":")
    path = directory / family
    path.mkdir()
    if room == "sees":
        seeing.settings(family, path)
        return path
    if room == "hears":
        kind, more = wav2vec_zoo.CASES[family]
        config = getattr(__import__("transformers"), f"{kind}Config")(**more)
        architecture = f"{kind}ForCTC"
        (path / "preprocessor_config.json").write_text("{}")
    elif room == "sources":
        made, sizes = test_text_to_text.CONFIGS[family]
        config = made(**sizes)
        architecture = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    else:
        made, different = {"decoder": ALL, "encoder": ENCODERS}[room][family]
        config = made(**{**SMALL, **different})
        architecture = (KINDS if room == "decoder" else modeling_auto.MODEL_MAPPING_NAMES)[config.model_type]
    content = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [architecture]}
    (path / "config.json").write_text(json.dumps(content))
    return path


NAMES = (
    *(f"decoder:{name}" for name, (kind, _) in ALL.items() if kind.model_type in KINDS),
    *(f"encoder:{name}" for name in ENCODERS),
    *(f"sources:{name}" for name in test_text_to_text.CONFIGS),
    *(f"hears:{name}" for name in wav2vec_zoo.CASES),
    *(f"sees:{name}" for name in seeing.FAMILIES),
)


def read(path: Path) -> None:
    """What `thalweg plan` and the front end read."""
    plan(EngineArgs(model=str(path), device="cpu"))
    if (path / "preprocessor_config.json").is_file():
        load_processors(checkpoint_config.read(EngineArgs(model=str(path)), path), path)


def walk(content: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from walk(value, (*above, key))


def change(content: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with another value. ...: without the key."""
    made = copy.deepcopy(content)
    inner = made
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    if value is ...:
        inner.pop(keys[-1], None)
    else:
        inner[keys[-1]] = value
    return made


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_value_is_an_error_of_this_project(name: str, tmp_path: Path) -> None:
    path = describe(name, tmp_path)
    draw = random.Random(zlib.crc32(name.encode()))
    files = [file for file in (path / "config.json", path / "preprocessor_config.json") if file.is_file()]
    whole = {file: json.loads(file.read_text()) for file in files}
    for _ in range(some(5, 20)):
        file = draw.choice([f for f in files if whole[f]])
        keys = draw.choice([k for k in walk(whole[file]) if k != ("architectures",)])
        value: Any = draw.choice((*WRONG, ...))
        inner: Any = whole[file]
        for key in keys:
            inner = inner[key]
        if isinstance(inner, list) and inner and draw.random() < 0.6:
            value = [*inner]
            value[draw.randrange(len(value))] = draw.choice(WRONG)
        file.write_text(json.dumps(change(whole[file], keys, value)))
        try:
            read(path)
        except ThalwegError:
            pass
        except Exception as e:
            raise AssertionError(f"{file.name}: {'.'.join(keys)} = {value!r:.80}") from e
        file.write_text(json.dumps(whole[file]))


CASES: tuple[tuple[str, str, str, Any, str], ...] = (
    ("decoder:zamba", "config.json", "layers_block_type", [["mamba"]] * 5, "layers_block_type: must be a list of"),
    ("decoder:zamba2", "config.json", "layers_block_type", [{}] * 4, "layers_block_type: must be a list of"),
    ("decoder:recurrent-gemma", "config.json", "block_types", [["recurrent"]], "block_types: must be a list of"),
    ("decoder:laguna", "config.json", "mlp_layer_types", [[], "dense", "dense"], "mlp_layer_types: must be a list of 3 names"),
    ("decoder:hy-v4", "config.json", "indexer_types", ["full", "full", {}, "full"], "indexer_types: must be a list of 4"),
    ("decoder:gemma4", "config.json", "per_layer_config", {"1": 3}, "per_layer_config: must map the numbers of layers"),
    ("encoder:modernbert", "config.json", "rope_parameters", {"full_attention": [1]}, "full_attention: must be an object"),
    ("hears:data2vec", "config.json", "conv_kernel", True, "conv_kernel, conv_stride: must be lists"),
    ("hears:wav2vec2", "config.json", "conv_stride", 2, "conv_stride: must be"),
    ("sees:deepseek-ocr", "config.json", "projector_config", 3, "projector_config: must be an object"),
    ("sees:deepseek-vl2", "config.json", "projector_config", 3, "projector_config: must be an object"),
    ("sees:deepseek-ocr2", "config.json", "vision_config.sam_config", [1], "sam_config: must be an object"),
    ("sees:deepseek-ocr2", "config.json", "vision_config.encoder_config", [1], "encoder_config: must be an object"),
    ("sees:perception-lm", "config.json", "vision_config.model_args.img_size", [28, {}], "img_size: .* is no square"),
    ("sees:perception-lm", "config.json", "vision_config.model_args.img_size", 2, "img_size: 2 pixels have no patch"),
    ("sees:step-3.7", "config.json", "text_config.layer_types", 1.5, "layer_types: must be"),
    ("sees:qwen4-exp", "config.json", "text_config.split_ngram_parts", 10**9, "split_ngram_parts: must be between"),
    ("sees:smolvlm", "preprocessor_config.json", "size", {"height": 5}, "size: longest_edge: missing"),
    ("sees:idefics3", "preprocessor_config.json", "max_image_size", {"height": 5}, "max_image_size: longest_edge: missing"),
    ("sees:lighton-ocr", "preprocessor_config.json", "patch_size", {"width": 4}, "patch_size: height: missing"),
    ("sees:aria", "config.json", "projector_patch_to_query_dict.784", {}, "projector_patch_to_query_dict"),
)


@pytest.mark.parametrize(("name", "file", "keys", "value", "words"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_the_error_names_the_key(name: str, file: str, keys: str, value: Any, words: str, tmp_path: Path) -> None:
    path = describe(name, tmp_path)
    content = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(change(content, tuple(keys.split(".")), value)))
    with pytest.raises(ThalwegError, match=words):
        read(path)
