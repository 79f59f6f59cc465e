"""The first parts of audio encoders: from a clip to the states that layers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts, Parts

EPS = 1e-5
"""Of norms of convolutions."""


def enter_samples(s: spec.SampleConvolutions, parts: BoundParts, p: Parts, clip: Array) -> Array:
    """clip [1, samples] -> [T, hidden]."""
    x = clip[None]
    for i, (_, _, stride) in enumerate(s.convs):
        c = p["convs"][i]
        x = functional.conv1d(x, c["kernel"], c.get("bias"), stride=stride)
        if s.each_normed:
            x = functional.layer_norm(x.mT, x.shape[1:2], c["norm"]["scale"], c["norm"]["shift"], EPS).mT
        elif not i:
            x = functional.group_norm(x, x.shape[1], c["norm"]["scale"], c["norm"]["shift"], EPS)
        x = activate_clip(x, s.act)
    x = x[0].T.contiguous()
    if s.normed:
        x = functional.layer_norm(x, x.shape[1:], p["entering"]["scale"], p["entering"]["shift"], s.eps)
    return parts.linear("/enter", p["enter"], x) if s.projection else x


def enter_frames(s: spec.FrameConvolutions, parts: BoundParts, p: Parts, clip: Array) -> Array:
    """clip [bins, frames] -> [T, hidden]."""
    x = torch.relu(parts.linear("/first", p["first"], clip.T.contiguous())).T[None]
    for i in range(2):
        c = p["convs"][i]
        x = torch.relu(functional.conv1d(x, c["kernel"], c["bias"], stride=s.stride))
    return parts.linear("/enter", p["enter"], x[0].T.contiguous())


def project_frames(s: spec.FrameProjection, parts: BoundParts, p: Parts, clip: Array) -> Array:
    """clip [inputs, T] -> [T, hidden]."""
    x = functional.layer_norm(clip.T, (s.inputs,), p["entering"]["scale"], p["entering"]["shift"], s.eps)
    return parts.linear("/enter", p["enter"], x)


ENTRANCES: Mapping[type, Callable[..., Any]] = {
    spec.SampleConvolutions: enter_samples,
    spec.FrameConvolutions: enter_frames,
    spec.FrameProjection: project_frames,
}
"""Declaration -> its function, called with (declaration, parts, parameters, the clip in the model's dtype)."""
