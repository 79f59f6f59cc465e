"""Code in README and docs runs as it is printed. Blocks marked `python no-run` need a server, and are only parsed."""

from __future__ import annotations

import ast
import importlib.resources
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import architecture_names
import docs_links
import feature_page
import flag_reference
import model_reference
import pytest
import yaml
from features import Feature

from thalweg.cli import flags, matrix
from thalweg.hal import discovery
from thalweg.models import registry

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FILES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")), *DOCS]
FILES += sorted((ROOT / "benchmarks").rglob("README.md"))


def blocks(file: Path) -> list[tuple[bool, str]]:
    """(runs, code) of every Python block."""
    return [(not m[1], m[2]) for m in BLOCK.finditer(file.read_text(encoding="utf-8"))]


def test_every_python_block_parses() -> None:
    found = [(file, code) for file in FILES for _, code in blocks(file)]
    assert any(file.name == "README.md" for file, _ in found)
    for file, code in found:
        ast.parse(code, filename=str(file))


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [f for f in FILES if any(runs for runs, _ in blocks(f))], ids=lambda f: f.relative_to(ROOT).as_posix()
)
def test_python_blocks_run(file: Path, tmp_path: Path) -> None:
    """One after another in one interpreter, in an empty folder."""
    code = "\n".join(code for runs, code in blocks(file) if runs)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(file: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", file.read_text(encoding="utf-8"))
    assert [t for t in targets if not (file.parent / t).exists()] == []


def anchors(file: Path) -> set[str]:
    """The anchors of a page's headings."""
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h).strip() for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\s-]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_anchors_of_links_are_headings(file: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)", file.read_text(encoding="utf-8"))
    missing = [
        f"{path}#{a}"
        for path, a in links
        if not path or path.endswith(".md")
        if a not in anchors(file.parent / path if path else file)
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["architecture", "life-of-a-request", "life-of-a-weight"])
def test_pages_about_the_code_name_files_and_definitions_that_exist(name: str) -> None:
    """Paths anywhere, and in tables the functions and classes that a file of the first column is said to define."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    missing = [path for path in re.findall(r"`(thalweg/[\w/.]+)`", page) if not (ROOT / path).exists()]
    for path, code in re.findall(r"^\| `(thalweg/[\w/.]+)` \| ([^|]*) \|", page, re.MULTILINE):
        source = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""
        defined = set(re.findall(r"\b(?:def|class) (\w+)", source))
        missing += [f"{path}: {n}" for n in re.findall(r"`([\w.]+)`", code) if not set(n.split(".")) <= defined]
    assert missing == []


def test_every_page_has_a_place_in_the_site() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = [page for section in config["nav"] for pages in section.values() for page in pages]
    paths = [next(iter(page.values())) if isinstance(page, dict) else page for page in listed]
    assert sorted(paths) == sorted(file.relative_to(ROOT / "docs").as_posix() for file in DOCS)


def test_in_the_site_links_that_leave_it_are_paths() -> None:
    page = "[a](b.md#c) [the kit](../thalweg/hal/op.py) [`style.md`](../style.md) ![p](images/x.svg) [w](https://x.org/a)"
    made = "[a](b.md#c) the kit (`thalweg/hal/op.py`) `style.md` ![p](images/x.svg) [w](https://x.org/a)"
    assert docs_links.on_page_markdown(page, SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))) == made
    deep = SimpleNamespace(file=SimpleNamespace(src_uri="evidence/a.md"))
    assert docs_links.on_page_markdown("[a](../b.md) [c](../../ci/x)", deep) == "[a](../b.md) c (`ci/x`)"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "evidence" / "support.html").exists()


def test_the_flag_reference_is_what_is_generated() -> None:
    assert flag_reference.PAGE.read_text(encoding="utf-8") == flag_reference.page(), "python ci/flag_reference.py"


def test_the_flag_reference_says_what_counts_here_and_not_what_counts_elsewhere() -> None:
    """Defaults of the settings classes, values of this version, and a reason for each refusal."""
    rows = {line.split("`")[1]: line for line in flag_reference.page().splitlines() if line.startswith("| `--")}
    assert {name.removeprefix("--").removeprefix("[no-]") for name in rows} == set(flags.table())
    assert "| `true` |" in rows["--[no-]enable-prefix-caching"]
    assert "`w4a8`" in rows["--quantization"]
    assert "--[no-]enable-lora" in rows


@pytest.mark.slow
def test_the_table_of_models_is_what_is_generated() -> None:
    assert model_reference.PAGE.read_text(encoding="utf-8") == model_reference.page(), "python ci/model_reference.py"
    assert all(f"`{name}`" in model_reference.page() for name in registry.ARCHITECTURES)


def test_the_page_of_features_is_what_is_generated() -> None:
    """It follows from ci/features.py, the evidence of the support matrix, and the flags that are honoured."""
    assert feature_page.PAGE.read_text(encoding="utf-8") == feature_page.page(), "python ci/feature_page.py"


def test_a_feature_claims_no_run_without_evidence_and_no_file_that_is_missing() -> None:
    ran = {"cpu"}
    assert feature_page._row(Feature("a", "RHHHN", ("README.md",)), {}, ran).startswith("| a | run | hosted |")
    with pytest.raises(ValueError, match="cuda has run on no device"):
        feature_page._row(Feature("a", "RRHHN"), {}, ran)
    with pytest.raises(ValueError, match=r"gone\.py is missing"):
        feature_page._row(Feature("a", "RHHHN", ("tests/gone.py",)), {}, ran)
    with pytest.raises(ValueError, match="--max-num-seqs is honoured"):
        feature_page._row(Feature("a", "NNNNN", flag="max-num-seqs"), {}, ran)


def test_the_level_of_a_feature_is_the_best_of_its_kernels() -> None:
    cells = {"op": {"cpu": {"native": ("executed",)}, "cuda": {"fast": ("compiled", "interpreted"), "slow": ("executed",)}}}
    feature = Feature("a", ops={"op": "native|fast"})
    assert [feature_page.level(feature, p, cells) for p in ("cpu", "cuda", "xpu")] == ["R", "H", "h"]


def test_every_result_is_in_the_index() -> None:
    results = ROOT / "benchmarks" / "results"
    named = set(re.findall(r"^\| \[([^]]+\.json)\]", (results / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {file.name for file in results.glob("*.json")}


def test_the_recipes_of_contributing_are_pages() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {f"docs/{p.name}" for p in DOCS if p.name.startswith("adding-")} <= set(re.findall(r"\]\(([^)]+)\)", text))


def test_the_package_says_that_it_is_typed() -> None:
    assert importlib.resources.files("thalweg").joinpath("py.typed").is_file()


def test_commands_the_readme_names_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"serve", "test"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_readme_claims_hardware_for_no_platform_without_evidence_of_it() -> None:
    """Its table says yes exactly where the kit's evidence was taken on the device."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (yes|not yet) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, _ in rows} == set(discovery.names()) - {"null", "reference"}
    executed = {platform for file in matrix.evidence() if file["level"] == "executed" for platform in file["platforms"]}
    assert {name for name, said in rows if said == "yes"} == executed - {"reference"}


def test_every_name_of_other_engines_has_a_fate() -> None:
    """A family, a stated reason, or the fallback to transformers."""
    for source, names in architecture_names.fates().items():
        assert len(names) > 200
        assert not [name for name, fate in names.items() if fate == "unknown"], source


def test_the_readme_counts_the_architectures() -> None:
    """It names those that people ask for. All of them are in the generated table."""
    said = re.search(r"(\d+) architectures", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    assert len(registry.ARCHITECTURES) - 50 < int(said[1]) <= len(registry.ARCHITECTURES)
