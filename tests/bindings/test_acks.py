"""An ack leaves within milliseconds while records wait in the client and its user works: what is done is not
done again after a crash. (`gossipq client conformance` measures it against a real node.)"""

import subprocess
import time
from typing import Any

import pytest

from bindings.fake import (
    ACK,
    ACKED,
    NACK,
    PARTITION,
    PING,
    REFUSED,
    SHARD,
    SHARE,
    STARTED,
    SUBSCRIBE,
    SUBSCRIBED,
    FakeNode,
    Said,
)
from bindings.languages import JAVASCRIPT, Language, javascript_misses
from bindings.test_bindings import skip_if_missing
from bindings.test_c import LEAKS
from bindings.test_faults import ALL, needs_c, needs_go, run_c, run_go
from gossipq_cli.conformance.driver import Driver
from waiting import quickest

WORKS_S = 1.0  #: the user, on the record behind those that are acked
SOON_S = 0.3  #: an ack leaves, on a busy machine


class Slow:
    """The leader of four records. It answers the first ACK when the second one has come."""

    def __init__(self) -> None:
        self.acked = list[tuple[float, list[list[int]]]]()
        self._first = 0

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb == SUBSCRIBE:
            return node.subscribed(said, *[b""] * 4)
        if verb != ACK:
            return NotImplemented
        self.acked.append((time.monotonic(), fields[1]))
        if not self._first:
            self._first = request
            return None
        node.say(SHARD, self._first, ACKED, [[]])
        return NotImplemented


@needs_c
def test_c_acks_leave_though_the_user_calls_nothing_and_one_has_no_answer() -> None:
    def work() -> float:
        """How long the last ack took; the program ends when its work is done."""
        leader = Slow()
        with FakeNode(leader) as node:
            run_c(node.endpoint, "works")
            ended_s = time.monotonic()
        offsets = [
            offset for _, ranges in leader.acked for _, first, end in ranges for offset in range(first, end)
        ]
        assert sorted(offsets) == [0, 1, 2]
        last_s, _ = leader.acked[-1]
        return WORKS_S - (ended_s - last_s)

    quickest(work, SOON_S)


class Taker:
    """The leader of five records, some of which it gave to others: their acks are lost."""

    def __init__(self, *lost: int) -> None:
        self._lost = lost

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, _, fields, _ = said
        if verb == SUBSCRIBE:
            return node.subscribed(said, *[b""] * 5)
        if verb != ACK:
            return NotImplemented
        named = {offset for _, first, end in fields[1] for offset in range(first, end)}
        return ACKED, [[[PARTITION, offset, offset + 1] for offset in self._lost if offset in named]]


@needs_c
def test_c_flush_and_close_tell_which_acks_were_lost() -> None:
    with FakeNode(Taker(1, 2, 4)) as node:
        run_c(node.endpoint, "lost")
    with FakeNode(Taker(0)) as node:
        run_c(node.endpoint, "lost-close")


@needs_go
@pytest.mark.slow
def test_go_flush_and_close_tell_which_acks_were_lost() -> None:
    with FakeNode(Taker(1, 2, 4)) as node:
        run_go(node.endpoint, "TestLost")


BUSY = """
import { connect } from "./index.js";
const mq = connect(process.argv[1]);
let left = 40;
for await (const message of mq.consume("t", { group: "g" })) {
  void message.ack();
  for (const end = Date.now() + 30; Date.now() < end; );
  if (!--left) break;
}
await mq.close();
"""


@pytest.mark.skipif(bool(javascript_misses()), reason=javascript_misses())
def test_javascript_acks_and_signs_of_life_leave_though_the_program_never_waits() -> None:
    """Records that are here are taken without a turn of the event loop, in which all else is sent."""

    def answer(node: FakeNode, said: Said) -> Any:
        return node.subscribed(said, *[b""] * 40) if said[0] == SUBSCRIBE else NotImplemented

    with FakeNode(answer) as node:
        line = ["node", "--input-type=module", "-e", BUSY, node.endpoint]
        done = subprocess.run(line, cwd=JAVASCRIPT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr[-4000:]
        assert node.verbs().count(ACK) > 20
        signs = [at for at, verb in enumerate(node.verbs()) if verb == PING]
        assert signs[-1] > node.verbs().index(ACK)


class Group:
    """The leader of ten records of a group."""

    def __init__(self) -> None:
        self.number = 0  #: of the subscription
        self.shares = False  #: whether it says that it gives back

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, _, fields, _ = said
        if verb != SUBSCRIBE:
            return NotImplemented
        self.number, self.shares = fields[0], fields[13:14] == [True]
        return node.subscribed(said, *[b""] * 10, plain=fields[12:13] == [True])


def named(node: FakeNode, verb: int) -> list[int]:
    """Offsets that messages of this verb name, in their order."""
    rows = [fields[1] for each, _, _, fields, _ in node.said if each == verb]
    return [offset for ranges in rows for _, first, end in ranges for offset in range(first, end)]


def until(node: FakeNode, verb: int, offsets: list[int]) -> None:
    end_s = time.monotonic() + 30
    while named(node, verb) != offsets:
        assert time.monotonic() < end_s, f"{verb}: {named(node, verb)} and not {offsets}"
        time.sleep(0.01)


@ALL
def test_records_that_did_not_begin_go_back_if_another_consumer_has_nothing(language: Language) -> None:
    """The last ones first; those that are kept are worked on."""
    skip_if_missing(language)
    group = Group()
    with FakeNode(group) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        first = driver.next(30.0)
        assert first is not None
        assert group.shares
        node.say(SHARD, 0, SHARE, [group.number, 4])
        until(node, NACK, [4, 5, 6, 7, 8, 9])
        (given,) = [fields for verb, _, _, fields, _ in node.said if verb == NACK]
        assert given[2:4] == [-1, False]
        driver.ack(first)
        for offset in (1, 2, 3):
            record = driver.next(30.0)
            assert record is not None
            assert record.offset == offset
            driver.ack(record)
        assert driver.next(0.2) is None
        driver.ask("close")


class Asking(Group):
    """It asks for records as soon as one of them has begun."""

    def __call__(self, node: FakeNode, said: Said) -> Any:
        if said[0] == STARTED and node.verbs().count(STARTED) == 1:
            node.say(SHARD, 0, SHARE, [self.number, 4])
            return None
        return super().__call__(node, said)


@needs_c
@pytest.mark.slow
def test_c_records_that_go_back_leave_nothing_behind() -> None:
    with FakeNode(Asking()) as node:
        run_c(node.endpoint, "valgrind", "-q", *LEAKS, "shared")
    assert named(node, NACK) == [4, 5, 6, 7, 8, 9]


@ALL
def test_the_leader_hears_once_which_records_have_begun(language: Language) -> None:
    """So a kill counts an attempt of the record that was worked on, alone."""
    skip_if_missing(language)
    with FakeNode(Group()) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        for offset in (0, 1, 2):
            record = driver.next(30.0)
            assert record is not None
            until(node, STARTED, list(range(offset + 1)))
            time.sleep(0.03)
            driver.ack(record)
        time.sleep(0.1)
        assert named(node, STARTED) == [0, 1, 2]
        driver.ask("close")


def forgets(node: FakeNode, said: Said) -> Any:
    """The leader of one record, which does not know the session when the record begins."""
    verb, shard, request, fields, _ = said
    has_begun, verbs = STARTED in node.verbs(), node.verbs()
    if has_begun and shard == SHARD and verb in (STARTED, PING) and verbs.count(SUBSCRIBE) == 1:
        return node.say(SHARD, request, REFUSED, ["no_session", "over", "", 0])
    if has_begun and verb == SUBSCRIBE:
        return SUBSCRIBED, [fields[0], 30000, []]
    return node.subscribed(said, b"", plain=fields[12:13] == [True]) if verb == SUBSCRIBE else NotImplemented


@ALL
def test_a_leader_that_did_not_hear_what_has_begun_hears_it_when_it_is_joined(language: Language) -> None:
    skip_if_missing(language)
    with FakeNode(forgets) as node, Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        driver.ask("subscribe", topic="t", group="g")
        assert driver.next(30.0) is not None
        end_s = time.monotonic() + 30
        while named(node, STARTED) != [0, 0]:
            assert time.monotonic() < end_s, named(node, STARTED)
            driver.next(0.1)  # some clients do all their work in a call
        driver.ask("close")
