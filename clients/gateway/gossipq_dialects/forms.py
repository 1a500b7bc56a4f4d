"""Fields of a form, as browsers and clients of older brokers send them."""

from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qsl

from starlette.requests import Request

BODY_BYTES_MAX = 17 << 20
FIELDS_MAX = 100


class BadForm(Exception):
    """The body is too large, or not a form."""


def is_of_page(request: Request) -> bool:
    """True if a web page sent the request. Clients of older brokers do not set these headers."""
    return "origin" in request.headers or "sec-fetch-mode" in request.headers


async def body(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body. Raises BadForm if it is larger than `bytes_max`."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise BadForm(f"a body of more than {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


async def fields(request: Request) -> dict[str, str]:
    """Return fields by name, the first of each. Raises BadForm."""
    return parse(await body(request), request.headers.get("content-type", ""))


def parse(raw: bytes, kind: str) -> dict[str, str]:
    """Parse a body of this content type. Raises BadForm."""
    found: dict[str, str] = {}
    if kind.lower().startswith("multipart/form-data"):
        message = BytesParser(policy=HTTP).parsebytes(
            b"content-type: " + kind.encode("latin-1", "replace") + b"\r\n\r\n" + raw
        )
        for at, part in enumerate(message.iter_parts() if message.is_multipart() else ()):
            name = part.get_param("name", header="content-disposition")
            payload = part.get_payload(decode=True)
            if at < FIELDS_MAX and isinstance(name, str) and isinstance(payload, bytes):
                found.setdefault(name, payload.decode("utf-8", "replace"))
        return found
    try:
        pairs = parse_qsl(raw.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise BadForm(str(error)) from None
    for name, value in pairs:
        found.setdefault(name, value)
    return found
