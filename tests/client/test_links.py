"""Greetings, pings, silence, forgotten sessions, other addresses, the way around a leader that cannot be
reached."""

import pytest

from client.hand import HOME, LEADER, OTHER, SHARD, Hand
from gossipq.errors import Refused as RefusedError
from gossipq.messages import Hello, Ping, Pong, Resolve, Status, Topics
from gossipq.types import META_SHARD, NODE_SHARD
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
