"""Schemas of topics, declared as JSON Schema, and the rules for the next version of a schema.

Declarations are records of the topic `_schemas`, one per version. Their order decides: a
declaration is valid if its version follows the valid one and if it accepts all values of that one.
Invalid records are ignored, so two clients can declare at the same time without a lock. Nodes do
not interpret schemas.

The supported part of JSON Schema maps to typed columns: an object of named fields. Types are string
(also date-time, date, base64), integer (64 bits), number, boolean, array, and object with
properties or with values of one type. Each can be nullable. enum, const, bounds and definitions
($ref) are supported. Other keywords are refused by name.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec

from gossipq.errors import BadRequest, SchemaMismatch
from gossipq.types import SCHEMAS_TOPIC

TOPIC = SCHEMAS_TOPIC
DOCUMENT_BYTES_MAX = 64 << 10
DEPTH_MAX = 16
FIELDS_MAX = 1_000  #: in total
NAME_MAX = 200  #: characters of a field's name
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1

#: JSON Schema keyword -> name in msgspec
BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
    "maxProperties": "max_length",
}
TOLD = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
#: keywords that do not restrict values
TOLD |= {"$schema", "$id", "$comment", "$defs", "definitions", "format"}
OF = {
    "string": {"minLength", "maxLength", "pattern", "contentEncoding"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set[str](),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
}
#: formats of strings with a column type of their own
FORMATS = {"date-time": "timestamp", "date": "date"}
SCALARS: dict[str, Any] = {
    "string": str,
    "timestamp": datetime,
    "date": date,
    "binary": bytes,
    "integer": int,
    "number": float,
    "boolean": bool,
}


class Shape(msgspec.Struct, frozen=True):
    """The type of a field.

    `name` is a name in SCALARS, "list" (of `item`), "map" (text to `item`) or "struct" (`fields`).
    """

    name: str
    nullable: bool = False
    item: "Shape | None" = None
    fields: tuple["Field", ...] = ()
    closed: bool = False  #: True if other fields are refused
    bounds: tuple[tuple[str, Any], ...] = ()
    choices: tuple[Any, ...] = ()


class Field(msgspec.Struct, frozen=True):
    name: str
    shape: Shape
    required: bool


class Declaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of `_schemas`. document None: the topic has no schema from this version on."""

    topic: str
    topic_id: int
    version: int  #: from 1
    document: dict[str, Any] | None = None


def encode(declaration: Declaration) -> bytes:
    return msgspec.json.encode(declaration)


class Schema:
    """A declared schema. It checks and decodes values."""

    def __init__(self, topic: str, topic_id: int, version: int, document: dict[str, Any]) -> None:
        """Raises BadRequest if the document is not a schema."""
        self.topic = topic
        self.topic_id = topic_id
        self.version = version
        self.document = document
        self.shape = parse(document)

    def __repr__(self) -> str:
        names = ", ".join(field.name for field in self.shape.fields)
        return f"<Schema of {self.topic}, version {self.version}: {names}>"

    @cached_property
    def decode_row(self) -> Callable[[bytes], Any]:
        """A function that decodes a value to an object with an attribute f0, f1 ... for each field.

        It raises msgspec.MsgspecError, UnicodeDecodeError, RecursionError.
        """
        return msgspec.json.Decoder(type_of(self.shape)).decode

    def trouble(self, value: bytes) -> str:
        """Return the mismatch of a value, as "Expected `int`, got `str` - at `$.n`"; "" if it
        fits.
        """
        try:
            self.decode_row(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return str(error) or type(error).__name__
        return ""

    def check(self, value: bytes) -> None:
        """Raise SchemaMismatch if the value does not fit."""
        if trouble := self.trouble(value):
            raise SchemaMismatch(
                f"the value does not fit schema version {self.version} of {self.topic}: {trouble}",
                hint=f"gossipq topic schema show {self.topic}",
            )

    def decode(self, value: bytes) -> Any:
        """Return a value as dict, list, str, int, float, bool, None. Raises SchemaMismatch."""
        self.check(value)
        return msgspec.json.decode(value)


def document_of(declared: Any) -> dict[str, Any]:
    """Return the JSON Schema of a msgspec.Struct, dataclass or TypedDict.

    A dict or a JSON text is taken as the schema itself. Raises BadRequest.
    """
    if isinstance(declared, str | bytes):
        try:
            declared = msgspec.json.decode(declared)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"the schema is not JSON: {error}", hint=HINT) from None
    if isinstance(declared, Mapping):
        found = dict(declared)
    else:
        try:
            found = msgspec.json.schema(declared)
            _name_times(found, msgspec.inspect.type_info(declared), found, set())
        except (TypeError, RuntimeError) as error:
            raise BadRequest(f"no schema can be made of {declared!r}: {error}", hint=HINT) from None
    try:
        raw = msgspec.json.encode(found)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadRequest(f"the schema is not JSON: {error}", hint=HINT) from None
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise BadRequest(f"the schema has {len(raw)} bytes", hint=f"at most {DOCUMENT_BYTES_MAX}")
    parse(plain := msgspec.json.decode(raw))
    return plain  # type: ignore[no-any-return]


def _name_times(node: dict[str, Any], kind: Any, document: dict[str, Any], seen: set[str]) -> None:
    """Mark datetime fields as date-time.

    msgspec describes a datetime that can lack a time zone as a plain string.
    """
    inspect = msgspec.inspect
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in seen:
            return
        seen.add(name)
        node = document["$defs"][name]
    if isinstance(kind, inspect.DateTimeType):
        node["format"] = "date-time"
    elif isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        for field in kind.fields:
            _name_times(node["properties"][field.encode_name], field.type, document, seen)
    elif isinstance(kind, inspect.ListType):
        _name_times(node.get("items", {}), kind.item_type, document, seen)
    elif isinstance(kind, inspect.DictType):
        _name_times(node.get("additionalProperties", {}), kind.value_type, document, seen)
    elif isinstance(kind, inspect.UnionType) and len(kind.types) == 2:
        some = [each for each in node.get("anyOf", ()) if each != {"type": "null"}]
        for each in (each for each in kind.types if not isinstance(each, inspect.NoneType)):
            if len(some) == 1:
                _name_times(some[0], each, document, seen)


HINT = "a msgspec.Struct, a dataclass, or a JSON Schema of an object"


# --- from JSON Schema to shapes


def parse(document: Mapping[str, Any]) -> Shape:
    """Parse a JSON Schema. Raises BadRequest, which names the place and the problem."""
    shape = _Parser(document).shape(document, "$", 0)
    if shape.name != "struct" or shape.nullable:
        raise BadRequest("$: a schema describes an object with properties", hint=HINT)
    if twice := [name for name, count in Counter(_columns(shape, "$")).items() if count > 1]:
        raise BadRequest(
            f"{twice[0]}: two columns of this name", hint="Iceberg joins names of fields by dots"
        )
    try:
        msgspec.json.Decoder(type_of(shape))
    except (TypeError, ValueError, re.error) as error:
        raise BadRequest(f"the schema cannot be checked with: {error}", hint=HINT) from None
    return shape


def _columns(shape: Shape, at: str) -> Iterator[str]:
    """Yield the names of a field's columns, as tables have them."""
    parts = [(field.name, field.shape) for field in shape.fields]
    if shape.item is not None:
        parts = [("element" if shape.name == "list" else "value", shape.item)]
        yield from [f"{at}.key"] if shape.name == "map" else []
    for name, part in parts:
        yield f"{at}.{name}"
        yield from _columns(part, f"{at}.{name}")


class _Parser:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document, self._count = document, 0

    def shape(self, node: Any, at: str, depth: int) -> Shape:
        if depth > DEPTH_MAX:
            raise BadRequest(f"{at}: deeper than {DEPTH_MAX} levels, or a type that contains itself")
        if not isinstance(node, Mapping):
            raise BadRequest(f"{at}: {node!r} is no schema", hint='as {"type": "string"}')
        if "$ref" in node:
            self._only(node, at, {"$ref"})
            return self.shape(self._definition(node["$ref"], at), at, depth + 1)
        node, nullable = self._without_null(node, at)
        if "anyOf" in node or "oneOf" in node:
            raise BadRequest(f"{at}: one type, or it and null", hint="a union has no column type")
        if nullable and "$ref" in node:
            return msgspec.structs.replace(self.shape(node, at, depth + 1), nullable=True)
        found = self._named(node, at, depth)
        return msgspec.structs.replace(found, nullable=True) if nullable else found

    def _definition(self, name: Any, at: str) -> Any:
        found: Any = self._document
        parts = str(name).split("/")
        if parts[0] != "#":
            raise BadRequest(f"{at}: $ref {name!r} lies outside of the schema", hint="#/$defs/NAME")
        for part in parts[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is None:
            raise BadRequest(f"{at}: $ref {name!r} is not defined", hint="#/$defs/NAME")
        return found

    @staticmethod
    def _without_null(node: Mapping[str, Any], at: str) -> tuple[Mapping[str, Any], bool]:
        """Return the node without null among its types, and whether null was there."""
        for word in ("anyOf", "oneOf"):
            some = node.get(word)
            if isinstance(some, list):
                rest = [each for each in some if each != {"type": "null"}]
                if len(rest) == 1 and isinstance(rest[0], Mapping):
                    told = {name: told for name, told in node.items() if name in TOLD}
                    others = set(node) - TOLD - {word}
                    if others:
                        raise BadRequest(f"{at}: {sorted(others)[0]!r} beside {word} is not known")
                    return ({**rest[0]} if "$ref" in rest[0] else {**told, **rest[0]}), len(rest) < len(some)
        names = node.get("type")
        if isinstance(names, list):
            rest = [name for name in names if name != "null"]
            if len(rest) == 1:
                return {**node, "type": rest[0]}, len(rest) < len(names)
            raise BadRequest(f"{at}: one type, or it and null", hint="a union has no column type")
        return node, False

    def _named(self, node: Mapping[str, Any], at: str, depth: int) -> Shape:
        choices = node["enum"] if "enum" in node else [node["const"]] if "const" in node else None
        if choices is not None:
            return self._choice(node, choices, at)
        name = node.get("type")
        if not isinstance(name, str) or name not in OF:
            raise BadRequest(f"{at}: type {name!r} is not known", hint=f"one of {', '.join(OF)}")
        self._only(node, at, OF[name] | {"type"})
        bounds = tuple(sorted((word, node[word]) for word in BOUNDS if word in node))
        if name == "array":
            item = self.shape(node.get("items"), f"{at}[]", depth + 1)
            return Shape("list", item=item, bounds=bounds)
        if name == "object":
            return self._object(node, at, depth, bounds)
        if name == "string":
            name = FORMATS.get(str(node.get("format")), name)
            if "contentEncoding" in node:
                if node["contentEncoding"] != "base64":
                    raise BadRequest(f"{at}: contentEncoding {node['contentEncoding']!r}", hint="base64")
                name = "binary"
        return Shape(name, bounds=bounds)

    def _choice(self, node: Mapping[str, Any], choices: Any, at: str) -> Shape:
        self._only(node, at, {"type", "enum", "const"})
        kinds = {bool: "boolean", str: "string", int: "integer"}
        found = {kinds.get(type(each), "") for each in choices} if isinstance(choices, list) else {""}
        if len(found) != 1 or found <= {"", "boolean"}:
            raise BadRequest(f"{at}: enum is a list of texts, or of whole numbers")
        return Shape(found.pop(), choices=tuple(sorted(set(choices))))

    def _object(self, node: Mapping[str, Any], at: str, depth: int, bounds: tuple[Any, ...]) -> Shape:
        properties, required = node.get("properties"), node.get("required", [])
        others = node.get("additionalProperties", True)
        if not properties and isinstance(others, Mapping) and others:
            return Shape("map", item=self.shape(others, f"{at}.*", depth + 1), bounds=bounds)
        if not isinstance(properties, Mapping) or not properties or not isinstance(others, bool):
            hint = 'properties, or additionalProperties with one type, as {"type": "string"}'
            raise BadRequest(f"{at}: an object needs to say what is in it", hint=hint)
        if bounds:
            raise BadRequest(f"{at}: {bounds[0][0]!r} beside properties is not known")
        if not isinstance(required, list) or not all(name in properties for name in required):
            raise BadRequest(f"{at}: required names what has no property")
        self._count += len(properties)
        if self._count > FIELDS_MAX:
            raise BadRequest(f"{at}: more than {FIELDS_MAX} fields in all")
        fields = tuple(
            Field(str(name), self.shape(each, f"{at}.{name}", depth + 1), name in required)
            for name, each in properties.items()
        )
        if not all(field.name.isprintable() and 0 < len(field.name) <= NAME_MAX for field in fields):
            raise BadRequest(f"{at}: a name has 1 to {NAME_MAX} characters, all of which show")
        if len({field.name.lower() for field in fields}) < len(fields):
            raise BadRequest(f"{at}: two fields differ in case only", hint="Spark cannot tell them apart")
        return Shape("struct", fields=fields, closed=not others)

    @staticmethod
    def _only(node: Mapping[str, Any], at: str, known: set[str]) -> None:
        unknown = sorted(set(node) - known - TOLD)
        if unknown:
            hint = f"known are {', '.join(sorted(known))}"
            raise BadRequest(f"{at}: {unknown[0]!r} is not known", hint=hint)


# --- from shapes to types of msgspec


def type_of(shape: Shape) -> Any:
    """Return the type to which msgspec decodes values.

    A struct has an attribute f0, f1 ... for each field.
    """
    found: Any
    if shape.choices:
        found = Literal[shape.choices]
    elif shape.name == "list":
        found = list[_item(shape)]  # type: ignore[misc]
    elif shape.name == "map":
        found = dict[str, _item(shape)]  # type: ignore[misc]
    elif shape.name == "struct":
        found = _struct(shape)
    else:
        found = SCALARS[shape.name]
    bounds = {BOUNDS[word]: value for word, value in shape.bounds}
    if shape.name == "integer" and not shape.choices:
        if "gt" not in bounds:
            bounds.setdefault("ge", INTEGER_MIN)
        if "lt" not in bounds:
            bounds.setdefault("le", INTEGER_MAX)
    if bounds:
        found = Annotated[found, msgspec.Meta(**bounds)]
    return found | None if shape.nullable else found


def _item(shape: Shape) -> Any:
    assert shape.item is not None, "lists and maps have one"
    return type_of(shape.item)


def _struct(shape: Shape) -> Any:
    fields: list[Any] = []
    for number, field in enumerate(shape.fields):
        name, each = f"f{number}", type_of(field.shape)
        # a missing value is null in its column; an explicit null must be allowed by the type
        fields.append((name, each) if field.required else (name, each, None))
    names = {f"f{number}": field.name for number, field in enumerate(shape.fields)}
    return msgspec.defstruct(
        "Row", fields, kw_only=True, rename=names, forbid_unknown_fields=shape.closed, gc=False
    )


# --- rules for the next version


def changes(old: Shape, new: Shape, at: str = "$") -> list[str]:
    """Return why `new` cannot follow `old`: values or columns would break. [] if it can.

    Allowed: new optional fields, a field that becomes optional, null besides a type, more choices,
    and fewer bounds.
    """
    found: list[str] = []
    if old.name != new.name:
        return [f"{at}: was {old.name}, and is {new.name}"]
    if old.nullable and not new.nullable:
        found.append(f"{at}: null is allowed no more")
    if new.choices and (not old.choices or not set(old.choices) <= set(new.choices)):
        found.append(f"{at}: fewer choices")
    found += [f"{at}: {word} is new or another one" for word, _ in sorted(set(new.bounds) - set(old.bounds))]
    if old.item is not None and new.item is not None:
        found += changes(old.item, new.item, f"{at}[]")
    here, before = {field.name: field for field in new.fields}, {field.name for field in old.fields}
    for field in old.fields:
        now = here.get(field.name)
        if now is None:
            found.append(f"{at}.{field.name}: is gone")
        else:
            found += changes(field.shape, now.shape, f"{at}.{field.name}")
            if now.required and not field.required:
                found.append(f"{at}.{field.name}: is required now")
    added = [field for field in new.fields if field.name not in before]
    found += [f"{at}.{field.name}: is new and required" for field in added if field.required]
    if new.closed and not old.closed and new.name == "struct":
        found.append(f"{at}: other fields are allowed no more")
    return found


def require_follows(old: Schema, new: Shape) -> None:
    """Raise SchemaMismatch if `new` cannot follow `old`."""
    if found := changes(old.shape, new):
        more = f"; {len(found) - 1} more" if len(found) > 1 else ""
        raise SchemaMismatch(
            f"what fits version {old.version} of {old.topic} would not fit any more: {found[0]}{more}",
            hint="add optional fields; for a new beginning: another topic, or gossipq topic schema rm",
        )


class Declared:
    """The valid schema of each topic id, and the newest version, also of topics without a
    schema.
    """

    def __init__(self, records: Iterable[bytes] = ()) -> None:
        """Read values of `_schemas` in order. Invalid ones are ignored."""
        self.schemas: dict[int, Schema] = {}
        self.versions: dict[int, int] = {}
        #: earlier documents of the valid schema: programs that declare one of them keep working
        self.earlier: dict[int, list[dict[str, Any]]] = {}
        for record in records:
            self._add(record)

    def _add(self, record: bytes) -> None:
        try:
            told = msgspec.json.decode(record, type=Declaration)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if told.version != self.versions.get(told.topic_id, 0) + 1:
            return
        before = self.schemas.get(told.topic_id)
        if told.document is None:
            self.schemas.pop(told.topic_id, None)
            self.earlier.pop(told.topic_id, None)
        else:
            try:
                made = Schema(told.topic, told.topic_id, told.version, document_of(told.document))
                if before is not None:
                    require_follows(before, made.shape)
            except (BadRequest, SchemaMismatch):
                return
            if before is not None:
                self.earlier.setdefault(told.topic_id, []).append(before.document)
            self.schemas[told.topic_id] = made
        self.versions[told.topic_id] = told.version
