"""Checks permissions; each process of a node has one guard. Until the cluster is closed,
the guard allows everything.

A session that sent HELLO has `Rights`, or None for all rights. Their effect is looked up once
for each session and topic.
"""

from collections.abc import Callable

from gossipq import limits
from gossipq.errors import BadRequest, Forbidden
from gossipq.messages import CreateTopic, Entrust, Hello, Identity, Resolve, SetAccess, Subscribe
from gossipq.permissions import (
    ANONYMOUS,
    CLUSTER,
    MEND,
    OPERATE,
    READ,
    REPLIES,
    WHOLE,
    Rights,
    Users,
    digest,
    forbidden,
    invited,
    shortened,
    verb_of,
)
from gossipq.types import Now
from gossipq.values import AccessTable, AuditRow, Message
from gossipq.verbs import NEEDS
from gossipq.wire import ownership
from gossipq_node.ports import THIS_HOST

READABLE = "a token that crosses a network in the clear can be read there"
USE_PROXY = (
    "connect by a TLS proxy on the node's own host; or --insecure on the node, if that network is yours"
)
NO_SECRET = "a cluster without a secret cannot tell its nodes from its clients: it has no users"

IPC = "ipc://"
AUDITED = (MEND, OPERATE, CLUSTER)  #: permissions whose use goes into the audit
ADMITTED, CHALLENGED, FORBIDDEN = "admitted", "challenged", "forbidden"
#: audit rows of one process per second, and how many of them may be refusals
ROWS_MAX, REFUSALS_MAX = 256, 128
NameOf = Callable[[int], str]  #: topic id -> name; "" for a topic that is unknown to the shard


class Guard:
    def __init__(self, table: AccessTable, token: bytes, bind: str, clear_tokens: bool = False) -> None:
        """`token` is the token of the cluster's nodes. If clients come through a file (`bind`),
        which only its owner can open, every client may do everything. With `clear_tokens` clients
        of other hosts may send tokens without encryption.
        """
        self._token, self._clear_tokens = token, clear_tokens
        self._audit = list[AuditRow]()
        self._missed = self._refusals = 0  # rows that were dropped; refusals among the kept rows
        self._enforces = not bind.startswith(IPC)
        self.users = Users(table)

    @property
    def closed(self) -> bool:
        return self._enforces and self.users.closed

    def learn(self, table: AccessTable) -> bool:
        """Takes over a newer table; returns False if the table is not newer."""
        if table.version <= self.users.version:
            return False
        self.users = Users(table)
        return True

    def greet(self, hello: Hello, address: str, now: Now, encrypted: bool = False) -> Rights | None:
        """The rights of a client that sends this HELLO; None for all. `encrypted` means that no
        third party can read the connection. Raises Forbidden.
        """
        if len(hello.user) > limits.NAME_BYTES_MAX:
            raise BadRequest(
                f"a user of {len(hello.user)} characters; {limits.NAME_BYTES_MAX} are allowed",
                hint="act_for= names one of `gossipq user ls`",
            )
        if not self.closed or self.is_node(hello.key):
            return None
        try:
            return self._login(hello, address, now, encrypted)
        except Forbidden:
            self._note(
                AuditRow(
                    time_ms=now.wall_ms,
                    user=hello.user,
                    address=address,
                    verb=verb_of(Hello),
                    target=WHOLE,
                    outcome=FORBIDDEN,
                )
            )
            raise

    def _login(self, hello: Hello, address: str, now: Now, encrypted: bool) -> Rights:
        if hello.auth and not (encrypted or address == THIS_HOST or self._clear_tokens):
            raise Forbidden(READABLE, hint=USE_PROXY)
        return self.users.login(hello.auth, hello.user, now.wall_ms)

    def check_invited(self, asked: Entrust, encrypted: bool, now: Now) -> None:
        """Raises Forbidden unless the sender may get the cluster's secret: only a node that has
        joined with a valid invitation may.
        """
        shown = digest(asked.invite)
        invite = invited(self.users.table, shown, asked.copy, now.wall_ms)
        if not encrypted or invite is None or not invite.copy:
            self._note(
                AuditRow(
                    time_ms=now.wall_ms,
                    user="",
                    address="",
                    verb=verb_of(Entrust),
                    target=WHOLE,
                    outcome=FORBIDDEN,
                )
            )
            raise Forbidden("no node has joined by that invitation", hint="gossipq cluster invite")

    def is_node(self, key: bytes) -> bool:
        """True if the owner of this session key knows the cluster's secret."""
        return bool(self._token and key) and ownership.is_of_node(self._token, key)

    def again(self, shown: bytes, acts_for: str, now: Now) -> Rights | None:
        """The rights of a session that sent HELLO earlier, by the digest of
        its token. Raises Forbidden.
        """
        return self.users.rights(shown, acts_for, now.wall_ms) if self.closed else None

    def check(
        self, rights: Rights, request: Message, name_of: NameOf, address: str, now: Now, session: bytes = b""
    ) -> None:
        """Raises Forbidden unless the rights allow the request. `name_of` finds the
        name of a topic of the shard by its id. `session` is the sender's session, if it
        has the key of that session.
        """
        need = NEEDS.get(type(request))
        if need is None or not need.permission:
            return  # not a request, or one that needs no permission
        ids, topics = need.targets(request)
        # for an unknown topic, the shard itself gives the error
        named = {name: f"with id {topic_id}" for topic_id in ids if (name := name_of(topic_id))}
        for topic in (*named, *topics):
            said = of_replies(request, session) if topic == REPLIES and not rights.nothing else None
            allowed = rights.allows(need.permission, topic) if said is None else said
            # the client is asked for the secret instead
            by_secret = not allowed and type(request) is SetAccess
            if not allowed or need.permission in AUDITED:
                outcome = ADMITTED if allowed else CHALLENGED if by_secret else FORBIDDEN
                verb = verb_of(type(request))
                self._note(
                    AuditRow(
                        time_ms=now.wall_ms,
                        user=rights.name,
                        address=address,
                        verb=verb,
                        target=shortened(topic),
                        outcome=outcome,
                    )
                )
            if not (allowed or by_secret):
                # ids can be guessed, so the name stays hidden
                shown = topic if topic in topics or rights.sees(topic) else named[topic]
                raise forbidden(rights.name, type(request), need.permission, shown)

    def _note(self, row: AuditRow) -> None:
        """Notes a row for the audit. Refusals have their own bound, because any stranger can cause
        them: they must leave room for changes that were made.
        """
        refused = row.outcome == FORBIDDEN
        if self._refusals >= REFUSALS_MAX if refused else len(self._audit) >= ROWS_MAX:
            self._missed += 1
            return
        self._refusals += refused
        self._audit.append(row)

    def take_audit(self, now: Now) -> list[AuditRow]:
        """Removes and returns the rows noted since the last call."""
        taken = self._audit
        self._audit = []
        self._refusals = 0
        if self._missed:
            taken.append(
                AuditRow(
                    time_ms=now.wall_ms,
                    user="",
                    address="",
                    verb="",
                    target=str(self._missed),
                    outcome="missed",
                )
            )
            self._missed = 0
        return taken

    def may_change(self, rights: Rights | None) -> bool:
        """True if a session may change users without proof that it knows the secret. Raises
        BadRequest in a cluster without a secret.
        """
        if not self._token:
            raise BadRequest(NO_SECRET, hint="start its nodes with --secret-file FILE")
        return rights is not None and rights.allows(CLUSTER)

    def identity(self, rights: Rights | None) -> Identity:
        """The answer to WHO_AM_I."""
        if rights is None:
            return Identity(ANONYMOUS, self.closed)
        return Identity(rights.user, self.closed, list(rights.rules), rights.acting, rights.expires_ms)


def of_replies(request: Message, session: bytes) -> bool | None:
    """Decide a request to the topic of replies. None = the permissions decide.

    True = every client that sends requests may do it, False = it is refused for all. A client reads
    only its own route, which is named after its session. `session` is b"" for a session without a
    key, because other clients could greet as that session.
    """
    if type(request) is Subscribe:
        return bool(session) and not request.group and request.routes == [session.hex()]
    if type(request) is Resolve or (type(request) is CreateTopic and request.if_not_exists):
        return True
    return False if NEEDS[type(request)].permission == READ else None
