"""Records on their way through the layers of middleware, and the lists that they are sent in."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from gossipq_client.values import payloads

#: options of single records that a list has one of for each record -> their name there
PLURALS = {
    "key": "keys",
    "id": "ids",
    "unique": "uniques",
    "delay": "delays",
    "flow": "flows",
    "priority": "priorities",
}
NAMES = ("id", "unique")  #: of one record each, so a list has no common one


class Outgoing(NamedTuple):
    """A record that is about to be published."""

    topic: str
    value: bytes
    headers: dict[str, str | bytes]
    options: dict[str, Any]  #: the others, as the caller wrote them: key, id, delay, route, ttl ...
    header_bytes: bytes | None = None  #: the headers as the caller passed them, if those were bytes

    def replace(
        self,
        *,
        value: bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> "Outgoing":
        """Return a copy with another value, other headers, or with these options changed."""
        return self._replace(
            value=self.value if value is None else value,
            headers=self.headers if headers is None else dict(headers),
            options={**self.options, **(options or {})},
        )


def outgoing(topic: str, value: bytes, options: Mapping[str, Any]) -> Outgoing:
    """Return a record for the layers of middleware. Raises BadRequest for headers of another form."""
    others, headers = dict(options), options.get("headers")
    others.pop("headers", None)
    given = headers if isinstance(headers, bytes) else None
    return Outgoing(topic, value, payloads.headers_dict(headers), others, given)


def one_of(topic: str, value: bytes, options: Mapping[str, Any], at: int) -> Outgoing:
    """Return record `at` of a list that is published with these options. Raises BadRequest."""
    own = dict(options)
    for singular, plural in PLURALS.items():
        each = own.pop(plural, None)
        if each is not None and each[at] is not None:
            own[singular] = each[at]
    return outgoing(topic, value, own)


def sendable(record: Outgoing) -> dict[str, Any]:
    """Return the options of a publish. Header bytes that no middleware changed are sent as they are."""
    raw = record.header_bytes
    if raw is not None and record.headers == payloads.headers_dict(raw):
        return {**record.options, "headers": raw}
    return {**record.options, "headers": record.headers} if record.headers else record.options


def lists_of(records: Iterable[Outgoing]) -> Iterator[tuple[list[bytes], dict[str, Any]]]:
    """Cut records in order into lists that one call can publish: their values, and their options."""
    for common, group in groupby(records, _common):
        members = list(group)
        options = dict(common)
        for singular, plural in PLURALS.items():
            own = [record.options.get(singular) for record in members]
            if singular not in NAMES and all(each == own[0] for each in own):
                if singular in members[0].options:
                    options[singular] = own[0]
            elif any(each is not None for each in own):
                options[plural] = own
        yield [record.value for record in members], options


def _common(record: Outgoing) -> dict[str, Any]:
    return {name: value for name, value in sendable(record).items() if name not in PLURALS}
