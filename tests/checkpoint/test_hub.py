"""What a user calls a model: which names are directories, which are hub ids, and what is said when neither works."""

from __future__ import annotations

import os

import huggingface_hub
import pytest
from huggingface_hub import errors

from thalweg.checkpoint.hub import PATTERNS, resolve_adapter, resolve_model
from thalweg.errors import CheckpointError


def test_a_directory_and_the_bundled_model_are_found(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(tmp_path) == tmp_path
    assert (resolve_model("thalweg-nano") / "tokenizer.json").is_file()


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert resolve_model("~/m") == tmp_path / "m"


@pytest.mark.parametrize(
    "name",
    ["", " ", "/no/such/place", "./missing", "../up/and/away", "a/b/c", "org/..", "org/na me", "x\0y", "single", "-rf",
     "a" * 300, "org/" + "n" * 200, "x" * 5000, "http://host/model"],
)  # fmt: skip
def test_a_name_that_is_neither_is_refused_without_asking_the_hub(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked the hub"))
    with pytest.raises(CheckpointError, match=r"^model: "):
        resolve_model(name)


def test_a_file_and_a_directory_without_a_model_are_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file, not a model directory; give the directory that holds it"):
        resolve_model(str(file))
    with pytest.raises(CheckpointError, match=r"it has no config\.json"):
        resolve_model(str(tmp_path))


def test_offline_the_message_names_the_way_out(monkeypatch, tmp_path):
    """The real library with its network switched off and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"org/name .*cannot be reached.*local directory, or use the bundled model"):
        resolve_model("org/name", download_dir=str(tmp_path))


def test_a_cached_model_is_found_offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "a" * 40
    repo = tmp_path / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "config.json").write_text("{}")
    assert resolve_model("org/name", download_dir=str(tmp_path)) == repo / "snapshots" / commit


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RepositoryNotFoundError", "the hub has no repository org/name, or it is private"),
        ("GatedRepoError", "is gated: accept its terms"),
        ("RevisionNotFoundError", "revision: org/name has no revision 'v9'"),
        ("LocalEntryNotFoundError", "cannot be reached"),
    ],
)
def test_what_the_hub_answers_is_said_in_words(error, words, monkeypatch):
    def answer(*args, **kwargs):
        kind = getattr(errors, error)
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    with pytest.raises(CheckpointError, match=words):
        resolve_model("org/name", revision="v9")


def test_an_adapter_is_a_local_path_or_else_a_hub_id(monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **k: asked.update(k, repo=repo) or str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "here").mkdir(parents=True)
    for path in ("org/here", "/org/name", "org/../name", "a/b/c", "name"):
        assert resolve_adapter(path) == tmp_path / path
    assert not asked
    assert resolve_adapter("org/name", token="t") == tmp_path
    assert (asked["repo"], asked["token"]) == ("org/name", "t")
    assert "adapter_model.bin" not in asked["allow_patterns"]
    monkeypatch.undo()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: 1 / 0)
    with pytest.raises(CheckpointError, match=r"^lora_path: org/name is not cached"):
        resolve_adapter("org/name")


def test_what_is_not_downloaded_is_what_was_told(monkeypatch, tmp_path):
    from thalweg.config import EngineArgs
    from thalweg.engine.client.frontend import locate

    asked = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **k: asked.update(k) or str(tmp_path))
    for args, ignored in (
        (EngineArgs(model="org/name"), ["original/*", "consolidated*"]),
        (EngineArgs(model="org/name", ignore_patterns=["*.fp16.*"]), ["*.fp16.*"]),
    ):
        with pytest.raises(CheckpointError, match=r"config\.json"):
            locate(args)
        assert asked["ignore_patterns"] == ignored


def test_neither_code_nor_pickles_are_downloaded(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    asked = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **k: asked.update(k, repo=repo) or str(tmp_path))
    assert resolve_model("org/name", revision="v1", token="t") == tmp_path
    assert (asked["repo"], asked["revision"], asked["token"]) == ("org/name", "v1", "t")
    assert not {".py", ".bin", ".pt", ".pkl"} & {os.path.splitext(p)[1] for p in PATTERNS}
    assert asked["allow_patterns"] == list(PATTERNS)


def _ggufs(path, *names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"GGUF")
    return path


def test_a_gguf_file_and_a_directory_with_one_are_models(tmp_path):
    _ggufs(tmp_path, "a/model-Q8_0.gguf", "a/mmproj-F16.gguf", "b/m-00001-of-00002.gguf", "b/m-00002-of-00002.gguf")
    assert resolve_model(str(tmp_path / "a" / "model-Q8_0.gguf")) == tmp_path / "a" / "model-Q8_0.gguf"
    assert resolve_model(tmp_path / "a") == tmp_path / "a" / "model-Q8_0.gguf"
    first = tmp_path / "b" / "m-00001-of-00002.gguf"
    assert resolve_model(tmp_path / "b") == resolve_model(tmp_path / "b" / "m-00002-of-00002.gguf") == first


def test_of_several_gguf_files_one_is_named_after_a_colon(tmp_path):
    _ggufs(tmp_path, "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.Q8_0.gguf", "BF16/m-BF16-00001-of-00002.gguf", "m-IQ4_XS.gguf",
           "BF16/m-BF16-00002-of-00002.gguf")  # fmt: skip
    with pytest.raises(CheckpointError, match=r"holds 5 GGUF models: name one, as .*:.* \(.*m-Q4_K_M\.gguf"):
        resolve_model(tmp_path)
    for quant, file in (("Q4_K_M", "m-Q4_K_M.gguf"), ("q8_0", "m.Q8_0.gguf"), ("BF16", "BF16/m-BF16-00001-of-00002.gguf")):
        assert resolve_model(f"{tmp_path}:{quant}") == tmp_path / file
    with pytest.raises(CheckpointError, match=r"'Q2_K' names no file of .*: it has m-BF16"):
        resolve_model(f"{tmp_path}:Q2_K")
    with pytest.raises(CheckpointError, match="'Q4' names no file"):  # part of a word is no word
        resolve_model(f"{tmp_path}:Q4")


def test_a_gguf_file_of_a_repository_is_downloaded_alone(tmp_path, monkeypatch):
    asked = {}

    def download(repo, **more):
        asked.update(more, repo=repo)
        return str(_ggufs(tmp_path, "m-Q4_K_M.gguf"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("org/name-GGUF:q4_k_m") == tmp_path / "m-Q4_K_M.gguf"
    assert asked["repo"] == "org/name-GGUF"
    assert asked["allow_patterns"] == ["*Q4_K_M*.gguf", "*q4_k_m*.gguf"]
