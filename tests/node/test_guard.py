"""Every verb with every permission, as the table in docs/operate/security.md says. Closing, opening and
revoking at a worker and at a frontdoor. Over fakes of their ports: nothing waits."""

import re
from itertools import count
from pathlib import Path

import pytest
from msgspec import structs

from gossipq import messages, operator_messages, permissions
from gossipq.export_messages import BackUp, ListAcks, ListStates
from gossipq.limits import NAME_BYTES_MAX
from gossipq.messages import (
    Access,
    Challenge,
    Confirm,
    CreateTopic,
    Deliver,
    Hello,
    Identity,
    Publish,
    RefusedMessage,
    Resolve,
    Stats,
    StatsReply,
    Subscribe,
    Subscribed,
    Topics,
    Welcome,
)
from gossipq.peer_messages import AccessTold
from gossipq.permissions import PERMISSIONS, PUBLISH, READ, Users
from gossipq.types import Now, partition_key
from gossipq.values import (
    AccessChange,
    AccessTable,
    Credential,
    GroupOptions,
    JoinPart,
    Member,
    Message,
    Quota,
    Ref,
    Role,
    Rule,
    Schedule,
    Start,
    TopicOptions,
    User,
)
from gossipq.verbs import NEEDS
from gossipq.wire import batch as batches
from gossipq.wire import ownership, proofs
from gossipq_node.actors.guard import ROWS_MAX, Guard
from gossipq_node.ports import THIS_HOST
from node.test_frontdoor import SETTINGS as DOOR
from node.test_frontdoor import House
from node.test_worker import SETTINGS, Client, Hands

TOKEN = b"s" * 32  #: what the nodes know
NOTHING, ALL = "nothing", "all"
ROLES = (*PERMISSIONS, NOTHING, ALL)
META = (Resolve, CreateTopic, messages.BindTopic, messages.DropTopic, operator_messages.SetTopic)
META += (messages.AskAccess, messages.SetAccess, messages.AskMembers, messages.SetMember, messages.SetOptions)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operate" / "security.md"
NODE = Hello(ownership.session_of(ownership.key_of_node(TOKEN, b"n" * 16)), "node", "0")
NODE = structs.replace(NODE, key=ownership.key_of_node(TOKEN, b"n" * 16))
numbers = count(1)


def token_of(user: str) -> bytes:
    return user.encode().ljust(32, b".")


def granted(role: str) -> list[str]:
    return list(PERMISSIONS) if role == ALL else [] if role == NOTHING else [role]


def table(topics: str = "*", expires_ms: int = 0) -> AccessChange:
    """Closed. Each role is that of a user of its name."""
    users = [
        User(role, [role], [Credential(permissions.digest(token_of(role)), expires_ms)]) for role in ROLES
    ]
    return AccessChange(users, [Role(role, [Rule(topics, granted(role))]) for role in ROLES], closed=True)


def allowing(topics: str) -> AccessChange:
    """The same, and somebody who may change users."""
    change = table(topics)
    admin = User("admin", ["admin"], [Credential(permissions.digest(token_of("admin")))])
    roles = [*change.roles, Role("admin", [Rule("*", list(PERMISSIONS))])]
    return structs.replace(change, users=[*change.users, admin], roles=roles)


def hands(change: AccessChange, quota: Quota = SETTINGS.quota) -> Hands:
    """A worker whose table was changed by a client that knows the secret."""
    rig = Hands(structs.replace(SETTINGS, token=TOKEN, quota=quota))
    assert isinstance(proven(greeted(rig, NODE), messages.SetAccess(change)), Access)
    return rig


def proven(client: Client, request: messages.SetAccess) -> Message | None:
    challenge = client.ask(request)
    assert isinstance(challenge, Challenge)
    return client.ask(proofs.proven(TOKEN, challenge.nonce, request))


def greeted(rig: Hands, hello: Hello) -> Client:
    client = rig.client(greet=False)
    client._producer = batches.NO_PRODUCER
    assert isinstance(client.ask(hello), Welcome)
    return client


def hello_of(user: str, acts_for: str = "") -> Hello:
    session = ownership.unowned(next(numbers).to_bytes(16))
    return Hello(session, user, "0", token_of(user) if user else b"", acts_for)


def documented() -> dict[str, str]:
    """The permission that each verb needs."""
    text = DOCUMENT.read_text("utf-8").partition("| verb | permission | on |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z_, ]+) \| (\w+|-) \| .*\|$", text, re.MULTILINE)
    return {verb: permission for verbs, permission in rows for verb in verbs.split(", ")}


#: requests with a batch of records
OWN_BATCH = (Publish, messages.Edit, messages.SetSchedule, messages.JoinJobs)


def requests(topic_id: int) -> list[Message]:
    m, o, partition = messages, operator_messages, partition_key(topic_id, 0)
    ref, start = Ref(partition, 0), Start(partition, "first", 0)
    return [
        hello_of(NOTHING),
        *(m.Ping(), m.WhoAmI(), m.Join(Member("b.1", "b", "tcp://127.0.0.1:9", 1))),
        m.Entrust(bytes(32), "b.1"),
        *(m.Publish(partition), m.PublishPlain(partition)),
        *(m.Subscribe(1, "g", [start], 1, 1), m.WhyGroup("g", [partition])),
        *(m.Unsubscribe(9), m.Credit(9, 1, 1), m.Ack(9, []), m.Nack(9, []), m.Extend(9, [], 1)),
        *(m.Recall(9), m.Started(9, []), m.AckResults(9, [], []), m.ReportProgress(9, []), m.AskJob(ref)),
        *(
            m.AckDelivered(partition, "g", []),
            ListAcks(partition),
            ListStates(partition),
            m.ListDead(partition),
        ),
        *(m.Why(ref), m.Trace(ref), m.Show(ref), o.ShowGroup(topic_id, "g")),
        *(m.Cancel(ref), m.Reschedule(ref, 1), m.Edit(ref), m.Requeue(ref, "g")),
        m.SetSchedule(partition, Schedule("nightly", every_ms=1_000)),
        m.JoinJobs(partition, [JoinPart(ref, "orders", 0)], 1_000),
        *(m.RunSchedule(partition, "nightly"), m.ListSchedules(partition)),
        m.DropSchedule(partition, "nightly"),
        *(m.ReplayDead(partition, "g"), m.PurgeDead(partition, "g")),
        *(m.Resolve(["orders"]), m.Stats(["orders"])),
        *(m.CreateTopic("new"), m.BindTopic("bound", ["orders"])),
        *(o.SetTopic("orders", TopicOptions(ttl_ms=1)), m.SetGroup(topic_id, "g", GroupOptions())),
        *(o.SeekGroup(topic_id, "g", [start]), o.DropGroup(topic_id, "g"), o.PurgeTopic(partition, 0)),
        *(o.Kick(b"12345678"), o.Growth(["orders"]), o.ListClients(), m.AskMembers()),
        *(m.SetMember("b", "gone"), m.SetOptions({}), m.AskAccess(), m.SetAccess(AccessChange())),
        BackUp(),
        *(m.DropTopic("orders"), m.Bye()),
    ]


def test_the_document_has_every_verb() -> None:
    needs = {permissions.verb_of(kind): need.permission or "-" for kind, need in NEEDS.items()}
    assert documented() == needs


@pytest.mark.parametrize("topics", ["*", "others*"])
@pytest.mark.parametrize("role", ROLES)
def test_every_verb_with_every_permission(role: str, topics: str) -> None:
    rig = hands(allowing(topics))
    partition, shard = greeted(rig, NODE).topic()
    table_of = documented()
    asked = requests(partition >> 16)
    at_frontdoors = {"STATUS", "LIST_ALARMS", "SHOW_CONFIG"}
    assert {permissions.verb_of(type(each)) for each in asked} == table_of.keys() - at_frontdoors
    for request in asked:
        verb = permissions.verb_of(type(request))
        batch = bytes(batches.seal([b"x"])) if isinstance(request, OWN_BATCH) else b""
        client = greeted(rig, hello_of(role))
        answer = client.ask(request, 0 if type(request) in META else shard, batch)
        forbidden = isinstance(answer, RefusedMessage) and answer.code == "forbidden"
        need = table_of[verb]
        may = need in granted(role) or (need == "any" and role != NOTHING)
        allowed = need == "-" or (may and topics == "*")
        if verb == "JOIN_JOBS":  # its record tells how the parts end
            allowed = allowed and "read" in granted(role)
        if verb == "SET_ACCESS" and not allowed:
            assert isinstance(answer, Challenge)  # by the secret it goes, too
        elif verb == "ENTRUST":
            assert forbidden, "that takes an invitation, whoever asks"
        else:
            assert forbidden is not allowed, f"{verb} with {role}: {answer}"
        if forbidden and verb != "ENTRUST":
            assert isinstance(answer, RefusedMessage)
            assert verb in answer.message


def test_lists_show_what_may_be_seen() -> None:
    known = allowing("none")
    ada = User("ada", ["ada"], [Credential(permissions.digest(token_of("ada")))])
    roles = [*known.roles, Role("ada", [Rule("orders", [READ])])]
    rig = hands(structs.replace(known, users=[*known.users, ada], roles=roles))
    node, reader = greeted(rig, NODE), greeted(rig, hello_of("ada"))
    for name in ("orders", "secrets"):
        node.topic(name)
    found = reader.ask(Resolve(["*"]))
    assert isinstance(found, Topics)
    assert [info.name for info in found.topics] == ["orders"]
    counted = reader.ask(Stats())
    assert isinstance(counted, StatsReply)
    assert {row.topic for row in counted.partitions} == {"orders"}
    for request in (Resolve(["secrets"]), Resolve(["new"], create=True), Stats(["secrets"])):
        refused = reader.ask(request)
        assert isinstance(refused, RefusedMessage)
        assert refused.code == "forbidden"
    refused = reader.ask(Resolve(["orders", "orders.new"], create=True))
    assert isinstance(refused, RefusedMessage)


def test_a_closed_worker_greets_no_wrong_token() -> None:
    rig = hands(table())
    refused = rig.client(greet=False).ask(structs.replace(hello_of(ALL), auth=b"x" * 32))
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "forbidden"


def test_an_open_cluster_is_closed_by_who_knows_the_secret_and_ends_what_may_not_go_on() -> None:
    rig = hands(structs.replace(table(), closed=False))
    reader, stranger = greeted(rig, hello_of(READ)), greeted(rig, hello_of(""))
    partition, shard = stranger.topic()
    subscribe = Subscribe(1, "", [Start(partition, "first", 0)], 10, 1_000)
    for client in (reader, stranger):
        assert isinstance(client.ask(subscribe, shard), Subscribed)
    assert isinstance(proven(stranger, messages.SetAccess(AccessChange(closed=True))), Access)
    for client in (reader, stranger):
        refused = client.ask(messages.Ping())
        assert isinstance(refused, RefusedMessage)
        assert "HELLO" in refused.hint, "all may do less than before, and greet again"
    node = greeted(rig, NODE)
    assert isinstance(node.ask(Publish(partition), shard, bytes(batches.seal([b"x"]))), Confirm)
    assert not any(isinstance(each, Deliver) for each in (*reader.inbox(), *stranger.inbox()))
    for client, user, may in ((reader, READ, True), (stranger, "", False)):
        assert isinstance(client.ask(hello_of(user)), Welcome)
        answers = client.ask(subscribe, shard)
        assert isinstance(answers, Subscribed | Deliver) is may
    admin = greeted(rig, hello_of(ALL))
    assert isinstance(admin.ask(messages.SetAccess(AccessChange(closed=False))), Access)
    assert isinstance(stranger.ask(subscribe, shard), Subscribed | Deliver)


def test_who_is_removed_is_not_served_any_more_and_others_go_on() -> None:
    rig = hands(table())
    partition, shard = greeted(rig, NODE).topic()
    writers = {user: greeted(rig, hello_of(user)) for user in (PUBLISH, ALL)}
    admin = greeted(rig, hello_of(ALL))
    batch = bytes(batches.seal([b"x"]))
    for client in writers.values():
        assert isinstance(client.ask(Publish(partition), shard, batch), Confirm)
    assert isinstance(admin.ask(messages.SetAccess(AccessChange(users_gone=[PUBLISH]))), Access)
    refused = writers[PUBLISH].ask(Publish(partition), shard, batch)
    assert isinstance(refused, RefusedMessage)
    assert "HELLO" in refused.hint
    again = writers[PUBLISH].ask(hello_of(PUBLISH))
    assert isinstance(again, RefusedMessage)
    assert again.code == "forbidden"
    assert isinstance(writers[ALL].ask(Publish(partition), shard, batch), Confirm)


def test_a_token_that_expires_ends_its_session() -> None:
    rig = hands(table(expires_ms=1_700_000_003_000))
    client = greeted(rig, hello_of(ALL))
    assert isinstance(client.ask(messages.WhoAmI()), Identity)
    rig.turn(2_000)
    assert isinstance(client.ask(messages.WhoAmI()), Identity)
    rig.turn(1_001)
    refused = client.ask(messages.WhoAmI())
    assert isinstance(refused, RefusedMessage)


def test_a_change_that_locks_everybody_out_is_refused() -> None:
    rig = hands(table())
    admin = greeted(rig, hello_of(ALL))
    refused = admin.ask(messages.SetAccess(AccessChange(users_gone=[ALL, "cluster"])))
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "wrong_state"


def test_it_stays_closed_over_a_restart() -> None:
    rig = hands(table())
    again = Hands(structs.replace(SETTINGS, token=TOKEN), rig.store)
    refused = greeted(again, hello_of(READ)).ask(CreateTopic("new"))
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "forbidden"


def guard(bind: str = "tcp://127.0.0.1:7700", token: bytes = TOKEN, clear: bool = False) -> Guard:
    return Guard(permissions.changed(AccessTable(1), table()), token, bind, clear)


def test_tokens_of_other_hosts_are_refused_unless_the_network_is_safe() -> None:
    hello, now = hello_of(READ), Now(0, 0)
    with pytest.raises(permissions.Forbidden, match="in the clear"):
        guard().greet(hello, "10.0.0.7", now)
    for greets, address in ((guard(clear=True), "10.0.0.7"), (guard(), THIS_HOST)):
        rights = greets.greet(hello, address, now)
        assert rights is not None
        assert rights.user == READ


def test_who_may_open_the_socket_may_do_everything() -> None:
    assert guard("ipc:///tmp/node.sock").greet(hello_of(""), THIS_HOST, Now(0, 0)) is None


def test_without_a_secret_nobody_is_a_node_and_nothing_is_closed() -> None:
    closed = guard(token=b"")
    rights = closed.greet(NODE, THIS_HOST, Now(0, 0))
    assert rights is not None
    assert not rights.allows(READ, "orders")
    with pytest.raises(permissions.BadRequest, match="without a secret"):
        closed.may_change(rights)


def test_an_older_table_changes_nothing() -> None:
    known = guard()
    assert not known.learn(AccessTable(1, False))
    assert known.closed
    assert known.learn(AccessTable(2, False))
    assert not known.closed
    assert Users(known.users.table).version == 2


@pytest.mark.parametrize("role", ROLES)
def test_every_verb_of_a_frontdoor_with_every_permission(role: str) -> None:
    known = permissions.changed(AccessTable(1), table())
    house = House(structs.replace(DOOR, token=TOKEN, access=structs.replace(known, version=1)))
    refused = house.ask(messages.Status())[2]
    assert isinstance(refused, RefusedMessage)
    assert "HELLO" in refused.hint
    assert isinstance(house.ask(hello_of(role))[2], Welcome)
    said = house.ask(messages.WhoAmI())[2]
    assert isinstance(said, Identity)
    assert (said.user, said.closed) == (role, True)
    table_of = documented()
    for request in (messages.Status(), operator_messages.ListAlarms(), operator_messages.ShowConfig()):
        answer = house.ask(request)[2]
        verb = permissions.verb_of(type(request))
        forbidden = isinstance(answer, RefusedMessage) and answer.code == "forbidden"
        assert forbidden is (table_of[verb] not in granted(role)), f"{verb} with {role}: {answer}"


def test_a_frontdoor_keeps_a_newer_table_and_asks_who_greeted_before_to_greet_again() -> None:
    house = House(structs.replace(DOOR, token=TOKEN))
    assert isinstance(house.ask(messages.Status())[2], messages.StatusReply)
    newer = structs.replace(permissions.changed(AccessTable(), table()), version=5)
    house.say(AccessTold(newer))
    assert house.tables == [newer]
    assert isinstance(house.ask(messages.Status())[2], RefusedMessage)
    assert isinstance(house.ask(hello_of(ALL))[2], Welcome)
    assert isinstance(house.ask(messages.Status())[2], messages.StatusReply)
    house.say(AccessTold(AccessTable(4)))
    assert house.tables == [newer]
    house.say(AccessTold(AccessTable(6)))
    assert isinstance(house.ask(messages.Status())[2], messages.StatusReply)


def test_a_user_has_quotas_of_its_own() -> None:
    """They hold at any address. A refusal names the quota and its value. Other
    users are served meanwhile.
    """
    most = {"sessions": 3, "subscriptions": 2, "topics": 2, "partitions": 3, "groups": 1, "requests_per_s": 8}
    quota = Quota(**{f"user_{name}": value for name, value in most.items()})
    rig = hands(table("*"), quota)
    partition, shard = greeted(rig, NODE).topic("orders")

    def refused(answer: Message | None, name: str, most: int) -> None:
        assert isinstance(answer, RefusedMessage), answer
        assert f"cluster.quota.user_{name}" in answer.message
        assert str(most) in answer.message

    def asks(who: Client, number: int, group: str) -> Message | None:
        rig.turn(1_000)
        return who.ask(Subscribe(number, group, [Start(partition, "first", 0)], 1, 1_000), shard)

    maker = greeted(rig, hello_of(ALL))
    assert isinstance(maker.ask(CreateTopic("one")), Topics)
    refused(maker.ask(CreateTopic("wide", TopicOptions(partitions=3))), "partitions", 3)
    assert isinstance(maker.ask(CreateTopic("two", TopicOptions(partitions=2))), Topics)
    refused(maker.ask(CreateTopic("three")), "topics", 2)
    assert isinstance(asks(maker, 1, "a"), Subscribed)
    refused(asks(maker, 2, "b"), "groups", 1)
    assert isinstance(asks(maker, 2, ""), Subscribed)
    second = greeted(rig, hello_of(ALL))
    refused(asks(second, 1, ""), "subscriptions", 2)
    greeted(rig, hello_of(ALL))
    third = rig.client(greet=False)
    refused(third.ask(hello_of(ALL)), "sessions", 3)
    reader = greeted(rig, hello_of(READ))
    assert isinstance(asks(reader, 1, ""), Subscribed)
    answers = [second.ask(Resolve(["orders"])) for _ in range(9)]
    refused(answers[-1], "requests_per_s", 8)
    assert isinstance(reader.ask(Resolve(["orders"])), Topics)
    assert isinstance(greeted(rig, NODE).ask(Resolve(["orders"])), Topics), "nodes are nobody's users"


def test_a_group_counts_once_for_each_partition_of_its_topic() -> None:
    rig = hands(table("*"), Quota(user_groups=3))
    maker = greeted(rig, hello_of(ALL))
    made = maker.ask(CreateTopic("wide", TopicOptions(partitions=2)))
    assert isinstance(made, Topics)
    (info,) = made.topics
    shard = info.shards[0]
    here = [partition_key(info.id, at) for at, where in enumerate(info.shards) if where == shard]
    assert len(here) == 2

    def joins(number: int, group: str, partitions: list[int]) -> Message | None:
        rig.turn(1_000)
        starts = [Start(partition, "first", 0) for partition in partitions]
        return maker.ask(Subscribe(number, group, starts, 1, 1_000), shard)

    assert isinstance(joins(1, "a", here), Subscribed)
    refused = joins(2, "b", here)
    assert isinstance(refused, RefusedMessage)
    assert "cluster.quota.user_groups" in refused.message
    assert isinstance(joins(3, "b", here[:1]), Subscribed)
    assert isinstance(joins(3, "b", here), RefusedMessage), "nor in two steps"


def test_a_session_that_greets_as_another_user_is_on_its_account() -> None:
    rig = hands(table("*"), Quota(user_sessions=1))
    first, second = hello_of(READ), hello_of(PUBLISH)
    client = greeted(rig, first)
    greeted(rig, second)
    answer = client.ask(structs.replace(first, auth=token_of(PUBLISH)))
    assert isinstance(answer, RefusedMessage)
    assert "user_sessions" in answer.message
    client.ask(messages.Bye())
    greeted(rig, hello_of(READ))


def test_who_guesses_ids_learns_no_names() -> None:
    """Nor by whether it is refused: what is not there is said to be not there by the shard, by its id."""
    rig = hands(allowing("public*"))
    partition, shard = greeted(rig, NODE).topic("payroll")
    guesser = greeted(rig, hello_of(ALL))
    for request in (Publish(partition), messages.Show(Ref(partition, 0)), messages.ListDead(partition)):
        answer = guesser.ask(request, shard)
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "forbidden"
        assert "payroll" not in answer.message
    answer = guesser.ask(Resolve(["payroll"]))
    assert isinstance(answer, RefusedMessage)
    assert "topic payroll" in answer.message, "that it named itself"


def test_what_strangers_say_is_kept_in_short() -> None:
    """A name of a mebibyte fills neither the audit nor the memory."""
    rig = hands(table("*"))
    stranger = rig.client(greet=False)
    answer = stranger.ask(structs.replace(hello_of(NOTHING), user="x" * 500_000))
    assert isinstance(answer, RefusedMessage)
    assert len(answer.message) < 1_000
    greeted(rig, hello_of(NOTHING)).ask(CreateTopic("y" * 500_000))
    rows = rig.worker._guard.take_audit(rig.time)
    assert [(row.outcome, row.target) for row in rows][-1] == ("forbidden", "y" * NAME_BYTES_MAX)
    assert all(len(row.user) <= NAME_BYTES_MAX >= len(row.target) for row in rows)
    open_ = Hands()
    assert isinstance(
        open_.client(greet=False).ask(structs.replace(hello_of(NOTHING), user="x" * 500_000)), RefusedMessage
    )


def test_strangers_do_not_hide_what_others_do_from_the_audit() -> None:
    """By being refused as often as the audit notes rows in a second."""
    rig = hands(table("*"))
    rig.worker._guard.take_audit(rig.time)
    for _ in range(ROWS_MAX + 10):
        rig.client(greet=False).ask(hello_of("nobody"))
    operator = greeted(rig, hello_of(ALL))
    assert isinstance(operator.ask(CreateTopic("orders")), Topics)
    assert isinstance(operator.ask(messages.DropTopic("orders")), Topics | messages.Done)
    rows = rig.worker._guard.take_audit(rig.time)
    assert [row.verb for row in rows if row.outcome == "admitted"] == ["DROP_TOPIC"]
    assert rows[-1].outcome == "missed"
    assert int(rows[-1].target) + len(rows) - 2 == ROWS_MAX + 10


@pytest.mark.parametrize("end", ["removed", "expired"])
def test_who_greets_as_somebody_else_does_not_go_on_reading_as_before(end: str) -> None:
    """Or a subscription would outlive the user, or the token, by which it was begun."""
    rig = hands(table(expires_ms=1_700_000_003_000 if end == "expired" else 0))
    node = greeted(rig, NODE)
    partition, shard = node.topic()
    hello = hello_of(READ)
    reader = greeted(rig, hello)
    subscribe = Subscribe(1, "", [Start(partition, "first", 0)], 10, 1_000)
    assert isinstance(reader.ask(subscribe, shard), Subscribed)
    assert isinstance(reader.ask(structs.replace(hello, auth=b"")), Welcome)
    if end == "removed":
        assert isinstance(proven(node, messages.SetAccess(AccessChange(users_gone=[READ]))), Access)
    else:
        rig.turn(3_001)
    assert isinstance(node.ask(Publish(partition), shard, bytes(batches.seal([b"x"]))), Confirm)
    assert not any(isinstance(each, Deliver) for each in reader.inbox())


def test_of_two_changes_at_once_none_passes_the_guard_by_the_other() -> None:
    """The first table has no version to compare an entry with."""
    rig = Hands(structs.replace(SETTINGS, token=TOKEN))
    first, second = messages.SetAccess(table()), messages.SetAccess(AccessChange(users_gone=[ALL, "cluster"]))
    clients = [greeted(rig, NODE) for _ in range(2)]
    nonces = [client.ask(request) for client, request in zip(clients, (first, second), strict=True)]
    for client, request, challenge in zip(clients, (first, second), nonces, strict=True):
        assert isinstance(challenge, Challenge)
        client.send(proofs.proven(TOKEN, challenge.nonce, request))
    rig.turn()
    done, refused = (client.inbox()[0] for client in clients)
    assert isinstance(done, Access)
    assert permissions.Users(done.table).lets_in()
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "busy"
    assert rig.worker._turn.shards[0].access == done.table


def test_users_that_were_made_before_the_cluster_come_first() -> None:
    """An admin may be quicker than the leader that puts them into the log."""
    begun = structs.replace(permissions.changed(AccessTable(), allowing("*")), version=0)
    rig = Hands(structs.replace(SETTINGS, token=TOKEN, access=begun))
    admin = greeted(rig, hello_of("admin"))
    change = AccessChange(users=[User("eve", [])])
    done = admin.ask(messages.SetAccess(change, idempotency_key=b"1"))
    assert isinstance(done, Access)
    assert done.table.closed
    assert {permissions.user_of(done.table, name) is not None for name in ("admin", "eve")} == {True}
