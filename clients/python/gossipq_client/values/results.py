"""Results of handlers, as acks carry them. A header of the record asks that its result is kept."""

from functools import lru_cache
from typing import Any

import msgspec

from gossipq import limits
from gossipq.errors import BadRequest, TooLarge
from gossipq.record_options import BOUNDS
from gossipq_client.values import inputs, payloads
from gossipq_client.values.json_values import encode_json, json_bytes

KEEP = "gossipq-keep-result"  #: header: for how many milliseconds the result is kept
_KEEP = KEEP.encode()
NOTHING, JSON, TEXT, BYTES = "", "json", "text", "bytes"
OF_JSON = frozenset((int, float, bool, dict, list))  #: types that need no further look
NULL_BYTES = 4


def with_keep(headers: inputs.Headers | bytes | None, keep: inputs.Duration) -> bytes:
    """Return the headers of a record whose result is kept. Raises BadRequest."""
    if not headers and isinstance(keep, str | int | float):
        return _only_keep(keep)
    keep_ms = inputs.duration_ms(keep, "keep_result", *BOUNDS["keep_result"])
    return inputs.header_bytes({**payloads.headers_dict(headers), KEEP: str(keep_ms)})


@lru_cache(maxsize=64)
def _only_keep(keep: str | int | float) -> bytes:
    """Return the headers of a record that has no others: many records have the same."""
    keep_ms = inputs.duration_ms(keep, "keep_result", *BOUNDS["keep_result"])
    return inputs.header_bytes({KEEP: str(keep_ms)})


@lru_cache(maxsize=64)
def keep_ms_of(header_bytes: bytes) -> int:
    """Return how long the result of a record is kept; 0: nobody asked for it."""
    if _KEEP not in header_bytes:
        return 0
    text = payloads.headers_shown(header_bytes).get(KEEP, "")
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 18:
        return 0
    return min(int(text), limits.RESULT_KEPT_MS_MAX)


def encoded(result: Any) -> tuple[str, bytes]:
    """Return the kind and the bytes of a result. Raises BadRequest, TooLarge."""
    if result is None:
        return NOTHING, b""
    if type(result) in OF_JSON or not isinstance(result, inputs.RAW):
        kind = JSON
        try:
            raw = encode_json(result)
        except Exception:
            raw = json_bytes(result)  # tells what is wrong
        if len(raw) >= NULL_BYTES and b"null" in raw:
            raw = json_bytes(result)  # refuses NaN and infinity
    else:
        kind, raw = TEXT if isinstance(result, str) else BYTES, inputs.as_bytes(result, "value")
    if len(raw) > limits.RESULT_BYTES_MAX:
        text = f"a result of {len(raw)} bytes; at most {limits.RESULT_BYTES_MAX} are allowed"
        raise TooLarge(text, hint="publish it as a record, and return its ref")
    return kind, raw


def decoded(kind: str, value: bytes, as_type: Any = None) -> Any:
    """Return a result as its handler returned it; one of JSON as `as_type`. Raises Undecodable."""
    if kind == NOTHING:
        return None
    if as_type is not None:
        return payloads.decoder(as_type)(value)
    if kind == TEXT:
        return value.decode(errors="replace")
    return msgspec.json.decode(value) if kind == JSON else value


def report_of(done: float, text: str) -> tuple[float, str]:
    """Check a report of progress. Raises BadRequest."""
    if isinstance(done, bool) or not isinstance(done, int | float) or not 0 <= done <= 1:
        raise BadRequest(f"progress({done!r})", hint="0 to 1 are allowed: 0.4 is 40 %")
    size = len(inputs.text_of(text, "text").encode(errors="replace"))
    if size > limits.PROGRESS_TEXT_BYTES_MAX:
        hint = f"at most {limits.PROGRESS_TEXT_BYTES_MAX} are allowed"
        raise BadRequest(f"a text of {size} bytes", hint=hint)
    return float(done), text
