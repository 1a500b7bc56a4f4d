"""clients/minimal.py as a driver of `gossipq client conformance`."""

import json
import os
import select
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import Any

from minimal import PING_S, Client, Refused


def lines(client: Client) -> Iterator[str]:
    """Of the input; the client shows that it is there meanwhile."""
    parts: list[bytes] = []
    while True:
        if select.select([0], [], [], PING_S)[0]:
            if not (read := os.read(0, 1 << 20)):
                return
            for number, part in enumerate(read.split(b"\n")):
                if number:
                    yield b"".join(parts).decode()
                    parts.clear()
                parts.append(part)
        with suppress(Refused):  # the next call tells of it
            client.ping()


def do(client: Client, said: dict[str, Any]) -> dict[str, Any]:
    match said:
        case {"do": "connect", "servers": servers}:
            token = bytes.fromhex(said.get("token", "").removeprefix("gq_"))
            client.connect(*servers, token=token)
        case {"do": "publish", "topic": topic, "records": records}:
            client.wait_s = said.get("timeout_ms", inf) / 1_000
            how = {name: said[name] for name in ("route", "delay_ms") if name in said}
            places = [publish(client, topic, record, how) for record in records]
            client.wait_s = inf
            return {"places": places}
        case {"do": "subscribe", "topic": topic, "group": group}:
            client.subscribe(topic, group)
        case {"do": "next", "wait_ms": wait_ms}:
            record = client.next(wait_ms / 1_000)
            return {"record": None if record is None else shown(*record)}
        case {"do": "ack"}:
            return done(client.ack())
        case {"do": "nack", "reason": reason}:
            return done(client.nack(reason))
        case {"do": "release"}:
            return done(client.release())
    return {}


def done(settled: bool) -> dict[str, Any]:
    return {} if settled else {"error": "lease_lost", "message": "others have the record by now"}


def publish(client: Client, topic: str, record: dict[str, Any], how: dict[str, Any]) -> tuple[int, int]:
    headers = {name: b64decode(value) for name, value in record.get("headers", {}).items()}
    value, key, name = (b64decode(record.get(field, "")) for field in ("value", "key", "id"))
    return client.publish(topic, value, key, headers, name, **how)


def shown(partition: int, offset: int, attempt: int, *more: Any) -> dict[str, Any]:
    value, key, headers, name, route, *_ = more
    found: dict[str, Any] = {"partition": partition & 0xFFFF, "offset": offset, "attempt": attempt}
    found |= {"route": route, "headers": {each: b64encode(raw).decode() for each, raw in headers.items()}}
    return found | {
        field: b64encode(raw).decode() for field, raw in (("value", value), ("key", key), ("id", name))
    }


def main() -> None:
    client = Client()
    for line in lines(client):
        said = json.loads(line)
        try:
            answer = do(client, said)
        except (Refused, TimeoutError) as error:
            answer = {"error": getattr(error, "code", "timeout"), "message": str(error)}
        print(json.dumps(answer), flush=True)
        if said["do"] == "close":
            return


if __name__ == "__main__":
    main()
