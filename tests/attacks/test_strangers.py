"""A stranger without the cluster's secret who can reach all ports of its nodes: messages
between nodes are closed to it.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.harness import Node, Raw
from gossipq import limits
from gossipq.messages import (
    AskMembers,
    Challenge,
    CreateTopic,
    Join,
    Members,
    Message,
    RefusedMessage,
    SetMember,
    SetOptions,
)
from gossipq.peer_messages import Append, Bundle, Greet, Prove, Snapshot, View, VoteRequest
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq.values import Lead, Member
from gossipq.wire import proofs
from gossipq.wire.frames import encode
from gossipq_client import connect
from gossipq_node import trust
from waiting import until

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]
HIGH = limits.NUMBER_MAX
STRANGER = Member("dead.beef", "stranger", "tcp://127.0.0.1:1", 1)


def roster(served: Node, raw: Connect) -> Members:
    asker = raw(served.worker(0)).hello(META_SHARD, b"looks" * 3 + b"!")

    def entered() -> Members | None:
        """The node has entered its own roster."""
        found = asker.ask(AskMembers(), META_SHARD)
        return found if isinstance(found, Members) and found.members else None

    found: Members = until(entered)
    return found


def serves(served: Node) -> None:
    with connect(served.endpoint) as mq:
        mq.publish("kept", b"x", timeout=10)


@pytest.mark.parametrize(
    "said",
    [
        VoteRequest("dead.beef", HIGH, HIGH, HIGH, transfer=True),
        Append("dead.beef", 0, 0, 0, []),
        Snapshot("dead.beef", HIGH, 1, bytes(8), 1, ["dead.beef"], [], [], 0, "state"),
        View(limits.ROSTER_VERSION_MAX, [STRANGER], [Lead(0, HIGH, "dead.beef")]),
    ],
)
def test_what_a_stranger_says_to_the_ports_of_nodes_changes_nothing(
    served: Node, raw: Connect, said: Message
) -> None:
    with connect(served.endpoint) as mq:
        mq.publish("kept", b"x", timeout=10)
        status = mq.admin.status()
    before, pids = roster(served, raw), served.pids()
    sender = said.leader if isinstance(said, Append | Snapshot) else status.copy
    for port in (40, 41, 42):
        peer = raw(f"tcp://127.0.0.1:{served.port + port}")
        for shard in (0, 1, NODE_SHARD):
            peer.send(
                encode(Bundle(status.cluster, sender, status.copy, [encode(said, shard, 0, HIGH)], [])), b""
            )
            answer = peer.receive()
            assert answer is not None
            assert answer.message == Challenge(b"", status.copy)
        peer.send(encode(Greet(status.cluster, sender, status.copy, bytes(16))))
        answer = peer.receive()
        assert answer is not None
        assert isinstance(answer.message, Challenge)
        guess = proofs.proof(b"guess", proofs.PROVE, bytes(16), answer.message.nonce, sender, status.copy)
        peer.send(encode(Prove(sender, bytes(16), guess)))
        peer.send(encode(Bundle(status.cluster, sender, status.copy, [encode(said, 0, 0, HIGH)])), b"")
        answer = peer.receive()
        assert answer is not None
        assert answer.message == Challenge(b"", status.copy)
    serves(served)
    assert roster(served, raw) == before
    assert served.pids() == pids


def test_a_proof_is_good_for_one_connection(served: Node, raw: Connect) -> None:
    """Somebody who could see it said elsewhere gains nothing by saying it again."""
    with connect(served.endpoint) as mq:
        status = mq.admin.status()
    token = proofs.token(trust.read(str(served.data / "secret")), status.cluster)
    end = f"tcp://127.0.0.1:{served.port + 41}"
    view = Bundle(status.cluster, status.copy, status.copy, [encode(View(0, [], []))])

    def prove(peer: Raw, nonce: bytes) -> None:
        parts = bytes(16), nonce, status.copy, status.copy
        peer.send(encode(Prove(status.copy, bytes(16), proofs.proof(token, proofs.PROVE, *parts))))
        peer.send(encode(view))

    honest, thief = raw(end), raw(end)
    honest.send(encode(Greet(status.cluster, status.copy, status.copy, bytes(16))))
    answer = honest.receive()
    assert answer is not None
    assert isinstance(answer.message, Challenge)
    assert proofs.answered(token, bytes(16), status.copy, answer.message)
    prove(honest, answer.message.nonce)
    prove(thief, answer.message.nonce)
    assert honest.receive(0.5) is None, "it was heard"
    refused = thief.receive()
    assert refused is not None
    assert refused.message == Challenge(b"", status.copy)


@pytest.mark.parametrize(
    "said",
    [
        Join(STRANGER, b"", bytes(32)),
        Join(STRANGER),
        SetMember("x", "gone"),
        SetMember("x", "leaving", bytes(32)),
        SetOptions({"cluster.replace_ms": "0"}),
        SetOptions({"cluster.auto_create": "false"}, bytes(32)),
    ],
)
def test_only_who_knows_the_secret_changes_the_roster(served: Node, raw: Connect, said: Message) -> None:
    before = roster(served, raw)
    client = raw(served.worker(0)).hello(META_SHARD, b"stranger" * 2)
    answer = client.ask(said, META_SHARD)
    assert isinstance(answer, Challenge)
    assert answer.nonce
    assert roster(served, raw) == before
    token = proofs.token(
        trust.read(str(served.data / "secret")), raw(served.endpoint).hello().status().cluster
    )
    assert isinstance(said, Join | SetMember | SetOptions)
    other = raw(served.worker(0)).hello(META_SHARD, b"other..." * 2)
    assert isinstance(other.ask(proofs.proven(token, answer.nonce, said), META_SHARD), Challenge), (
        "of another connection"
    )
    if isinstance(said, SetMember):
        known = client.ask(proofs.proven(token, answer.nonce, said), META_SHARD)
        assert isinstance(known, RefusedMessage)
        assert "no node is named x" in known.message
        assert isinstance(client.ask(proofs.proven(b"guess", answer.nonce, said), META_SHARD), Challenge)


def test_a_client_proves_that_it_knows_the_secret(served: Node) -> None:
    with connect(served.endpoint) as mq:
        (member,) = until(lambda: mq.admin.members().members)
        name = member.name
        for secret, text in ((b"", "needs its secret"), (b"guess" * 4, "another secret")):
            with pytest.raises(Exception, match=text):
                mq.admin.set_member(name, "in", secret)
        assert mq.admin.set_member(name, "in", trust.read(str(served.data / "secret"))).members


def test_what_is_refused_is_told_without_what_a_terminal_obeys(served: Node, raw: Connect) -> None:
    asker = raw(served.worker(0)).hello(META_SHARD)
    for name in ("\x1b[2Jred", "line\rover", "\u202egnol"):
        answer = asker.ask(CreateTopic(name), META_SHARD)
        assert isinstance(answer, RefusedMessage)
        assert answer.message.isprintable(), answer


def test_files_are_of_the_user_alone(served: Node) -> None:
    serves(served)
    assert stat.S_IMODE(os.stat(served.data).st_mode) == 0o700
    open_to_others = [
        path
        for path in served.data.rglob("*")
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert not open_to_others


def test_a_file_in_the_place_of_a_socket_is_not_replaced(make: Callable[..., Node], tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    node = make()
    node.endpoint = f"ipc://{precious}"
    code, log = node.fail_to_start()
    assert code != 0
    assert "no socket of this user" in log
    assert precious.read_text() == "mine"
    until(lambda: node.process is None)


@pytest.fixture
def insecure(make: Callable[..., Node]) -> Node:
    """Open to a network, and without any secret."""
    node = make("--mode", "static", "--insecure", "--advertise", "127.0.0.1")
    node.flags = (*node.flags, "--bind", f"tcp://0.0.0.0:{node.port}")
    return node.start()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_secret_a_forged_roster_is_given_up(insecure: Node, raw: Connect) -> None:
    """It does not have this node, its version is one that no log ever reaches, and it is kept for the next
    start."""
    serves(insecure)
    assert not (insecure.data / "secret").exists()
    with connect(insecure.endpoint) as mq:
        status = mq.admin.status()

    asker = raw(insecure.endpoint).hello()

    def members() -> set[str]:
        return {member.copy for member in asker.status().members}

    kept = insecure.data / "roster.json"
    until(lambda: kept.exists() and status.copy in kept.read_text(), 60, "it is on its own roster")
    forged = View(limits.ROSTER_VERSION_MAX, [STRANGER], [Lead(0, limits.TERM_LEAP_MAX, STRANGER.copy)])
    peer, parts = raw(f"tcp://127.0.0.1:{insecure.port + 40}"), (STRANGER.copy, status.copy)
    peer.send(encode(Greet(status.cluster, *parts, bytes(16))))
    answer = peer.receive(60)
    assert answer is not None
    assert isinstance(answer.message, Challenge)
    proof = proofs.proof(b"", proofs.PROVE, bytes(16), answer.message.nonce, *parts)
    peer.send(encode(Prove(STRANGER.copy, bytes(16), proof)))
    bundle = encode(Bundle(status.cluster, *parts, [encode(forged)]))
    peer.send(bundle)
    until(lambda: STRANGER.copy in members(), 60, "it is believed")
    until(lambda: members() == {status.copy}, 120, "it is given up")
    peer.send(bundle)
    serves(insecure)
    insecure.stop()
    insecure.start()
    asker = raw(insecure.endpoint).hello()
    until(lambda: members() == {status.copy}, 120)
    serves(insecure)
