"""Permissions: patterns, rules, tokens, and changes of the table."""

import pytest

from gossipq import permissions
from gossipq.errors import BadName, BadRequest, Forbidden
from gossipq.limits import NAME_BYTES_MAX
from gossipq.messages import MESSAGES, Publish
from gossipq.permissions import ANY, CLUSTER, OBSERVE, PUBLISH, READ, WHOLE, Rights, Users, covers
from gossipq.types import partition_key
from gossipq.values import AccessChange, AccessTable, Credential, Role, Rule, User
from gossipq.verbs import NEEDS

TOKEN = bytes(range(32))
DIGEST = permissions.digest(TOKEN)
BILLING = Role("billing", [Rule("invoices*", [READ, PUBLISH]), Rule("*", [OBSERVE])])
TABLE = AccessTable(
    3,
    True,
    [
        User("ada", ["billing"], [Credential(DIGEST, 5_000)]),
        User("bob", ["admin"]),
        User("gateway", ["front"], [Credential(permissions.digest(b"g" * 32))]),
    ],
    [BILLING, Role("admin", [Rule("*", [CLUSTER])]), Role("front", [Rule("*", ["act_for"])])],
)


@pytest.mark.parametrize(
    ("pattern", "topic", "yes"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("orders*", "orders.eu", True),
        ("*.eu", "orders.eu", True),
        ("orders.eu", "ordersxeu", False),
        ("*", "orders", True),
        ("*", WHOLE, True),
        ("orders*", WHOLE, False),
        ("**", WHOLE, False),
        ("*", "_audit", False),
        ("*audit", "_audit", False),
        ("_*", "_audit", True),
        ("_audit", "_audit", True),
        ("_*", "orders", False),
    ],
)
def test_a_pattern_covers(pattern: str, topic: str, yes: bool) -> None:
    assert covers(pattern, topic) is yes


def test_a_token_is_a_user_until_it_expires() -> None:
    users = Users(TABLE)
    rights = users.login(TOKEN, "", 4_999)
    assert rights.user == "ada"
    assert rights.allows(PUBLISH, "invoices.eu")
    assert rights.sees("invoices")
    assert not rights.allows("mend", "invoices")
    assert not rights.allows(CLUSTER)
    assert rights.allows(OBSERVE)
    with pytest.raises(Forbidden, match="expired"):
        users.login(TOKEN, "", 5_000)
    with pytest.raises(Forbidden, match="no user"):
        users.login(b"x" * 32, "", 0)


def test_who_shows_nothing_may_do_what_was_given_to_anonymous() -> None:
    assert not Users(TABLE).login(b"", "", 0).allows(ANY, "invoices")
    change = AccessChange(users=[User("anonymous", ["billing"])])
    assert Users(permissions.changed(TABLE, change)).login(b"", "", 0).allows(READ, "invoices")


def test_a_refusal_names_verb_and_topic() -> None:
    rights = Users(TABLE).login(TOKEN, "", 0)
    with pytest.raises(Forbidden, match="PUBLISH on topic orders needs the permission publish, which ada"):
        rights.require(Publish, PUBLISH, "orders")


def test_acting_for_somebody_needs_its_permission_and_gives_no_more() -> None:
    users = Users(TABLE)
    acting = users.login(b"g" * 32, "ada", 0)
    assert (acting.user, acting.name) == ("ada", "ada by gateway")
    assert acting.allows(READ, "invoices")
    assert not acting.allows("act_for")
    with pytest.raises(Forbidden, match="act_for"):
        users.login(TOKEN, "bob", 0)
    with pytest.raises(Forbidden, match="act_for"):
        users.login(b"g" * 32, "nobody", 0)


def test_a_change_is_of_whole_rows_and_total() -> None:
    change = AccessChange([User("ada", [])], [], ["bob", "nobody"], ["front"], False)
    table = permissions.changed(TABLE, change)
    assert [user.name for user in table.users] == ["ada", "gateway"]
    assert not table.closed
    assert Users(table).rules_of("gateway") == [], "a role that is gone gives nothing"
    with pytest.raises(BadRequest, match="no role front"):
        permissions.check_table(table)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (AccessChange(users=[User("", [])]), BadName),
        (AccessChange(users=[User("a b", [])]), BadName),
        (AccessChange(users=[User("ada", ["nothing"])]), BadRequest),
        (AccessChange(users=[User("ada", [], [Credential(b"short")])]), BadRequest),
        (AccessChange(users=[User("anonymous", [], [Credential(DIGEST)])]), BadRequest),
        (AccessChange(roles=[Role("r", [Rule("a b", [READ])])]), BadName),
        (AccessChange(roles=[Role("r", [Rule("*", ["everything"])])]), BadRequest),
        (AccessChange(roles=[Role("r", [Rule(f"t{n}", [READ]) for n in range(65)])]), BadRequest),
        (AccessChange(users=[User(f"u{n}", []) for n in range(1_001)]), BadRequest),
    ],
)
def test_what_cannot_be_a_table(change: AccessChange, error: type[Exception]) -> None:
    with pytest.raises(error):
        permissions.check_table(permissions.changed(TABLE, change))


def test_somebody_with_a_token_can_change_users() -> None:
    assert not Users(TABLE).lets_in(), "bob has no token"
    change = AccessChange(users=[User("bob", ["admin"], [Credential(DIGEST)])])
    assert Users(permissions.changed(TABLE, change)).lets_in()


def test_less_than_before() -> None:
    before, more = Rights("ada", [BILLING.rules[0]]), Rights("ada", BILLING.rules)
    assert before.within(more)
    assert before.within(None)
    assert not more.within(before)
    assert not before.within(Rights("bob", BILLING.rules))


def test_every_request_has_a_need() -> None:
    """Messages without a needed right are answers."""
    answers = {
        *("WELCOME", "PONG", "REFUSED", "IDENTITY", "ACCESS", "CONFIRM", "ACK_RUNS", "STATES", "SUBSCRIBED"),
        *(
            "RESET",
            "DELIVER_PLAIN",
            "DELIVER",
            "ACKED",
            "READY",
            "SHARE",
            "CANCELLED",
            "RECALLED",
            "BACKED_UP",
            "ENTRUSTED",
            "AT_END",
            "EXPLAINED",
            "TRACED",
        ),
        *(
            "GROUP_EXPLAINED",
            "SHOWN",
            "DONE",
            "DEAD_LETTERS",
            "SCHEDULES",
            "JOB",
            "TOPICS",
            "STATS_REPLY",
            "STATUS_REPLY",
            "MEMBERS",
        ),
        *("CHALLENGE", "GROWN", "CLIENTS", "SOUGHT", "GROUP_SHOWN", "ALARMS", "CONFIG_SHOWN"),
    }
    named = {
        permissions.verb_of(kind).removesuffix("_MESSAGE")
        for kind in MESSAGES.values()
        if kind.verb not in range(96, 128)
    }
    needs = {permissions.verb_of(kind) for kind in NEEDS}
    assert named - answers == needs
    assert not answers & needs
    assert {need.permission for need in NEEDS.values()} <= {"", ANY, *permissions.PERMISSIONS}


def test_ids_of_topics_are_read_from_partitions() -> None:
    need = NEEDS[Publish]
    assert need.targets(Publish(partition_key(7, 3))) == ((7,), ())


def test_a_pattern_is_matched_in_time_whatever_is_asked() -> None:
    """Trying every way to match the pattern's parts would take longer
    than the age of the universe.
    """
    assert not covers("*a" * 30 + "*b", "a" * 200)
    assert not covers("*ab*ab*c", "ab" * 500_000)
    assert covers("*a" * 30 + "*b", "a" * 199 + "b")


def test_names_that_no_topic_has_are_not_kept() -> None:
    """Each session caches answers. A client can make up names of the longest
    length that a request allows.
    """
    rights = Rights("ada", [Rule("*", [READ])])
    for number in range(100):
        rights.allows(READ, f"{number}" + "x" * 10_000)
    assert sum(len(topic) for _, topic in rights._known) <= NAME_BYTES_MAX
