"""The one place where a process of a node asks who may do what. Until the cluster is closed it lets
everybody in.

Who greeted has `Rights`, or None: everything. What that depends on is looked up once for each session and
topic."""

from collections.abc import Callable

from gossipq import limits
from gossipq.errors import BadRequest, Forbidden
from gossipq.messages import Entrust, Hello, Identity, SetAccess
from gossipq.permissions import (
    ANONYMOUS,
    CLUSTER,
    MEND,
    NEEDS,
    OPERATE,
    REPLIES,
    WHOLE,
    Rights,
    Users,
    digest,
    forbidden,
    invited,
    of_replies,
    shortened,
    verb_of,
)
from gossipq.types import Now
from gossipq.values import AccessTable, AuditRow, Message
from gossipq.wire import ownership
from gossipq_node.ports import THIS_HOST

READABLE = "a token that crosses a network in the clear can be read there"
USE_PROXY = (
    "connect by a TLS proxy on the node's own host; or --insecure on the node, if that network is yours"
)
NO_SECRET = "a cluster without a secret cannot tell its nodes from its clients: it has no users"

IPC = "ipc://"
AUDITED = (MEND, OPERATE, CLUSTER)  #: permissions whose use is noted
ADMITTED, CHALLENGED, FORBIDDEN = "admitted", "challenged", "forbidden"
ROWS_MAX, REFUSALS_MAX = 256, 128  #: noted in a second by one process, and of what it refused
NameOf = Callable[[int], str]  #: "" = the shard has no such topic


class Guard:
    def __init__(self, table: AccessTable, token: bytes, bind: str, clear_tokens: bool = False) -> None:
        """`token`: what the nodes of the cluster know. Where clients come by a file (`bind`), which its owner
        alone can open, everybody may do everything. `clear_tokens`: other hosts may show theirs."""
        self._token, self._clear_tokens = token, clear_tokens
        self._audit = list[AuditRow]()
        self._missed = self._refusals = 0  # that were not noted; of those that were
        self._enforces = not bind.startswith(IPC)
        self.users = Users(table)

    @property
    def closed(self) -> bool:
        return self._enforces and self.users.closed

    def learn(self, table: AccessTable) -> bool:
        """Whether that was newer."""
        if table.version <= self.users.version:
            return False
        self.users = Users(table)
        return True

    def greet(self, hello: Hello, address: str, now: Now, encrypted: bool = False) -> Rights | None:
        """What who says this may do; `encrypted`: nobody on the way can read it. Raises Forbidden."""
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
            self._note(AuditRow(now.wall_ms, hello.user, address, verb_of(Hello), WHOLE, FORBIDDEN))
            raise

    def _login(self, hello: Hello, address: str, now: Now, encrypted: bool) -> Rights:
        if hello.auth and not (encrypted or address == THIS_HOST or self._clear_tokens):
            raise Forbidden(READABLE, hint=USE_PROXY)
        return self.users.login(hello.auth, hello.user, now.wall_ms)

    def check_invited(self, asked: Entrust, encrypted: bool, now: Now) -> None:
        """Raises Forbidden for who may not hear the secret of the cluster: that is who has joined by its
        invitation, while that is good."""
        shown = digest(asked.invite)
        invite = invited(self.users.table, shown, asked.copy, now.wall_ms)
        if not encrypted or invite is None or not invite.copy:
            self._note(AuditRow(now.wall_ms, "", "", verb_of(Entrust), WHOLE, FORBIDDEN))
            raise Forbidden("no node has joined by that invitation", hint="gossipq cluster invite")

    def is_node(self, key: bytes) -> bool:
        """Whether who has the key of its session knows the secret."""
        return bool(self._token and key) and ownership.is_of_node(self._token, key)

    def again(self, shown: bytes, acts_for: str, now: Now) -> Rights | None:
        """The same for who greeted earlier, by the digest of its token. Raises Forbidden."""
        return self.users.rights(shown, acts_for, now.wall_ms) if self.closed else None

    def check(
        self, rights: Rights, request: Message, name_of: NameOf, address: str, now: Now, session: bytes = b""
    ) -> None:
        """Raises Forbidden. `name_of`: a topic of the shard, by its id; `session`: of who asks, if it has
        the key of it."""
        need = NEEDS.get(type(request))
        if need is None or not need.permission:
            return  # no request at all, or free
        ids, topics = need.targets(request)
        # of what the shard does not know it says itself that there is none
        named = {name: f"with id {topic_id}" for topic_id in ids if (name := name_of(topic_id))}
        for topic in (*named, *topics):
            said = of_replies(request, session) if topic == REPLIES and not rights.nothing else None
            allowed = rights.allows(need.permission, topic) if said is None else said
            by_secret = not allowed and type(request) is SetAccess  # it is asked for that instead
            if not allowed or need.permission in AUDITED:
                outcome = ADMITTED if allowed else CHALLENGED if by_secret else FORBIDDEN
                verb = verb_of(type(request))
                self._note(AuditRow(now.wall_ms, rights.name, address, verb, shortened(topic), outcome))
            if not (allowed or by_secret):
                shown = topic if topic in topics or rights.sees(topic) else named[topic]  # ids can be guessed
                raise forbidden(rights.name, type(request), need.permission, shown)

    def _note(self, row: AuditRow) -> None:
        """What is refused leaves room for what was done: anybody can be refused."""
        refused = row.outcome == FORBIDDEN
        if self._refusals >= REFUSALS_MAX if refused else len(self._audit) >= ROWS_MAX:
            self._missed += 1
            return
        self._refusals += refused
        self._audit.append(row)

    def take_audit(self, now: Now) -> list[AuditRow]:
        """What was noted since the last time."""
        taken, self._audit, self._refusals = self._audit, [], 0
        if self._missed:
            taken.append(AuditRow(now.wall_ms, "", "", "", str(self._missed), "missed"))
            self._missed = 0
        return taken

    def may_change(self, rights: Rights | None) -> bool:
        """Whether a session may change users without showing that it knows the secret. Raises BadRequest
        where there is none."""
        if not self._token:
            raise BadRequest(NO_SECRET, hint="start its nodes with --secret-file FILE")
        return rights is not None and rights.allows(CLUSTER)

    def identity(self, rights: Rights | None) -> Identity:
        """The answer to WHO_AM_I."""
        if rights is None:
            return Identity(ANONYMOUS, self.closed)
        return Identity(rights.user, self.closed, list(rights.rules), rights.acting, rights.expires_ms)
