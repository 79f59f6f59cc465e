"""Breaking a rule of the house fails the check that guards it, and the check names the rule."""

from __future__ import annotations

import ast
import configparser
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import byte_formulas
import choke_points
import device_words
import group_kinds
import names
import pytest
import refusals
import sampling_walk
from source import Rule, sources

from thalweg.engine.messages import TokenSampling
from thalweg.params import NUMBERS, OF_MODEL, SAMPLER
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.sampling import shared_fields
from thalweg.server.core.schema import SamplingFields

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MAY_USE_FRAMEWORK = {
    "thalweg.backends", "thalweg.bench", "thalweg.compat", "thalweg.engine.executor", "thalweg.engine.main",
    "thalweg.engine.planning", "thalweg.engine.worker", "thalweg.hal.ops", "thalweg.hal.testing", "thalweg.llm",
    "thalweg.models", "thalweg.offline", "thalweg.quantization", "thalweg.quantize",
}  # fmt: skip
CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(ROOT / ".importlinter")

# ---------------------------------------------------------------- who may import whom

BREAKS = [
    ("no-framework", "engine/control/scheduler.py", "import torch", "torch"),
    ("no-framework", "engine/ipc/codec.py", "from torch.nn import functional", "torch"),
    ("no-framework", "server/app.py", "def later():\n    import thalweg.llm", "thalweg.llm"),
    ("no-framework", "text/stops.py", "from thalweg.hal import ops", "thalweg.hal.ops"),
    ("no-framework", "hal/comm.py", "import triton", "triton"),
    ("layers", "hal/kv.py", "import thalweg.config", "thalweg.config"),
    ("layers", "engine/worker/runner.py", "from thalweg.backends.cpu import X", "thalweg.backends.cpu"),
    ("layers", "server/serve.py", "import thalweg.backends.tpu", "thalweg.backends.tpu"),
    ("layers", "models/step.py", "import thalweg.engine.worker.runner", "thalweg.engine.worker.runner"),
    ("layers", "quantization/format.py", "import thalweg.models.spec", "thalweg.models.spec"),
    ("layers", "checkpoint/hub.py", "import thalweg.template.chat", "thalweg.template.chat"),
    ("layers", "engine/control/cache/pool.py", "import thalweg.text.stops", "thalweg.text.stops"),
    ("layers", "engine/control/core.py", "import thalweg.engine.ipc.codec", "thalweg.engine.ipc.codec"),
    ("layers", "async_llm.py", "import thalweg.engine.main", "thalweg.engine.main"),
    ("server", "server/http/middleware.py", "import thalweg.server.core.lifecycle", "thalweg.server.core.lifecycle"),
    ("server", "server/core/serving.py", "import thalweg.server.openai.chat", "thalweg.server.openai.chat"),
    ("server", "server/anthropic/blocks.py", "import thalweg.server.responses.items", "thalweg.server.responses.items"),
    ("server", "server/settings.py", "import thalweg.server.observe.metrics", "thalweg.server.observe.metrics"),
    ("backends", "backends/cpu/device.py", "from thalweg.models import load", "thalweg.models.load"),
    ("backends", "backends/torch_native/linear.py", "import thalweg.engine.messages", "thalweg.engine.messages"),
    ("backends-apart", "backends/null/device.py", "import thalweg.backends.cpu.device", "thalweg.backends.cpu.device"),
    ("worker", "engine/worker/build.py", "import thalweg.engine.control", "thalweg.engine.control"),
    ("transformers", "engine/planning/resolve.py", "import transformers", "transformers"),
]


def import_rules(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [BIN / "lint-imports", "--no-logo", "--no-cache"], cwd=tree, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every rule broken at once in a copy of the tree: contract -> what the check says of it."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "thalweg", tree / "thalweg", ignore=shutil.ignore_patterns("__pycache__", "weights", "draft"))
    shutil.copy(ROOT / ".importlinter", tree)
    for _, file, line, _ in BREAKS:
        with (tree / "thalweg" / file).open("a") as f:
            f.write(f"\n{line}\n")
    code, output = import_rules(tree)
    assert code == 1
    details = output.partition("Broken contracts")[2]
    names = {contract: CONTRACTS[f"importlinter:contract:{contract}"]["name"] for contract, *_ in BREAKS}
    begins = {contract: details.index(name[:70]) for contract, name in names.items() if name[:70] in details}
    ends = sorted([*begins.values(), len(details)])
    return {c: details[at : ends[ends.index(at) + 1]] for c, at in begins.items()}


@pytest.mark.parametrize(("contract", "file", "line", "target"), BREAKS)
@pytest.mark.slow
def test_a_broken_import_rule_fails_by_name(broken: dict[str, str], contract: str, file: str, line: str, target: str) -> None:
    importer = "thalweg." + file.removesuffix(".py").replace("/", ".")
    assert contract in broken, f"{contract} was kept in spite of {line!r} in {file}"
    assert f"{importer} -> {target} " in broken[contract]


def test_every_room_is_under_the_framework_rule_or_named_as_free() -> None:
    """A new module cannot slip past the rules by not being listed."""
    listed = set(CONTRACTS["importlinter:contract:no-framework"]["source_modules"].split())
    split = {"thalweg.engine", "thalweg.hal"}  # rooms whose parts are listed one by one
    rooms = set()
    for package in ("thalweg", *sorted(split)):
        for child in (ROOT / package.replace(".", "/")).iterdir():
            if child.suffix == ".py" or (child / "__init__.py").exists():
                rooms.add(f"{package}.{child.stem}")
    rooms -= {*split, "thalweg.__init__", "thalweg.engine.__init__", "thalweg.hal.__init__"}
    assert rooms - listed - MAY_USE_FRAMEWORK == set()
    assert (listed | MAY_USE_FRAMEWORK) - rooms == {"thalweg.backends.null"}


# ---------------------------------------------------------------- device words, kinds of KV group, choke points


def findings(rule: Rule, tmp_path: Path, file: str, code: str) -> str:
    """What a rule says of one file with this code."""
    path = tmp_path / "thalweg" / file
    path.parent.mkdir(parents=True)
    path.write_text(f'"""A module."""\n{code}\n')
    (source,) = sources(tmp_path, "thalweg")
    return "\n".join(map(str, rule(source)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def f(t): return t.cuda()", "device word 'cuda' in the name 'cuda'"),
        ("import torch.cuda", "imports torch.cuda"),
        ("from torch import accelerator", "imports torch.accelerator"),
        ("import torch; n = torch.accelerator.device_count()", "uses torch.accelerator"),
        ("def is_rocm(): return False", "device word 'rocm' in the name 'is_rocm'"),
        ("def f(device): return device.kind == 'tpu'", "device word 'tpu' in the string 'tpu'"),
        ("def f(kind): return f'{kind} on NVIDIA hardware'", "device word 'nvidia' in the string"),
        ("class XpuRunner: pass", "device word 'xpu' in the name 'XpuRunner'"),
        ("def f(use_hip=False): return use_hip", "device word 'hip' in the name 'use_hip'"),
        ("f(kind='thalweg.backends.null')", "names the backend 'thalweg.backends.null'"),
    ],
)
def test_a_device_word_outside_the_backends_is_found(tmp_path: Path, line: str, words: str) -> None:
    found = findings(device_words.check, tmp_path, "engine/worker/runner.py", line)
    assert found.startswith("thalweg/engine/worker/runner.py:2: ")
    assert words in found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/worker/runner.py", "# cuda is fine in a comment"),
        ("engine/worker/runner.py", '"""So is CUDA in a docstring."""'),
        ("engine/worker/runner.py", "relationship, chipset = 'a ship', 'tipu'"),
        ("backends/cuda/__init__.py", "import torch; torch.cuda.init(); kind = 'cuda'"),
    ],
)
def test_prose_look_alikes_and_backends_are_fine(tmp_path: Path, file: str, line: str) -> None:
    assert findings(device_words.check, tmp_path, file, line) == ""


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("server/app.py", "import jinja2", "jinja2 belongs in thalweg/template/sandbox.py"),
        ("engine/control/scheduler.py", "import socket", "socket belongs in thalweg/engine/ipc/"),
        (
            "engine/main.py",
            "from multiprocessing import Process",
            "multiprocessing belongs in thalweg/host/processes.py",
        ),
        ("server/app.py", "import os; os.fork()", "os.fork belongs in"),
        ("engine/worker/build.py", "import os; home = os.environ['HOME']", "os.environ belongs in thalweg/host/envs.py"),
        ("backends/cpu/__init__.py", "from os import getenv", "os.getenv belongs in thalweg/host/envs.py"),
        ("engine/ipc/codec.py", "import pickle", "pickle belongs nowhere"),
        ("models/load.py", "weights = torch.load('x.bin')", "torch.load belongs nowhere"),
        ("template/sandbox.py", "eval('1')", "eval belongs nowhere"),
        ("engine/worker/build.py", "import importlib; importlib.import_module('x')", "importlib.import_module belongs in"),
        ("text/tokenizer.py", "AutoTokenizer.from_pretrained('x', trust_remote_code=True)", "trust_remote_code=True"),
        ("hal/step.py", "import msgspec", "thalweg/hal/ may not use msgspec"),
        ("engine/control/scheduler.py", "from pydantic import BaseModel", "thalweg/engine/ may not use pydantic"),
        ("config.py", "x = 1\n" * 700, "702 lines; a file has at most 600"),
        ("config.py", "def long():\n" + "    x = 1\n" * 90, "long has 91 lines; a function has at most 80"),
    ],
)
def test_a_thing_done_in_the_wrong_place_is_found(tmp_path: Path, file: str, line: str, words: str) -> None:
    assert words in findings(choke_points.check, tmp_path, file, line)


def test_the_home_of_a_thing_may_do_it(tmp_path: Path) -> None:
    assert findings(choke_points.check, tmp_path, "host/envs.py", "import os; home = os.environ['HOME']") == ""


def test_allowed_files_exist() -> None:
    homes = {h for choke in choke_points.CHOKES for h in choke.homes} | set(device_words.ALLOWED)
    assert [h for h in homes if not (ROOT / h).exists()] == []


# ---------------------------------------------------------------- the tree itself


@pytest.mark.slow
def test_the_tree_keeps_every_rule() -> None:
    """`make check` asks each by itself."""
    code, output = import_rules(ROOT)
    assert code == 0, output
    for name in ("device_words.py", "choke_points.py"):
        done = subprocess.run([sys.executable, ROOT / "ci" / name], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_finding_fails_the_command(tmp_path: Path) -> None:
    (tmp_path / "thalweg").mkdir()
    (tmp_path / "thalweg" / "x.py").write_text("import pickle\nkind = 'cuda'\n")
    for name in ("device_words.py", "choke_points.py"):
        done = subprocess.run([sys.executable, ROOT / "ci" / name, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "thalweg/x.py:" in done.stderr


@pytest.mark.slow
def test_every_module_says_what_it_is_for() -> None:
    undocumented = [s.path for s in sources(ROOT, "thalweg", "ci") if s.text.strip() and not ast.get_docstring(s.tree)]
    assert undocumented == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands",
    [
        [["ruff", "format", "--check", "."], ["ruff", "check", "."]],
        pytest.param([["mypy"]], marks=pytest.mark.nightly),  # `make check` runs it
    ],
    ids=["formatted and linted", "typed"],
)
def test_the_tree_is_formatted_linted_and_typed(commands: list[list[str]]) -> None:
    for command in commands:
        done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def f(g): return 1 if g.spec.window else 0", "for a window"),
        ("def f(groups): return [g for g in groups if not g.spec.window]", "for a window"),
        ("def f(g, n): return n and g.window", "for a window"),
        ("def f(g, n): return min(n, g.window + 3)", "for a window"),
        ("def f(g):\n    if g.kind == 'state': return 1", "for the kind 'state'"),
        ("def f(spec): return spec.kind not in ('full', 'window')", "for the kind 'full'"),
        ("def f(spec):\n    match spec.kind:\n        case 'full': return 1", "a kind"),
        ("def f(g): return isinstance(g, Window)", "for Window"),
    ],
)
def test_a_kind_of_kv_group_asked_for_outside_the_policies_is_found(tmp_path: Path, line: str, words: str) -> None:
    found = findings(group_kinds.check, tmp_path, "engine/control/scheduler.py", line)
    assert f"asks {words}" in found


@pytest.mark.slow  # `make check` runs the command
def test_nobody_outside_the_policies_asks_what_kind_a_kv_group_is() -> None:
    found = [str(f) for source in sources(ROOT, "thalweg/engine") for f in group_kinds.check(source)]
    assert found == []
    policies = [s for s in sources(ROOT, "thalweg/engine") if s.path.startswith(group_kinds.HOME)]
    assert {"full.py", "window.py", "state.py"} <= {s.path.rpartition("/")[2] for s in policies}


@pytest.mark.parametrize(
    "code",
    [
        "def f(ctx):\n    if ctx.mesh.tensor.size > 1:\n        raise ConfigError('one device only')",
        "def f(self, ctx):\n    if self.odd and self._comm.size != 1:\n        raise ValueError(self.odd)",
        "def f(n):\n    assert n == 1, 'tensor_parallel_size: leave it at 1'",
    ],
)
def test_a_layer_that_refuses_ranks_by_itself_is_found(tmp_path: Path, code: str) -> None:
    assert "add a row to thalweg/models/refusals.py" in findings(refusals.check, tmp_path, "models/layers/odd.py", code)


def test_no_layer_refuses_ranks_outside_the_table() -> None:
    assert [str(f) for source in sources(ROOT, "thalweg/models") for f in refusals.check(source)] == []


# ---------------------------------------------------------------- one declaration of a sampling parameter


def test_a_sampling_parameter_is_named_in_few_files() -> None:
    files = sampling_walk.walk("min_p")
    assert "thalweg/params.py" in files
    assert len(files) <= sampling_walk.MOST, files


def test_every_number_of_the_sampler_has_its_place_in_requests_messages_and_flags() -> None:
    """A new one is declared in params.py, and this says where else its name belongs."""
    for name in SAMPLER:
        assert name in SamplingFields.model_fields
        assert name in TokenSampling.__struct_fields__
        assert name in shared_fields(ChatRequest)
        assert name in shared_fields(AudioRequest)
        assert NUMBERS[name].range.help, "words for its flag"
    assert {"temperature", "top_k", "min_p", "repetition_penalty"} <= set(OF_MODEL) <= set(SAMPLER)


# ---------------------------------------------------------------- one run of a turn


def test_only_the_core_streams_from_the_engine() -> None:
    """Dialects write what core/turn.py runs. A loop of a dialect over outputs would count, end and fail in its own way."""
    files = sorted((ROOT / "thalweg/server").rglob("*.py"))
    assert [p.name for p in files if "serving.stream(" in p.read_text(encoding="utf-8")] == ["turn.py"]


# ---------------------------------------------------------------- formulas beside the walk over a spec


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def f(m): return 2 * m.layers * m.kv_heads * m.head_dim", "multiplies layers by kv_heads by head_dim"),
        ("def f(m): return len(m.layers) * 4 * m.hidden", "multiplies layers by hidden"),
        ("def f(m, hidden): return hidden * (m.vocab + 1)", "multiplies hidden by vocab"),
        ("def f(m): return m.tokens * m.hidden", ""),
        ("def f(m): return m.blocks * m.bytes_per_block", ""),
    ],
)
def test_a_second_byte_formula_is_found(tmp_path: Path, line: str, words: str) -> None:
    found = findings(byte_formulas.check, tmp_path, "engine/planning/memory.py", line)
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.slow  # the same
def test_there_is_one_byte_formula() -> None:
    rooms = ("thalweg/engine", "thalweg/cli", "thalweg/bench", "thalweg/checkpoint", "thalweg/server")
    assert [str(f) for s in sources(ROOT, *rooms) for f in byte_formulas.check(s)] == []


# ---------------------------------------------------------------- names


@pytest.mark.slow  # `make check` runs the script itself
def test_functions_are_verbs_or_nouns_and_class_names_are_unique() -> None:
    assert names.find(ROOT) == []


@pytest.mark.parametrize("name", ["asked", "_joined", "told", "heard", "built"])
def test_a_bare_participle_is_no_name_of_a_function(name: str) -> None:
    found = list(names.check_functions("x.py", ast.parse(f"class A:\n    async def {name}(self): ...")))
    assert [f.line for f in found] == [2]


@pytest.mark.parametrize("name", ["join", "blocks_held", "embed", "is_needed", "finished"])
def test_verbs_nouns_and_names_of_vllm_are_names_of_functions(name: str) -> None:
    assert not list(names.check_functions("x.py", ast.parse(f"def {name}(): ...")))


def test_a_declaration_and_its_layer_share_a_name_and_no_other_classes_do() -> None:
    spec, layer, other = (f"thalweg/{room}/x.py" for room in ("models/spec", "models/layers", "engine"))
    assert not list(names.check_classes([("A", spec, 1), ("A", layer, 2), ("B", other, 3)]))
    assert [f.path for f in names.check_classes([("A", spec, 1), ("A", other, 2)])] == [other]


def test_names_of_test_files_are_unique() -> None:
    """The folders are no packages: a second module of one name is not collected."""
    counts = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []
