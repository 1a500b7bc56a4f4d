"""HTML of the `views`. Templates escape all values, and pages contain
no styles or scripts. Pure.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gossipq.texts import many, moment, printable, readable
from gossipq.times import unix_ms_of
from gossipq_ops import figures


def _clock(unix_ms: int) -> str:
    """Return the time of the day in UTC."""
    return moment(unix_ms)[11:19]


def _seconds(value_s: float | None) -> str:
    return "never" if value_s is None else figures.span(value_s * 1_000)


def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("gossipq_gateway.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": lambda value: f"{value:,.0f}",
        "short": figures.short,
        "size": figures.size,
        "span": figures.span,
        "seconds": _seconds,
        "micros": figures.micros,
        "moment": lambda value: moment(value) if value > 0 else "-",
        "clock": _clock,
        "unix_ms": unix_ms_of,
        "readable": readable,
        "printable": printable,
        "many": many,
    }
    made.globals["HARM"] = ("purge", "rm", "cancel", "kick", "drain")  # verbs shown as dangerous
    return made


ENVIRONMENT = environment()


def prepare() -> None:
    """Compile all templates; otherwise the first user would wait for that."""
    for name in ENVIRONMENT.list_templates():
        ENVIRONMENT.get_template(name)


def page(name: str, **context: Any) -> str:
    """Return a whole page."""
    return ENVIRONMENT.get_template(f"{name}.html").render(**context)


def live(name: str, **context: Any) -> str:
    """Return the live part of a page; "" if it has none."""
    template = ENVIRONMENT.get_template(f"{name}.html")
    block = template.blocks.get("live")
    return "".join(block(template.new_context(context))) if block else ""


def part(name: str, **context: Any) -> str:
    """Return the head of every page ("top"), or the tabs with badges ("tabs")."""
    return ENVIRONMENT.get_template(f"{name}.html").render(**context)
