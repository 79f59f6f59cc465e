"""A process that serves imports torch without its compiler's parts, and nobody can tell but by the clock: each case runs in a
fresh interpreter, whose output must be that of one that imported torch whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts a process that imports torch
LEAN = "from thalweg.backends import lean_torch\nlean_torch.import_torch()\n"
STATE = "\nimport sys\nprint([n for n in ('torch.export', 'torch._meta_registrations', 'torch._refs') if n in sys.modules])"
EAGER = "import torch\nprint((torch.arange(6.0).view(2, 3) @ torch.ones(3, 2)).softmax(-1).tolist())"
NEEDS = {
    "an attribute": "import torch\nprint(sorted(n for n in vars(torch.export) if not n.startswith('_')))",
    "what came along": """
import torch
print(torch.functional.broadcast_shapes((2, 1), (3,)), torch._refs.add(torch.ones(1), 2))""",
    "exporting": """
import torch
class Twice(torch.nn.Module):
    def forward(self, x):
        return (x * 2).softmax(-1)
print(torch.export.export(Twice(), (torch.ones(2, 3),)).graph)""",
    "fake tensors": """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode() as mode:
    x = torch.empty(4, 4)
    print([(t.shape, t.stride(), t.dtype) for t in torch.linalg.eigh(x)], torch.nn.functional.gelu(x).shape)""",
    "a traced function": """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
f = lambda x: torch.nn.functional.layer_norm(x, (4,)).var()
print(make_fx(f)(torch.ones(2, 4)).code, make_fx(f, tracing_mode="fake")(torch.ones(2, 4)).code)""",
    "a module that comes along": """
import sys
import torch._export as e
print(e.wrappers.__name__, e is sys.modules["torch._export"], e.__spec__.origin == e.__file__)
import torch._refs.nn.functional as f
print(f.gelu.__module__, f is torch._refs.nn.functional, f.__spec__.loader is f.__loader__)""",
    "a compiled function": """
import torch
print(torch.compile(lambda x: x.sin() + 1, backend="aot_eager")(torch.zeros(3)))""",
    "transforms": """
import torch
f = lambda x: torch.nn.functional.gelu(x).sum()
print(torch.func.jvp(torch.func.grad(f), (torch.ones(3),), (torch.ones(3),)), torch.func.hessian(f)(torch.ones(2)))""",
    "tensors without values, once told": """
import torch
lean = sys.modules.get("thalweg.backends.lean_torch")
if lean:
    lean.import_whole()
print([t.shape for t in torch.linalg.eigh(torch.empty(3, 3, device="meta"))])
print(sorted(torch._C._dispatch_get_registrations_for_dispatch_key("Meta")))""",
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", "import sys\n" + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_running_operators_needs_none_of_what_was_put_off() -> None:
    lean, whole = run(LEAN + EAGER + STATE), run(EAGER + STATE)
    assert lean.splitlines()[-1] == "[]"
    assert lean.splitlines()[:-1] == whole.splitlines()[:-1]


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize("need", NEEDS)
def test_whatever_needs_the_rest_finds_it_and_gives_the_same(need: str) -> None:
    lean = run(LEAN + "import torch\nassert 'torch._meta_registrations' not in sys.modules\n" + NEEDS[need] + STATE)
    assert lean == run("import torch\n" + NEEDS[need] + STATE)


def test_a_serving_process_runs_without_them() -> None:
    """Greedy and sampled, with logprobs, several requests at once."""
    code = """
from thalweg.engine.worker.stages.open import prepare
prepare("cpu")
from thalweg import LLM, SamplingParams
llm = LLM(device="cpu", max_model_len=128, max_num_seqs=4, threads=1)
some = [SamplingParams(temperature=t, seed=1, top_p=0.9, logprobs=2, max_tokens=6, ignore_eos=True) for t in (0, 1, 0.7)]
assert [len(r.outputs[0].token_ids) for r in llm.generate(["a", "b c", "d"], some)] == [6, 6, 6]"""
    assert run(code + STATE).splitlines()[-1] == "[]"


def test_its_library_loads_beforehand_without_any_of_its_modules() -> None:
    code = """
import time
from thalweg.backends import lean_torch
lean_torch.load_library()
until = time.monotonic() + 100
while "libtorch_cpu" not in open("/proc/self/maps").read() and time.monotonic() < until:
    time.sleep(0.01)
assert time.monotonic() < until
assert not [n for n in sys.modules if n.partition(".")[0] == "torch"]
"""
    assert run(code + LEAN + EAGER + STATE) == run(LEAN + EAGER + STATE)


@pytest.mark.parametrize("lib", [None, b"no machine code"])
def test_a_library_that_does_not_load_is_left_to_the_import(tmp_path: Path, lib: bytes | None) -> None:
    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("print('imported')")
    if lib is not None:
        (tmp_path / "torch/lib/libtorch_global_deps.so").write_bytes(lib)
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nfrom thalweg.backends import lean_torch\nlean_torch.load_library()\n"
    assert run(code + "import torch") == "imported\n"


def test_places_of_operators_are_known_before_inspect_looks_for_them() -> None:
    code = """
import inspect
for name in lean_torch.REGISTERING:
    file = getattr(sys.modules.get(name), "__file__", None)
    assert file is None or inspect.modulesbyfile[file] == name, name"""
    run(LEAN + code)


def test_nobody_keeps_a_stand_in() -> None:
    code = """
for name, module in list(sys.modules.items()):
    kept = [k for k, v in list(vars(module).items()) if type(v).__name__ == "_StandIn"]
    assert not kept, (name, kept)"""
    run(LEAN + code)


def test_torch_imported_before_stays_as_it_is() -> None:
    code = "import torch\nbefore = dict(vars(torch)), list(sys.meta_path), torch.export\n"
    run(code + LEAN + "assert before == (dict(vars(torch)), list(sys.meta_path), torch.export)")


def test_a_name_this_version_does_not_have_is_none_to_put_off() -> None:
    code = "from thalweg.backends import lean_torch\nlean_torch.PUT_OFF += ('torch._of_another_version',)\n"
    ask = "import torch\nprint(hasattr(torch, '_of_another_version'), torch.export.__name__)"
    assert run(code + "lean_torch.import_torch()\n" + ask) == "False torch.export\n"


@pytest.mark.parametrize(
    "use", ["from torch.export.part import name", "import torch.export as e; name = e.part.name", "import torch.export.part"]
)
def test_what_torch_needs_while_it_is_imported_is_there(tmp_path: Path, use: str) -> None:
    """Another version of torch may use what this one only binds."""
    for file, text in {
        "torch/__init__.py": f"from torch import export as export\n{use}\nfrom torch import _meta_registrations",
        "torch/export/__init__.py": "from torch.export import part",
        "torch/export/part.py": "name = 'there'",
        "torch/_meta_registrations.py": "",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    code = f"sys.path.insert(0, {str(tmp_path)!r})\n{LEAN}import torch\nprint(torch.export.part.name)"
    assert run(code + STATE) == "there\n['torch.export']\n"


def test_threads_that_need_it_at_once_all_find_it_whole() -> None:
    code = """
import threading
import torch
start, seen = threading.Barrier(4), []
def look():
    start.wait()
    seen.append((torch.export.Dim.__name__, hasattr(torch._refs, "add")))
threads = [threading.Thread(target=look) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(seen == [("Dim", True)] * 4)"""
    assert run(LEAN + code) == "True\n"
