"""Clients in other languages against a node that says at a certain moment what one seldom says."""

import os
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from minimal import Client as MinimalClient
from msgspec import msgpack

from bindings.fake import (
    ACK,
    CONFIRM,
    DELIVER,
    DELIVER_PLAIN,
    HELLO,
    NACK,
    PARTITION,
    PING,
    PUBLISH,
    PUBLISH_PLAIN,
    REFUSED,
    RESET,
    RESOLVE,
    SHARD,
    SUBSCRIBE,
    SUBSCRIBED,
    TOPIC,
    TOPICS,
    UNSUBSCRIBE,
    WELCOME,
    FakeNode,
    Said,
    batch,
)
from bindings.languages import (
    CLIENTS,
    GO,
    JAVA,
    JAVA_DRIVER,
    JEROMQ,
    C,
    Language,
    c_misses,
    go_misses,
    java_misses,
    languages,
)
from bindings.test_bindings import skip_if_missing
from bindings.test_c import LEAKS
from conftest import RunningNode
from gossipq.errors import Forbidden, GossipqError
from gossipq_cli.conformance.between import NOWHERE
from gossipq_cli.conformance.driver import Driver, publication
from waiting import quickest, until

needs_c = pytest.mark.skipif(bool(c_misses()), reason=c_misses())


def sequence(body: bytes) -> int:
    return int.from_bytes(body[32:40], "little")


def producer(body: bytes) -> bytes:
    return body[16:32]


def confirm(node: FakeNode, request: int, offset: int, *more: Any) -> None:
    node.say(SHARD, 0, CONFIRM, [[[request, offset, 1, False]], 1 << 25, *more])


class Leader:
    """Refuses the second batch while the first one is on its way to the disks, and does what one does with
    sequences."""

    def __init__(self) -> None:
        self.stored: list[tuple[bytes, int]] = []
        self._waits: int | None = None
        self._refused = False

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, request, _, body = said
        if verb != PUBLISH:
            return NotImplemented
        of, number = producer(body[0]), sequence(body[0])
        last = max((n for each, n in self.stored if each == of), default=0)
        if number <= last:
            return CONFIRM, [[[request, 0, 1, True]], 1 << 25]
        if number > last + 1:
            return REFUSED, ["out_of_sequence", "one is missing", "", 50, last + 1]
        if number == 2 and not self._refused:
            self._refused = True
            return REFUSED, ["topic_full", "it is full"]
        self.stored.append((of, number))
        if self._waits is None:
            self._waits = request
            return None
        if self._waits:
            confirm(node, self._waits, 0)
            self._waits = 0
        confirm(node, request, len(self.stored) - 1)
        return None


def run_c(server: str, *line: str, **environment: str) -> str:
    done = subprocess.run(
        [*line[:-1], str(C / "build" / "faults"), line[-1]],
        env=os.environ | {"GOSSIPQ_SERVER": server} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@needs_c
def test_c_a_refusal_does_not_send_what_is_before_it_under_another_name() -> None:
    """Its ids are taken for a leader's memory of sequences: twice stored is twice in the list."""
    leader = Leader()
    with FakeNode(leader) as node:
        run_c(node.endpoint, "refused")
    assert [number for _, number in leader.stored] == [1, 2]


@needs_c
@pytest.mark.slow
def test_c_a_late_confirm_of_what_was_sent_twice() -> None:
    requests: list[int] = []

    def answer(node: FakeNode, said: Said) -> Any:
        verb, _, request, _, _ = said
        if verb != PUBLISH:
            return NotImplemented
        requests.append(request)
        if len(requests) == 1:
            return REFUSED, ["busy", "later", "", 1]
        for old in requests[:-1]:
            confirm(node, old, 0)
        return NotImplemented

    with FakeNode(answer) as node:
        run_c(node.endpoint, "valgrind", "-q", *LEAKS, "late")
    assert len(requests) == 4


@needs_c
def test_c_a_confirm_without_runs() -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        return (CONFIRM, [[[said[2], 0, 1, False]], 1 << 25]) if said[0] == PUBLISH else NotImplemented

    with FakeNode(answer) as node:
        run_c(node.endpoint, "runs")


BOMBS = (b"\xdf\x00\xff\xff\xff" + bytes(1 << 24), b"\xde\xff\xff" + b"\xa0" * 100, b"\xc1", b"\x81\xa1a\x05")


def delivering(*headers: bytes) -> Callable[[FakeNode, Said], Any]:
    def answer(node: FakeNode, said: Said) -> Any:
        return node.subscribed(said, *headers) if said[0] == SUBSCRIBE else NotImplemented

    return answer


@needs_c
@pytest.mark.slow
def test_c_headers_that_lie_about_their_number() -> None:
    with FakeNode(delivering(*BOMBS, msgpack.encode({"a": b"b", "c": "d"}))) as node:
        assert run_c(node.endpoint, "valgrind", "-q", *LEAKS, "headers").split() == ["0"] * 4 + ["2"]


@needs_c
def test_c_what_could_not_be_subscribed_is_left() -> None:
    """A node that subscribed it but answered too late would deliver records without a reader."""
    with FakeNode(lambda node, said: None if said[0] == SUBSCRIBE else NotImplemented) as node:
        run_c(node.endpoint, "subscribe")
        until(lambda: UNSUBSCRIBE in node.verbs())
        assert node.verbs().index(UNSUBSCRIBE) > node.verbs().index(SUBSCRIBE)


@needs_c
@pytest.mark.slow
def test_c_an_address_that_is_none() -> None:
    run_c("tcp://127.0.0.1:9,tcp//nobody", "nobody")


@needs_c
def test_c_a_token_leaves_this_machine_for_no_name_that_begins_as_it_does() -> None:
    run_c("tcp://127.0.0.1:9", "here")


@needs_c
def test_c_each_of_many_leaders_is_heard_at_once() -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        routes = [[shard, 1, endpoint] for shard, endpoint in enumerate(node.leaders)]
        if said[0] == HELLO:
            return WELCOME, ["n", "c", "0.2.0", 1 << 25, 5000, 1000, routes, 1]
        if said[0] == SUBSCRIBE:
            _, shard, request, [number, _, [[key, *_]], *_], _ = said
            node.say(shard, request, SUBSCRIBED, [number, 30000, []])
            body = batch(b"")
            return DELIVER, [number, [[key, 0, 1, 1, len(body), len(body)]], 30000], body
        return (TOPICS, [[[TOPIC, "t", 1, [1], [*range(40)]]], ""]) if said[0] == RESOLVE else NotImplemented

    with FakeNode(answer, leaders=40) as node:
        run_c(node.endpoint, "many")


@needs_c
def test_c_a_topic_that_is_gone_is_nothing_to_others_and_is_found_when_it_is_made_anew() -> None:
    ids = {"t": TOPIC, "u": TOPIC + 1}

    def answer(node: FakeNode, said: Said) -> Any:
        verb, _, _, fields, _ = said
        if verb == RESOLVE:
            name = fields[0][0]
            return TOPICS, [[[ids[name], name, 1, [1], [SHARD]]], ""]
        if verb == PUBLISH and ids["t"] == TOPIC:
            ids["t"] = TOPIC + 2
            node.say(SHARD, 0, RESET, [[SHARD]])
            return None
        if verb == SUBSCRIBE and fields[2][0][0] // 65536 not in ids.values():
            return REFUSED, ["unknown_topic", "it was removed"]
        return NotImplemented

    with FakeNode(answer) as node:
        run_c(node.endpoint, "gone")


@needs_c
def test_c_a_reader_of_what_is_new_goes_on_where_it_began() -> None:
    starts: list[list[Any]] = []

    def answer(node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb != SUBSCRIBE:
            return NotImplemented
        starts.append(fields[2][0])
        node.say(SHARD, request, SUBSCRIBED, [fields[0], 0, [[PARTITION, 7, 7]]])
        if len(starts) == 1:
            node.say(SHARD, 0, RESET, [[SHARD]])
        return None

    with FakeNode(answer) as node:
        run_c(node.endpoint, "reader")
    assert starts == [[PARTITION, "new"], [PARTITION, "offset", 7]]


@needs_c
def test_c_what_was_unsubscribed_in_vain_is_left_when_its_shard_is_joined_again() -> None:
    """Else it would go on there, and hold records, as long as the client lives."""

    def answer(node: FakeNode, said: Said) -> Any:
        if said[0] != UNSUBSCRIBE or node.verbs().count(UNSUBSCRIBE) > 1:
            return NotImplemented
        node.say(SHARD, 0, RESET, [[SHARD]])
        return None

    with FakeNode(answer) as node:
        run_c(node.endpoint, "left")
    assert node.verbs().count(UNSUBSCRIBE) == 2
    assert node.verbs().count(SUBSCRIBE) == 1


@needs_c
def test_c_a_refusal_of_who_comes_back_does_not_say_that_nothing_is_stored() -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        verb, shard, *_ = said
        publishes = node.verbs().count(PUBLISH)
        if verb == HELLO and shard == SHARD and publishes > 1:
            return REFUSED, ["forbidden", "not this token"]
        if verb != PUBLISH or publishes == 1:
            return NotImplemented
        node.say(SHARD, 0, RESET, [[SHARD]])
        return None

    with FakeNode(answer) as node:
        run_c(node.endpoint, "unsure")


@needs_c
def test_c_what_the_user_does_not_have_is_not_acked() -> None:
    with FakeNode(delivering(b"", b"")) as node:
        run_c(node.endpoint, "strange")
    assert [fields[1] for verb, _, _, fields, _ in node.said if verb == ACK] == [[[PARTITION, 0, 1]]]
    assert NACK not in node.verbs()


@needs_c
@pytest.mark.slow
def test_c_an_answer_that_comes_after_its_call_has_ended_is_written_nowhere() -> None:
    requests: list[int] = []

    def answer(node: FakeNode, said: Said) -> Any:
        if said[0] != PUBLISH:
            return NotImplemented
        requests.append(said[2])
        if len(requests) == 1:
            return None
        return CONFIRM, [[[request, at, 1, False] for at, request in enumerate(requests)], 1 << 25]

    with FakeNode(answer) as node:
        run_c(node.endpoint, "valgrind", "-q", *LEAKS, "some")
    assert len(requests) == 2


@needs_c
def test_c_what_cannot_be_sent_is_refused_at_once() -> None:
    """A topic's name that is a pattern would be that of any topic that fits."""
    with FakeNode() as node:
        run_c(node.endpoint, "at-once")
        assert {PUBLISH, SUBSCRIBE}.isdisjoint(node.verbs())
        assert [fields[0] for verb, _, _, fields, _ in node.said if verb == RESOLVE] == [["t"]]


@needs_c
def test_c_a_failure_in_a_topic_that_is_gone_is_refused() -> None:
    """Repeating the request would never end."""
    gone = False

    def answer(node: FakeNode, said: Said) -> Any:
        nonlocal gone
        if said[0] == SUBSCRIBE:
            return (REFUSED, ["unknown_topic", "it is gone"]) if gone else node.subscribed(said, b"")
        if said[0] != NACK:
            return NotImplemented
        gone = True
        return REFUSED, ["no_subscription", "none of this number"]

    with FakeNode(answer) as node:
        run_c(node.endpoint, "failed-gone")
        assert node.verbs().count(NACK) == 1


@needs_c
def test_c_who_may_not_go_straight_to_the_leader_joins_once() -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        row = [said[2], 0, 1, False]
        return (CONFIRM, [[row], 1 << 25, "tcp://192.0.2.1:7701"]) if said[0] == PUBLISH else NotImplemented

    with FakeNode(answer) as node:
        run_c(node.endpoint, "far")
        assert [shard for verb, shard, *_ in node.said if verb == HELLO].count(SHARD) == 1


@needs_c
def test_c_who_holds_more_than_can_be_named_names_some_of_it() -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        verb, shard, _, _, _ = said
        again = node.verbs().count(SUBSCRIBE) > 1
        if verb == SUBSCRIBE and not again:
            return node.subscribed(said, *[b""] * 34_000)
        if verb == PUBLISH and not again:
            node.say(shard, 0, RESET, [[shard]])
            return None
        return NotImplemented

    with FakeNode(answer) as node:
        run_c(node.endpoint, "holding")
        assert [len(fields[7]) for verb, _, _, fields, _ in node.said if verb == SUBSCRIBE] == [0, 16_384]


@needs_c
def test_c_a_sequence_that_may_be_stored_is_not_given_to_another_record() -> None:
    names: list[tuple[bytes, int]] = []

    def answer(node: FakeNode, said: Said) -> Any:
        verb, shard, _, _, body = said
        if verb != PUBLISH:
            return NotImplemented
        names.append((producer(body[0]), sequence(body[0])))
        if len(names) == 1:  # it is stored, and its confirm is lost
            node.say(shard, 0, RESET, [[shard]])
            return None
        return (REFUSED, ["forbidden", "not any more"]) if len(names) == 2 else NotImplemented

    with FakeNode(answer) as node:
        run_c(node.endpoint, "forbidden")
    assert names[0] == names[1] != names[2]


@needs_c
@pytest.mark.slow
def test_c_who_is_closed_while_the_node_is_away_waits_once_for_all() -> None:
    with FakeNode(lambda node, said: None if PUBLISH in node.verbs() else NotImplemented) as node:
        run_c(node.endpoint, "away")


@needs_c
def test_c_signals_end_no_call_half_way_and_leave_nothing() -> None:
    with FakeNode() as node:
        run_c(node.endpoint, "signals")


@needs_c
def test_c_a_child_that_was_forked_is_told_to_open_a_client_of_its_own() -> None:
    with FakeNode() as node:
        run_c(node.endpoint, "forked")


@needs_c
def test_c_who_waits_for_nothing_gets_what_has_come() -> None:
    numbers: list[int] = []

    def answer(node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb == SUBSCRIBE:
            numbers.append(fields[0])
        if verb != PUBLISH:
            return NotImplemented
        confirm(node, request, 0)
        time.sleep(0.1)  # the call has ended by then
        node.deliver(numbers[0], b"")
        return None

    with FakeNode(answer) as node:
        run_c(node.endpoint, "polls")


needs_go = pytest.mark.skipif(bool(go_misses()), reason=go_misses())


def run_go(server: str, test: str) -> None:
    done = subprocess.run(
        ["make", "-s", "-C", str(GO), "test", f"RUN={test}"],
        env=os.environ | {"GOSSIPQ_SERVER": server},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@needs_go
@pytest.mark.slow
def test_go_calls_end_with_their_context_and_leave_the_client_to_others() -> None:
    with FakeNode(lambda node, said: None) as node:
        run_go(node.endpoint, "TestSilence")


@needs_go
@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.3, 0.6])
def test_go_a_slow_network_is_no_silence(delay_s: float) -> None:
    with FakeNode(delay_s=delay_s) as node:
        run_go(node.endpoint, "TestSlow")


@needs_go
@pytest.mark.slow
def test_go_who_waits_for_records_does_not_hold_up_what_is_published() -> None:
    with FakeNode() as node:
        run_go(node.endpoint, "TestCrowded")


@needs_go
@pytest.mark.slow
def test_go_what_could_not_be_subscribed_is_left() -> None:
    with FakeNode(lambda node, said: None if said[0] == SUBSCRIBE else NotImplemented) as node:
        run_go(node.endpoint, "TestAbandoned")
        verbs = node.verbs()
    assert UNSUBSCRIBE in verbs[len(verbs) - verbs[::-1].index(SUBSCRIBE) :]


@needs_go
@pytest.mark.slow
def test_go_what_is_refused_while_the_client_is_closed() -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        if said[0] != PUBLISH:
            return NotImplemented
        time.sleep(0.3)
        return REFUSED, ["topic_full", "it is full"]

    with FakeNode(answer) as node:
        run_go(node.endpoint, "TestRefusedAtClose")


@needs_go
@pytest.mark.slow
def test_go_headers_that_lie_about_their_number() -> None:
    many = msgpack.encode({str(i): b"" for i in range(30_000)})
    with FakeNode(delivering(*BOMBS, many, msgpack.encode({"a": b"b", "c": "d"}))) as node:
        run_go(node.endpoint, "TestHeaders")


@needs_go
@pytest.mark.slow
def test_go_clients_that_are_closed_leave_nothing() -> None:
    with FakeNode() as node:
        run_go(node.endpoint, "TestManyClients")


@needs_go
@pytest.mark.slow
def test_go_names_with_a_zero_are_refused() -> None:
    with FakeNode() as node:
        run_go(node.endpoint, "TestZeros")
    assert "t" in [name for verb, _, _, fields, _ in node.said if verb == RESOLVE for name in fields[0]]


MINIMAL = """
import os, sys
sys.path.insert(0, sys.argv[1])
from minimal import Client, Refused
mq = Client(*sys.argv[2].split(","), wait_s=int(os.environ["WAIT_MS"]) / 1000)
for call in (lambda: mq.publish("t", b"x"), lambda: mq.subscribe("t", "g"), lambda: mq.publish("t", b"x")):
    try:
        call()
        print("done")
    except Refused as error:
        print(error.code)
    except TimeoutError:
        print("not_confirmed")
"""
JAVA_CLASSES = f"{JAVA_DRIVER.parent}:{JAVA / 'build' / 'gossipq.jar'}:{JEROMQ}"
JAVA_FAULTS = ["java", "-Xmx256m", "-cp", JAVA_CLASSES, "Faults"]
SMALL = [
    pytest.param([sys.executable, "-c", MINIMAL, str(CLIENTS)], id="minimal"),
    pytest.param(
        JAVA_FAULTS,
        id="java",
        marks=pytest.mark.skipif(bool(java_misses()), reason=java_misses()),
    ),
]


def codes(
    line: list[str], answer: Callable[[FakeNode, Said], Any], servers: Callable[[str], str] = str
) -> list[str]:
    with FakeNode(answer) as node:
        return codes_of(line, servers(node.endpoint))


def codes_of(line: list[str], servers: str, wait_ms: int = 2_000) -> list[str]:
    """The outcomes of three calls, each with that time limit."""
    knows = {**os.environ, "WAIT_MS": str(wait_ms)}
    done = subprocess.run([*line, servers], capture_output=True, text=True, timeout=60, env=knows)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
def test_small_who_joins_many_shards_in_a_slow_network_keeps_the_first(line: list[str]) -> None:
    """A session that is silent for 5 s is over, and to join all of them takes longer than that."""
    with FakeNode(shards=(1, 2, 3), delay_s=0.5) as node:
        assert codes_of(line, node.endpoint, wait_ms=10_000) == ["done"] * 3
        said = [(verb, shard) for verb, shard, *_ in node.said]
    joining = said[said.index((SUBSCRIBE, 1)) : said.index((SUBSCRIBE, 3))]
    assert joining.count((PING, 1)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
def test_small_addresses_that_are_none_are_passed_over(line: list[str]) -> None:
    """Before the good one, and behind it when its node is silent."""
    silent = [True]

    def answer(node: FakeNode, said: Said) -> Any:
        return None if said[0] == RESOLVE and silent and silent.pop() else NotImplemented

    found = codes(line, answer, lambda good: f"tcp//nobody,{good},tcp//nobody")
    assert found == ["not_confirmed", "done", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
def test_small_a_virtual_topic(line: list[str]) -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        return (TOPICS, [[[TOPIC, "t", 1, [1], []]], ""]) if said[0] == RESOLVE else NotImplemented

    assert codes(line, answer) == ["bad_request"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
def test_small_a_group_that_is_refused_does_not_hinder_others(line: list[str]) -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        return (REFUSED, ["forbidden", "no"]) if said[0] == SUBSCRIBE else NotImplemented

    assert codes(line, answer) == ["done", "forbidden", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
@pytest.mark.parametrize("pause", [3_600_000, -5, "soon"])
def test_small_who_is_told_to_wait_waits_no_longer_than_it_wants(line: list[str], pause: Any) -> None:
    def answer(node: FakeNode, said: Said) -> Any:
        return (
            (REFUSED, ["busy", "later", "", pause])
            if said[0] in (PUBLISH_PLAIN, SUBSCRIBE)
            else NotImplemented
        )

    found = codes(line, answer)
    assert found[::2] == ["not_confirmed"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
@pytest.mark.parametrize(
    "raw", [b"\x91" * 100_000, b"\xdd\x00\x1f\x00\x00" * 30 + bytes(1 << 21), b"\x91\xa1\xff", b"\x90"]
)
def test_small_frames_of_nobody(line: list[str], raw: bytes) -> None:
    """Answers to a PUBLISH with messages that nodes send unasked."""

    def answer(node: FakeNode, said: Said) -> Any:
        if said[0] == PUBLISH_PLAIN:
            for verb in (7, CONFIRM, DELIVER_PLAIN):
                node.raw(verb, raw, raw)
        return NotImplemented

    assert codes(line, answer) == ["done"] * 3


@pytest.mark.skipif(bool(java_misses()), reason=java_misses())
def test_java_a_topic_that_is_gone_is_nothing_to_others_and_is_found_when_it_is_made_anew() -> None:
    gone, anew = False, (TOPIC + 1) * 65536

    def answer(node: FakeNode, said: Said) -> Any:
        nonlocal gone
        verb, shard, _, fields, _ = said
        if verb == RESOLVE:
            return TOPICS, [[[TOPIC + gone, fields[0][0], 1, [1], [SHARD]]], ""]
        if verb == SUBSCRIBE and fields[2][0][0] < anew:
            return (
                (REFUSED, ["unknown_topic", "it is gone"])
                if gone
                else node.subscribed(said, b"", b"", plain=True)
            )
        if verb == PUBLISH_PLAIN and gone and fields[0] < anew:
            return REFUSED, ["unknown_topic", "it is gone"]
        if verb == PUBLISH_PLAIN and not gone:
            gone = True
            node.say(shard, 0, RESET, [[shard]])
        return NotImplemented

    line = [
        "java",
        "-cp",
        f"{JAVA_DRIVER.parent}:{JAVA / 'build' / 'gossipq.jar'}:{JEROMQ}",
        "Faults",
        "gone",
    ]
    with FakeNode(answer) as node:
        found = codes_of(line, node.endpoint)
    assert found == [
        *("done", "done", "unknown_topic", "unknown_topic", "unknown_topic"),
        *("done", "done", "done", "bad_name", "too_large", "closed"),
    ]


@pytest.mark.skipif(bool(java_misses()), reason=java_misses())
def test_java_an_interrupt_ends_what_waits_and_is_not_forgotten() -> None:
    with FakeNode() as node:
        found = codes_of([*JAVA_FAULTS, "interrupted"], node.endpoint)
        assert node.verbs().count(PUBLISH_PLAIN) == 1
    assert found == ["closed", "closed", "done", "done", "true"]


@pytest.mark.e2e
@pytest.mark.skipif(bool(java_misses()), reason=java_misses())
def test_java_more_than_a_first_message_may_have(node: RunningNode) -> None:
    """JeroMQ 0.3 speaks ZMTP 2: libzmq does not tell by which connection that came."""
    assert codes_of([*JAVA_FAULTS, "large"], node.endpoint) == ["done"] * 4


class Register:
    """Of topics that are removed and made anew."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.next = TOPIC
        self.stored: list[int] = []

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, _, fields, _ = said
        if verb == RESOLVE:
            name = fields[0][0]
            if name not in self.ids and fields[1]:
                self.make(name)
            rows = [[self.ids[name], name, 1, [1], [SHARD, SHARD]]] if name in self.ids else []
            return TOPICS, [rows, ""]
        partition = (
            fields[0] if verb in (PUBLISH, PUBLISH_PLAIN) else fields[2][0][0] if verb == SUBSCRIBE else 0
        )
        if partition and partition // 65536 not in self.ids.values():
            return REFUSED, ["unknown_topic", "its topic was removed"]
        if partition and verb != SUBSCRIBE:
            self.stored.append(partition // 65536)
        return NotImplemented

    def make(self, name: str) -> None:
        self.ids[name] = self.next
        self.next += 1


ALL = pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)


@ALL
def test_a_topic_that_was_made_anew_is_looked_up_again(language: Language) -> None:
    """A topic that is gone is not created by records for the old one."""
    skip_if_missing(language)
    register = Register()
    with FakeNode(register) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        for _ in range(2):
            driver.publish("t", {"value": b"x"}, {"value": b"y", "key": b"k"})
            register.make("t")
        driver.publish("t", {"value": b"x"})
        del register.ids["t"]
        assert driver.refused(**publication("t", {"value": b"x"})) == "unknown_topic"
        driver.publish("t", {"value": b"x"})
        register.make("t")
        driver.ask("subscribe", topic="t", group="g")
        assert driver.refused(**publication("*", {"value": b"x"})) == "bad_name"
        driver.ask("close")
    assert list(dict.fromkeys(register.stored)) == [TOPIC, TOPIC + 1, TOPIC + 2, TOPIC + 3]


@ALL
def test_addresses_where_nobody_is_are_passed_over_at_once(language: Language) -> None:
    """Before anything was connected, and when the node dies: to believe in a silence takes 3 s."""
    skip_if_missing(language)

    def publish() -> float:
        with FakeNode() as last, Driver(language.command) as driver:
            with FakeNode() as first:
                driver.ask("connect", servers=[NOWHERE, NOWHERE, first.endpoint, NOWHERE, last.endpoint])
                began_s = time.monotonic()
                driver.publish("t", {"value": b"x"})
                driver.ask("subscribe", topic="t", group="g")
            driver.publish("t", {"value": b"x"})
            took_s = time.monotonic() - began_s
            driver.ask("close")
        return took_s

    quickest(publish, 2.5)


@ALL
def test_of_a_long_reason_what_is_kept_is_sent(language: Language) -> None:
    """All of it would be more than a control frame may have."""
    skip_if_missing(language)

    def answer(node: FakeNode, said: Said) -> Any:
        fields = said[3]
        return (
            node.subscribed(said, b"", plain=fields[12:13] == [True])
            if said[0] == SUBSCRIBE
            else NotImplemented
        )

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        record = driver.next(30.0)
        assert record is not None
        driver.nack(record, "\u00e9" * (1 << 20))
        driver.ask("close")
        sent = [fields[4] for verb, _, _, fields, _ in node.said if verb == NACK]
    assert len(sent) == 1
    assert 1_000 < len(sent[0]) <= 2_048
    assert set(sent[0]) == {"\u00e9"}


class Halves:
    """A node whose second shard ends its subscriptions after the first
    ack, and refuses new ones.
    """

    def __init__(self) -> None:
        self.refuses = False

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, shard, _, fields, _ = said
        if verb == SUBSCRIBE and shard != SHARD:
            return (REFUSED, ["forbidden", "not any more"]) if self.refuses else NotImplemented
        if verb == SUBSCRIBE:
            return node.subscribed(said, b"", b"", b"", plain=fields[12:13] == [True])
        if verb == ACK and not self.refuses:
            self.refuses = True
            node.say(SHARD + 1, 0, RESET, [[SHARD + 1]])
        return NotImplemented


@ALL
def test_what_came_is_shown_before_the_refusal_of_another_shard(language: Language) -> None:
    """Acks are stored, also those of records held then; publishers are not hindered."""
    skip_if_missing(language)
    other = {"value": b"x", "key": next(key for key in (b"a", b"b", b"c") if zlib.crc32(key) % 2)}
    with FakeNode(Halves(), shards=(SHARD, SHARD + 1)) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        for offset in range(3):
            record = driver.next(30.0)
            assert record is not None
            assert record.offset == offset
            if offset < 2:
                driver.ack(record)
            driver.publish("u", other)
        for _ in range(2):
            assert driver.refused("next", wait_ms=30_000) == "forbidden"
        driver.ack(record)
        driver.publish("u", other)
        driver.ask("close")
        acked = [each for verb, _, _, fields, _ in node.said if verb == ACK for each in fields[1]]
    assert acked == [[PARTITION, offset, offset + 1] for offset in range(3)]


ALONE = pytest.mark.parametrize(
    "language", [each for each in languages() if each.name in ("minimal", "java")], ids=lambda each: each.name
)


@ALL
def test_who_is_refused_by_a_shard_takes_no_more_from_the_others(language: Language) -> None:
    """They grant no more credit while delivered records are handled."""
    skip_if_missing(language)
    with FakeNode(Halves(), shards=(SHARD, SHARD + 1)) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        for offset in range(3):
            record = driver.next(30.0)
            assert record is not None
            if offset == 1:
                driver.publish("u", {"value": b"x", "key": b"a"}, {"value": b"x", "key": b"b"})
            if offset < 2:
                driver.ack(record)
        assert driver.refused("next", wait_ms=30_000) == "forbidden"
        assert UNSUBSCRIBE not in node.verbs()
        driver.ack(record)
        driver.ask("close")
        (*_, last) = [
            fields for verb, shard, _, fields, _ in node.said if (verb, shard) == (SUBSCRIBE, SHARD)
        ]
    assert last[3:5] == [0, 0]
    assert {offset for _, first, end in last[7] for offset in range(first, end)} == {1, 2}


def test_minimal_who_subscribes_to_something_else_gets_nothing_of_what_was_before() -> None:
    (minimal,) = [each for each in languages() if each.name == "minimal"]

    def answer(node: FakeNode, said: Said) -> Any:
        before = said[0] == SUBSCRIBE and said[3][1] == "before"
        return node.subscribed(said, b"", b"", plain=True) if before else NotImplemented

    with FakeNode(answer) as node, Driver(minimal.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="before")
        assert driver.next(30.0) is not None
        driver.ask("subscribe", topic="t", group="g")
        assert driver.next(0.1) is None
        driver.ask("close")
        assert UNSUBSCRIBE in node.verbs()


def test_minimal_that_dials_anew_leaves_no_socket_open() -> None:
    with FakeNode() as node, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        # the first address does not answer
        client = MinimalClient("tcp://127.0.0.1:1", node.endpoint)
        assert client.publish("t", b"x")
        client._socket.close(0)
        client._monitor.close(0)
        del client
    assert not [str(each.message) for each in told]


@ALONE
def test_who_is_refused_by_a_shard_leaves_the_others_when_what_came_is_done(language: Language) -> None:
    skip_if_missing(language)
    with FakeNode(Halves(), shards=(SHARD, SHARD + 1)) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        for _ in range(3):
            record = driver.next(30.0)
            assert record is not None
            driver.ack(record)
        assert driver.refused("next", wait_ms=30_000) == "forbidden"
        driver.publish("u", {"value": b"x"})
        assert [(shard, fields) for verb, shard, _, fields, _ in node.said if verb == UNSUBSCRIBE] == [
            (SHARD, [1 + SHARD])
        ]
        driver.ask("close")


@ALONE
def test_who_waits_for_records_joins_again_when_its_sign_of_life_is_refused(language: Language) -> None:
    """Also when that was the last thing it said: nothing else tells it that its leader has changed."""
    skip_if_missing(language)

    def answer(node: FakeNode, said: Said) -> Any:
        verbs = node.verbs()
        if said[0] == SUBSCRIBE and verbs.count(SUBSCRIBE) == 2:
            return node.subscribed(said, b"", plain=True)
        joins = verbs.count(PING) == 1 or verbs.count(SUBSCRIBE) != 1
        return NotImplemented if said[0] != PING or joins else (REFUSED, ["no_session", "another leader"])

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        record = driver.next(5.0)
        assert record is not None
        driver.ack(record)
        driver.ask("close")


@needs_c
@pytest.mark.slow
def test_c_nothing_of_topics_that_are_gone_is_used_or_kept() -> None:
    register = Register()

    def answer(node: FakeNode, said: Said) -> Any:
        before = len(register.stored)
        found = register(node, said)
        if len(register.stored) > before:
            register.make("t")
        return found

    with FakeNode(answer) as node:
        run_c(node.endpoint, "valgrind", "-q", *LEAKS, "anew")
    assert register.stored == [TOPIC, TOPIC + 1, TOPIC + 2, TOPIC + 3]


@ALL
def test_who_is_refused_for_a_while_goes_on_when_that_is_over(language: Language) -> None:
    """A token was taken away, and given back. A driver that is told of nothing meanwhile waits, too."""
    skip_if_missing(language)
    refuses = False

    def answer(node: FakeNode, said: Said) -> Any:
        nonlocal refuses
        verb, shard, _, fields, _ = said
        if verb == HELLO and shard == SHARD and refuses:
            return REFUSED, ["forbidden", "not this token"]
        if verb == SUBSCRIBE:
            records = [b""] * node.verbs().count(SUBSCRIBE)
            return node.subscribed(said, *records, plain=fields[12:13] == [True])
        if verb == ACK and node.verbs().count(ACK) == 1:
            refuses = True
            node.say(SHARD, 0, RESET, [[SHARD]])
            return REFUSED, ["no_session", "over"]
        return NotImplemented

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        record = driver.next(30.0)
        assert record is not None
        with pytest.raises(GossipqError, match="not this token"):
            driver.ack(record)
        time.sleep(1.2)  # its sign of life
        assert driver.refused("next", wait_ms=5_000) == "forbidden"
        refuses = False
        try:
            driver.ack(record)
        except Forbidden:  # the answer to a HELLO that was under way
            driver.ack(record)
        record = driver.next(10.0)
        assert record is not None
        assert record.offset == 1
        driver.ask("close")


@ALL
@pytest.mark.slow
def test_a_subscribe_without_an_answer_is_sent_again(language: Language) -> None:
    """A frontdoor that is full dropped the answer. The records are delivered again."""
    skip_if_missing(language)

    def answer(node: FakeNode, said: Said) -> Any:
        verb, _, _, fields, _ = said
        if verb != SUBSCRIBE:
            return NotImplemented
        plain = fields[12:13] == [True]
        if node.verbs().count(SUBSCRIBE) == 1:
            return node.deliver(fields[0], b"", plain=plain)
        return node.subscribed(said, b"", plain=plain)

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        record = driver.next(30.0)
        assert record is not None
        driver.ack(record)
        assert driver.next(0.2) is None
        driver.ask("close")


@ALL
@pytest.mark.parametrize(("refused", "asked"), [(SUBSCRIBE, 15), (HELLO, 4)])
def test_a_loop_over_what_is_refused_is_none_against_the_node(
    language: Language, refused: int, asked: int
) -> None:
    """HELLO about once a second, as the Python client says it."""
    skip_if_missing(language)

    def answer(node: FakeNode, said: Said) -> Any:
        return (REFUSED, ["forbidden", "no"]) if said[:2] == (refused, SHARD) else NotImplemented

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            assert driver.refused("subscribe", topic="t", group="g") == "forbidden"
        assert [said[:2] for said in node.said].count((refused, SHARD)) <= asked
        driver.ask("close")


@pytest.mark.parametrize(
    "language",
    [each for each in languages() if each.name in ("c", "go", "javascript")],
    ids=lambda each: each.name,
)
def test_nothing_is_kept_of_a_subscription_that_nobody_was_asked_for(language: Language) -> None:
    """A program that tries again for a day would keep as many, and say of each that it is over."""
    skip_if_missing(language)

    def answer(node: FakeNode, said: Said) -> Any:
        refused = said[:2] == (HELLO, SHARD) and [each[:2] for each in node.said].count((HELLO, SHARD)) == 1
        return (REFUSED, ["forbidden", "no"]) if refused else NotImplemented

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        assert driver.refused("subscribe", topic="t", group="g") == "forbidden"
        driver.ask("subscribe", topic="t", group="g")
        assert UNSUBSCRIBE not in node.verbs()
        driver.ask("close")


@needs_c
def test_c_who_does_not_wait_until_it_may_ask_again_is_told_the_refusal() -> None:
    """Nothing was sent: it is not to say that it may be stored."""
    (language,) = [each for each in languages() if each.name == "c"]

    def answer(node: FakeNode, said: Said) -> Any:
        return (REFUSED, ["forbidden", "no"]) if said[:2] == (HELLO, SHARD) else NotImplemented

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        assert driver.refused(**publication("t", {"value": b"x"}), timeout_ms=30_000) == "forbidden"
        for _ in range(2):
            said = driver.refused(**publication("t", {"value": b"x"}), timeout_ms=100)
            assert said == "forbidden"
        driver.ask("close")


@ALL
def test_what_may_be_stored_is_not_said_to_be_refused(language: Language) -> None:
    """A client that reconnects is refused: this says nothing about earlier requests.
    A full topic is reported.
    """
    skip_if_missing(language)
    full = True

    def answer(node: FakeNode, said: Said) -> Any:
        verb, shard, *_ = said
        sent = {PUBLISH, PUBLISH_PLAIN}.intersection(node.verbs())
        if verb in (PUBLISH, PUBLISH_PLAIN):
            return REFUSED, ["topic_full" if full else "not_leader", "not here"]
        return (
            (REFUSED, ["forbidden", "no"])
            if verb == HELLO and shard == SHARD and sent and not full
            else NotImplemented
        )

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        assert driver.refused(**publication("t", {"value": b"x"})) == "topic_full"
        full = False
        said = driver.refused(**publication("t", {"value": b"x"}))
        assert said
        assert said != "forbidden"
        assert driver.refused(**publication("t", {"value": b"x"})) == "forbidden"
        driver.ask("close")


@ALL
@pytest.mark.parametrize("silent", [RESOLVE, HELLO, PUBLISH], ids=["resolve", "hello", "publish"])
def test_a_call_takes_no_longer_than_its_caller_wants(language: Language, silent: int) -> None:
    """A silence is one after 3 s; but the caller may want to know before."""
    skip_if_missing(language)

    def answer(node: FakeNode, said: Said) -> Any:
        return None if said[0] in (silent, {PUBLISH: PUBLISH_PLAIN}.get(silent)) else NotImplemented

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])

        def publish() -> float:
            began_s = time.monotonic()
            assert driver.refused(**publication("t", {"value": b"x"}), timeout_ms=300)
            return time.monotonic() - began_s

        quickest(publish, 1.3)


@ALL
@pytest.mark.slow
def test_short_calls_find_out_together_that_a_node_is_silent(language: Language) -> None:
    skip_if_missing(language)
    with FakeNode(lambda node, said: None) as silent, FakeNode() as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[silent.endpoint, node.endpoint])
        end_s = time.monotonic() + 8
        while driver.refused(**publication("t", {"value": b"x"}), timeout_ms=400):
            assert time.monotonic() < end_s


@ALL
@pytest.mark.parametrize("how", [{}, {"id": b"i"}, {"headers": {"h": b"x"}}], ids=["plain", "ids", "headers"])
def test_what_moves_to_a_topic_made_anew_goes_to_the_partition_of_its_key(
    language: Language, how: dict[str, Any]
) -> None:
    """It has another number of partitions. Elsewhere, what comes later of that key would go before it."""
    skip_if_missing(language)
    counts, stored = {TOPIC: 2, TOPIC + 1: 5}, list[tuple[int, bytes]]()

    def answer(node: FakeNode, said: Said) -> Any:
        verb, _, _, fields, body = said
        topic = TOPIC + bool(stored)
        if verb == RESOLVE:
            return TOPICS, [[[topic, "t", 1, [1], [SHARD] * counts[topic]]], ""]
        if verb not in (PUBLISH, PUBLISH_PLAIN):
            return NotImplemented
        if fields[0] // 65536 != topic:
            return REFUSED, ["unknown_topic", "it was removed"]
        stored.append((fields[0] & 0xFFFF, body[0]))
        return NotImplemented

    keys = [b"key-%d" % number for number in range(8)]
    records = [
        {"value": b"%s of %s" % (each, key), "key": key} | how for each in (b"a", b"b") for key in keys
    ]
    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.publish("t", {"value": b"x"})
        places = driver.publish("t", *records)
        driver.ask("close")
    due = [zlib.crc32(key) % 5 for key in keys]
    assert [partition for partition, _ in places] == due * 2
    for partition, key in zip(due, keys, strict=True):
        there = b"".join(body for each, body in stored if each == partition)
        assert 0 <= there.find(b"a of %s" % key) < there.find(b"b of %s" % key)
        assert b"".join(body for _, body in stored).count(b"of %s" % key) == 2


@ALL
def test_a_topic_that_cannot_be_read_is_refused_and_asked_for_again(language: Language) -> None:
    skip_if_missing(language)
    rows = [None, "t", 1, [1], [1]], [TOPIC, "t", 1, [1], ["a"]], [TOPIC, "t", 1, [1], [-1]]
    bad: list[Any] = [*([[row], ""] for row in rows), [["a", "b"]], []]

    def answer(node: FakeNode, said: Said) -> Any:
        return (TOPICS, bad.pop()) if said[0] == RESOLVE and bad else NotImplemented

    with FakeNode(answer) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        while bad:
            assert driver.refused(**publication("t", {"value": b"x"}))
        driver.publish("t", {"value": b"x"})
        driver.ask("close")
