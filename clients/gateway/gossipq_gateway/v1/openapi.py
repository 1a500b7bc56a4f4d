"""Makes the OpenAPI document from the table of operations and their shapes.

    python -m gossipq_gateway.v1.openapi     prints it

The gateway makes it when it is first asked for (about 20 ms), the documentation when its site is built.
"""

import re
from typing import Any

import msgspec

from gossipq_gateway.problems import MEDIA_TYPE, Problem
from gossipq_gateway.v1.operation import JSON, Operation

_REF = "#/components/schemas/{name}"
_ERRORS = (
    "400",
    "401",
    "403",
    "404",
    "405",
    "408",
    "409",
    "410",
    "413",
    "415",
    "421",
    "422",
    "500",
    "503",
    "504",
    "507",
)


def document(operations: tuple[Operation, ...]) -> bytes:
    """Return the document as JSON."""
    shapes: list[Any] = [Problem]
    for each in operations:
        shapes += [shape for shape in (each.body, each.reply) if shape is not None]
        shapes += [shape for _, kinds in each.kinds for shape in kinds]
    kinds = list(dict.fromkeys(shapes))
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for shape in components.values():
        if "description" in shape:  # a docstring, which not every Python version indents
            shape["description"] = " ".join(shape["description"].split())
    schemas = dict(zip(kinds, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    made = {
        "openapi": "3.1.0",
        "info": {"title": "gossipq", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "Problem": {
                    "description": "what is wrong, and what to do",
                    "content": {MEDIA_TYPE: {"schema": schemas[Problem]}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "gq_..."}},
        },
        "security": [{}, {"token": []}],
    }
    return msgspec.json.encode(made)


def _operation(each: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {status: {"$ref": "#/components/responses/Problem"} for status in _ERRORS}
    if each.reply is None and not each.streams:
        answers["204"] = {"description": "done"}
    elif each.streams:
        answers["200"] = {"description": "events", "content": {"text/event-stream": {}}}
    else:
        content = {JSON: {"schema": schemas[each.reply]}}
        answers[str(each.status)] = {"description": "done", "content": content}
        if each.status == 201:
            answers["200"] = {"description": "it was there", "content": content}
    made: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.about.partition(":")[0],
        "description": each.about,
        "parameters": [*_of_path(each.path), *_of_query(each.query)],
        "responses": answers,
    }
    if each.kinds:
        content = {kind: {"schema": _schema(shapes, schemas)} for kind, shapes in each.kinds}
        made["requestBody"] = {"required": True, "content": content}
    elif each.body is not None:
        made["requestBody"] = {"content": {JSON: {"schema": schemas[each.body]}}}
    return made


def _schema(shapes: tuple[type[msgspec.Struct], ...], schemas: dict[Any, Any]) -> Any:
    if not shapes:
        return {"type": "string", "format": "binary"}
    return {"anyOf": [schemas[shape] for shape in shapes]} if len(shapes) > 1 else schemas[shapes[0]]


def _of_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _of_query(shape: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if shape is None:
        return []
    (_,), components = msgspec.json.schema_components([shape], ref_template=_REF)
    schema = components[shape.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]


def main() -> None:
    from gossipq_gateway.v1.table import OPERATIONS

    print(msgspec.json.format(document(OPERATIONS), indent=1).decode())


if __name__ == "__main__":
    main()
