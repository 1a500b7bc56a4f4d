"""Rebuilds a session when an exception from outside, for example Ctrl-C, has ended a step half way.

All connections are closed by then. A step keeps each record in at least one place at any moment, so a
session needs three things of before: batches without a confirm, requests without an answer, and records that
the user has. They are sent, or claimed, over new connections as after a lost connection. Everything else is
counted anew.
"""

from collections import deque

from gossipq.types import Now
from gossipq_client.session.calls import Calls
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.deliveries import Consuming
from gossipq_client.session.packer import Writer
from gossipq_client.session.publisher import Publishing
from gossipq_client.session.session import Session


def rebuild(session: Session, now: Now) -> None:
    """Bring a session in order, and dial a node again. It may run twice without harm."""
    session.advance(now)
    session.links.restart()
    _rebuild_publishing(session.publishing)
    _end_calls(session.calls)
    _rebuild_consuming(session.consuming, now)


def _rebuild_publishing(publishing: Publishing) -> None:
    publishing.plain.clear()
    publishing.in_flight.clear()
    for topic in [*(old for old, _ in publishing.moves), *publishing.topics.values()]:
        for writer in topic.writers:
            _rebuild_writer(publishing, writer)
    publishing.finish_moves()
    flights = [flight for writer in publishing.writers() for flight in writer.flights]
    publishing.unconfirmed_bytes = sum(flight.size for flight in flights)


def _rebuild_writer(publishing: Publishing, writer: Writer) -> None:
    """Put the batches of a partition in order. Each is open, in `flights`, or done."""
    opened, flights = writer.open, writer.flights
    publishing.doubt(writer)
    if opened is not None and opened.values is not None:
        writer.open = opened if opened.trim() else None
    elif opened is not None:  # it was sealed, or it failed, as its step ended
        if opened.level == "none" and opened.error is None:
            publishing.loose += [opened] if opened not in publishing.loose else []
        elif opened not in flights:
            opened.size = len(opened.batch)
            flights.append(opened)
        writer.open = None
    for flight in [flight for flight in flights if flight.done]:
        flight.tell()
        flights.remove(flight)
        if flight.error is not None:
            publishing.note_failed(flight)
    if any(flight.producer != writer.producer for flight in flights):
        publishing.adopt_producer(writer)
    if writer.gap:
        publishing.close_gap(writer)
    for flight in flights:
        flight.restamp(flight.producer, flight.sequence)
    if flights:
        writer.sequence = flights[-1].sequence + 1
    writer.sent = 0
    publishing.pump(writer)
    publishing.seal(writer)  # a record that joins a batch of before could come behind a later one


def _end_calls(calls: Calls) -> None:
    """Tell answers again that were not taken in completely. The next greeting sends the other requests."""
    for call in [call for call in calls.open if call.done]:
        calls.settle(call, call.reply, call.error)


def _rebuild_consuming(consuming: Consuming, now: Now) -> None:
    for part in list(consuming.parts.values()):
        if part not in part.subscription.parts:  # it was half added or half removed
            del consuming.parts[part.number]
    consuming.hungry.clear()
    subscriptions = consuming.subscriptions()
    for subscription in subscriptions:
        subscription.parts = [part for part in subscription.parts if part.number in consuming.parts]
        for part in subscription.parts:
            _give_back_unbegun(part)
        subscription.ready = deque(held for held in subscription.ready if held.taken < held.end)
        _count(subscription)
        consuming.share_out(subscription)
    consuming.fresh = {part: None for part in consuming.parts.values() if part.fresh}
    consuming.ack_due_ms = now.boot_ms if consuming.fresh else 0
    for subscription in subscriptions:
        if subscription.closing:
            consuming.end(subscription)


def _give_back_unbegun(part: Part) -> None:
    """Keep the leased records that the user has. The leader takes back the others: nobody claims them."""
    part.aside = {}
    for held in list(part.outstanding):
        held.cut_last(max(0, held.untaken))
        held.left = sum(end - first for first, end in held.open_ranges(held.first, held.end))
        if not held.left:
            del part.outstanding[held]
        part.saw(held.partition, held.end)


def _count(subscription: Subscription) -> None:
    """Count the records that are here and that the user has not taken. Only a reader has some."""
    for part in subscription.parts:
        here = [held for held in subscription.here if held.part is part]
        for held in here:
            part.saw(held.partition, held.end)
        part.untaken_records = sum(held.untaken for held in here)
        part.untaken_bytes = sum(held.charge for held in here)
