"""Kinds of media that prompts may hold: one line each, and a file of `thalweg.media.kinds`.

An installed package adds a kind by an entry point of the group `thalweg.media_kinds`. The recipe is docs/adding-media.md.
"""

from __future__ import annotations

from thalweg.plugins import PluginRegistry

MEDIA_KINDS = PluginRegistry(
    "thalweg.media_kinds",
    {
        "image": "thalweg.media.kinds.image:IMAGE",
        "audio": "thalweg.media.kinds.audio:AUDIO",
        "video": "thalweg.media.kinds.video:VIDEO",
    },
)
"""Name -> a `thalweg.media.kinds.base.MediaKind`."""
