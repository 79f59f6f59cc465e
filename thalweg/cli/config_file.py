"""`--config FILE`: flags from a YAML file. The command line has precedence."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from thalweg.cli import flags
from thalweg.errors import ConfigError
from thalweg.options.table import table

MAX_BYTES = 1_000_000
MODEL = ("model", "model_tag", "model-tag")


def fill(namespace: argparse.Namespace, parser: flags.Parser) -> None:
    """The flags of the file that --config names, where the command line did not give them. ConfigError, or the parser's own
    error, names file and flag."""
    file = flags.explicit_value(namespace, "config")
    if file is None:
        return
    parser.where = f"{file}: "
    there = parser.parse_args(flags.normalise(words_of(f"{file}: ", read_yaml("--config", Path(file))), parser))
    parser.where = ""
    if flags.explicit_value(there, "config") is not None:
        raise ConfigError(f"{file}: config: a file cannot name another one")
    for flag in table().values():
        value = flags.explicit_value(there, flag.dest)
        if value is not None and flags.explicit_value(namespace, flag.dest) is None:
            setattr(namespace, flag.dest, value)


def words_of(where: str, content: dict[Any, Any]) -> list[str]:
    """The content of a file as words of a command line. true is the bare flag, false its --no- form, null nothing, a list
    several values, an object JSON. Names have dashes or underscores. where: begins errors."""
    known = {option[2:] for f in table().values() for option in f.spellings if option.startswith("--")}
    objects = {f.name for f in table().values() if f.kind == "json"}
    words: list[str] = []
    for key, value in content.items():
        name = "model" if key in MODEL else str(key).replace("_", "-")
        if name.partition(".")[0] not in known:
            raise ConfigError(f"{where}{key}: there is no such flag; keys are names of flags, without dashes in front")
        if value is True or value is False:
            words.append(f"--{'' if value else 'no-'}{name}")
        elif isinstance(value, dict) or (isinstance(value, list) and name in objects):
            try:
                words += [f"--{name}", json.dumps(value)]
            except (ValueError, TypeError, RecursionError) as e:  # anchors that contain themselves, dates
                raise ConfigError(f"{where}{key}: is not JSON: {e}") from None
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)] if value else []
        elif value is not None:
            words.append(f"--{name}={value}")
    return words


def read_yaml(flag: str, file: Path) -> dict[Any, Any]:
    """The content of the file of `flag`. ConfigError names it. A pipe is read too."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """A key that is given twice is an error. YAML says so, and PyYAML keeps the last."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key in (k for k, _ in node.value if isinstance(k, yaml.ScalarNode)):
                if key.value in seen:
                    raise yaml.YAMLError(f"the key {key.value!r} is given twice{key.start_mark}")
                seen.add(key.value)
            return node

    try:
        with file.open("rb") as f:  # devices and pipes have no size
            data = f.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{flag}: {file} has more than {MAX_BYTES} bytes")
        content = yaml.load(data.decode(), Loader)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{flag}: {str(file)!r} cannot be read: {e}") from None
    except yaml.YAMLError as e:
        raise ConfigError(f"{flag}: {file} is not valid YAML: {' '.join(str(e).split())}") from None
    except RecursionError:
        raise ConfigError(f"{flag}: {file} has too many levels") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{flag}: {file} must hold names of flags and their values, not {type(content).__name__}")
    return content
