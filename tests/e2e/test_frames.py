"""Bad input over real sockets: a clear refusal where somebody can be answered, counted, and the node serves
on."""

import random
from array import array
from collections.abc import Callable, Iterator
from struct import pack_into
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.harness import PRODUCER, Node, Raw, Tcp, anonymous_bytes, bad_frames
from gossipq import limits
from gossipq.messages import (
    Ack,
    Bye,
    Confirm,
    CreateTopic,
    Credit,
    Deliver,
    DropTopic,
    Extend,
    Hello,
    Nack,
    Ping,
    Publish,
    Recall,
    RefusedMessage,
    Resolve,
    Stats,
    Status,
    StatusReply,
    Subscribe,
    Subscribed,
    Topics,
    Unsubscribe,
    Welcome,
)
from gossipq.peer_messages import Append, Appended, AskTopic, InstallTopic, TopicInstalled
from gossipq.types import KEY_HASH, META_SHARD, NODE_SHARD, partition_key
from gossipq.values import GroupOptions, Message, Start, TopicConfig, TopicInfo, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire.frames import HEADER, MAGIC, VERSION, decode, encode
from gossipq_client import connect
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 30
EXTREMES = (-(2**63), -1, 0, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
Connect = Callable[[str], Raw]


class Target(NamedTuple):
    """A receiver of bad input. `shard` in a header means this process itself."""

    name: str
    endpoint: str
    shard: int
    pid: int


@pytest.fixture(params=["frontdoor", "worker"])
def target(request: pytest.FixtureRequest, served: Node) -> Target:
    if request.param == "frontdoor":
        return Target("frontdoor", served.endpoint, NODE_SHARD, served.pids()[-1])
    return Target("worker", served.worker(0), 0, served.pids()[2])


@pytest.fixture(autouse=True)
def _serves_on(served: Node) -> Iterator[None]:
    """After each test a normal client is served, by the processes that were there before."""
    before = served.pids()
    yield
    serve_one(served)
    assert served.pids() == before, served.log()[-3000:]


def serve_one(node: Node) -> None:
    with connect(node.endpoint) as mq:
        offset = mq.publish("served", b"normal", key=b"k", timeout=PATIENCE_S).offset
        for msg in mq.read("served", start=offset, follow=True):
            assert msg.value == b"normal"
            break


def refused(status: StatusReply) -> int:
    return sum(worker.refused for worker in status.workers)


@pytest.fixture
def asker(served: Node, raw: Connect) -> Raw:
    return raw(served.endpoint).hello()


@pytest.fixture
def counted(asker: Raw) -> Callable[..., None]:
    """counted(n, what): `what` of the status grows by n since the test began (workers report once a
    second)."""
    before = asker.status()

    def check(count: int, what: Callable[[StatusReply], int] = bad_frames) -> None:
        until(lambda: what(asker.status()) >= what(before) + count, what="not counted in status")

    return check


Counted = Callable[..., None]


class TestNobodyReadsThis:
    def test_random_bytes(self, target: Target, raw: Connect, counted: Counted) -> None:
        client, chance = raw(target.endpoint), random.Random(11)
        for size in (0, 1, 23, 24, 100, 5_000, 70_000):
            client.send(chance.randbytes(size))
            answer = client.receive()
            assert answer is not None
            assert isinstance(answer.message, RefusedMessage)
            assert answer.message.code == "protocol"
        counted(7)

    def test_random_bytes_with_a_right_header(self, target: Target, raw: Connect, counted: Counted) -> None:
        client, chance = raw(target.endpoint).hello(target.shard), random.Random(12)
        for request_id in range(1, 21):
            head = HEADER.pack(MAGIC, VERSION, Publish.verb, 0, 0, request_id, 0)
            client.send(head + b"\x92" + chance.randbytes(20), chance.randbytes(200))
            answer = client.answer(request_id)
            assert isinstance(answer, RefusedMessage), answer
        client.alive(target.shard)

    def test_too_many_frames(self, target: Target, raw: Connect, counted: Counted) -> None:
        client = raw(target.endpoint)
        for count in (3, 4, 7, 2_000):
            client.send(*([b"x"] * count))
            answer = client.receive()
            assert answer is not None
            assert isinstance(answer.message, RefusedMessage)
            assert (answer.message.code, "one batch frame" in answer.message.message) == ("protocol", True)
        counted(4)

    def test_an_envelope_of_ones_own(self, served: Node, raw: Connect) -> None:
        """A client that plays the frontdoor is answered or ignored; its
        messages reach no other process.
        """
        for endpoint in (served.endpoint, served.worker(0)):
            client = raw(endpoint)
            client.send(b"somebody", b"", encode(Ping(), 0, 5))
            client.send(b"somebody", b"", encode(Ping(), 0, 6), b"batch")
            for _ in range(2):
                assert client.socket.poll(PATIENCE_S * 1000)
                assert isinstance(decode(client.socket.recv_multipart()[-1])[1], RefusedMessage)

    def test_a_frame_that_is_too_long_closes_the_connection(self, served: Node, target: Target) -> None:
        port = int(target.endpoint.rpartition(":")[2])
        before = anonymous_bytes(target.pid)
        for size in (limits.FRAME_BYTES_MAX + 1, 2**40, 2**63 - 1, 2**64 - 1):
            tcp = Tcp(port).handshake()
            tcp.head(size)
            assert tcp.closed(), f"a frame of {size} bytes is still waited for"
            tcp.close()
        assert anonymous_bytes(target.pid) - before < 8 * limits.MIB

    def test_a_control_frame_that_is_too_long(self, target: Target, raw: Connect, counted: Counted) -> None:
        client = raw(target.endpoint)
        client.send(encode(Hello(bytes(16), "x" * limits.CONTROL_BYTES_MAX, "1"), target.shard, 3))
        answer = client.answer(3)
        assert isinstance(answer, RefusedMessage)
        assert str(limits.CONTROL_BYTES_MAX) in answer.message
        counted(1)

    def test_plain_bytes_and_silence_on_the_port(self, served: Node) -> None:
        ports = (served.port, served.port + 1)
        mute = [Tcp(port) for port in ports]
        for port in ports:
            for greeting in (
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                bytes(200),
                b"\xff" * 200,
                Tcp.GREETING + b"\xff" * 100,
            ):
                tcp = Tcp(port)
                tcp.socket.sendall(greeting)
                tcp.close()
        for silent in mute:
            assert silent.closed(2 * PATIENCE_S), "a connection that says nothing is dropped"
            silent.close()


class TestHeaders:
    def test_a_wrong_version(self, target: Target, raw: Connect, counted: Counted) -> None:
        client = raw(target.endpoint)
        for version in (0, 1, 255):
            client.send(HEADER.pack(MAGIC, version, Ping.verb, target.shard, 0, 9, 0) + b"\x90")
            answer = client.receive()
            assert answer is not None
            assert isinstance(answer.message, RefusedMessage)
            assert (answer.message.code, f"version {version}" in answer.message.message) == (
                "wrong_version",
                True,
            )
        counted(3)

    def test_an_unknown_verb(self, target: Target, raw: Connect, counted: Counted) -> None:
        client = raw(target.endpoint).hello(target.shard)
        for verb in (0, 15, 200, 254, 255):
            client.send(HEADER.pack(MAGIC, VERSION, verb, target.shard, 0, 100 + verb, 0) + b"\x90")
            answer = client.answer(100 + verb)
            assert isinstance(answer, RefusedMessage)
            assert (answer.code, str(verb) in answer.message) == ("unknown_verb", True)
        counted(5)

    def test_peer_verbs_from_a_client(self, target: Target, raw: Connect, counted: Counted) -> None:
        client, shards = raw(target.endpoint).hello(target.shard), (target.shard, 0, 1)
        messages: tuple[Message, ...] = (
            Append("me", 0, 0, 0, []),
            Appended("me", True, 2**60),
            InstallTopic(TopicInfo(1, "x", 1, TopicConfig(), [0]), deleted=True),
            TopicInstalled(1, 1, 0),
            AskTopic(1, 0),
        )
        for message in messages:
            for shard in shards:
                answer = client.ask(message, shard)
                assert isinstance(answer, RefusedMessage)
                assert answer.code == "unknown_verb"
        counted(len(messages) * len(shards))

    def test_answers_instead_of_requests(self, target: Target, raw: Connect) -> None:
        client = raw(target.endpoint).hello(target.shard)
        for message in (
            Welcome("n", bytes(16), "1", 1, 1, 1),
            Confirm([(1, 1, 1, False)]),
            Subscribed(1, 1, []),
            Deliver(1, [], 1),
            Topics([]),
            RefusedMessage("x", "y"),
        ):
            answer = client.ask(message, target.shard)
            assert isinstance(answer, RefusedMessage), answer

    def test_nothing_is_answered_before_hello(self, served: Node, raw: Connect) -> None:
        for endpoint, shard in ((served.worker(0), 0), (served.endpoint, 0), (served.endpoint, 1)):
            client = raw(endpoint)
            for message in (Ping(), Stats(), Resolve(["served"]), Publish(1), Ack(1, [(1, 0, 1)])):
                answer = client.ask(message, shard, sealed([b"x"]) if isinstance(message, Publish) else b"")
                assert isinstance(answer, RefusedMessage), answer
                assert (answer.code, "HELLO" in answer.hint) == ("no_session", True)

    def test_a_session_that_is_none(self, served: Node, raw: Connect) -> None:
        for session in (b"", bytes(15), bytes(17), bytes(10_000)):
            answer = raw(served.worker(0)).ask(Hello(session, "x", "1"), 0)
            assert isinstance(answer, RefusedMessage)
            assert answer.code == "bad_request"

    def test_a_shard_that_is_not_there(self, served: Node, raw: Connect, topic: tuple[int, int]) -> None:
        key, _ = topic
        door = raw(served.endpoint).hello()
        answer = door.ask(Publish(key), limits.SHARDS, sealed([b"x"]))
        assert isinstance(answer, RefusedMessage)
        assert "no topic" in answer.message or "does not exist" in answer.message
        worker = raw(served.worker(0)).hello(0)
        for other in (1, limits.SHARDS, NODE_SHARD - 1):
            answer = worker.ask(Publish(key), other, sealed([b"x"]))
            assert isinstance(answer, RefusedMessage)
            assert answer.code == "not_leader"


@pytest.fixture(scope="module")
def topic(served: Node) -> tuple[int, int]:
    """(partition key, shard) of a topic of its own."""
    with connect(served.endpoint) as mq:
        info = mq.create_topic("frames")
    return partition_key(info.id, 0), info.shards[0]


@pytest.fixture
def leader(served: Node, raw: Connect, topic: tuple[int, int]) -> Raw:
    """A greeted connection to the worker that leads the topic."""
    return raw(served.worker(topic[1] % 2)).hello(topic[1])


def sealed(values: list[bytes], **columns: Any) -> bytes:
    return bytes(batches.seal(values, **columns))


def with_crc(batch: bytearray) -> bytes:
    """The batch with a right CRC over whatever it says."""
    pack_into("<I", batch, 4, crc32(memoryview(batch)[8:]))
    return bytes(batch)


def lying(change: Callable[[bytearray], None], *, keys: bool = False) -> bytes:
    values = [b"one", b"two", b"three"]
    batch = batches.seal(values, keys=values if keys else None)
    change(batch)
    return with_crc(batch)


def number(at: int, value: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        pack_into("<i", batch, at, value)

    return change


LIES = {
    "offsets fall": lying(number(batches.HEADER.size + 4, 9)),
    "first offset below zero": lying(number(batches.HEADER.size, -4)),
    "last offset beyond the end": lying(number(batches.HEADER.size + 12, 10**9)),
    "last offset too small": lying(number(batches.HEADER.size + 12, 8)),
    "all offsets moved down": lying(number(batches.HEADER.size, -(2**31))),
    "offsets of the keys fall": lying(number(batches.HEADER.size + 4, 9), keys=True),
    "count of 0": lying(number(12, 0)),
    "count of 2": lying(number(12, 2)),
    "count of 4": lying(number(12, 4)),
    "count of 2 billion": lying(number(12, 2**31 - 1)),
    "size one less": lying(number(8, 10)),
    "unknown columns": lying(number(48, 1 << 30)),
    "columns that are not there": lying(number(48, batches.KEYS)),
    "route beyond the end": lying(number(52, 255)),
    "empty": b"",
    "short": b"GQB\x01" + bytes(20),
    "other magic": with_crc(bytearray(b"GQB\x02") + batches.seal([b"x"])[4:]),
    "wrong CRC": bytes(batches.seal([b"x"])[:-1]) + b"!",
    "cut short": bytes(batches.seal([b"x" * 100])[:-8]),
    "bytes behind it": bytes(batches.seal([b"x"])) + bytes(8),
    "too many records": sealed([b""] * (limits.BATCH_RECORDS_HARD_MAX + 1)),
}


class TestBatches:
    def test_a_batch_that_is_none(self, leader: Raw, topic: tuple[int, int], counted: Counted) -> None:
        key, shard = topic
        for name, lie in LIES.items():
            answer = leader.ask(Publish(key), shard, lie)
            assert isinstance(answer, RefusedMessage), name
            assert (answer.code, bool(answer.message)) == ("bad_batch", True), name
        counted(len(LIES))
        counted(len(LIES), refused)

    def test_a_bad_batch_through_the_frontdoor(
        self, served: Node, raw: Connect, topic: tuple[int, int]
    ) -> None:
        key, shard = topic
        client = raw(served.endpoint).hello().hello(shard)
        answer = client.ask(Publish(key), shard, LIES["wrong CRC"])
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "bad_batch"

    def test_empty_values_are_fine(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        assert isinstance(publish(leader, key, shard, sealed([b"", b""])), Confirm)

    def test_the_largest_value_and_one_more(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        assert isinstance(publish(leader, key, shard, sealed([bytes(limits.VALUE_BYTES_MAX)])), Confirm)
        answer = leader.ask(Publish(key), shard, sealed([bytes(limits.VALUE_BYTES_MAX + 1)]))
        assert isinstance(answer, RefusedMessage)
        assert (answer.code, str(limits.VALUE_BYTES_MAX) in answer.message) == ("too_large", True)

    def test_a_large_key_and_large_headers(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        for columns, what, most in (
            (
                {"keys": [bytes(64 * limits.KIB)], "fixed": {KEY_HASH: array("I", [7])}},
                "key",
                limits.KEY_BYTES_MAX,
            ),
            ({"headers": [bytes(limits.HEADERS_BYTES_MAX + 1)]}, "headers", limits.HEADERS_BYTES_MAX),
        ):
            answer = leader.ask(Publish(key), shard, sealed([b"x"], **columns))
            assert isinstance(answer, RefusedMessage)
            assert (answer.code, what in answer.message, str(most) in answer.message) == (
                "too_large",
                True,
                True,
            )

    def test_sequences_out_of_nowhere(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        for sequence in (2, 10**6, 2**63, 2**64 - 1):
            answer = leader.ask(Publish(key), shard, sealed([b"x"], producer=PRODUCER, sequence=sequence))
            assert isinstance(answer, RefusedMessage)
            assert (answer.code, answer.detail) == ("out_of_sequence", 1)


def publish(client: Raw, key: int, shard: int, batch: bytes) -> Message:
    """The CONFIRM or REFUSED of one publish; a Busy while the shard learns the topic is repeated.
    The answer to an earlier attempt may come late.
    """
    while True:
        client.say(Publish(key), shard, 77, batch)
        while (answer := client.receive()) is not None:
            if isinstance(answer.message, Confirm) or answer.header.request_id == 77:
                break
        assert answer is not None
        if not (isinstance(answer.message, RefusedMessage) and answer.message.code == "busy"):
            return answer.message


class TestNamesAndNumbers:
    def test_topic_names(self, served: Node, raw: Connect, counted: Counted) -> None:
        client, asked = raw(served.worker(0)).hello(META_SHARD), 0
        for name in ("x" * 300, "a/b", "", "ä", "a b", "..", "\x00", "*", "x" * 100_000):
            messages: list[Message] = [CreateTopic(name)]
            if "*" not in name:
                messages.append(Resolve([name], create=True))
            for message in messages:
                answer = client.ask(message, META_SHARD)
                asked += 1
                assert isinstance(answer, RefusedMessage)
                assert (answer.code, bool(answer.message)) == ("bad_name", True)
        counted(asked, refused)

    def test_a_group_name_of_300_bytes(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        answer = leader.ask(Subscribe(1, "g" * 300, [Start(key)], 1, 1), shard)
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "bad_name"

    def test_topics_and_partitions_that_are_not_there(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        for partition in (
            key + (1 << 30),
            partition_key(2**40, 0),
            -1,
            -(2**63),
            2**64 - 1,
            key + 1,
            key + 65_535,
        ):
            for message, batch in (
                (Publish(partition), sealed([b"x"])),
                (Subscribe(1, "", [Start(partition)], 1, 1), b""),
                (Subscribe(1, "g", [Start(partition)], 1, 1), b""),
            ):
                answer = settled(leader, message, shard, batch)
                assert (answer.code, bool(answer.message)) == ("unknown_topic", True), (partition, message)

    def test_a_partition_of_another_shard(self, served: Node, raw: Connect, topic: tuple[int, int]) -> None:
        key, shard = topic
        other = (shard + 2) % limits.SHARDS
        client = raw(served.worker(other % 2)).hello(other)
        answer = settled(client, Publish(key), other, sealed([b"x"]))
        assert answer.code in ("wrong_shard", "not_leader")

    def test_offsets_out_of_range(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        for offset in (-1, -(2**63), 10**9, 2**63, 2**64 - 1):
            for group in ("", "new-group"):
                answer = leader.ask(Subscribe(1, group, [Start(key, "offset", offset)], 1, 1), shard)
                assert isinstance(answer, RefusedMessage)
                assert (answer.code, "can" in answer.hint) == ("offset_out_of_range", True)
        answer = leader.ask(Subscribe(1, "", [Start(key, "sideways")], 1, 1), shard)
        assert isinstance(answer, RefusedMessage)
        assert (answer.code, "first" in answer.hint) == ("bad_request", True)

    def test_acks_of_what_nobody_holds(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        answer = leader.ask(Ack(99, [(key, 0, 1)]), shard)
        assert isinstance(answer, RefusedMessage)
        assert isinstance(leader.ask(Subscribe(7, "acks", [Start(key)], 0, 0), shard), Subscribed)
        for first, end in ((0, 2**63), (-(2**63), 0), (10, 5), (2**64 - 1, 2**64 - 1), (-5, 2**64 - 1)):
            for partition in (key, key + 5, -1):
                for message in (
                    Nack(7, [(partition, first, end)], 5),
                    Extend(7, [(partition, first, end)], 1_000),
                    Ack(7, [(partition, first, end), (partition, first, end)]),
                ):
                    assert leader.ask(message, shard) is not None
        leader.alive(shard)


def settled(client: Raw, message: Message, shard: int, batch: bytes = b"") -> RefusedMessage:
    """The refusal that remains after the leader has asked the register."""

    def ask() -> RefusedMessage | None:
        answer = client.ask(message, shard, batch)
        assert isinstance(answer, RefusedMessage), answer
        return None if answer.code == "busy" else answer

    found: RefusedMessage = until(ask, 3, f"{message}: busy for ever")
    return found


def requests(key: int) -> list[Message]:
    """One valid message of each verb that clients send."""
    return [
        Publish(key, "stored"),
        Subscribe(
            3, "huge", [Start(key, "offset", 0)], 10, 10_000, GroupOptions("shared", 30_000, 100), True
        ),
        Subscribe(4, "", [Start(key, "time", 5)], 10, 10_000),
        Credit(3, 1, 1),
        Recall(3),
        Ack(3, [(key, 0, 1)]),
        Nack(3, [(key, 0, 1)], 5, True, "why"),
        Extend(3, [(key, 0, 1)], 1_000),
        Unsubscribe(9),
        Stats(["frames"]),
        Resolve(["frames", "f*"], True),
        CreateTopic("frames", TopicOptions(1, 1, "acked", 1, "refuse", "stored", ""), True),
        DropTopic("no-such-topic"),
        Ping(),
        Hello(bytes(16), "raw", "1", b"", ""),
        Status(),
    ]


def variants(value: Any, replacements: tuple[Any, ...], kinds: type | tuple[type, ...]) -> Iterator[Any]:
    """`value` with each number (or whatever `kinds` are) in it replaced, one at a time."""
    if isinstance(value, list | tuple):
        for at, item in enumerate(value):
            for changed in variants(item, replacements, kinds):
                yield [*value[:at], changed, *value[at + 1 :]]
    elif isinstance(value, kinds) and not isinstance(value, bool):
        yield from replacements


def survive(client: Raw, shard: int, verb: int, control: Any, batch: bytes = b"") -> None:
    client.send(
        HEADER.pack(MAGIC, VERSION, verb, shard, 0, 500, 0) + msgspec.msgpack.encode(control),
        *filter(None, [batch]),
    )


class TestHugeNumbers:
    """A number of any size in any field is served or refused; the worker continues."""

    def test_in_every_numeric_field(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        self._all_of(leader, shard, key, EXTREMES, int)

    def test_other_kinds_in_every_field(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        others = (None, [], {}, b"", "x" * 1_000, 1e308, float("nan"), True, [[[[]]]])
        self._all_of(leader, shard, key, others, (int, str, bytes))

    def _all_of(self, leader: Raw, shard: int, key: int, values: tuple[Any, ...], kinds: Any) -> None:
        for message in requests(key):
            plain = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
            batch = sealed([b"x"]) if isinstance(message, Publish) else b""
            for target in {shard, META_SHARD} if shard % 2 == 0 else {shard}:
                for control in variants(plain, values, kinds):
                    survive(leader, target, message.verb, control, batch)
            leader.hello(shard)
            leader.alive(shard)

    def test_in_the_meta_shard(self, served: Node, raw: Connect) -> None:
        meta = raw(served.worker(0)).hello(META_SHARD)
        for number, extreme in enumerate(EXTREMES):
            for at in range(4):
                options: list[Any] = [1, 1_000, "acked", 0]
                if isinstance(options[at], int):
                    options[at] = extreme
                    control = [f"huge-{at}-{number}", options, False]
                    survive(meta, META_SHARD, CreateTopic.verb, control)
                    answer = meta.answer(500)
                    assert isinstance(answer, RefusedMessage | Topics)
                    if isinstance(answer, Topics):
                        info = answer.topics[0]
                        client = raw(served.worker(info.shards[0] % 2)).hello(info.shards[0])
                        publish(client, partition_key(info.id, 0), info.shards[0], sealed([b"x"]))
                        assert isinstance(client.ask(Stats([info.name]), info.shards[0]), Message)
        meta.alive(META_SHARD)

    def test_in_the_header(self, served: Node, raw: Connect) -> None:
        for endpoint in (served.endpoint, served.worker(0)):
            client = raw(endpoint).hello(0)
            for shard in (0, 1, 32, 0xFFFE, 0xFFFF):
                for request_id in (0, 2**63, 2**64 - 1):
                    for term in (0, 2**64 - 1):
                        client.send(
                            HEADER.pack(MAGIC, VERSION, Ping.verb, shard, 0xFFFF, request_id, term) + b"\x90"
                        )
            client.hello(0)
            client.alive(0)


VERBS = [message.verb for message in requests(0)]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.floats(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


class TestFuzz:
    """Hypothesis against a live worker."""

    def test_messages_nobody_thought_of(self, leader: Raw, topic: tuple[int, int]) -> None:
        _, shard = topic

        @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
        @given(verb=st.sampled_from(VERBS), control=ANYTHING, batch=st.none() | st.binary(max_size=100))
        def fuzz(verb: int, control: Any, batch: bytes | None) -> None:
            survive(leader, shard, verb, control, batch or b"")
            leader.hello(shard)

        fuzz()

    def test_valid_messages_with_a_few_bytes_changed(self, leader: Raw, topic: tuple[int, int]) -> None:
        key, shard = topic
        sample = [encode(message, shard, 500) for message in requests(key) if not isinstance(message, Bye)]
        batch = batches.seal([b"one", b"two"], keys=[b"k", b"l"], producer=PRODUCER, sequence=1)

        @settings(max_examples=400, database=None, suppress_health_check=list(HealthCheck))
        @given(data=st.data())
        def fuzz(data: st.DataObject) -> None:
            control = bytearray(data.draw(st.sampled_from(sample)))
            changed = bytearray(batch)
            for frame in (control, changed):
                for at, value in data.draw(
                    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)
                ):
                    frame[at % len(frame)] = value
            if data.draw(st.booleans()):
                changed = bytearray(with_crc(changed))
            leader.send(bytes(control), bytes(changed))
            leader.hello(shard)

        fuzz()
