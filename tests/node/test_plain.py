"""A worker and the simplest of its clients: plain records, a loan that acks give back, RESET."""

import msgspec
import pytest

from gossipq import limits
from gossipq.messages import (
    Ack,
    Acked,
    Confirm,
    Deliver,
    DeliverPlain,
    Hello,
    Nack,
    Ping,
    Pong,
    PublishPlain,
    RefusedMessage,
    Reset,
    Subscribe,
    Subscribed,
    Welcome,
)
from gossipq.operator_messages import Kick
from gossipq.values import GroupOptions, PlainDelivered, Start
from gossipq.wire import ownership
from gossipq.wire.frames import decode, encode
from node.test_worker import KEY, Client, Hands

ROWS = msgspec.msgpack.Decoder(list[PlainDelivered])
NAME = bytes(range(16))


@pytest.fixture
def hands() -> Hands:
    return Hands()


class Plain:
    """One simple client, and its topic of one partition."""

    def __init__(self, hands: Hands, name: bytes = NAME, key: bytes = b"") -> None:
        self.hands = hands
        self.client = Client(hands, hands.network.client("tcp://127.0.0.1:7701"))
        self.hello = Hello(ownership.session_of(key) if key else name, "plain", "0", key=key, resets=True)
        assert isinstance(self.client.ask(self.hello), Welcome)
        self.partition, self.shard = self.client.topic()
        assert isinstance(self.client.ask(self.hello, self.shard), Welcome)

    def publish(self, *records: str | list[object], **fields: object) -> object:
        frame = msgspec.msgpack.encode(
            [each if isinstance(each, list) else [each.encode()] for each in records]
        )
        return self.client.ask(PublishPlain(self.partition, **fields), self.shard, frame)  # type: ignore[arg-type]

    def subscribe(self, group: str = "g", credit: int = 2, **fields: object) -> None:
        starts = [Start(self.partition, "first")]
        said = Subscribe(1, group, starts, credit, limits.MIB, auto=True, plain=True, **fields)  # type: ignore[arg-type]
        self.client.send(said, self.shard)
        self.hands.turn()
        assert isinstance(decode(self.client.dealer.receive()[0])[1], Subscribed)

    def take(self) -> list[object]:
        """Messages that have come, and the records of deliveries."""
        came: list[object] = []
        while self.client.dealer.inbox:
            control, *rest = self.client.dealer.receive()
            message = decode(control)[1]
            came += ROWS.decode(rest[0]) if isinstance(message, DeliverPlain) else [message]
        return came

    def offsets(self) -> list[int]:
        return [each.offset for each in self.take() if isinstance(each, PlainDelivered)]

    def ask(self, message: Ack | Nack) -> object:
        self.client.send(message, self.shard)
        self.hands.turn()
        return None


def test_what_is_published_plain_comes_plain(hands: Hands) -> None:
    plain = Plain(hands)
    confirm = plain.publish([b"one", b"ada", {"k": b"v"}, b"id-1"], route="eu")
    assert isinstance(confirm, Confirm)
    assert confirm.rows == [(9, 0, 1, False)]
    again = plain.publish([b"one", b"ada", {"k": b"v"}, b"id-1"])
    assert isinstance(again, Confirm)
    assert again.runs[0][1][0].duplicate, "the id says that it is the same"
    plain.subscribe()
    hands.turn()
    (record,) = [each for each in plain.take() if isinstance(each, PlainDelivered)]
    assert (record.value, record.key, record.headers, record.id) == (b"one", b"ada", {"k": b"v"}, b"id-1")
    assert (record.partition, record.offset, record.attempt, record.route) == (plain.partition, 0, 1, "eu")


def test_a_sequence_makes_a_repeat_one(hands: Hands) -> None:
    plain = Plain(hands, key=KEY)
    for sequence, offset, duplicate in ((1, 0, False), (1, 0, True), (2, 1, False)):
        confirm = plain.publish("x", sequence=sequence)
        assert isinstance(confirm, Confirm)
        assert confirm.rows == [(9, offset, 1, duplicate)]
    refused = Plain(hands).publish("x", sequence=1)
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, "key in HELLO" in refused.hint) == ("bad_request", True)


@pytest.mark.parametrize("group", ["g", ""])
def test_an_ack_gives_the_loan_back(hands: Hands, group: str) -> None:
    plain = Plain(hands)
    for i in range(5):
        plain.publish(str(i))
    plain.subscribe(group)
    assert plain.offsets() == [0, 1]
    hands.turn()
    assert plain.offsets() == []
    plain.ask(Ack(1, [(plain.partition, 0, 1)]))
    assert plain.offsets() == [2]
    plain.ask(Ack(1, [(plain.partition, 1, 3)]))
    assert plain.offsets() == [3, 4]
    plain.ask(Ack(1, [(plain.partition, 1, 3), (plain.partition, -5, 99)]))
    plain.publish("5"), plain.publish("6"), plain.publish("7")
    assert len(plain.offsets()) <= 3, "what was given back twice counts once"


def test_a_nack_gives_the_loan_back_too(hands: Hands) -> None:
    plain = Plain(hands)
    plain.publish("a")
    plain.subscribe(credit=1)
    assert plain.offsets() == [0]
    plain.ask(Nack(1, [(plain.partition, 0, 1)], failed=False))
    assert plain.offsets() == [0]


def test_a_ping_renews_leases(hands: Hands) -> None:
    plain = Plain(hands)
    plain.publish("a")
    plain.subscribe(config=GroupOptions(lease_ms=3_000))
    assert plain.offsets() == [0]
    other = Client(hands, hands.network.client("tcp://127.0.0.1:7701"))
    other.ask(Hello(bytes(16), "other", "0"))
    starts = [Start(plain.partition)]
    other.send(Subscribe(1, "g", starts, 9, limits.MIB), plain.shard)
    for _ in range(12):
        other.send(Ping())
        plain.client.send(Ping(), plain.shard)
        hands.turn(1_000)
    assert not [each for each in other.inbox() if isinstance(each, Deliver)]
    for _ in range(10):
        other.send(Ping())
        hands.turn(1_000)
    assert [each for each in other.inbox() if isinstance(each, Deliver)], "who does not ping holds nothing"


def test_a_sign_of_life_tells_who_was_not_told_that_the_leader_changed(hands: Hands) -> None:
    """The old leader was killed without telling its clients; this worker knows the
    session from another shard.
    """
    plain = Plain(hands)
    assert plain.client.ask(Ping(), plain.shard) == Pong()
    (origin,) = hands.worker._sessions._by_origin
    hands.worker._sessions.greeted(origin, plain.shard, 0)  # in an older term
    refused = plain.client.ask(Ping(), plain.shard)
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, "HELLO" in refused.hint) == ("no_session", True)
    assert isinstance(plain.client.ask(plain.hello, plain.shard), Welcome)
    assert plain.client.ask(Ping(), plain.shard) == Pong()
    elsewhere = plain.client.ask(Ping(), 7)
    assert isinstance(elsewhere, RefusedMessage)
    assert elsewhere.code == "not_leader"


def test_a_sign_of_life_is_refused_by_a_connection_that_nothing_was_subscribed_by(hands: Hands) -> None:
    """For example a frontdoor that forwards lost its connection to this worker: deliveries for old
    subscriptions go to the old connection, which has no reader.
    """
    plain = Plain(hands)
    plain.subscribe()
    other = Client(hands, hands.network.client("tcp://127.0.0.1:7701"))
    assert isinstance(other.ask(plain.hello), Welcome)  # for another shard that this worker leads
    refused = other.ask(Ping(), plain.shard)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "no_session"
    assert isinstance(other.ask(plain.hello, plain.shard), Welcome)
    plain.client = other
    plain.publish("a")
    plain.subscribe(holding=[])
    assert plain.offsets() == [0]
    assert other.ask(Ping(), plain.shard) == Pong()


def test_a_session_that_ended_is_told_so(hands: Hands) -> None:
    plain = Plain(hands)
    plain.subscribe()
    for _ in range(8):
        hands.turn(1_000)
    (reset,) = [each for each in plain.take() if isinstance(each, Reset)]
    assert (reset.shards, bool(reset.why)) == ([0, 1], True)
    refused = plain.client.ask(Ping())
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "no_session"


def test_a_session_that_was_kicked_is_told_so_and_one_that_did_not_ask_is_not(hands: Hands) -> None:
    plain, quiet = Plain(hands), Client(hands, hands.network.client("tcp://127.0.0.1:7701"))
    quiet.ask(Hello(bytes(16), "quiet", "0"))
    for name in (NAME, bytes(16)):
        hands.client(b"o" * 16).ask(Kick(name[:8], 1_000))
    assert [type(each) for each in plain.take()] == [Reset]
    assert quiet.inbox() == []


def test_who_does_not_subscribe_again_hears_which_it_was(hands: Hands) -> None:
    plain = Plain(hands)
    plain.client.send(Ack(7, [(plain.partition, 0, 1)]), plain.shard)
    hands.turn()
    (refused,) = plain.take()
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.detail) == ("no_subscription", 7)


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode([[1]])])
def test_records_that_are_none_are_refused(hands: Hands, frame: bytes) -> None:
    plain = Plain(hands)
    said = encode(PublishPlain(plain.partition), plain.shard, 3)
    plain.client.dealer.send(*([said, frame] if frame else [said]))
    hands.turn()
    (refused,) = plain.take()
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "bad_batch"
    assert isinstance(plain.client.ask(Ping()), Pong)


def test_a_lost_ack_is_told(hands: Hands) -> None:
    plain = Plain(hands)
    plain.publish("a")
    plain.subscribe()
    assert plain.offsets() == [0]
    plain.ask(Ack(1, [(plain.partition, 0, 2)]))
    assert [each for each in plain.take() if isinstance(each, Acked)] == [Acked([(plain.partition, 1, 2)])]
