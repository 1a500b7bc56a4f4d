"""Who talks to a worker: its name, its connections, its silence."""

import pytest

from gossipq.errors import BadRequest, Refused
from gossipq.limits import SESSION_ABSENCE_MS, SESSION_SILENCE_MS, SESSIONS_ENDED_PER_TURN
from gossipq.messages import Hello
from gossipq_node.actors.sessions import CONNECTIONS_MAX, KICKED_MAX, Sessions

SESSION = b"0123456789abcdef"
HELLO = Hello(SESSION, "shop", "1")


def test_a_session_that_was_expected_has_its_name_when_it_comes() -> None:
    """Acks that it sends again are told from those of others by it."""
    fresh, after_takeover = Sessions(), Sessions()
    fresh.greet((b"a",), HELLO, 0)
    after_takeover.expect(SESSION, 0)
    after_takeover.greet((b"a",), HELLO, 1)
    before, after = fresh.get((b"a",), 0), after_takeover.get((b"a",), 1)
    assert before is not None
    assert after is not None
    assert before.client == after.client
    assert after.client.consumer.startswith("shop/")


def test_one_name_over_all_its_connections() -> None:
    sessions = Sessions()
    sessions.greet((b"a",), HELLO, 0)
    sessions.greet((b"b",), Hello(SESSION, "another", "1"), 0)
    assert sessions.get((b"a",), 0) == sessions.get((b"b",), 0)
    assert len(sessions) == 1


def test_an_expected_session_that_never_comes_ends() -> None:
    sessions = Sessions()
    sessions.silent(0)
    sessions.expect(SESSION, 0)
    for now_ms in range(0, SESSION_SILENCE_MS + 1, 1_000):
        assert sessions.silent(now_ms) == []
    assert sessions.silent(SESSION_SILENCE_MS + 1_000) == [SESSION]


def test_a_session_does_not_end_while_a_message_of_it_is_under_way() -> None:
    sessions = Sessions()
    sessions.silent(0)
    sessions.greet((b"ada",), HELLO, 0)
    under_way = {(b"ada",): True}
    for now_ms in range(0, 10 * SESSION_SILENCE_MS, 1_000):
        found = sessions.sending(now_ms, under_way.__getitem__)
        assert found in ([], [SESSION])
        assert sessions.silent(now_ms) == []
    under_way[b"ada",] = False
    ended = [sessions.silent(now_ms + after_ms) for after_ms in range(0, 2 * SESSION_SILENCE_MS, 1_000)]
    assert ended.count([SESSION]) == 1


def test_a_client_that_comes_over_and_over_leaves_its_newest_connections() -> None:
    sessions = Sessions()
    sessions.greet((b"steady",), HELLO, 0)
    for number in range(100):
        sessions.greet((b"%d" % number,), HELLO, number)
        assert sessions.get((b"steady",), number)
    (session,) = sessions
    assert len(session.origins) == CONNECTIONS_MAX
    assert sessions.get((b"99",), 100)
    assert sessions.get((b"0",), 100) is None


@pytest.mark.parametrize("session", [b"", b"short", b"x" * 1_000_000])
def test_what_cannot_be_a_session_is_not_kicked(session: bytes) -> None:
    with pytest.raises(BadRequest, match="a session is shown by 8 bytes"):
        Sessions().kick(session, 1_000)


def test_so_many_sessions_are_kept_out_at_a_time_and_no_more() -> None:
    sessions = Sessions()
    for number in range(KICKED_MAX):
        sessions.kick(number.to_bytes(8, "big"), 1_000)
    with pytest.raises(Refused, match="are kept out already") as refused:
        sessions.kick(b"x" * 16, 1_000)
    assert "wait" in refused.value.hint
    sessions.kick(bytes(16), 2_000)  # one of them, for longer
    sessions.silent(1_000)
    sessions.kick(b"x" * 16, 3_000)


def test_sessions_that_fall_silent_together_end_over_several_turns() -> None:
    sessions = Sessions()
    sessions.silent(0)
    for number in range(SESSIONS_ENDED_PER_TURN + 20):
        sessions.greet((b"%d" % number,), Hello(b"%016d" % number, "c", "1"), 0)
    for now_ms in range(0, SESSION_SILENCE_MS + 1, 1_000):
        assert sessions.silent(now_ms) == []
    late_ms = SESSION_SILENCE_MS + 1_000
    assert len(sessions.silent(late_ms)) == SESSIONS_ENDED_PER_TURN
    assert len(sessions.silent(late_ms)) == 20
    assert len(sessions) == 0


def test_a_session_whose_last_connection_ended_has_a_moment_to_come_back() -> None:
    sessions = Sessions()
    sessions.greet((b"a",), HELLO, 0)
    sessions.greet((b"b",), HELLO, 0)
    sessions.lost((b"a",), 10)
    assert sessions.next_deadline_ms() is None, "it has another one"
    sessions.lost((b"b",), 20)
    sessions.lost((b"b",), 30)
    assert sessions.next_deadline_ms() == 20 + SESSION_ABSENCE_MS
    assert sessions.over(19 + SESSION_ABSENCE_MS) == []
    sessions.greet((b"c",), HELLO, 500)
    assert sessions.next_deadline_ms() is None
    assert sessions.over(10_000) == []
    sessions.lost((b"c",), 10_000)
    assert sessions.over(10_000 + SESSION_ABSENCE_MS) == [SESSION]
    assert (len(sessions), sessions.next_deadline_ms()) == (0, None)


def test_what_was_never_greeted_is_not_missed() -> None:
    sessions = Sessions()
    sessions.lost((b"a",), 0)
    sessions.expect(SESSION, 0)
    assert sessions.next_deadline_ms() is None


def test_sessions_that_are_cut_off_together_end_over_several_turns() -> None:
    sessions = Sessions()
    for number in range(SESSIONS_ENDED_PER_TURN + 20):
        sessions.greet((b"%d" % number,), Hello(b"%016d" % number, "c", "1"), 0)
        sessions.lost((b"%d" % number,), 0)
    assert len(sessions.over(SESSION_ABSENCE_MS)) == SESSIONS_ENDED_PER_TURN
    assert sessions.next_deadline_ms() == SESSION_ABSENCE_MS, "at once"
    assert len(sessions.over(SESSION_ABSENCE_MS)) == 20
