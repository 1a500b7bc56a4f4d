"""An operation of the native API: path, shapes, and the code from a request to its answer.

Routes and OpenAPI are made of one table of operations.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gossipq.errors import BadRequest, GossipqError
from gossipq_client.values import credentials_of
from gossipq_gateway import problems
from gossipq_gateway.callers import Caller, Callers
from gossipq_gateway.counters import Counters
from gossipq_gateway.dialect import log
from gossipq_gateway.manners import body_of
from gossipq_gateway.problems import Refusal

JSON, NDJSON = "application/json", "application/x-ndjson"


class Call(NamedTuple):
    """One parsed request. `body` is raw for operations that accept several media types."""

    caller: Caller
    path: dict[str, str]
    query: Any
    body: Any
    request: Request
    counters: Counters


class Operation(NamedTuple):
    method: str
    path: str
    name: str
    about: str  #: one sentence
    handle: Callable[[Call], Awaitable[Any]]
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None  #: None: no body
    status: int = 200
    #: media types of the body, if not JSON alone, and their shapes; () = bytes
    kinds: tuple[tuple[str, tuple[type[msgspec.Struct], ...]], ...] = ()
    streams: bool = False  #: Server-Sent Events


def token_in(authorization: str | None) -> bytes:
    """Return the token of a request; b"" = none. Raises Refusal."""
    if not authorization:
        return b""
    scheme, _, text = authorization.partition(" ")
    try:
        if scheme.lower() != "bearer":
            raise ValueError
        return credentials_of(text, "Authorization").token
    except (ValueError, GossipqError):
        raise Refusal(
            401, "unauthorized", "Authorization holds no token", "Authorization: Bearer gq_..."
        ) from None


def read(shape: type[msgspec.Struct], raw: bytes) -> Any:
    """Decode a JSON body. Raises BadRequest."""
    try:
        return msgspec.json.decode(raw or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(
            f"the body is not valid for this path: {error}", hint="GET /v1/openapi.json"
        ) from None


def asked(shape: type[msgspec.Struct], request: Request) -> Any:
    """Decode the query. Raises BadRequest."""
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name == "header":
            found.setdefault(name, []).append(value)
        elif name in found:
            raise BadRequest(f"the parameter {name} is given twice")
        else:
            found[name] = value
    try:
        return msgspec.convert(found, shape, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise BadRequest(
            f"the query is not valid for this path: {error}", hint="GET /v1/openapi.json"
        ) from None


def told(error: GossipqError, anonymous: bool) -> Response:
    if anonymous and problems.is_forbidden(error):
        error = Refusal(401, "unauthorized", error.message, "Authorization: Bearer gq_...")
    return problems.response(problems.problem(error))


class Endpoint:
    """Answers an operation as an ASGI application, without the layers of a framework."""

    def __init__(self, operation: Operation, callers: Callers, counters: Counters) -> None:
        self._operation, self._callers, self._counters = operation, callers, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        operation, counters = self._operation, self._counters
        counters.request()
        token = b""
        try:
            token = token_in(request.headers.get("authorization"))
            raw = await body_of(request.receive) if operation.method != "GET" else b""
            query = asked(operation.query, request) if operation.query is not None else None
            if operation.query is None and request.url.query:
                raise BadRequest("this path takes no parameters", hint="GET /v1/openapi.json")
            body = read(operation.body, raw) if operation.body is not None and not operation.kinds else raw
            async with self._callers.of(token) as caller:
                made = await operation.handle(
                    Call(caller, request.path_params, query, body, request, counters)
                )
        except GossipqError as error:
            counters.error()
            return told(error, not token)
        except Exception:
            counters.error()
            log.exception("%s %s", request.method, request.url.path)
            return problems.response(problems.internal())
        if isinstance(made, Response):
            return made
        if made is None:
            return Response(status_code=204)
        return Response(msgspec.json.encode(made), operation.status, media_type=JSON)


class Methods:
    """Dispatches one path by method."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints, self._allowed = dict(endpoints), ", ".join(sorted(endpoints))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is not None:
            await endpoint(scope, receive, send)
            return
        refusal = Refusal(405, "wrong_method", f"{scope['path']} takes {self._allowed}")
        answer = problems.response(problems.problem(refusal))
        answer.headers["allow"] = self._allowed
        await answer(scope, receive, send)


def routes(operations: Iterable[Operation], callers: Callers, counters: Counters) -> list[Route]:
    """Return the routes of the operations, in their order."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method] = Endpoint(each, callers, counters)
    return [Route(path, Methods(endpoints)) for path, endpoints in paths.items()]
