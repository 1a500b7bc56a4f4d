"""Permissions: a user has roles, a role has rules, a rule grants permissions on topics by pattern.

A cluster is open until an operator closes it. Then each request needs the permission that
`gossipq.verbs` lists for its verb. A client is the user whose token it sends. Without a token it is
ANONYMOUS and has the roles of the user of that name. Nodes prove that they know the cluster's
secret and may do everything. This module is pure.
"""

import hashlib
import re
from collections.abc import Iterable

from gossipq import limits
from gossipq.errors import BadName, BadRequest, Forbidden
from gossipq.messages import Hello
from gossipq.types import SCHEMAS_TOPIC
from gossipq.values import AccessChange, AccessTable, Invite, Message, Role, Rule, User

READ, PUBLISH, CREATE, MEND, OPERATE, CLUSTER, OBSERVE, ACT_FOR = PERMISSIONS = (
    "read",
    "publish",
    "create",
    "mend",
    "operate",
    "cluster",
    "observe",
    "act_for",
)
#: the role with all permissions
ADMIN = Role("admin", [Rule(topics, list(PERMISSIONS)) for topics in ("*", "_*")])
ANY = "any"  #: in a Need: any one permission on the topic is enough
EVERYTHING = "*"  #: the pattern that also covers the cluster as a whole
WHOLE = ""  #: stands for the cluster as a whole in place of a topic
REPLIES = "_replies"  #: the topic for replies to requests
SYSTEM = "_"  #: prefix of topics that only nodes write
#: system topics that clients may write: replies, and declarations of schemas
OPEN_TO_CLIENTS = frozenset((REPLIES, SCHEMAS_TOPIC))
ANONYMOUS = "anonymous"  #: the user of clients without a token
TOKEN_BYTES = 32
USERS_MAX, ROLES_MAX, INVITES_MAX = 1_000, 200, 200
RULES_MAX, ROLES_OF_USER_MAX, TOKENS_MAX = 64, 32, 8
CACHED_MAX = 4_096  #: answers cached for one session
SHOW_CREDENTIALS = (
    "show yours: --credentials FILE or $GOSSIPQ_CREDENTIALS; `gossipq user whoami` says who you are"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*\Z")
_PATTERN = re.compile(r"[A-Za-z0-9._*-]+\Z")


def verb_of(kind: type[Message]) -> str:
    """Return the name of a message as in PROTOCOL.md, such as ACK_DELIVERED."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).upper()


def require_writer(topic: str, node: bool) -> None:
    """Raise BadRequest if a client (`node` is False) writes or creates a system topic.

    Names of system topics begin with `_`.
    """
    if topic.startswith(SYSTEM) and topic not in OPEN_TO_CLIENTS and not node:
        raise BadRequest(f"{topic} is written by nodes only", hint="names that begin with _ are theirs")


def covers(pattern: str, topic: str) -> bool:
    """True if a rule with this pattern applies to the topic, or to the cluster as a whole.

    A leading `*` does not match names that begin with `_`: rules must name these topics.
    """
    if topic == WHOLE or pattern == EVERYTHING:
        return pattern == EVERYTHING and not topic.startswith("_")
    if topic.startswith("_") and not pattern.startswith("_"):
        return False
    first, *rest = pattern.split("*")
    if not rest:
        return topic == pattern
    *middle, last = rest
    at, end = len(first), len(topic) - len(last)
    if at > end or not (topic.startswith(first) and topic.endswith(last)):
        return False
    for part in middle:  # leftmost match of each part: any other leaves less room for the rest
        if (at := topic.find(part, at, end)) < 0:
            return False
        at += len(part)
    return True


def digest(token: bytes) -> bytes:
    """Return the stored form of a token. Tokens are random, so they need no salt and no slow
    hash.
    """
    return hashlib.sha256(token).digest()


class Rights:
    """The permissions of one user at one version of the table. Answers are cached."""

    def __init__(self, user: str, rules: Iterable[Rule], acting: str = "", expires_ms: int = 0) -> None:
        self.user = user
        self.acting = acting  #: the user whose token was sent, if it acts for another user
        self.expires_ms = expires_ms  #: in unix milliseconds; 0 = never
        self.rules = tuple(rules)
        self._known: dict[tuple[str, str], bool] = {}

    @property
    def name(self) -> str:
        """Name for messages and the audit."""
        return f"{self.user} by {self.acting}" if self.acting else self.user

    @property
    def nothing(self) -> bool:
        """True if the user has no permission at all."""
        return not any(rule.permissions for rule in self.rules)

    def allows(self, permission: str, topic: str = WHOLE) -> bool:
        asked = permission, topic
        known = self._known.get(asked)
        if known is None:
            known = self.rule_for(permission, topic) is not None
            if len(topic) > limits.NAME_BYTES_MAX:  # longer than any topic name
                return known
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            self._known[asked] = known
        return known

    def rule_for(self, permission: str, topic: str = WHOLE) -> Rule | None:
        """Return the first rule that grants it, or None."""
        for rule in self.rules:
            granted = bool(rule.permissions) if permission == ANY else permission in rule.permissions
            if granted and covers(rule.topics, topic):
                return rule
        return None

    def sees(self, topic: str) -> bool:
        """True if lists contain the topic for this user."""
        return self.allows(ANY, topic)

    def require(self, kind: type[Message], permission: str, topic: str) -> None:
        """Raise Forbidden, naming the verb and the topic, without this permission."""
        if not self.allows(permission, topic):
            raise forbidden(self.name, kind, permission, topic)

    def within(self, other: "Rights | None") -> bool:
        """True if `other` may do everything that this user may."""
        return other is None or (self.user == other.user and all(rule in other.rules for rule in self.rules))


def shortened(name: str) -> str:
    """Return the name of a user or topic, cut to the maximum length of a name."""
    return name[: limits.NAME_BYTES_MAX]


def forbidden(user: str, kind: type[Message], permission: str, topic: str) -> Forbidden:
    user, topic = shortened(user), shortened(topic)
    on = f"topic {topic}" if topic else "the cluster"
    wanted = "a permission" if permission == ANY else f"the permission {permission}"
    return Forbidden(
        f"{verb_of(kind)} on {on} needs {wanted}, which {user} does not have",
        hint=SHOW_CREDENTIALS if user == ANONYMOUS else "`gossipq user whoami` shows what you may do",
    )


class Users:
    """The table of users and roles as one process knows it."""

    def __init__(self, table: AccessTable) -> None:
        self.table = table
        self.version = table.version
        self.closed = table.closed
        self._users = {user.name: user for user in table.users}
        self._roles = {role.name: role for role in table.roles}
        self._tokens = {
            token.digest: (user.name, token.expires_ms) for user in table.users for token in user.tokens
        }

    def login(self, token: bytes, acts_for: str, now_ms: int) -> Rights:
        """Return the rights of the token's user. Raises Forbidden if the token is unknown or
        expired.
        """
        return self.rights(digest(token) if token else b"", acts_for, now_ms)

    def rights(self, shown: bytes, acts_for: str, now_ms: int) -> Rights:
        """Like `login`, with the digest of the token; b"" = no token was sent. Raises Forbidden."""
        name, expires_ms = self._tokens.get(shown, ("", 0)) if shown else (ANONYMOUS, 0)
        if not name:
            raise Forbidden(
                "no user has the token that was shown", hint="ask for one: gossipq user rotate NAME"
            )
        if expires_ms and expires_ms <= now_ms:
            raise Forbidden(f"the token of {name} has expired", hint=f"gossipq user rotate {name}")
        own = Rights(name, self.rules_of(name), expires_ms=expires_ms)
        if not acts_for or acts_for == name:
            return own
        if acts_for not in self._users or not own.allows(ACT_FOR):
            raise forbidden(name, Hello, ACT_FOR, WHOLE)
        return Rights(acts_for, self.rules_of(acts_for), name, expires_ms)

    def rules_of(self, user: str) -> list[Rule]:
        known = self._users.get(user)
        names = known.roles if known is not None else []
        return [rule for name in names if name in self._roles for rule in self._roles[name].rules]

    def lets_in(self) -> bool:
        """True if some user with a token may change this table."""
        return any(
            user.tokens and Rights(user.name, self.rules_of(user.name)).allows(CLUSTER)
            for user in self.table.users
        )


def changed(table: AccessTable, asked: AccessChange) -> AccessTable:
    """Return the table after a change.

    It accepts every table without an error, so all copies compute the same result.
    """
    users = {user.name: user for user in (*table.users, *asked.users)}
    roles = {role.name: role for role in (*table.roles, *asked.roles)}
    for name in asked.users_gone:
        users.pop(name, None)
    for name in asked.roles_gone:
        roles.pop(name, None)
    invites = {invite.digest: invite for invite in (*table.invites, *asked.invites)}
    for digest_gone in asked.invites_gone:
        invites.pop(digest_gone, None)
    closed = table.closed if asked.closed is None else asked.closed
    return AccessTable(
        table.version,
        closed,
        [users[name] for name in sorted(users)],
        [roles[name] for name in sorted(roles)],
        [invites[digest] for digest in sorted(invites)],
    )


def invited(table: AccessTable, shown: bytes, copy: str, now_ms: int) -> Invite | None:
    """Return the invitation with which a copy may join now, or None.

    `shown` is the digest of its token. A copy may use an invitation again that it has joined with.
    """
    for invite in table.invites:
        if invite.digest == shown:
            return invite if invite.expires_ms > now_ms and invite.copy in ("", copy) else None
    return None


def joined(table: AccessTable, shown: bytes, copy: str) -> AccessTable | None:
    """Return the table after a copy joined by an invitation.

    None if another copy has used the invitation, or if it does not exist.
    """
    invite = invited(table, shown, copy, -1)
    if invite is None:
        return None
    return changed(table, AccessChange(invites=[Invite(invite.digest, invite.expires_ms, copy)]))


def check_table(table: AccessTable) -> None:
    """Check a table of users. Raises BadName, BadRequest."""
    _bound_of("users", len(table.users), USERS_MAX)
    _bound_of("roles", len(table.roles), ROLES_MAX)
    _bound_of("invitations", len(table.invites), INVITES_MAX)
    for invite in table.invites:
        if len(invite.digest) != hashlib.sha256().digest_size or invite.expires_ms <= 0:
            raise BadRequest("an invitation is not as SHA-256 gives it, or never expires")
    known = {role.name for role in table.roles}
    for role in table.roles:
        _check_name("role", role.name)
        _bound_of(f"rules of role {role.name}", len(role.rules), RULES_MAX)
        for rule in role.rules:
            _check_rule(rule)
    for user in table.users:
        _check_user(user, known)


def _check_user(user: User, roles: set[str]) -> None:
    _check_name("user", user.name)
    _bound_of(f"roles of {user.name}", len(user.roles), ROLES_OF_USER_MAX)
    _bound_of(f"tokens of {user.name}", len(user.tokens), TOKENS_MAX)
    if unknown := [name for name in user.roles if name not in roles]:
        raise BadRequest(f"no role {unknown[0]}, which {user.name} has", hint="gossipq user role ls")
    if user.name == ANONYMOUS and user.tokens:
        raise BadRequest(
            f"the name {ANONYMOUS} is reserved for clients without a token", hint="choose another name"
        )
    for token in user.tokens:
        if len(token.digest) != hashlib.sha256().digest_size or token.expires_ms < 0:
            raise BadRequest(f"a token of {user.name} is not as SHA-256 gives it")


def _check_rule(rule: Rule) -> None:
    if not _PATTERN.match(rule.topics) or len(rule.topics) > limits.NAME_BYTES_MAX:
        raise BadName(f"pattern {rule.topics!r}", hint="a topic name, with * for any characters")
    for permission in rule.permissions:
        if permission not in PERMISSIONS:
            raise BadRequest(f"permission {permission!r}", hint=f"one of {', '.join(PERMISSIONS)}")


def _check_name(what: str, name: str) -> None:
    if not _NAME.match(name) or len(name) > limits.NAME_BYTES_MAX:
        raise BadName(
            f"the name of a {what} is {name!r}", hint="letters, digits, and . _ @ - after the first one"
        )


def _bound_of(what: str, count: int, most: int) -> None:
    if count > most:
        raise BadRequest(f"{count} {what}; {most} are allowed")


def user_of(table: AccessTable, name: str) -> User | None:
    return next((user for user in table.users if user.name == name), None)


def role_of(table: AccessTable, name: str) -> Role | None:
    return next((role for role in table.roles if role.name == name), None)
