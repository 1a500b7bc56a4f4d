"""The frontdoor: what it answers itself, what it passes on, what it says of workers that are away."""

import pytest
from msgspec import structs

from contracts.memory import MemoryMailbox, MemoryNetwork
from gossipq import limits
from gossipq.errors import NotAdmitted
from gossipq.messages import (
    Bye,
    Challenge,
    Hello,
    Join,
    Members,
    Ping,
    Pong,
    Publish,
    RefusedMessage,
    Reset,
    Stats,
    Status,
    StatusReply,
    Welcome,
)
from gossipq.peer_messages import Append, Bundle, Greet, Report, View
from gossipq.types import META_SHARD, NODE_SHARD, Now, Origin
from gossipq.values import AccessTable, CopyStats, Lead, Member, Message, Quota, Route, WorkerStats
from gossipq.wire.frames import decode, encode
from gossipq_node.actors.admission import DOUBT_MS, LEAVING_MS, PATIENCE_MS
from gossipq_node.actors.frontdoor import ALONE_MS, Frontdoor, Keeping
from gossipq_node.actors.post import Post
from gossipq_node.adapters.metrics import exposition
from gossipq_node.ports import Incoming
from gossipq_node.settings import FrontdoorSettings, WorkerState

ME = Member("ada.1", "ada", "tcp://ada:7700", 2)
BOB = Member("bob.1", "bob", "tcp://bob:8800", 3)
SETTINGS = FrontdoorSettings(
    node="ada",
    cluster_name="shop",
    cluster=bytes(16),
    mode="standalone",
    shards=4,
    clients_bind="door",
    peers_bind="inside",
    forwards=("worker-0", "worker-1"),
    siblings=("peer-0", "peer-1"),
    member=ME,
    version=1,
    members=(ME, BOB),
    token=b"t",
    window_bytes=limits.MIB,
    warnings=("look out",),
)


class Switch(MemoryMailbox):
    """A mailbox that notes what it forwards; `reachable` says whether it can."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__(network, "door", "inside")
        self.forwarded: list[tuple[str, bytes, bytes]] = []
        self.reachable = True

    def forward(self, connection: Origin, message: Incoming) -> bool:
        if self.reachable:
            self.forwarded.append((connection[1].decode(), message.control, message.batch))
        return self.reachable


class House:
    def __init__(self, settings: FrontdoorSettings = SETTINGS, proven: bool = True) -> None:
        network = MemoryNetwork()
        self.mailbox = Switch(network)
        self.kept: list[tuple[int, list[Member]]] = []
        self.now_ms = 3_000
        self.tables: list[AccessTable] = []
        keep = Keeping(lambda *roster: self.kept.append(roster), self.tables.append)
        self.door = Frontdoor(settings, self.mailbox, Now(1_000, 0), keep)
        self.client, self.worker = network.client("door"), network.client("inside")
        self.peers = {
            name: MemoryMailbox(network, peers=name)
            for name in ("peer-0", "peer-1", "tcp://bob:8840", "tcp://bob:8841")
        }
        other = structs.replace(SETTINGS, member=BOB)
        self.posts = {
            name: Post(SETTINGS if name.startswith("peer") else other, mailbox)
            for name, mailbox in self.peers.items()
        }
        self.workers = {
            name: MemoryMailbox(network, name) for name in ("worker-0", "worker-1", "tcp://bob:8801")
        }
        for name in self.workers if proven else ():
            self.greet(name)
        for name in SETTINGS.siblings if proven else ():
            self.greet_peer(name)

    def greet(self, name: str) -> None:
        """A worker proves itself."""
        settings = structs.replace(SETTINGS, member=BOB) if "bob" in name else SETTINGS
        mailbox = self.workers[name]
        self.door._post.connection(settings.member.copy, name)
        *_, greeting = mailbox.receive(0)
        _, said = decode(greeting.control)
        assert isinstance(said, Greet)
        Post(settings, mailbox).greeted(greeting, said, self.now_ms)
        self.turn()

    def greet_peer(self, name: str) -> None:
        """The door for peers of a worker of this node proves itself."""
        self.door._post.connection(ME.copy, name)
        self.heard(name)

    def turn(self, ms: int = 0) -> None:
        self.now_ms += ms
        self.door.turn(self.mailbox.receive(0), Now(self.now_ms, 0))

    def say(self, message: Message, sender: str = "ada.1") -> None:
        """To the door for peers, over a connection that is the sender's."""
        self.door._post.proven[b"p", self.worker._name] = sender
        self.worker.send(encode(Bundle(bytes(16), sender, "ada.1", [encode(message)])))
        self.turn()

    def heard(self, peer: str) -> list[Message]:
        """What a process of the cluster was sent since."""
        said: list[Message] = []
        for _ in range(3):  # it is greeted first
            mails = self.peers[peer].receive(0)
            said += [
                message for mail in mails for _, _, message, _ in self.posts[peer].open(mail, self.now_ms)
            ]
            self.turn()
        return said

    def ask(self, message: Message, shard: int = NODE_SHARD, batch: bytes = b"") -> tuple[int, int, Message]:
        """(shard, request id, message) of the answer."""
        self.client.send(encode(message, shard, 7), batch)
        self.turn()
        header, answer = decode(self.client.receive()[0])
        return header.shard, header.request_id, answer

    def status(self) -> StatusReply:
        answer = self.ask(Status())[2]
        assert isinstance(answer, StatusReply)
        return answer

    def report(self, worker: int, pid: int, state: str = "ready", term: int = 3) -> None:
        stats = WorkerStats(worker, pid, f"worker-{worker}", state, 0, 2, *[0] * 10)
        shards = (worker, worker + 2)
        copies = [CopyStats(shard, term, "ada.1", "leader", 1, 0, 0, True) for shard in shards]
        self.say(Report(stats, [Lead(shard, term, "ada.1") for shard in shards], copies))


@pytest.fixture
def house() -> House:
    return House()


def test_it_greets_with_the_routes(house: House) -> None:
    house.report(0, 10)
    house.say(View(1, [], [Lead(1, 5, "bob.1"), Lead(3, 2, "nobody.1")]), "bob.1")
    shard, request_id, welcome = house.ask(Hello(bytes(16), "test", "1"))
    assert (shard, request_id) == (NODE_SHARD, 7)
    assert isinstance(welcome, Welcome)
    assert (welcome.node, welcome.shards, welcome.window_bytes) == ("ada", 4, limits.MIB)
    assert welcome.nodes == ["tcp://ada:7700", "tcp://bob:8800"]
    assert welcome.routes == [
        Route(0, 3, "tcp://ada:7701"),
        Route(1, 5, "tcp://bob:8802"),
        Route(2, 3, "tcp://ada:7701"),
    ], "who leads shard 3 is not in the roster"


def test_it_answers_ping_and_hears_bye(house: House) -> None:
    assert house.ask(Ping())[2] == Pong()
    house.client.send(encode(Bye(), NODE_SHARD))
    house.turn()
    assert not house.client.inbox


@pytest.mark.parametrize("message", [Hello(bytes(16), "", ""), Ping(), Bye(), Publish(5), Stats()])
def test_a_shard_in_the_header_goes_to_its_worker_untouched(house: House, message: Message) -> None:
    control = encode(message, 3, 9)
    house.client.send(control, b"batch")
    house.turn()
    assert house.mailbox.forwarded == [("worker-1", control, b"batch")]
    assert not house.client.inbox


def test_a_shard_that_is_none_is_refused(house: House) -> None:
    shard, request_id, refused = house.ask(Publish(1), 4)
    assert isinstance(refused, RefusedMessage)
    assert (shard, request_id, refused.code) == (4, 7, "bad_request")
    assert "0 to 3" in refused.message


def test_what_another_node_leads_goes_to_its_worker(house: House) -> None:
    house.report(1, 10)
    house.say(View(1, [], [Lead(3, 5, "bob.1")]), "bob.1")
    control = encode(Publish(1), 3, 9)
    house.client.send(control, b"batch")
    house.client.send(control)
    house.turn()
    assert house.mailbox.forwarded == [
        ("tcp://bob:8801", control, b"batch"),
        ("tcp://bob:8801", control, b""),
    ]
    house.say(View(1, [], [Lead(3, 6, "ada.1")]), "bob.1")
    house.client.send(control)
    house.turn()
    assert house.mailbox.forwarded[-1][0] == "worker-1"


def test_who_cannot_be_reached_is_busy_for_now(house: House) -> None:
    house.say(View(1, [], [Lead(3, 5, "bob.1")]), "bob.1")
    house.mailbox.reachable = False
    refused = house.ask(Publish(1), 3)[2]
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.retry_after_ms > 0) == ("busy", True)


def test_workers_of_other_nodes_hear_of_clients_that_are_gone_while_they_are_used(house: House) -> None:
    house.say(View(1, [], [Lead(3, 5, "bob.1")]), "bob.1")
    house.client.send(encode(Ping(), 3))
    house.turn()
    house.client.close()
    house.turn()
    assert {"tcp://bob:8801", "worker-0", "worker-1"} == {name for name, *_ in house.mailbox.forwarded[1:]}


def test_a_worker_that_is_away_is_busy(house: House) -> None:
    house.door.set_states([WorkerState(0, 10, True, 0), WorkerState(1, 0, False, 1)])
    refused = house.ask(Publish(1), 1)[2]
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.retry_after_ms > 0) == ("busy", True)
    house.client.send(encode(Publish(1), 2))
    house.turn()
    assert house.mailbox.forwarded[0][0] == "worker-0"


def test_a_worker_that_does_not_read_is_busy(house: House) -> None:
    house.mailbox.reachable = False
    refused = house.ask(Publish(1), 1)[2]
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "busy"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", "protocol"),
        (b"x" * 23, "protocol"),
        (b"y" * 100, "protocol"),
        (b"GQ\x09" + bytes(21), "wrong_version"),
        (encode(Ping(), NODE_SHARD)[:3] + b"\xee" + encode(Ping(), NODE_SHARD)[4:], "unknown_verb"),
        (encode(Status(), NODE_SHARD)[:24] + b"\xc1", "protocol"),
        (encode(Publish(1), NODE_SHARD), "unknown_verb"),
        (encode(Append("me", 0, 0, 0, []), 1), "unknown_verb"),
        (encode(Append("me", 0, 0, 0, []), NODE_SHARD), "unknown_verb"),
    ],
)
def test_garbage_is_refused_and_counted(house: House, frame: bytes, code: str) -> None:
    house.client.send(frame)
    house.turn()
    _, refused = decode(house.client.receive()[0])
    assert isinstance(refused, RefusedMessage)
    assert refused.code == code
    assert house.status().bad_frames == 1


def test_what_it_refuses_by_rate_is_counted_and_shown() -> None:
    house = House(structs.replace(SETTINGS, quota=Quota(address_requests_per_s=2)))
    answers = [house.ask(Status())[2] for _ in range(6)]
    refused = [each for each in answers if isinstance(each, RefusedMessage)]
    assert {each.code for each in refused} == {"busy"}
    house.now_ms += 5_000
    status = house.status()
    assert status.over_quota == len(refused) > 0
    shown = exposition(status, {}, [], None).decode()
    assert f"gossipq_frontdoor_requests_over_quota_total {len(refused):.1f}" in shown
    assert "gossipq_frontdoor_connections_turned_away_total 0.0" in shown


def test_a_client_cannot_report(house: House) -> None:
    stats = WorkerStats(0, 1, "evil", "ready", 0, 2, *[0] * 10)
    refused = house.ask(Report(stats, [Lead(0, 9, "evil")]))[2]
    assert isinstance(refused, RefusedMessage)
    assert house.status().led == 0


def test_status_counts_shards_of_workers_that_reported(house: House) -> None:
    before = house.status()
    assert (before.led, [worker.state for worker in before.workers]) == (0, ["starting", "starting"])
    assert [worker.endpoint for worker in before.workers] == ["tcp://ada:7701", "tcp://ada:7702"]
    house.door.set_states([WorkerState(0, 10, True, 0), WorkerState(1, 11, True, 2, "exit code 9")])
    house.report(0, 10)
    house.report(1, 11, "full")
    status = house.status()
    assert (status.led, status.uptime_ms, status.mode, status.warnings[0]) == (
        4,
        2_000,
        "standalone",
        "look out",
    )
    assert [(worker.state, worker.restarts, worker.detail) for worker in status.workers] == [
        ("ready", 0, ""),
        ("full", 2, "exit code 9"),
    ]
    assert [route.term for route in status.routes] == [3, 3, 3, 3]


def test_a_worker_starts_until_clients_can_be_forwarded_to_it() -> None:
    """Its report may come before it has proven itself: then a client would be told that it is starting."""
    house = House(proven=False)
    house.report(0, 10)
    assert house.status().workers[0].state == "starting"
    assert isinstance(house.ask(Ping(), 0)[2], RefusedMessage)
    house.greet("worker-0")
    assert house.status().workers[0].state == "starting", "it does not know yet who leads what"
    house.greet_peer("peer-0")
    assert house.status().workers[0].state == "ready"


def test_a_worker_that_recovers_leads_nothing(house: House) -> None:
    house.report(0, 10)
    house.report(0, 10, "recovering")
    assert house.status().led == 0


def test_the_reports_of_a_dead_process_are_forgotten(house: House) -> None:
    house.door.set_states([WorkerState(0, 10, True, 0)])
    house.report(0, 10)
    assert house.status().led == 2
    house.door.set_states([WorkerState(0, 0, False, 0, "exit code 9")])
    assert (house.status().led, house.status().workers[0].state) == (0, "down")
    house.door.set_states([WorkerState(0, 12, True, 1)])
    house.report(0, 10)  # came late
    assert (house.status().led, house.status().workers[0].state) == (0, "starting")
    house.report(0, 12)
    assert house.status().led == 2


def test_news_of_its_own_workers_are_shared_with_all(house: House) -> None:
    house.turn(200)
    house.heard("peer-0"), house.heard("tcp://bob:8840")
    house.report(0, 10)
    house.turn(200)
    view = View(1, [ME, BOB], [Lead(0, 3, "ada.1"), Lead(2, 3, "ada.1")])
    assert house.heard("peer-0")[-1] == view
    assert house.heard("tcp://bob:8840")[-1] == view


def test_before_it_is_ready_its_workers_know_who_leads(house: House) -> None:
    """Else what one of them says to a shard of another is lost, and said again half a second later."""
    house.turn(200)
    house.heard("peer-0"), house.heard("peer-1")
    house.report(0, 10)
    assert not house.door.ready
    house.report(1, 11)
    assert house.door.ready
    for place in ("peer-0", "peer-1"):
        (view,) = [each for each in house.heard(place) if isinstance(each, View)]
        assert {lead.shard for lead in view.leads} == {0, 1, 2, 3}


def test_news_of_others_are_shared_with_its_own_workers_only(house: House) -> None:
    house.report(0, 10)
    house.turn(200)
    house.heard("peer-0"), house.heard("tcp://bob:8840")
    house.say(View(1, [], [Lead(1, 5, "bob.1")]), "bob.1")
    house.turn(200)
    leads = [Lead(0, 3, "ada.1"), Lead(2, 3, "ada.1"), Lead(1, 5, "bob.1")]
    assert house.heard("peer-0") == [View(1, [ME, BOB], leads)]
    assert house.heard("tcp://bob:8840") == []
    house.turn(limits.VIEW_AGAIN_MS)
    assert len(house.heard("tcp://bob:8840")) == 1, "what has not changed is said again"


def test_a_worker_is_dialled_after_its_first_report() -> None:
    """One that did not listen yet was dialled again after half a second, and heard who leads what up to ten
    seconds later: then a new topic was refused."""
    house = House(proven=False)
    house.turn(limits.VIEW_AGAIN_MS)
    assert house.heard("peer-0") == []
    house.report(0, 10, "recovering")
    house.turn(200)
    assert house.heard("peer-0") == [View(1, [ME, BOB], [])]
    assert not house.peers["peer-1"].receive(0)


def test_a_new_roster_is_kept_and_an_old_one_ignored(house: House) -> None:
    cleo = Member("cleo.1", "cleo", "tcp://cleo:7700", 1)
    house.say(View(9, [ME, BOB, cleo], []), "bob.1")
    house.say(View(8, [ME], []), "bob.1")
    assert house.kept == [(9, [ME, BOB, cleo])]
    assert house.status().members == [ME, BOB, cleo]


@pytest.mark.parametrize("bad", [{"endpoint": "nonsense"}, {"workers": 0}, {"name": ""}, {"copy": "\n"}])
def test_a_roster_with_a_row_that_cannot_be_is_not_kept(house: House, bad: dict[str, object]) -> None:
    house.say(View(9, [ME, BOB, structs.replace(BOB, **bad)], []), "bob.1")
    house.turn(1_000)
    assert house.kept == []
    assert house.door.bad_messages == 1
    house.say(View(8, [ME], []), "bob.1")
    assert house.kept == [(8, [ME])]


def test_it_enters_the_roster_when_its_row_is_missing_or_old(house: House) -> None:
    house.say(View(1, [], [Lead(META_SHARD, 4, "bob.1")]), "bob.1")
    house.turn(2_000)
    assert not [message for message in house.heard("tcp://bob:8841") if isinstance(message, Join)]
    moved = Member("ada.1", "ada", "tcp://elsewhere:7700", 2)
    house.say(View(7, [moved, BOB], []), "bob.1")
    house.turn(2_000)
    assert Join(ME, bytes(16)) in house.heard("tcp://bob:8841")


def test_who_hears_that_it_is_lost_says_that_it_is_there(house: House) -> None:
    lost = structs.replace(ME, state="lost")
    house.say(View(7, [lost, BOB], [Lead(META_SHARD, 4, "bob.1")]), "bob.1")
    house.turn(2_000)
    assert Join(ME, bytes(16)) in house.heard("tcp://bob:8841")
    house.say(View(8, [ME, BOB], []), "bob.1")
    house.turn(100)
    house.heard("tcp://bob:8841")
    house.turn(5_000)
    assert house.heard("tcp://bob:8841") == []


def test_who_hears_that_it_is_off_a_roster_that_it_gave_up_asks_the_leader_again() -> None:
    """A drained node has no copy of the meta shard that says so, and ran on for ever after it was removed."""
    house = House(structs.replace(SETTINGS, session=b"s" * 16))
    house.say(View(9, [ME, structs.replace(BOB, workers=2)], []), "bob.1")
    stats = WorkerStats(0, 7, "worker-0", "ready", 0, 2, *[0] * 10)
    house.say(Report(stats, [], [], 1, [ME, BOB], given_up=9))
    assert house.status().members == [ME, BOB]
    house.door._admission._done = True  # it was let in at its start
    house.say(View(12, [ME], []), "bob.1")
    assert house.door._admission._done
    house.say(View(12, [BOB], []), "bob.1")
    assert not house.door._admission._done
    assert house.status().members == [ME, BOB], "nobody believes it without the leader"


def test_a_node_that_is_drained_asks_now_and_then_whether_it_is_removed() -> None:
    house = House(structs.replace(SETTINGS, session=b"s" * 16))
    house.turn()
    house.door._admission._done = True  # it was let in at its start
    house.turn(LEAVING_MS)
    assert house.door._admission._done
    house.say(View(9, [structs.replace(ME, state="leaving"), BOB], []), "bob.1")
    house.turn(LEAVING_MS)
    assert not house.door._admission._done


def test_a_node_that_hears_no_other_one_asks_whether_it_is_removed() -> None:
    """It was away when it was removed, and where nodes encrypt nothing can tell it: the others do not dial
    it any more, and do not let it in."""
    house = House(structs.replace(SETTINGS, session=b"s" * 16))
    house.turn()
    house.door._admission._done = True  # it was let in at its start
    for _ in range(4):
        house.turn(ALONE_MS // 2)
        house.say(View(1, [], []), "bob.1")
    assert house.door._admission._done
    house.turn(ALONE_MS)
    assert not house.door._admission._done


def answered(house: House, said: Message) -> None:
    """Bob answers the last question of the node, whether its cluster has it."""
    request = max(house.door._admission._asked)
    house.door._admission.hears(
        request,
        Incoming((b"d", b"tcp://bob:8800"), encode(said, NODE_SHARD, request), b""),
        Now(house.now_ms, 0),
    )


TOLD = Welcome(
    node="bob",
    cluster=bytes(16),
    version="0",
    window_bytes=1,
    silence_ms=1,
    ping_ms=1,
    routes=[Route(META_SHARD, 4, "tcp://bob:8801")],
)
NO_SESSION = RefusedMessage("no_session", "greet first", "")
ELSEWHERE = RefusedMessage("wrong_state", "ada is there, at tcp://eve:7700", "stop that one")


@pytest.mark.parametrize("doubted", [False, True])
def test_a_node_that_is_somewhere_else_too_is_not_ready_and_ends(doubted: bool) -> None:
    house = House(structs.replace(SETTINGS, session=b"s" * 16, doubted=doubted, members=(ME, BOB)))
    for worker in (0, 1):
        house.report(worker, 7)
    assert house.door.ready is not doubted
    answered(house, ELSEWHERE)
    house.turn(DOUBT_MS)
    assert not house.door.ready
    answered(house, ELSEWHERE)
    house.turn(PATIENCE_MS)
    answered(house, ELSEWHERE)
    with pytest.raises(NotAdmitted, match="ada is there"):
        house.turn()


def test_a_doubted_node_is_ready_when_the_leader_has_it_or_none_is_known() -> None:
    settings = structs.replace(SETTINGS, session=b"s" * 16, doubted=True, members=(ME, BOB))
    let_in, alone, waits = House(settings), House(settings), House(settings)
    for house in (let_in, alone, waits):
        for worker in (0, 1):
            house.report(worker, 7)
        assert not house.door.ready
    for house in (let_in, waits):
        answered(house, TOLD)
        house.turn()
    answered(let_in, Members(1, [ME, BOB]))
    let_in.turn()
    assert let_in.door.ready
    for house in (alone, waits):
        house.turn(DOUBT_MS)
    assert alone.door.ready
    assert not waits.door.ready


def options_of_join(house: House) -> dict[str, str]:
    """Return what the node asks of the leader to have, once it has been told who leads."""
    leader = house.workers["tcp://bob:8801"]
    leader.receive(0)
    house.turn(1_000)
    answered(house, TOLD)
    house.turn(1_000)
    said = [decode(mail.control)[1] for mail in leader.receive(0)]
    return next(message.options for message in said if isinstance(message, Join))


def test_a_node_asks_for_its_options_until_it_is_let_in_once() -> None:
    """The options were changed since, the other node was restarted, and this one ended: it had asked again
    whether it is a member."""
    insisted = {"cluster.replace_ms": "600000"}
    house = House(structs.replace(SETTINGS, session=b"s" * 16, insisted=insisted))
    assert options_of_join(house) == insisted
    answered(house, NO_SESSION)
    assert options_of_join(house) == insisted
    answered(house, Members(1, [ME, BOB]))
    house.turn(ALONE_MS)
    assert options_of_join(house) == {}


def test_the_founder_of_a_cluster_asks_for_no_options() -> None:
    """They may have been changed before the second node came."""
    house = House(
        structs.replace(SETTINGS, session=b"s" * 16, insisted={"cluster.copies": "5"}, members=(ME,))
    )
    house.turn()
    house.say(View(9, [ME, BOB], []), "bob.1")
    assert options_of_join(house) == {}


def test_a_node_that_is_not_let_in_yet_asks_once_a_second() -> None:
    """Each WELCOME was answered by a greeting and a JOIN: 1,000 questions a second, until the cluster counted
    them as a flood."""
    house = House(structs.replace(SETTINGS, session=b"s" * 16, members=(ME, BOB)))
    house.turn()
    before = house.door._admission._request
    for _ in range(100):
        if house.door._admission._asked:
            answered(house, TOLD)
        house.turn(10)
    assert house.door._admission._request <= before + 6, "two greetings and a JOIN, twice"


def test_what_nodes_say_is_no_reason_to_answer(house: House) -> None:
    house.worker.send(encode(Ping()))
    house.say(Ping())
    house.worker.send(b"GQ")
    house.turn()
    assert not house.worker.inbox
    assert house.status().bad_frames == 3


@pytest.mark.parametrize("said", [Reset([1], "over"), RefusedMessage("no_session", "who?"), Challenge(b"n")])
def test_an_answer_that_it_does_not_wait_for_is_not_answered(house: House, said: Message) -> None:
    """Else two processes refuse each other's refusals for ever."""
    worker = house.workers["tcp://bob:8801"]
    house.mailbox.send("tcp://bob:8801", encode(Hello(bytes(16), "node ada", "1"), 1, 9))
    *_, asked = worker.receive(0)
    for shard, request_id in ((1, 0), (1, 9), (NODE_SHARD, 0), (99, 9)):
        worker.reply(asked.origin, encode(said, shard, request_id))
        house.turn()
    assert not any(type(decode(each.control)[1]) is RefusedMessage for each in worker.receive(0))


def test_another_node_cannot_speak_for_its_workers(house: House) -> None:
    stats = WorkerStats(7, 1, "elsewhere", "ready", 0, 2, *[0] * 10)
    house.say(Report(stats, [Lead(0, 9, "bob.1")]), "bob.1")
    assert (house.status().bad_frames, house.status().leads, house.door.ready) == (1, [], False)
