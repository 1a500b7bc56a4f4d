"""Greetings, pings, silence, forgotten sessions, other addresses, the way around a leader that cannot be
reached."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from client.hand import HOME, LEADER, OTHER, SHARD, Hand
from gossipq.errors import Refused as RefusedError
from gossipq.messages import Hello, Ping, Pong, Resolve, Status, Topics
from gossipq.types import META_SHARD, NODE_SHARD, Now
from gossipq.values import Route

SECOND = "tcp://second:1"


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_hello_comes_first_on_every_connection(hand: Hand) -> None:
    hand.session.links.lane(SHARD)
    assert hand.session.links.actions == [("open", HOME), ("open", LEADER)]
    hand.session.connected(LEADER)
    (hello,) = hand.sent()
    assert (hello.endpoint, type(hello.body), hello.header.shard) == (LEADER, Hello, SHARD)
    assert hand.session.links.lane(SHARD) is None
    hand.pass_ms(1_000)
    assert {each.endpoint for each in hand.sent(Hello)} == {HOME, LEADER}


def test_each_connection_is_pinged_and_revived_when_silent(hand: Hand) -> None:
    hand.session.links.lane(SHARD)
    hand.up(LEADER)
    hand.session.links.actions.clear()
    hand.pass_ms(1_000)
    pings = hand.sent(Ping)
    assert [(each.endpoint, each.header.shard) for each in pings] == [(HOME, NODE_SHARD), (LEADER, SHARD)]
    hand.pass_ms(2_000, silent=True)
    assert hand.session.links.actions == []
    hand.answer(pings[0], Pong())
    hand.pass_ms(1_000, silent=True)
    assert hand.session.links.actions == [("reopen", LEADER)]
    assert hand.session.links.lane(SHARD) is None


def test_a_connection_is_not_opened_anew_while_a_message_is_under_way(hand: Hand) -> None:
    """The answer to the ping comes after the message. Other nodes are asked
    for the leader meanwhile.
    """
    links = hand.session.links
    links.lane(SHARD)
    hand.up(LEADER)
    links.actions.clear()
    assert links.quiet() == set()
    for _ in range(2):
        hand.pass_ms(1_000, silent=True)
    assert links.quiet() == {HOME, LEADER}
    for _ in range(40):
        hand.pass_ms(250, silent=True)
        links.moving(LEADER)
    assert ("reopen", LEADER) not in links.actions
    assert ("reopen", HOME) in links.actions
    lane = links.lane(SHARD)
    assert lane is not None
    assert lane.endpoint == LEADER
    hand.pass_ms(3_000, silent=True)
    assert ("reopen", LEADER) in links.actions


def test_requests_go_again_after_a_lost_connection(hand: Hand) -> None:
    call = hand.session.calls.ask(Resolve(["a"]), META_SHARD)
    hand.up(LEADER)
    (first,) = hand.held_back
    hand.session.disconnected(LEADER)
    hand.up(LEADER)
    (again,) = hand.held_back
    assert again.header.request_id != first.header.request_id
    hand.answer(first, Topics([]))
    assert not call.done
    hand.answer(again, Topics([]))
    assert call.done
    assert call.reply == Topics([])


def test_busy_requests_are_asked_again_and_others_fail(hand: Hand) -> None:
    call = hand.session.calls.ask(Status(), NODE_SHARD)
    hand.refuse(hand.sent(Status)[0], "busy", retry_after_ms=30)
    hand.pass_ms(29)
    assert hand.sent(Status) == []
    hand.pass_ms(1)
    hand.refuse(hand.sent(Status)[0], "some_code_of_later")
    assert (call.done, type(call.error)) == (True, RefusedError)


def test_a_canceled_request_is_forgotten(hand: Hand) -> None:
    call = hand.session.calls.ask(Status(), NODE_SHARD)
    hand.session.calls.cancel(call)
    hand.refuse(hand.sent(Status)[0], "busy")
    hand.pass_ms(1_000)
    assert hand.sent(Status) == []
    assert hand.session.settled


def test_a_forgotten_session_is_greeted_once_not_for_each_refusal(hand: Hand) -> None:
    for name in ("a", "b", "c"):
        hand.session.calls.ask(Resolve([name]), META_SHARD)
    hand.up(LEADER)
    for each in hand.held_back:
        hand.refuse(each, "bad_request", hint="say HELLO first")
    assert len(hand.sent(Hello)) == 1
    hand.session.connected(LEADER)
    assert [each.body.names for each in hand.welcome() if isinstance(each.body, Resolve)] == [
        ["a"],
        ["b"],
        ["c"],
    ]


def test_the_next_address_when_the_first_is_gone() -> None:
    hand = Hand(addresses=(HOME, SECOND))
    hand.session.disconnected(HOME)
    hand.pass_ms(1_000)
    assert {("close", HOME), ("open", SECOND)} <= set(hand.session.links.actions)
    hand.up(SECOND)
    assert hand.session.links.home.endpoint == SECOND
    assert hand.session.links.home.greeting


def test_an_unreachable_leader_is_spoken_to_through_the_frontdoor_until_it_is_back(hand: Hand) -> None:
    hand.session.calls.ask(Resolve(["a"]), META_SHARD)
    assert hand.welcome() == []
    hand.pass_ms(1_000)
    sent = hand.welcome()
    assert [(each.endpoint, each.header.shard) for each in sent if isinstance(each.body, Resolve)] == [
        (HOME, META_SHARD)
    ]
    hand.up(LEADER)
    assert [each.endpoint for each in hand.held_back if isinstance(each.body, Resolve)] == [LEADER]
    hand.pass_ms(1_000)
    assert [each.endpoint for each in hand.sent(Ping)] == [HOME, LEADER]


def test_a_leader_that_takes_no_connection_is_spoken_to_through_the_frontdoor_at_once(hand: Hand) -> None:
    """As where its node encrypts, and its unencrypted port is for its own host alone: it took a second."""
    hand.session.calls.ask(Resolve(["a"]), META_SHARD)
    assert hand.welcome() == []
    hand.session.missed(LEADER)
    assert [each.header.shard for each in hand.welcome() if isinstance(each.body, Resolve)] == [META_SHARD]
    hand.up(LEADER)
    assert [each.endpoint for each in hand.held_back if isinstance(each.body, Resolve)] == [LEADER]
    hand.session.disconnected(LEADER)
    hand.session.missed(LEADER)
    assert hand.session.links.lane(META_SHARD) is None, "it was reached, so it is missed for a moment only"


def test_an_old_route_never_replaces_a_newer_one(hand: Hand) -> None:
    hand.session.links.learn(Route(SHARD, 4, OTHER))
    hand.session.links.learn(Route(SHARD, 3, LEADER))
    assert hand.session.links.leaders.routes[SHARD].endpoint == OTHER


@pytest.mark.parametrize(
    "message", [[b""], [b"x" * 30], [b"GQ\x02" + bytes(21)], [b"GQ\x01\xfa" + bytes(20)]]
)
def test_what_breaks_the_protocol_is_counted(hand: Hand, message: list[bytes]) -> None:
    hand.session.arrived(HOME, message)
    assert hand.session.bad_frames == 1


def test_farewell_says_bye_to_everyone(hand: Hand) -> None:
    hand.session.links.lane(SHARD)
    hand.up(LEADER)
    hand.session.farewell()
    assert [(each.endpoint, type(each.body).__name__) for each in hand.sent()] == [
        (HOME, "Bye"),
        (LEADER, "Bye"),
    ]


def looks(hand: Hand, ms: int, answers: bool = True) -> list[int]:
    """The times at which a session's timers were due in that period, with each ping
    answered at once or never.
    """
    due: list[int] = []
    end_ms = hand.now_ms + ms
    while (at_ms := max(hand.session.deadline_ms(), hand.now_ms)) < end_ms:
        hand.now_ms = at_ms
        hand.session.advance(Now(at_ms, 1_000_000 + at_ms))
        hand.session.tick()
        due.append(at_ms)
        assert len(due) <= ms, "it spins"
        for each in hand.sent() if answers else ():
            if isinstance(each.body, Hello):
                hand.answer(each, hand.greeting())
            else:
                hand.answer(each, Pong())
    return due


def test_while_all_is_well_only_pings_are_due_and_go_together(hand: Hand) -> None:
    hand.topic()
    looks(hand, 5_000)
    due = looks(hand, 10_000)
    assert len(due) <= 14
    assert max(late - early for early, late in pairwise(due)) <= 1_000
    hand.sent()
    hand.pass_ms(1_000, silent=True)
    assert [each.endpoint for each in hand.sent(Ping)] == [HOME, LEADER]


def test_answers_to_pings_are_awaited_together_unless_something_else_is_awaited(hand: Hand) -> None:
    hand.topic()
    assert hand.session.rest_ms() == 0
    hand.pass_ms(1_000, silent=True)
    assert 0 < hand.session.rest_ms() <= 5
    hand.session.calls.ask(Status(), NODE_SHARD)
    assert hand.session.rest_ms() == 0


def test_while_somebody_is_silent_or_gone_it_is_looked_at_four_times_a_second(hand: Hand) -> None:
    hand.topic()
    assert len(looks(hand, 3_500, answers=False)) >= 10
    hand = Hand()
    hand.topic()
    looks(hand, 5_000)
    hand.session.disconnected(LEADER)
    assert len(looks(hand, 2_000)) >= 8


def test_who_asks_a_silent_leader_notices_as_soon_as_before(hand: Hand) -> None:
    hand.topic()
    looks(hand, 5_200)
    lane = hand.session.links.lane(SHARD)
    assert lane is not None
    hand.session.calls.ask(Resolve(["t"]), SHARD)
    asked_ms = hand.now_ms
    due = looks(hand, 1_500, answers=False)
    assert next(at for at in due if lane.silent(at)) <= asked_ms + 1_250


def test_who_only_waits_for_records_pings_once_a_second_and_notices_silence_half_a_second_later(
    hand: Hand,
) -> None:
    """Looking whether its connections are open does not count as use."""
    hand.subscribe()
    looks(hand, 5_000)
    for _ in range(50):
        hand.session.consuming.pump_all()
        looks(hand, 100)
    assert len(looks(hand, 4_000)) <= 10
    lane = hand.session.links.lane(SHARD)
    assert lane is not None
    began_ms = hand.now_ms
    due = looks(hand, 2_500, answers=False)
    assert next(at for at in due if lane.silent(at)) <= began_ms + 1_000 + 750 + 250


class TestANodeThatIsCutOff:
    """The home says that no shard can have a leader, because it hears no other node."""

    @pytest.fixture
    def cut_off(self) -> Hand:
        hand = Hand(addresses=(HOME, OTHER))
        hand.session.links.lane(SHARD)
        self.say(hand, HOME, away=["b", "c"])
        return hand

    @staticmethod
    def say(hand: Hand, endpoint: str, away: list[str]) -> None:
        """The node at `endpoint` greets the client."""
        links = hand.session.links
        (lane,) = (
            lane for lane in links._lanes.values() if (lane.endpoint, lane.shard) == (endpoint, NODE_SHARD)
        )
        leaderless = list(range(hand.shards)) if away else []
        links.welcomed(lane.id, replace(hand.greeting(), leaderless=leaderless, away=away))

    @staticmethod
    def pass_seconds(hand: Hand, seconds: float) -> None:
        for _ in range(int(10 * seconds)):
            hand.pass_ms(100)

    def test_is_left_for_one_that_sees_leaders(self, cut_off: Hand) -> None:
        links = cut_off.session.links
        self.pass_seconds(cut_off, 0.3)
        assert ("open", OTHER) in links.actions
        cut_off.session.connected(OTHER)
        self.say(cut_off, OTHER, away=[])
        self.pass_seconds(cut_off, 5)
        assert links.home.endpoint == OTHER
        assert not links.in_vain(SHARD)

    def test_is_believed_if_another_one_says_the_same(self, cut_off: Hand) -> None:
        links = cut_off.session.links
        self.pass_seconds(cut_off, 0.3)
        cut_off.session.connected(OTHER)
        self.say(cut_off, OTHER, away=["a", "c"])
        self.pass_seconds(cut_off, 1.5)
        assert links.home.endpoint == HOME
        assert links.in_vain(SHARD)

    def test_is_believed_if_no_other_one_answers(self, cut_off: Hand) -> None:
        links = cut_off.session.links
        assert not links.in_vain(SHARD)
        self.pass_seconds(cut_off, 1.5)
        assert links.in_vain(SHARD)
