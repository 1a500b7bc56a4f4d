"""prettyQ's query over HTTP."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gossipq.errors import GossipqError, OffsetOutOfRange, UnknownTopic
from gossipq_dialects import forms
from gossipq_dialects.names import topic_of
from gossipq_dialects.prettyq import wire
from gossipq_gateway.dialect import Desk

LIMIT_MAX = 10_000
ANSWER_BYTES_MAX = 32 << 20
NEXT = "x-next-pos"  #: header: the next position


class PrettyQ:
    """The dialect."""

    name = "prettyq"

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        async def answer(request: Request) -> Response:
            desk.counters.request()
            try:
                said = await _query(desk, request)
            except (GossipqError, ValueError) as error:
                said = _error(400, 101, str(error))
            if said.status_code != 200:
                desk.counters.error()
            return said

        return [Route("/prettyq/query", answer, methods=["GET"])]

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        yield


async def _query(desk: Desk, request: Request) -> Response:
    """Return frames from `pos` on, at most `limit`, of `topic` and `partition` (0).

    The frames follow each other, over all files and up to the end. The header x-next-pos has the
    next position. Raises ValueError, GossipqError.
    """
    if forms.is_of_page(request):
        return _error(403, 101, "web pages are not served")
    asked = request.query_params
    topic, partition = topic_of(asked.get("topic", "")), int(asked.get("partition", "0"))
    position, limit = int(asked.get("pos", "0")), int(asked.get("limit", "100"))
    if position < 0 or partition < 0 or not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"pos and partition from 0, limit from 1 to {LIMIT_MAX}")
    frames, size, after = list[bytes](), 0, position
    try:
        stretches = desk.mq.read(topic, start=position).batches(partition)
        async for stretch in stretches:
            for number, data in enumerate(stretch.values(), stretch.first):
                if len(frames) < limit and (not frames or size + len(data) < ANSWER_BYTES_MAX):
                    frames.append(wire.frame(number, data))
                    size, after = size + len(frames[-1]), number + 1
                else:
                    limit = 0
            if len(frames) >= limit:
                await stretches.aclose()  # type: ignore[attr-defined]
                break
    except (UnknownTopic, OffsetOutOfRange):
        return _error(404, *wire.NO_MESSAGE)
    if not frames:
        return _error(404, *wire.NO_MESSAGE)
    desk.counters.delivered(len(frames))
    return Response(b"".join(frames), 200, {NEXT: str(after)}, "application/octet-stream")


def _error(status: int, code: int, text: str) -> Response:
    return JSONResponse({"code": code, "msg": text}, status)
