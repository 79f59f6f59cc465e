"""What is carried to a machine without a network: wheels, compiled kernels that are found where they lie, and an identity."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import script


def _kernel(cache: Path, key: str, name: str = "product", made_in: str = "/elsewhere") -> None:
    folder = cache / key
    folder.mkdir(parents=True)
    files = [f"{name}{end}" for end in (".ttir", ".ttgir", ".llir", ".ptx", ".source", ".cubin", ".json")]
    for file in files:
        (folder / file).write_text(file)
    paths = {file: f"{made_in}/{key}/{file}" for file in files}
    (folder / f"__grp__{name}.json").write_text(json.dumps({"child_paths": paths}))


def _paths(cache: Path, key: str, name: str = "product") -> dict[str, str]:
    made: dict[str, str] = json.loads((cache / key / f"__grp__{name}.json").read_text())["child_paths"]
    return made


def test_a_cache_that_was_carried_lists_the_files_where_they_lie(tmp_path: Path) -> None:
    """Triton finds a kernel only by the paths in its list."""
    caches = script("caches")
    _kernel(tmp_path / "a", "KEY")
    copied = caches.copy(tmp_path / "a", tmp_path / "b")
    assert caches.count(copied) == 1
    listed = _paths(copied, "KEY")
    assert set(listed) == {p.name for p in (copied / "KEY").iterdir() if not p.name.startswith("__grp__")}
    assert all(Path(p).is_file() and Path(p).parent == copied / "KEY" for p in listed.values())
    (copied / "KEY" / "product.cubin").write_text("made here")
    _kernel(tmp_path / "a", "OTHER")
    caches.copy(tmp_path / "a", copied)
    assert caches.count(copied) == 2
    assert (copied / "KEY" / "product.cubin").read_text() == "made here"


def test_a_stripped_cache_keeps_what_a_launch_reads(tmp_path: Path) -> None:
    caches = script("caches")
    _kernel(tmp_path, "KEY")
    caches.strip(tmp_path)
    assert set(_paths(tmp_path, "KEY")) == {"product.cubin", "product.json"}
    assert {p.name for p in (tmp_path / "KEY").iterdir()} == {"product.cubin", "product.json", "__grp__product.json"}


def test_triton_itself_finds_a_kernel_in_a_carried_cache(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    from triton.runtime.cache import FileCacheManager

    caches = script("caches")
    _kernel(tmp_path / "a", "KEY")
    for folder, found in (("a", 0), ("b", 7)):
        if folder == "b":
            caches.copy(tmp_path / "a", tmp_path / "b")
        with triton.knobs.cache.scope():
            triton.knobs.cache.dir = str(tmp_path / folder)
            assert len(FileCacheManager("KEY").get_group("product.json") or {}) == found


def test_a_pack_brings_its_wheels_and_reaches_the_script(tmp_path: Path) -> None:
    here = script("here")
    pack = tmp_path / "pack"
    (pack / "wheels").mkdir(parents=True)
    assert here.taken(["machine.py", "--pack", str(pack), "--hosted"]) == (None, ["machine.py", f"--pack={pack}", "--hosted"])
    (pack / "wheels" / "x-1-py3-none-any.whl").touch()
    assert here.taken(["machine.py", f"--pack={pack}"]) == (pack / "wheels", ["machine.py", f"--pack={pack}"])
    own = tmp_path / "own"
    own.mkdir()
    for words in ([f"--wheels={own}", f"--pack={pack}"], [f"--pack={pack}", f"--wheels={own}"]):
        assert here.taken(["machine.py", *words])[0] == own
    with pytest.raises(SystemExit, match="--pack: there is no folder 'nowhere'"):
        here.taken(["machine.py", "--pack", "nowhere"])


def test_a_run_with_a_pack_gets_its_kernels_and_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, identity, pack = script("machine"), script("identity"), tmp_path / "pack"
    _kernel(pack / "triton", "KEY")
    said = {"commit": "c" * 40, "dirty": False, "kernels": identity.hash_sources()}
    (pack / "identity.json").write_text(json.dumps(said))
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", "somewhere else")
    monkeypatch.setattr("sys.argv", ["machine.py", "--hosted", "--pack", str(pack)])
    summary, _ = machine.begin(machine._arguments(), script("parts").HOSTED, "a note", {})
    copied = tmp_path / "build" / "here" / "triton"
    assert machine.os.environ["TRITON_CACHE_DIR"] == str(copied)
    assert summary["triton_cache"] == {"folder": str(copied), "kernels_before": 1}
    assert {k: summary["identity"][k] for k in said} == said
    assert _paths(pack / "triton", "KEY")["product.cubin"] == "/elsewhere/KEY/product.cubin"  # the pack is left as it is


def _compiler(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> list[list[str]]:
    """In place of compilers: what would have been run, each making one kernel."""
    seen: list[list[str]] = []

    def run(command: list[str], **more: Any) -> Any:
        seen.append(command)
        if "compile" not in command:
            return subprocess.CompletedProcess(command, 1, "", "no index")
        name = f"KEY{len(seen)}"
        whole = Path(command[command.index("--cache-dir") + 1])
        if fails in command and fails:
            return subprocess.CompletedProcess(command, 1, "", "no kernel for it")
        _kernel(whole, name)
        report = {"compiled": 1, "cached": 0, "seconds": 1.0, "problems": []}
        return subprocess.CompletedProcess(command, 0, json.dumps([report]), "")

    monkeypatch.setattr(script("packing").subprocess, "run", run)
    return seen


def test_what_cannot_be_packed_is_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packing, out = script("packing"), tmp_path / "pack"
    pytest.importorskip("triton")
    monkeypatch.setattr(packing, "ROOT", tmp_path)
    monkeypatch.setattr(packing.identity, "read_sources", lambda: {"commit": "c" * 40, "dirty": True, "kernels": "k"})
    seen = _compiler(monkeypatch, fails="--quantization=fp8")
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"name": "2026-11-26T13:00:00Z 0123"}))
    monkeypatch.setattr("sys.argv", ["packing.py", "--out", str(out), "--summary", str(summary), str(tmp_path / "none.json")])
    assert packing.main() == 1
    said = capsys.readouterr().out
    assert "left out: wheels of msgspec, orjson: no index" in said
    assert "left out: kernels of llama-8b fp8: no kernel for it" in said
    assert "left out: kernels of llama-8b fp8 unfused: no kernel for it" in said
    assert "left out: summary: there is no file" in said
    assert f"{out}: 0.0 MB" in said
    assert script("caches").count(out / "triton") == len(packing.KERNELS) - 2
    assert not list((out / "triton").rglob("*.ptx"))
    assert json.loads((out / "identity.json").read_text())["dirty"] is True
    assert [p.name for p in (out / "summaries").iterdir()] == ["2026-11-26T130000Z-0123.json"]
    compiled = [c for c in seen if "compile" in c]
    assert len(compiled) == len(packing.KERNELS)
    assert all("--arch" in c and "sm_90" in c for c in compiled)


def test_a_pack_may_be_given_only_a_new_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packing, seen = script("packing"), _compiler(monkeypatch)
    monkeypatch.setattr(packing.identity, "read_sources", lambda: {"commit": "d" * 40, "dirty": False, "kernels": "k"})
    monkeypatch.setattr("sys.argv", ["packing.py", "--out", str(tmp_path), "--only", "identity"])
    assert packing.main() == 0
    assert seen == []
    assert json.loads((tmp_path / "identity.json").read_text())["commit"] == "d" * 40
