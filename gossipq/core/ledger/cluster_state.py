"""The state of the cluster, which the meta shard keeps: topics by name, the roster, options, users."""

from collections import deque

import msgspec

from gossipq import limits, permissions
from gossipq.core.ledger import records
from gossipq.core.ledger.outcomes import DONE, Outcome, TopicChanged, refused
from gossipq.core.ledger.owned import Owned
from gossipq.core.ledger.records import Installing
from gossipq.core.storage import Entry, Table, payloads
from gossipq.rates import Payer
from gossipq.types import Index
from gossipq.values import AccessTable, Member, TopicInfo

_decode_topic = msgspec.msgpack.Decoder(TopicInfo).decode
_decode_member = msgspec.msgpack.Decoder(Member).decode
_decode_installing = msgspec.msgpack.Decoder(Installing).decode
_decode_owners = msgspec.msgpack.Decoder(tuple[Payer, ...]).decode


class ClusterState:
    def __init__(self, state: Table, owned: Owned) -> None:
        self._state, self.owned = state, owned
        self.names: dict[str, TopicInfo] = {}  #: topics
        self.ids: dict[int, str] = {}  #: their names by id
        self.owners: dict[int, tuple[Payer, ...]] = {}  #: by topic id
        #: by topic id: versions that some shard may not have logged yet
        self.installing: dict[int, Installing] = {}
        self.members: dict[str, Member] = {}  #: the roster by name of the copy
        self.roster_version: Index = 0  #: entry that changed the roster last
        #: names that were removed from the roster since this copy was opened
        self.taken_off: deque[str] = deque(maxlen=limits.MEMBERS_MAX)
        #: options of [cluster]: dotted key -> JSON text; empty until a leader has logged them
        self.options: dict[str, str] = {}
        self.access = AccessTable()  #: users and roles
        self._load()

    def _load(self) -> None:
        if (options := self._state.get(records.OPTIONS)) is not None:
            self.options = msgspec.msgpack.decode(options, type=dict[str, str])
        if (access := self._state.get(records.ACCESS)) is not None:
            self.access = msgspec.msgpack.decode(access, type=AccessTable)
        for _, row in self._state.scan(b"N", records.after(b"N")):
            info = _decode_topic(row)
            self.names[info.name], self.ids[info.id] = info, info.name
        for row_key, row in self._state.scan(b"t", records.after(b"t")):
            topic_id = records.U64.unpack_from(row_key, 1)[0]
            self._own(self.names[self.ids[topic_id]], _decode_owners(row))
        for row_key, row in self._state.scan(b"X", records.after(b"X")):
            self.installing[records.U64.unpack_from(row_key, 1)[0]] = _decode_installing(row)
        for _, row in self._state.scan(b"m", records.after(b"m")):
            member = _decode_member(row)
            self.members[member.copy] = member
        version = self._state.get(records.ROSTER)
        if version is not None:
            (self.roster_version,) = records.U64.unpack(version)

    def was_member(self, copy: str) -> bool:
        """True if a copy was removed from the roster."""
        return self._state.get(b"g" + copy.encode()) is not None

    # --- applying -------------------------------------------------------------------------------------------

    def topic(self, entry: Entry, payload: payloads.TopicChange) -> Outcome:
        """Create (if the info has no id), change or remove a topic."""
        name, known = payload.info.name, self.names.get(payload.info.name)
        if payload.info.id or payload.deleted:
            if known is None or known.id != payload.info.id:
                return refused("unknown_topic", f"topic {name} was removed at the same moment")
            if payload.deleted:
                return self._unname(known)
            if payload.info.version != known.version + 1:
                return refused("busy", f"topic {name} was changed at the same moment")
        elif known is not None and not (known.config.virtual and payload.info.config.virtual):
            return TopicChanged(known)
        if why := self._unfit(payload.info):
            return refused("bad_request", why)
        made = payload.info
        if not made.id:
            number, version = (entry.index, 1) if known is None else (known.id, known.version + 1)
            made = msgspec.structs.replace(made, id=number, version=version)
        self.names[name], self.ids[made.id] = made, name
        self._state.put(b"N" + name.encode(), records.encode(made))
        if known is None and payload.owners:
            self._own(made, payload.owners)
            self._state.put(records.key(b"t", made.id), records.encode(payload.owners))
        self._install(made, False)
        return TopicChanged(made)

    def _unfit(self, info: TopicInfo) -> str:
        """Return why a topic cannot be created or bound like this, or "" if it can."""
        for target in info.config.virtual:
            real = self.names.get(target)
            if real is None or real.config.virtual:
                return (
                    f"virtual topic {info.name} would hold {target}, which is "
                    f"{'virtual itself' if real else 'not there'}"
                )
        if info.name not in self.names and len(self.names) >= limits.TOPICS_MAX:
            return f"{limits.TOPICS_MAX} topics exist"
        return ""

    def _unname(self, known: TopicInfo) -> Outcome:
        holders = [info.name for info in self.names.values() if known.name in info.config.virtual]
        if holders:
            return refused("bad_request", f"topic {known.name} belongs to the virtual topic {holders[0]}")
        del self.names[known.name], self.ids[known.id]
        self._state.delete(b"N" + known.name.encode())
        self._state.delete(records.key(b"t", known.id))
        owners = self.owners.pop(known.id, ())
        self.owned.add("topics", owners, -1)
        self.owned.add("partitions", owners, -len(known.shards))
        self._install(known, True)
        return TopicChanged(known, True)

    def _own(self, info: TopicInfo, owners: tuple[Payer, ...]) -> None:
        self.owners[info.id] = owners
        self.owned.add("topics", owners, 1)
        self.owned.add("partitions", owners, len(info.shards))

    def _install(self, info: TopicInfo, deleted: bool) -> None:
        """Record that the shards of a topic must be told, by this meta leader or the next.

        Virtual topics have no shards.
        """
        if info.shards:
            installing = self.installing[info.id] = Installing(info, deleted)
            self._state.put(records.key(b"X", info.id), records.encode(installing))

    def installed(self, entry: Entry, payload: payloads.InstalledTopics) -> Outcome:
        """All shards of some topics have logged these versions."""
        for topic_id, version in payload.versions:
            installing = self.installing.get(topic_id)
            if installing is not None and installing.version == version:
                del self.installing[topic_id]
                self._state.delete(records.key(b"X", topic_id))
        return DONE

    def member(self, entry: Entry, payload: payloads.RosterChange) -> Outcome:
        """Set a row of the roster. Name and address belong to the newest copy that claims them.

        Other members with that name or address are removed, and removed copies do not return.
        """
        member = payload.member
        if payload.invite:
            access = permissions.joined(self.access, payload.invite, member.copy)
            if access is None:
                return refused("forbidden", "somebody else has joined by this invitation")
            self._keep_access(access, entry)
        for other in list(self.members.values()):
            if other.copy == member.copy or other.name == member.name or other.endpoint == member.endpoint:
                del self.members[other.copy]
                self._state.delete(b"m" + other.copy.encode())
                if payload.gone or other.copy != member.copy:
                    self._state.put(b"g" + other.copy.encode(), b"")
        if payload.gone:
            self.taken_off.append(member.name)
        else:
            self.members[member.copy] = member
            self._state.put(b"m" + member.copy.encode(), records.encode(member))
        self.roster_version = entry.index
        self._state.put(records.ROSTER, records.U64.pack(entry.index))
        return DONE

    def set_options(self, entry: Entry, payload: payloads.Options) -> Outcome:
        self.options = payload.options
        self._state.put(records.OPTIONS, records.encode(self.options))
        return DONE

    def set_access(self, entry: Entry, payload: payloads.NewAccess) -> Outcome:
        asked = payload.change
        if asked.version and asked.version != self.access.version:
            return refused("busy", "users or roles were changed at the same moment")
        self._keep_access(permissions.changed(self.access, asked), entry)
        return DONE

    def _keep_access(self, table: AccessTable, entry: Entry) -> None:
        self.access = msgspec.structs.replace(table, version=entry.index)
        self._state.put(records.ACCESS, records.encode(self.access))
