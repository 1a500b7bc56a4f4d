"""AWS Signature Version 4: checks who signed a request. Pure: request and time are passed in."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from gossipq_gateway.sqs.faults import SqsFault, unsigned

SKEW_S = 15 * 60  #: allowed difference between the signer's clock and ours
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d{8})/([^/,\s]*)/([^/,\s]*)/aws4_request,"
    r"\s*SignedHeaders=([a-z0-9;_-]+),\s*Signature=([0-9a-f]{64})\Z"
)


class Asked(NamedTuple):
    """The signed parts of a request. Names of headers are lower case."""

    method: str
    path: str  #: as it was sent
    query: str
    headers: Mapping[str, str]
    body: bytes


class Signed(NamedTuple):
    key_id: str
    date: str
    region: str
    service: str
    names: list[str]
    signature: str


def read(authorization: str) -> Signed:
    """Parse the header. Raises SqsFault."""
    if not authorization:
        raise unsigned("Request is missing an authentication token.", "MissingAuthenticationToken")
    found = _HEADER.match(authorization)
    if found is None:
        raise unsigned("Authorization is not that of Signature Version 4.", "IncompleteSignature")
    key_id, date, region, service, names, signature = found.groups()
    return Signed(key_id, date, region, service, names.split(";"), signature)


def check(asked: Asked, signed: Signed, secret: str, now_ms: int, prefix: str = "") -> None:
    """Raise SqsFault unless the owner of the secret has signed this request recently.

    The path may have been signed with `prefix` in front, which a proxy has removed.
    """
    stamp = asked.headers.get("x-amz-date", "")
    if not re.fullmatch(r"\d{8}T\d{6}Z", stamp) or not stamp.startswith(signed.date):
        raise unsigned("X-Amz-Date is missing, or not that of the credential.", "IncompleteSignature")
    if "host" not in signed.names or "x-amz-date" not in signed.names:
        raise unsigned("host and x-amz-date must be signed.", "IncompleteSignature")
    if abs(_seconds(stamp) - now_ms / 1000) > SKEW_S:
        raise unsigned(f"Signature expired: {stamp} is not within 15 minutes of now.", "RequestExpired")
    key = _key(secret, signed.date, signed.region, signed.service)
    paths = {asked.path, prefix + asked.path}
    texts = [_to_sign(asked._replace(path=path), signed, stamp) for path in paths]
    made = [hmac.new(key, text, "sha256").hexdigest() for text in texts]
    if not any(hmac.compare_digest(each, signed.signature) for each in made):
        raise unsigned("The request signature we calculated does not match the signature you provided.")


def _seconds(stamp: str) -> float:
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _no_time(stamp) from None


def _no_time(stamp: str) -> SqsFault:
    return unsigned(f"X-Amz-Date {stamp} is no time.", "IncompleteSignature")


@lru_cache(256)
def _key(secret: str, date: str, region: str, service: str) -> bytes:
    made = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        made = hmac.digest(made, part.encode(), "sha256")
    return made


def _to_sign(asked: Asked, signed: Signed, stamp: str) -> bytes:
    pairs = sorted((_quoted(name), _quoted(value)) for name, value in parse_qsl(asked.query, True))
    lines = [
        asked.method,
        quote(asked.path or "/", safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(asked.headers.get(name, '').split())}" for name in signed.names),
        "",
        ";".join(signed.names),
        hashlib.sha256(asked.body).hexdigest(),
    ]
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    scope = f"{signed.date}/{signed.region}/{signed.service}/aws4_request"
    return f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{canonical}".encode()


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
