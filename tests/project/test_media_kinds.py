"""Code of the engine and the server that names a kind of media is counted, and the control plane has none."""

from __future__ import annotations

from pathlib import Path

import media_kinds

ROOT = Path(__file__).parents[2]


def test_the_control_plane_names_no_kind_and_one_that_did_is_found(tmp_path: Path) -> None:
    control = tmp_path / "thalweg/engine/control"
    control.mkdir(parents=True)
    for file in (ROOT / "thalweg/engine/control").rglob("*.py"):
        (control / file.name).write_text(file.read_text())
    assert media_kinds.count(tmp_path)[1]["thalweg/engine/control"] == 0
    (control / "request.py").write_text('"""An image."""\nif item.kind == "image" and MOST_SOUNDS:\n    hasVideo(images=1)\n')
    (tmp_path / "thalweg/server").mkdir()
    found, rooms = media_kinds.count(tmp_path)
    assert rooms == {"thalweg/engine/control": 4}
    assert sorted(f.message.partition(" in ")[2] for f in found) == ["'MOST_SOUNDS'", "'hasVideo'", "'image'", "'images'"]
