"""Programs written for vLLM, with thalweg under that name: only where it was asked for, and never over the real one."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import python_names

from thalweg import compat
from thalweg.cli import main
from thalweg.compat.arguments import AsyncEngineArgs, EngineArgs
from thalweg.errors import ConfigError, NotSupportedError

ROOT = Path(compat.__file__).parents[2]
PROGRAMS = {
    "basic": r"'3 \+ 4 =' -> '.*' \((stop|length)\)\n'reverse: stone' -> .*\n(None|'.*') -> .*\n",
    "chat": r"(.+\n){3}",
    "embed": r"1\.000 (\d+) a stone in the river\n-?\d\.\d{3} \1 a rock in the stream\n-?\d\.\d{3} \1 3 \+ 4 = 7\n",
    "structured": r"(yes|no)\n\d{3}-[a-z]{2}\n\{'name': '(Ada|Bo)', 'age': -?\d+\}\n",
}


def as_vllm(*words: str, **more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "thalweg", "as-vllm", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **more}, check=False)


@pytest.mark.slow
def test_programs_of_the_shape_that_vllm_shows_run():
    files = [str(ROOT / "examples" / "vllm_names" / f"{name}.py") for name in PROGRAMS]
    one_process = "import runpy, sys\nfor file in sys.argv[1:]:\n    runpy.run_path(file)\n    print('---')"
    done = as_vllm(sys.executable, "-c", one_process, *files, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    for (name, pattern), said in zip(PROGRAMS.items(), done.stdout.split("---\n"), strict=False):
        assert re.fullmatch(pattern, said), (name, said)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with a package called vllm that is not ours, on the path."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("real = True\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *[p for p in sys.path if p != str(compat.PATH)]])
    for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_the_real_one_is_never_hidden(elsewhere, monkeypatch):
    for ask in (compat.as_vllm, lambda: compat.environment({})):
        with pytest.raises(ConfigError, match="the real vllm is installed"):
            ask()
    assert str(compat.PATH) not in sys.path
    assert main(["as-vllm", "true"]) == 2


def test_nothing_is_named_vllm_unless_somebody_asked():
    code = "import thalweg.compat, importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is not None)"
    clean = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, env=clean).returncode == 0


def test_a_process_gets_the_folder_in_front_of_its_path_once():
    given = compat.environment({"PYTHONPATH": os.pathsep.join(["a", str(compat.PATH), "b"]), "HOME": "h"})
    assert given == {"PYTHONPATH": os.pathsep.join([str(compat.PATH), "a", "b"]), "HOME": "h"}
    version = "import importlib.metadata as m, vllm; print(m.version('vllm') == vllm.__version__, vllm.__version__)"
    done = as_vllm(sys.executable, "-c", version)
    assert done.stdout.startswith("True 0.32.0+thalweg"), done.stderr
    assert main(["as-vllm", "no-such-command-at-all"]) == 2


def test_engine_flags_come_from_a_parser_of_the_programs_own():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--mine")
    said = parser.parse_args(["--model", "m", "--max-model-len", "2k", "--no-enable-prefix-caching", "--mine", "x", "-tp", "1"])
    made = AsyncEngineArgs.from_cli_args(said)
    assert (made.model, made.max_model_len, made.enable_prefix_caching, made.tensor_parallel_size) == ("m", 2000, False, 1)
    with pytest.raises(ConfigError, match=r"enable_lora: .*merge the adapter"):
        EngineArgs.from_cli_args(parser.parse_args(["--enable-lora"]))


def test_most_names_of_vllm_are_here_and_the_others_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    every = list(python_names.names())
    fates = [fate for *_, fate in every]
    here, refused = fates.count(python_names.HAS), fates.count(python_names.REFUSES)
    assert here >= 308
    assert here + refused >= 495
    assert python_names.main(["--missing"]) == 0
    assert f"{len(every)} names: {here} here, {refused} refused in words" in capsys.readouterr().out


def test_a_name_that_is_counted_as_refused_says_why(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    compat.as_vllm()
    from vllm import LLMEngine, ModelRegistry, initialize_ray_cluster
    from vllm.lora.request import LoRARequest

    calls = [(LoRARequest, "merge the adapter"), (ModelRegistry.register_model, "thalweg.models")]
    for call, said in (*calls, (LLMEngine.from_vllm_config, "from_engine_args"), (initialize_ray_cluster, "no Ray workers")):
        with pytest.raises(NotSupportedError, match=said):
            call("x")
    assert "LlamaForCausalLM" in ModelRegistry.get_supported_archs()
