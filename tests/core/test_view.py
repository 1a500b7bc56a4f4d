"""A process's view of its cluster, and when it discards what it heard."""

from gossipq.core.register import ClusterView
from gossipq.limits import ROSTER_DOUBT_MS, ROSTER_REFUSED_MS, ROSTER_VERSION_MAX, TERM_LEAP_MAX
from gossipq.values import Lead, Member

ME, OTHER, FORGED = (Member(name, name, "tcp://127.0.0.1:1", 1) for name in ("me", "other", "forged"))
ROWS = [ME, OTHER]


def poisoned(version: int) -> ClusterView:
    view = ClusterView(ME, 40, ROWS)
    assert view.learn(version, [FORGED], 0)
    return view


def test_a_roster_that_the_own_copy_does_not_get_is_given_up() -> None:
    for version in (41, ROSTER_VERSION_MAX):
        view = poisoned(version)
        view.follow([Lead(0, 7, "forged")])
        assert not view.doubt(40, ROWS, 50, 0)
        assert not view.doubt(40, ROWS, 51, ROSTER_DOUBT_MS - 1)
        assert view.doubt(40, ROWS, 52, ROSTER_DOUBT_MS)
        assert (view.version, set(view.roster), view.leads) == (40, {"me", "other"}, {})
        assert view.given_up(ROSTER_DOUBT_MS) == version


def test_what_was_given_up_is_not_taken_from_others_again_for_a_while() -> None:
    view = poisoned(60)
    view.give_up(40, ROWS, 0)
    assert not view.learn(60, [FORGED], ROSTER_REFUSED_MS - 1)
    assert view.learn(59, ROWS, 0)
    assert view.learn(61, ROWS), "the own copy has it"
    view.give_up(40, ROWS, 0)
    assert view.learn(61, ROWS, ROSTER_REFUSED_MS), "all have given it up by now"


def test_a_copy_that_catches_up_has_its_time() -> None:
    view = poisoned(60)
    assert not any(view.doubt(40, ROWS, 41 + step, step * ROSTER_DOUBT_MS // 2) for step in range(19))
    assert view.doubt(40, ROWS, 59, 20 * ROSTER_DOUBT_MS)
    view = ClusterView(ME, 60, ROWS)
    assert not any(view.doubt(40, [OTHER], 45, at_ms) for at_ms in (0, ROSTER_DOUBT_MS)), (
        "it is not on it yet"
    )


def test_a_founder_whose_roster_is_empty_gives_up_too() -> None:
    view = ClusterView(ME)
    assert view.learn(60, [FORGED], 0)
    assert [view.doubt(0, [], 4, at_ms) for at_ms in (0, ROSTER_DOUBT_MS)] == [False, True]
    assert (view.version, set(view.members)) == (0, {"me"})


def test_terms_leap_so_far() -> None:
    view = ClusterView(ME)
    assert not view.follow([Lead(0, TERM_LEAP_MAX + 1, "forged")])
    assert view.follow([Lead(0, TERM_LEAP_MAX, "other")])


def test_routes_follow_the_leaders_and_the_roster() -> None:
    view = ClusterView(ME, 40, ROWS)
    assert view.routes() == []
    view.follow([Lead(0, 7, "other"), Lead(1, 7, "new")])
    assert [route.shard for route in view.routes()] == [0]
    view.routes().clear()
    assert [route.shard for route in view.routes()] == [0], "what was given out is the asker's"
    view.learn(41, [*ROWS, Member("new", "new", "tcp://127.0.0.1:9", 1)])
    assert [route.shard for route in view.routes()] == [0, 1]
    view.follow([Lead(1, 8, "me")])
    assert [route.term for route in view.routes()] == [7, 8]
