"""Types of options: convert the user's text for the client, or raise a usage error that helps."""

from datetime import datetime
from typing import Any

import click

_BYTES = {"": 1, "b": 1} | {f"{letter}b": 1_000**power for power, letter in enumerate("kmgt", 1)}
_BYTES |= {f"{letter}{tail}": 1_024**power for power, letter in enumerate("kmgt", 1) for tail in ("", "ib")}


def inputs() -> Any:
    """Import the parsers when the first value is parsed, because they need the client."""
    from gossipq_ops import inputs

    return inputs


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds as a number, or with units: 500ms, 30s, 1h30m, 7d. `lasting`: must be above 0."""

    name = "DURATION"

    def __init__(self, lasting: bool = False) -> None:
        self._lasting = lasting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds: float = inputs().seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._lasting and not seconds:
            self.fail("0 is over at once", param, ctx)
        return seconds


class Until(Duration):
    """How long a unique name is taken: "acked", or a duration."""

    name = "acked|DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "acked" else super().convert(value, param, ctx)


class Durations(click.ParamType):  # type: ignore[type-arg]
    """A list of durations separated by commas: 1s,5s,30s."""

    name = "DURATION,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            return [inputs().seconds_of(part.strip()) for part in str(value).split(",")]
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Weights(click.ParamType):  # type: ignore[type-arg]
    """Flows with their weights: ada=3,bob=2."""

    name = "FLOW=WEIGHT,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        found = {}
        for part in filter(None, str(value).split(",")):
            flow, _, weight = part.rpartition("=")
            if not weight.isdecimal():
                self.fail(f"{part!r} is no weight: write FLOW=WEIGHT, as in ada=3", param, ctx)
            found[flow] = int(weight)
        return found


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A point in time: 2026-11-21T09:00Z, 2026-11-21 09:00 (local
    time), or -10m, 10 minutes ago.
    """

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found: datetime = inputs().moment_of(str(value))
            return found
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Rate(click.ParamType):  # type: ignore[type-arg]
    """Records a second as a number, or with k or m: 500, 20k, 1.5m."""

    name = "RATE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower().removesuffix("/s")
        number = text.rstrip("km")
        try:
            rate = float(number) * {"": 1, "k": 1_000, "m": 1_000_000}[text[len(number) :]]
        except (ValueError, KeyError):
            rate = 0.0
        if not 0.01 <= rate <= 1e8:
            self.fail(f"{value!r} is no rate; write 500, 20k or 1.5m records a second", param, ctx)
        return rate


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes as a number, or with units: 64KiB, 10MB, 1GiB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip()
        try:
            return int(float(number) * _BYTES[unit])
        except (ValueError, OverflowError, KeyError):
            self.fail(f"{value!r} is no size; write 1048576, 64KiB or 10MB", param, ctx)
