"""The door of a process: charges, checks and answers the requests of clients, in workers and frontdoors."""

from gossipq.messages import Challenge, Entrust, Entrusted, Hello, Join, SetAccess, SetMember, SetOptions
from gossipq.permissions import Rights
from gossipq.rates import Rates
from gossipq.types import NODE_SHARD, Now, Origin
from gossipq.values import Message
from gossipq.verbs import SETTLES
from gossipq.wire.frames import Header, encode
from gossipq_node.actors.guard import Guard
from gossipq_node.actors.prover import Prover
from gossipq_node.ports import Incoming, Mailbox
from gossipq_node.settings import FrontdoorSettings, WorkerSettings

SETTLING = frozenset(each.verb for each in SETTLES)
READ_ON_THE_WAY = "a secret is only sent over an encrypted connection"


class Door:
    def __init__(self, settings: WorkerSettings | FrontdoorSettings, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._secret = settings.secret if isinstance(settings, WorkerSettings) else b""
        self._prover = Prover(settings.member.copy, settings.token)
        self.guard = Guard(settings.access, settings.token, settings.clients_bind, settings.clear_tokens)
        self._by_address = Rates(settings.quota)
        self._by_user = Rates(settings.quota, "user")

    @property
    def over_quota(self) -> int:
        """Number of requests above a rate."""
        return self._by_address.refused + self._by_user.refused

    # --- before a request is served -------------------------------------------------------------------------

    def charge(self, message: Incoming, verb: int, address: str, rights: Rights | None, now: Now) -> None:
        """Charge a message to its address and its user. Raises Busy."""
        size = len(message.control) + len(message.batch)
        settles = verb in SETTLING
        self._by_address.check(address, size, now.boot_ms, settles)
        if rights is not None:
            self._by_user.check(rights.user, size, now.boot_ms, settles)

    def greet(self, origin: Origin, hello: Hello, now: Now) -> Rights | None:
        """Return the rights of a client; None stands for all. Raises Forbidden, BadRequest."""
        mailbox = self._mailbox
        return self.guard.greet(hello, mailbox.address(origin), now, mailbox.encrypted(origin))

    def challenge(self, origin: Origin, rights: Rights | None, request: Message) -> Challenge | None:
        """Return the question for a sender that must prove that it knows the secret, or None."""
        if not isinstance(request, Join | SetMember | SetOptions | SetAccess):
            return None
        if isinstance(request, SetAccess) and self.guard.may_change(rights):
            return None
        if not isinstance(request, Join):
            return self._prover.asked(origin, request)
        if request.invite and self._mailbox.encrypted(origin):
            return None  # the meta shard knows whether the invitation is valid
        return self._prover.asked(origin, request, request.member.copy, request.nonce)

    def entrust(self, origin: Origin, request: Entrust, now: Now) -> Entrusted:
        """Return the cluster's secret for an invited node. Raises Forbidden."""
        self.guard.check_invited(request, self._mailbox.encrypted(origin), now)
        return Entrusted(self._secret)

    # --- answers --------------------------------------------------------------------------------------------

    def answer(self, origin: Origin, header: Header | None, reply: Message) -> None:
        shard, request_id = (header.shard, header.request_id) if header else (NODE_SHARD, 0)
        self._mailbox.reply(origin, encode(reply, shard, request_id))
