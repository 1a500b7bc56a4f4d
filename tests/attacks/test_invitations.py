"""Invitations, attacked. The attackers guess, come too late, twice or at the same moment, pose as
an existing node, or ask where others can listen. Ports are fakes, so the tests do not wait.
"""

import msgspec
import pytest

from gossipq import permissions
from gossipq.endpoints import Invitation, gossip_address, invitation
from gossipq.messages import (
    Access,
    Challenge,
    Entrust,
    Entrusted,
    Join,
    Members,
    RefusedMessage,
    SetAccess,
)
from gossipq.types import META_SHARD, Origin
from gossipq.values import AccessChange, AccessTable, Invite, Member, Message
from gossipq.wire import proofs
from gossipq.wire.frames import decode, encode
from gossipq_node.actors.newcomer import Newcoming
from gossipq_node.enrolment import by_invitation
from node.test_frontdoor import House
from node.test_guard import NODE, TOKEN, allowing, greeted, hello_of, proven
from node.test_worker import SETTINGS, Client, Hands

SECRET = b"what the nodes share"
FIRST, SECOND = b"1" * 32, b"2" * 32  #: tokens of invitations
LATER_MS = 10**13
EVE, BOB = Member("eve.1", "eve", "tcp://127.0.0.1:11", 1), Member("bob.1", "bob", "tcp://127.0.0.1:12", 1)


@pytest.fixture
def rig() -> Hands:
    """A closed cluster of one node, with two invitations."""
    hands = Hands(msgspec.structs.replace(SETTINGS, token=TOKEN, secret=SECRET))
    node = greeted(hands, NODE)
    assert isinstance(node.ask(Join(SETTINGS.member)), Challenge)
    invites = [Invite(permissions.digest(token), LATER_MS) for token in (FIRST, SECOND)]
    change = msgspec.structs.replace(allowing("*"), invites=invites)
    assert isinstance(proven(node, SetAccess(change)), Access)
    enter(hands)
    return hands


def enter(hands: Hands) -> None:
    """The node itself is on its roster."""
    asker = greeted(hands, NODE)
    challenge = asker.ask(Join(SETTINGS.member))
    assert isinstance(challenge, Challenge)
    assert isinstance(asker.ask(proofs.proven(TOKEN, challenge.nonce, Join(SETTINGS.member))), Members)


def stranger(hands: Hands) -> Client:
    return greeted(hands, hello_of(""))


def joins(client: Client, member: Member, token: bytes) -> Message | None:
    return client.ask(Join(member, invite=token), META_SHARD)


def refused(answer: Message | None) -> str:
    assert isinstance(answer, RefusedMessage), answer
    return answer.code


def test_who_was_invited_joins_once_hears_the_secret_and_may_ask_again(rig: Hands) -> None:
    client = stranger(rig)
    assert refused(client.ask(Entrust(FIRST, EVE.copy), META_SHARD)) == "forbidden", "it has not joined"
    for _ in range(2):  # the first answer may be lost
        entered = joins(client, EVE, FIRST)
        assert isinstance(entered, Members)
        assert EVE.copy in [row.copy for row in entered.members]
        assert client.ask(Entrust(FIRST, EVE.copy), META_SHARD) == Entrusted(SECRET)
    assert refused(joins(stranger(rig), BOB, FIRST)) == "forbidden", "it was used"
    assert refused(client.ask(Entrust(FIRST, BOB.copy), META_SHARD)) == "forbidden"
    assert isinstance(joins(stranger(rig), BOB, SECOND), Members)


@pytest.mark.parametrize("token", [b"g" * 32, b"x", permissions.digest(FIRST)])
def test_who_guesses_or_has_seen_what_is_stored_is_not_let_in(rig: Hands, token: bytes) -> None:
    client = stranger(rig)
    assert refused(joins(client, EVE, token)) == "forbidden"
    assert refused(client.ask(Entrust(token, EVE.copy), META_SHARD)) == "forbidden"
    assert isinstance(joins(client, EVE, b""), Challenge), "without one the secret is asked for"


def test_an_invitation_lets_nobody_take_the_place_of_a_node_that_is_there(rig: Hands) -> None:
    mine = SETTINGS.member
    for member in (mine, msgspec.structs.replace(mine, endpoint="tcp://127.0.0.1:66")):
        assert refused(joins(stranger(rig), member, FIRST)) == "forbidden"
    for taken in (
        msgspec.structs.replace(EVE, name=mine.name),
        msgspec.structs.replace(EVE, endpoint=mine.endpoint),
    ):
        assert refused(joins(stranger(rig), taken, FIRST)) == "bad_request"
    assert isinstance(joins(stranger(rig), EVE, FIRST), Members), "it is still good"


def test_of_two_who_come_at_once_with_one_invitation_one_is_let_in(rig: Hands) -> None:
    table = rig.worker._turn.shards[META_SHARD].access
    after = permissions.joined(table, permissions.digest(FIRST), EVE.copy)
    assert after is not None
    assert permissions.joined(after, permissions.digest(FIRST), BOB.copy) is None, "as each copy applies it"
    assert permissions.joined(after, permissions.digest(FIRST), EVE.copy) is not None
    ada, bob = stranger(rig), stranger(rig)
    answers = [joins(ada, EVE, FIRST), joins(bob, BOB, FIRST)]
    assert [isinstance(answer, Members) for answer in answers] == [True, False]


def test_an_invitation_expires_and_is_taken_back() -> None:
    shown = permissions.digest(FIRST)
    table = AccessTable(invites=[Invite(shown, 1_000)])
    assert permissions.invited(table, shown, "eve", 999) is not None
    assert permissions.invited(table, shown, "eve", 1_000) is None
    gone = permissions.changed(table, AccessChange(invites_gone=[shown]))
    assert permissions.invited(gone, shown, "eve", 0) is None


def test_nothing_of_it_is_said_where_others_can_listen(rig: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    client = stranger(rig)
    assert isinstance(joins(client, EVE, FIRST), Members)

    def in_the_clear(origin: Origin) -> bool:
        return False

    monkeypatch.setattr(rig.mailbox, "encrypted", in_the_clear)
    assert refused(client.ask(Entrust(FIRST, EVE.copy), META_SHARD)) == "forbidden"
    assert isinstance(joins(client, BOB, SECOND), Challenge), "the token counts for nothing"


def test_an_invitation_is_read_back_and_nothing_else_is_one() -> None:
    made = Invitation("10.0.0.7:7700", b"d" * 32, b"t" * 32)
    assert invitation(made.text) == made
    assert gossip_address(made.text, "cluster.join") == "10.0.0.7:7790"
    for text in ("ada", "ada:7790", made.text + "00", made.text[:-2], "/" + made.text, "a:b/c/d", ""):
        assert invitation(text) is None


@pytest.mark.parametrize("request_", [Entrust(FIRST, EVE.copy), Join(EVE, invite=FIRST)])
def test_a_frontdoor_passes_nothing_on_that_would_bring_the_secret_where_others_can_listen(
    monkeypatch: pytest.MonkeyPatch, request_: Message
) -> None:
    """A worker takes what its own frontdoor passes on for words of this host."""
    house = House()
    client = house.client
    for encrypted in (True, False):
        monkeypatch.setattr(house.mailbox, "encrypted", lambda origin, said=encrypted: said)
        client.send(encode(request_, META_SHARD, 9))
        house.turn()
        answers = [decode(client.receive()[0])[1] for _ in range(len(client.inbox))]
        assert any(isinstance(said, RefusedMessage) and said.code == "forbidden" for said in answers) is (
            not encrypted
        )


def test_who_was_killed_between_the_secret_and_its_place_comes_back_by_the_address() -> None:
    """Without Serf nothing else says where the cluster is."""
    named = Invitation("127.0.0.1:7", bytes(32), FIRST)
    fresh = Newcoming(
        member=BOB, session=bytes(16), workers=1, shards=0, expect=3, peers=("tcp://127.0.0.1:8",),
        insisted={}, options={}, founding=b"",
    )  # fmt: skip
    first = by_invitation(fresh, named, knows=False)
    assert (first.peers, first.expect, first.invite) == (("tcp://127.0.0.1:7", *fresh.peers), 0, FIRST)
    begun = msgspec.structs.replace(fresh, pledge="ab" * 16)
    again = by_invitation(begun, named, knows=True)
    assert (again.peers, again.expect, again.invite) == (("tcp://127.0.0.1:7", *fresh.peers), 3, b"")
    assert by_invitation(fresh, named, knows=True) == fresh, "it has a secret of its own"
    assert by_invitation(begun, None, knows=True) == begun
