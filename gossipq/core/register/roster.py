"""The roster of the cluster: nodes, options, users. Kept by the leader of the meta shard.

A node enters it by JOIN, and sends JOIN again when its row is outdated. Rows are MEMBER entries, so
every node that applies the meta shard's log has them. Names and addresses are unique: a member that
is alive keeps its own; those of a silent member can be taken over.

A copy is named by its node id and its directory id. So a wiped or cloned directory is another
voter.
"""

from functools import partial

import msgspec

from gossipq import limits, permissions
from gossipq.core.desk import NOBODY, Asker, Desk, Request
from gossipq.core.ledger import ClusterState, Outcome
from gossipq.core.raft import Replica
from gossipq.core.register.members import check_member
from gossipq.core.storage import ShardSettings, log, payloads
from gossipq.errors import BadRequest, Busy, ConfigError, Forbidden, NotAdmitted, WrongState
from gossipq.messages import Access, AskAccess, AskMembers, Join, Members, SetAccess, SetMember, SetOptions
from gossipq.types import Index
from gossipq.values import AccessChange, AccessTable, Member, Message

FEATURES = 1  #: feature level of the cluster: a node with a lower one cannot read its log
LIVING_MS = 5 * limits.SECOND_MS  #: a node heard within this time is alive
AGAIN_MS = 50
OPTION_BYTES_MAX = 64 * limits.KIB  #: of one option as text
#: of users and roles, which are sent in one answer
ACCESS_BYTES_MAX = 3 * limits.CONTROL_BYTES_MAX // 4


class Roster:
    def __init__(self, desk: Desk, cluster: ClusterState, replica: Replica, settings: ShardSettings) -> None:
        self._desk = desk
        self._cluster = cluster
        self._replica = replica
        self._settings = settings
        self._changing = False  # a change is not applied yet
        # each row, and since when this leader has seen it unchanged
        self._rows: dict[str, tuple[Member, int]] = {}
        # by copy: its address, and since when it has that
        self._places: dict[str, tuple[str, int]] = {}
        self._look_ms: int | None = None
        self._led_ms = 0  # start of this shard's leadership
        self._accessing = False  # a change of users or roles is not applied yet
        # options of the log were compared with this node's, in this leadership
        self._compared = False

    def lead(self) -> None:
        """This shard leads now."""
        self._compared, self._led_ms = not self._settings.options, self._replica.now_ms
        self._begins_closed()
        self._look()

    @property
    def options(self) -> dict[str, str]:
        """The options of [cluster]: as logged, or this node's until a leader has logged them."""
        return self._cluster.options or self._settings.options

    @property
    def _replace_ms(self) -> int:
        """replace_ms as logged. An operator set it, so it can be invalid; then this node's value
        holds.
        """
        try:
            return msgspec.json.decode(self._cluster.options["cluster.replace_ms"], type=int)
        except (KeyError, msgspec.DecodeError):
            return self._settings.replace_ms

    def _look(self) -> None:
        now_ms, rows = self._replica.now_ms, self._rows
        self._rows = {
            copy: rows[copy] if copy in rows and rows[copy][0] == member else (member, now_ms)
            for copy, member in self._cluster.members.items()
        }
        places = self._places
        self._places = {
            copy: places[copy] if places.get(copy, ("",))[0] == member.endpoint else (member.endpoint, now_ms)
            for copy, member in self._cluster.members.items()
        }
        self._look_ms = now_ms + limits.SECOND_MS if len(self._rows) > 1 or not self._compared else None

    # --- requests -------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Serve a request. Raises Refused."""
        message: Message = request.message
        if isinstance(message, AskMembers):
            self._answer(request)
            return
        if isinstance(message, AskAccess):
            self._desk.reply(request, Access(self._cluster.access))
            return
        if isinstance(message, SetAccess):
            self._set_access(message.change, request)
            return
        if self._changing:
            raise Busy("the roster is being changed", retry_after_ms=AGAIN_MS)
        if isinstance(message, Join):
            shown = self._invited(message)
            member = self._joining(message)
            known = self._cluster.members.get(member.copy) == member
            change = None if known else payloads.RosterChange(member, invite=shown)
        elif isinstance(message, SetOptions):
            self._set_options(self._checked(message.options), request)
            return
        else:
            assert isinstance(message, SetMember)
            change = self._setting(message)
        if change is None:
            self._answer(request, isinstance(message, Join))
        else:
            self._propose(change, request, isinstance(message, Join))

    def _answer(self, asker: Asker, joins: bool = False) -> None:
        """Answer with the roster. A joining node also gets users and roles before it serves
        clients.
        """
        access = self._cluster.access if joins else None
        members = sorted(self._cluster.members.values(), key=lambda member: member.name)
        version, name = self._cluster.roster_version, self._settings.cluster_name
        self._desk.reply(asker, Members(version, members, name, self.options, access))

    def _checked(self, asked: dict[str, str]) -> dict[str, str]:
        """Return all options, including the requested ones."""
        options = self.options
        for key, text in asked.items():
            if key in limits.OPTIONS_FOUNDED:
                raise WrongState(
                    f"{key} is settled when a cluster is founded",
                    hint="it stays as it is; another cluster, founded with it, may have it otherwise",
                )
            if key not in options:
                raise BadRequest(f"{key} is no option of the cluster", hint="gossipq cluster config show")
            if len(text) > OPTION_BYTES_MAX:
                raise BadRequest(f"{key} has {len(text)} bytes; at most {OPTION_BYTES_MAX}")
        try:
            self._settings.check_options(asked)
        except ConfigError as error:
            raise BadRequest(error.message, hint=error.hint) from None
        return options | asked

    def _set_options(self, options: dict[str, str], asker: Asker = NOBODY) -> None:
        self._changing = True
        index = self._desk.propose(log.OPTIONS, payloads.encode(payloads.Options(options)))
        self._desk.pending.add(index, self._changed, asker)

    # --- users ----------------------------------------------------------------------------------------------

    def _set_access(self, asked: AccessChange, asker: Asker) -> None:
        """Change users and roles. Raises Refused: the table is invalid, or would lock everybody
        out.
        """
        mine = self._cluster.access
        if self._accessing or self._early_users or asked.version not in (0, mine.version):
            raise Busy("users or roles were changed at the same moment", retry_after_ms=AGAIN_MS)
        table = permissions.changed(mine, asked)
        permissions.check_table(table)
        size = len(payloads.encode(table))
        if size > ACCESS_BYTES_MAX and size > len(payloads.encode(mine)):
            raise BadRequest(
                f"a table of users and roles of {size} bytes; at most {ACCESS_BYTES_MAX} fit an answer",
                hint="remove tokens that nobody uses, and give users roles in common: gossipq user ls",
            )
        if table.closed and not permissions.Users(table).lets_in():
            raise WrongState(
                "nobody who has a token could change users any more",
                hint="gossipq user add NAME --role admin; gossipq user role grant admin '*' cluster",
            )
        self._propose_access(msgspec.structs.replace(asked, version=mine.version), asker)

    def _propose_access(self, change: AccessChange, asker: Asker = NOBODY) -> None:
        """Only one change at a time, because the first table has no version to compare."""
        self._accessing = True
        index = self._desk.propose(log.ACCESS, payloads.encode(payloads.NewAccess(change)))
        self._desk.pending.add(index, self._accessed, asker)

    def _accessed(self, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._accessing = False
        if asker.origin:
            self._desk.answer(asker, outcome, Access(self._cluster.access))

    @property
    def _early_users(self) -> bool:
        """True if users were created before the cluster, and are not in its log yet."""
        told = self._settings.access
        return told != AccessTable() and not (told.version or self._cluster.access.version)

    def _begins_closed(self) -> bool:
        """True while those users are being logged. Other changes of users wait."""
        told = self._settings.access
        if not self._early_users:
            return False
        if not self._accessing:
            self._propose_access(
                AccessChange(told.users, told.roles, closed=told.closed, invites=told.invites)
            )
        return True

    # --- changing -------------------------------------------------------------------------------------------

    def _propose(
        self,
        change: payloads.RosterChange,
        asker: Asker = NOBODY,
        joins: bool = False,
    ) -> None:
        self._changing = True
        index = self._desk.propose(log.MEMBER, payloads.encode(change))
        self._desk.pending.add(index, partial(self._changed, joins=joins), asker)

    def _changed(self, asker: Asker, index: Index, outcome: Outcome, joins: bool = False) -> None:
        self._changing = False
        if asker.origin and outcome.error:
            self._desk.answer(asker, outcome, Members(0, []))
        elif asker.origin:
            self._answer(asker, joins)

    def _invited(self, message: Join) -> bytes:
        """Return the digest of a node's invitation; b"" if it proved that it knows the secret.

        Raises Forbidden.
        """
        if not message.invite:
            return b""
        shown, copy = permissions.digest(message.invite), message.member.copy
        found = permissions.invited(self._cluster.access, shown, copy, self._desk.leader_ms)
        if found is None or (copy in self._cluster.members and found.copy != copy):
            raise Forbidden(
                f"the invitation of {message.member.name} is not good: it was used, or has expired",
                hint="ask for another one: gossipq cluster invite",
            )
        return b"" if found.copy else shown

    def _joining(self, message: Join) -> Member:
        """Return the row for a joining node."""
        member, settings, members = message.member, self._settings, self._cluster.members
        check_member(member)
        if settings.standalone and member.copy != self._replica.me:
            raise BadRequest(
                "this node is standalone: no other node can join it",
                hint="start it without --mode standalone",
            )
        if settings.cluster and message.cluster not in (b"", settings.cluster):
            mine, its = settings.cluster.hex(), message.cluster.hex()
            raise BadRequest(
                f"{member.name} belongs to cluster {its}, this is {mine}", hint="use an empty data directory"
            )
        for key, text in message.options.items():
            mine = self.options.get(key, text)
            if mine != text:
                raise NotAdmitted(
                    f"{key} = {text} on {member.name}, and {mine} in this cluster",
                    hint=(
                        f"write {mine} there, or leave it out; to change it for all: gossipq cluster config "
                        f"set {key}={text}"
                    ),
                )
        if member.features < FEATURES:
            raise NotAdmitted(
                f"gossipq {member.version} on {member.name} is too old for this cluster", hint="upgrade it"
            )
        if self._cluster.was_member(member.copy):
            raise NotAdmitted(
                f"{member.name} was taken off this cluster", hint="start it with an empty data directory"
            )
        known = members.get(member.copy)
        if known is not None and known.witness != member.witness:
            kind = "a witness" if known.witness else "a full node"
            raise BadRequest(
                f"{member.name} was {kind}",
                hint="a full node and a witness cannot share a data directory: use a new one",
            )
        self._check_place(known, member)
        if known is None and len(members) >= limits.MEMBERS_MAX:
            raise BadRequest(
                f"the cluster has {limits.MEMBERS_MAX} nodes, and may not have more",
                hint="remove one: gossipq cluster rm NAME",
            )
        if self._replica.me not in (*members, member.copy):
            # otherwise it would lose all shards
            raise Busy("this node is not in its own roster yet", retry_after_ms=AGAIN_MS)
        state = known.state if known is not None and known.state == "leaving" else "in"
        return msgspec.structs.replace(member, state=state)

    def _check_place(self, known: Member | None, member: Member) -> None:
        """Raise WrongState if another living node is this member, BadRequest if it has its name or
        address.
        """
        if known is not None and known.endpoint != member.endpoint and self._stays(known, member):
            raise WrongState(
                f"node {known.name} is already running at {known.endpoint}, not {member.endpoint}",
                hint="if one of them runs on a copy of the other's data directory, stop that one",
            )
        for other in self._cluster.members.values():
            if other.copy != member.copy and self._lives(other.copy):
                if other.name == member.name:
                    raise BadRequest(
                        f"a node named {other.name} is there, at {other.endpoint}",
                        hint="choose another --name",
                    )
                if other.endpoint == member.endpoint:
                    raise BadRequest(
                        f"{other.endpoint} is the address of {other.name}", hint="choose another --bind"
                    )

    def _stays(self, known: Member, member: Member) -> bool:
        """True if the member still answers at its known address.

        Then a node with the same identity at another address runs on a copy of its data directory.
        """
        if member.copy == self._replica.me:
            return self._settings.endpoint not in ("", member.endpoint)
        if known.state == "lost" or not self._lives(member.copy):
            return False
        since_ms, other = self._places[member.copy][1], self._replica.progress.get(member.copy)
        # its address is older than this leadership, which may not have heard it yet
        was_there = since_ms <= self._led_ms
        return was_there or (other is not None and other.heard_ms > since_ms)

    def _setting(self, message: SetMember) -> payloads.RosterChange | None:
        members = self._cluster.members
        found = [member for member in members.values() if member.name == message.name]
        if not found and message.state == "gone" and message.name in self._cluster.taken_off:
            return None  # the answer was lost, and the client repeats the request
        if not found:
            raise BadRequest(f"no node is named {message.name}", hint="gossipq cluster ls")
        if message.state not in ("in", "leaving", "gone"):
            raise BadRequest(f"state = {message.state!r}", hint='one of "in", "leaving", "gone"')
        (member,) = found
        if message.state == member.state:
            return None
        stays = [m for m in members.values() if m.copy != member.copy and m.state == "in" and not m.witness]
        if message.state != "in" and not stays:
            raise WrongState(
                f"{member.name} is the last node that keeps records", hint="let another one join first"
            )
        gone = message.state == "gone"
        if gone and member.copy == self._replica.me:
            raise WrongState(
                f"{member.name} still leads", hint=f"gossipq cluster drain {member.name}, and ask again then"
            )
        if gone and member.state == "in" and self._runs(member):
            raise WrongState(f"{member.name} is running", hint=f"gossipq cluster drain {member.name} first")
        if gone and member.copy in self._replica.config.voters and self._runs(member):
            raise WrongState(
                f"{member.name} is being drained, and is still a voter",
                hint=f"gossipq cluster drain {member.name} --wait 10m, and ask again then; or stop it",
            )
        return payloads.RosterChange(
            member if gone else msgspec.structs.replace(member, state=message.state), gone
        )

    # --- what follows ---------------------------------------------------------------------------------------

    def applied(self) -> None:
        """A MEMBER is committed."""
        self._look()

    # --- who lives ------------------------------------------------------------------------------------------

    def _silent_ms(self, copy: str) -> int:
        """Time since the node's copy of this shard answered, or since its row last changed."""
        if copy == self._replica.me:
            return 0
        other, row = self._replica.progress.get(copy), self._rows.get(copy)
        return self._replica.now_ms - max(other.heard_ms if other else 0, row[1] if row else 0)

    def _came_back(self, copy: str) -> bool:
        """True if it was heard since its row last changed."""
        other = self._replica.progress.get(copy)
        return copy == self._replica.me or (other is not None and other.heard_ms > self._rows[copy][1])

    def _lives(self, copy: str) -> bool:
        return self._silent_ms(copy) < LIVING_MS

    def _runs(self, member: Member) -> bool:
        """True if the node is running. Raises Busy while this leader cannot know that yet."""
        other, lives = self._replica.progress.get(member.copy), self._lives(member.copy)
        if lives and (other is None or other.heard_ms <= self._led_ms):
            text = f"whether {member.name} runs is known in a few seconds"
            raise Busy(text, retry_after_ms=AGAIN_MS)
        return lives

    def next_deadline(self) -> int | None:
        return self._look_ms

    def tick(self) -> None:
        """Mark members lost that are silent too long, and mark them "in" when they are heard
        again.
        """
        if self._look_ms is None or self._desk.boot_ms < self._look_ms:
            return
        self._look()
        if self._changing:
            return
        if not self._compared:
            if self._begins_closed():
                return
            self._compared = True
            if not self._cluster.options or (
                len(self._rows) <= 1 and self._cluster.options != self._settings.options
            ):
                # in a cluster of one node its file decides
                self._set_options(self._settings.options)
                return
        for member in self._cluster.members.values():
            silent_ms = self._silent_ms(member.copy)
            state = member.state
            if state == "in" and silent_ms >= self._replace_ms:
                state = "lost"
                self._desk.warn(
                    f"{member.name} is silent for {silent_ms // 1_000} s: its copies are rebuilt elsewhere"
                )
            elif state == "lost" and self._came_back(member.copy):
                state = "in"
            if state != member.state:
                self._propose(payloads.RosterChange(msgspec.structs.replace(member, state=state)))
                return
