"""A format that changes without a version fails here: tests/release/formats.json is the record."""

import json
from typing import Any

import pytest

from release import formats


def test_formats_are_those_on_record() -> None:
    before, after = formats.recorded(), formats.current()
    broken = {name: found for name in before if (found := formats.breaks(before[name], after[name]))}
    assert broken == {}, "raise the version of the format (docs/reference/compatibility.md)"
    assert json.dumps(after, indent=1) + "\n" == formats.FILE.read_text(), (
        "what was added has to be recorded: python tests/release/formats.py"
    )


def changed(**shapes: list[str] | None) -> dict[str, Any]:
    """The format of these tests with some shapes changed, or taken away."""
    whole = {"HEAD": ["<QI"], "Row": ["end: int", "by: text = none"], "Page {}": ["a: int", "b: int = 0"]}
    whole |= {name.replace("_", " {}"): rows for name, rows in shapes.items()}
    return {"version": 1, "shapes": {name: rows for name, rows in whole.items() if rows is not None}}


@pytest.mark.parametrize(
    "shapes",
    [
        {"HEAD": ["<QQ"]},
        {"HEAD": None},
        {"Row": ["by: text = none", "end: int"]},
        {"Row": ["end: int"]},
        {"Row": ["end: text", "by: text = none"]},
        {"Row": ["end: int", "by: text = some"]},
        {"Row": ["end: int", "by: text = none", "at: int"]},
        {"Page_": ["a: int"]},
        {"Page_": ["a: int", "b: int = 0", "c: int"]},
    ],
    ids=str,
)
def test_a_break_needs_a_version(shapes: dict[str, list[str] | None]) -> None:
    before, after = changed(), changed(**shapes)
    assert len(formats.breaks(before, after)) == 1
    assert formats.breaks(before, after | {"version": 2}) == []


@pytest.mark.parametrize(
    "shapes",
    [
        {},
        {"Row": ["end: int", "by: text = none", "at: int = 0"]},
        {"More": ["end: int"]},
        {"Page_": ["a: int", "aa: int = 0", "b: int = 0"]},
    ],
    ids=str,
)
def test_what_is_appended_with_a_default_needs_none(shapes: dict[str, list[str] | None]) -> None:
    assert formats.breaks(changed(), changed(**shapes)) == []


def test_a_renamed_field_of_an_array_is_told_from_a_changed_one() -> None:
    before, after = changed(), changed(Row=["last: int", "by: text = none"])
    assert formats.breaks(before, after)
    assert formats.breaks(formats.unnamed(before), formats.unnamed(after)) == []
    document = changed(Page_=["z: int", "b: int = 0"])
    assert formats.breaks(formats.unnamed(before), formats.unnamed(document))
