"""Errors a user may see. Each message names the field or file, the problem, and the fix."""

from __future__ import annotations


class ThalwegError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(ThalwegError, ValueError):
    """A flag, argument or configuration file is wrong. `problems` lists every objection at once."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class CheckpointError(ThalwegError, ValueError):
    """A model file is missing, corrupt, truncated or does not fit the model. Names the file and the reason."""


class UnsupportedModelError(ThalwegError, ValueError):
    """The architecture is not one this version has."""


class DeviceError(ThalwegError, RuntimeError):
    """A platform is unknown or cannot run here."""


class PeerError(ThalwegError, RuntimeError):
    """An exchange with the other ranks of a model failed. `rank` is the one that was waited for, None where it is not known."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        self.rank = rank
        super().__init__(message)


class RequestError(ThalwegError, ValueError):
    """A request is wrong. `param` names the field, as the client wrote it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class TemplateLimitError(ThalwegError, RuntimeError):
    """The model's (or operator's) own chat template used more than a rendering may. Not the caller's doing."""


class UnavailableError(ThalwegError, RuntimeError):
    """Something this needs was lost or stood still, through no fault of the request: try again."""


class EngineDeadError(ThalwegError, RuntimeError):
    """The engine process ended. The message holds its last words."""


class RankLostError(EngineDeadError):
    """A rank's process was killed, or showed no life, through no fault of a request."""


class NotSupportedError(ThalwegError, NotImplementedError):
    """A feature known from vLLM that this version does not have. The message gives the reason and the alternative."""
