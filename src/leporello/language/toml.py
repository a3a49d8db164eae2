"""A configuration as a TOML file and back: its groups are the tables.

Knows TOML; what keys there are and what values they allow is told by `config`.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from leporello.errors import ArgumentError
from leporello.language.config import Config, config_of, refuse_unknown_keys


def toml_of(config: Config) -> str:
    """All keys with their values, each with its help above it."""
    lines: list[str] = []
    group = None
    for field in dataclasses.fields(config):
        if field.metadata["group"] != group:
            group = field.metadata["group"]
            lines += [""] * bool(lines) + [f"[{group}]"]
        lines.append(f"{field.name} = {_written(getattr(config, field.name))}  # {field.metadata['help']}")
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> Config:
    """The configuration in a file."""
    return config_of(values_in(path))


def values_in(path: Path) -> dict[str, Any]:
    """The keys a file names with their values; tables are for the eye alone."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArgumentError("there is no such configuration.", came=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("the configuration cannot be read.", came=path, says=error) from error
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError("the configuration is no TOML.", came=path, says=error) from error
    values: dict[str, Any] = {}
    for key, value in read.items():
        inside = value if isinstance(value, dict) else {key: value}
        for name in inside:
            if name in values:
                raise ArgumentError(f"the configuration has the key '{name}' twice.", came=path)
        values |= inside
    refuse_unknown_keys(values, str(path))
    return values


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
