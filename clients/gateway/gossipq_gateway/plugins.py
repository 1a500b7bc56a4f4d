"""Dialects of other packages, found by their entry points."""

import tomllib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from gossipq.errors import ConfigError
from gossipq_gateway.dialect import Dialect, Factory, Wanted, place

GROUP = "gossipq.dialects"


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the installed dialects by name."""
    return {found.name: found for found in entry_points(group=GROUP)}


def wanted(texts: Sequence[str], options_file: str = "", hosts: Sequence[str] = ()) -> tuple[Wanted, ...]:
    """Parse values of `--dialect`, each NAME, NAME=ADDRESS or NAME=ADDRESS,HTTP-ADDRESS.

    `options_file` is a TOML file with a table for each dialect, or "". Raises ConfigError.
    """
    tables = _tables(options_file) if options_file else {}
    found = []
    for text in texts:
        spoken, _, addresses = text.partition("=")
        name, option = spoken.replace("-", "_"), f"--dialect {spoken}"
        at, _, http = addresses.partition(",")
        found.append(
            Wanted(
                name=name,
                at=place(at, option) if at else None,
                http=place(http, option) if http else None,
                options=tables.get(name, {}),
                options_file=options_file,
                hosts=hosts,
            )
        )
    return tuple(found)


def _tables(path: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", "it is a TOML file with a table for each dialect") from None
    for name in tables:
        if name not in installed():
            raise ConfigError(f"{path}: [{name}] is no installed dialect", _choices())
    return tables


def _choices() -> str:
    return f"installed are: {', '.join(sorted(installed())) or 'none'}"


def dialect_of(asked: Wanted) -> Dialect:
    """Make a dialect. Raises ConfigError if it is not installed or its options are wrong."""
    found = installed().get(asked.name)
    if found is None:
        raise ConfigError(f"no dialect {asked.name} is installed", _choices())
    factory: Factory = found.load()
    return factory(asked)
