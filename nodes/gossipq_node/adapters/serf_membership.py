"""The Membership over Serf: one thread runs this node's agent and asks it for members.

`Calls` works around serfclient: it ignores errors in heads, takes the answer of one call for
another's, is not thread-safe, and imports `pkg_resources`.
"""

import ipaddress
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from gossipq import limits
from gossipq.endpoints import endpoint, host_port
from gossipq.errors import ConfigError
from gossipq.values import GossipEvent
from gossipq_node.adapters.serf_agent import Agent
from gossipq_node.ports import SeenNode
from gossipq_node.settings import GossipSettings

POLL_S = 1.0
FIRST_POLL_S = 0.2  #: while others are first searched
CALL_S = 3.0  #: for one answer of the agent
TAGS_AGAIN_S = 10.0  #: pause between two changes of tags, because each costs every agent some work
LEAVE_S = 3.0
END_S = 4.0  #: for a running call and the farewell together: the node drains in little more
HANGS_S = 15.0  #: an agent that has not answered for this long is replaced
RESTART_S_FIRST, RESTART_S_MAX, SETTLED_S = 0.5, 30.0, 60.0
START_S = 3.0  #: a new agent answers within this time
PATIENCE_S = 10.0  #: a new agent has this long to find others before that counts as trouble
EVENTS_MAX = 1_000
TAG_CHARS = 80  #: of a name or an address; all tags together may have 512 bytes
CLUSTER_DIGITS = 8
PROTOCOL = "1"
ALIVE = "alive"
STARTING = "the Serf agent is starting"
QUEUES = ("event_queue", "intent_queue", "query_queue")  #: queues of an agent, in its stats
GONE = {"left": "leave", "failed": "fail", "leaving": "leave"}  #: status of a member -> event


class AgentError(Exception):
    """The agent refused, or gave an unexpected answer."""


def _import_serfclient() -> Any:
    """Import the library's connection class.

    Its package asks pkg_resources for its own version, but newer setuptools lack pkg_resources.
    """
    name = "pkg_resources"
    there, before = name in sys.modules, sys.modules.get(name)
    stand_in: Any = ModuleType(name)
    stand_in.get_distribution = lambda project: SimpleNamespace(version="")
    sys.modules[name] = stand_in
    try:
        from serfclient.connection import SerfConnection
    finally:
        if there:
            sys.modules[name] = before  # type: ignore[assignment]
        else:
            del sys.modules[name]
    return SerfConnection


#: imported once, with this module: with two threads the stand-in could stay in sys.modules
_SerfConnection = _import_serfclient()


class Calls:
    """One connection to an agent, for one thread. After any exception
    it is unusable: `close` it.
    """

    def __init__(self, port: int, key: str) -> None:
        self._connection = _SerfConnection(host="127.0.0.1", port=port, timeout=CALL_S)
        self._connection._socket = self._connection._connect()
        try:
            self._call("handshake", {"Version": 1})
            self._call("auth", {"AuthKey": key})
        except BaseException:
            self.close()
            raise

    def _call(self, command: str, params: dict[str, object] | None = None, answers: bool = False) -> Any:
        sequence = self._connection._seq
        result = self._connection.call(command, params, expect_body=answers)
        head = result.head
        if not isinstance(head, dict) or head.get("Seq") != sequence:
            raise AgentError(f"the answer to {command} belongs to another question")
        if head.get("Error"):
            raise AgentError(f"{command}: {head['Error']}")
        return result.body

    def members(self) -> list[dict[str, Any]]:
        body = self._call("members", answers=True)
        return [row for row in body["Members"] if isinstance(row, dict)]

    def queued(self) -> int:
        counts = self._call("stats", answers=True)["serf"]
        return sum(int(counts[name]) for name in QUEUES)

    def tags(self, tags: Mapping[str, str]) -> None:
        self._call("tags", {"Tags": dict(tags), "DeleteTags": []})

    def leave(self) -> None:
        self._call("leave")

    def close(self) -> None:
        self._connection.close()


class SerfMembership:
    def __init__(self, settings: GossipSettings, program: str = "serf") -> None:
        self._settings = settings
        self._agent = Agent(settings, program)
        self._calls: Calls | None = None
        self._lock = threading.Lock()  # protects the following attributes
        self._told: dict[str, str] = {}
        self._events: deque[GossipEvent] = deque(maxlen=EVENTS_MAX)
        # by the node's copy: status of its agent, the node
        self._rows: dict[str, tuple[str, SeenNode]] = {}
        self._places: dict[str, str] = {}  # by the node's copy: HOST:PORT of its agent
        self._state = STARTING
        self._queued = 0
        # used by the thread only
        self._said: dict[str, str] = {}  # tags as the agent has them
        self._tags_at = self._started_at = self._restart_at = 0.0
        self._answered_at = 0.0  # time of the last answer, or of the start
        self._answers = True  # True if the last question was answered
        self._pause_s = 0.0
        self._polite = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serf", daemon=True)
        self._thread.start()

    # --- the port -------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        with self._lock:
            return self._state

    @property
    def queued(self) -> int:
        with self._lock:
            return self._queued

    def found(self) -> list[SeenNode]:
        with self._lock:
            return [found for _, found in self._rows.values()]

    def events(self) -> list[GossipEvent]:
        with self._lock:
            events = list(self._events)
            self._events.clear()
            return events

    def tell(self, tags: Mapping[str, str]) -> None:
        with self._lock:
            self._told |= tags

    def close(self, polite: bool = True) -> None:
        """Stop. With `polite` False, others take it for a short break."""
        self._polite = polite
        self._closing.set()
        self._thread.join(END_S)
        self._agent.kill()  # in case the thread still waits for it

    @property
    def pid(self) -> int:
        """Process id of the agent; 0 if it is not running."""
        return self._agent.pid

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._look()
                    self._answers = True
                except Exception as error:
                    # any fault of agent or library costs a new connection or a new agent at most
                    self._answers = False
                    self._hang_up()
                    self._doubt(error, time.monotonic())
                alone = not self._rows and time.monotonic() - self._started_at < PATIENCE_S
                self._closing.wait(min(POLL_S, FIRST_POLL_S) if alone else POLL_S)
            self._end()
        finally:
            self._hang_up()
            self._agent.kill()

    def _look(self) -> None:
        """Check the agent once a second, update its tags and read its members."""
        now = time.monotonic()
        reason = self._agent.exit_reason()
        if reason is not None:
            self._hang_up()
            self._revive(reason, now)
            return
        if self._calls is None:
            self._calls = Calls(self._agent.rpc_port, self._agent.rpc_key)
        self._learn(self._calls.members())
        queued = self._calls.queued()
        with self._lock:
            self._queued = queued
        tags = self._tags()
        if tags != self._said and now >= self._tags_at:
            self._calls.tags(tags)
            self._said, self._tags_at = tags, now + TAGS_AGAIN_S
        self._answered_at = time.monotonic()
        self._set_state(self._trouble(now))

    def _doubt(self, error: Exception, now: float) -> None:
        """The agent did not answer: report that, and replace an agent that hangs."""
        if now - self._started_at >= START_S:
            self._set_state(f"the Serf agent does not answer: {error}")
        if now - self._answered_at >= HANGS_S:
            self._agent.kill(f"it did not answer for {HANGS_S:.0f} s")

    def _revive(self, reason: str, now: float) -> None:
        if self._started_at and not self._restart_at:
            lived_s = now - self._started_at
            first = lived_s >= SETTLED_S or not self._pause_s
            self._pause_s = RESTART_S_FIRST if first else min(2 * self._pause_s, RESTART_S_MAX)
            self._restart_at = now + self._pause_s
            self._set_state(f"the Serf agent ended: {reason}; it starts again")
        if now >= self._restart_at:
            self._started_at = self._answered_at = now
            self._restart_at = 0.0
            self._said = self._tags()
            self._tags_at = now + TAGS_AGAIN_S
            try:
                self._agent.start(self._said, self._alive_places())
            except OSError as error:
                self._set_state(f"the Serf agent cannot be started: {error}")

    def _tags(self) -> dict[str, str]:
        """Return the tags for other nodes, without empty ones."""
        member, cluster = self._settings.member, self._settings.cluster[:CLUSTER_DIGITS]
        kind = "witness" if member.witness else "node"
        tags = {
            "endpoint": member.endpoint,
            "name": member.name,
            "copy": member.copy,
            "cluster": cluster,
            "kind": kind,
        }
        with self._lock:
            tags |= {"protocol": PROTOCOL} | self._told
        return {key: text[:TAG_CHARS] for key, text in tags.items() if text}

    # --- what the agent says --------------------------------------------------------------------------------

    def _learn(self, members: list[dict[str, Any]]) -> None:
        rows: dict[str, tuple[str, SeenNode]] = {}
        places: dict[str, str] = {}
        for member in members:
            name, status = str(member.get("Name")), str(member.get("Status"))
            if name == self._agent.name:
                continue
            tags = member.get("Tags")
            found = _found(tags if isinstance(tags, dict) else {}, status == ALIVE)
            if found is None or (found.copy == self._settings.member.copy and not found.alive):
                continue
            node = found.copy or name
            # an agent at an earlier address of its node is shown as failed for a day
            if found.alive or node not in rows:
                rows[node] = status, found
                places[node] = _place(member)
        with self._lock:
            before = self._rows
            self._rows = rows
            self._places = places
            self._events += _happened(before, rows)

    def _alive_places(self) -> list[str]:
        with self._lock:
            return [place for place in self._places.values() if place]

    def _trouble(self, now: float) -> str:
        with self._lock:
            statuses = [status for status, _ in self._rows.values()]
        if ALIVE in statuses:
            return ""
        if self._settings.join and self._agent.meets_strangers:
            return (
                "the Serf agents of the others have another secret, or none: give all nodes the same "
                "--secret-file; or --join names another port than that of their gossip"
            )
        if now - self._started_at < PATIENCE_S:
            return ""
        return (
            "no other Serf agent answers"
            if self._settings.join or any(s == "failed" for s in statuses)
            else ""
        )

    def _set_state(self, state: str) -> None:
        with self._lock:
            if state == self._state:
                return
            was, self._state = self._state, state
            if state:
                self._events.append(_event("degraded", "", state))
            elif was != STARTING:
                self._events.append(_event("well", "", ""))

    # --- the end --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Leave gossip, if the agent answers."""
        if not self._polite or not self._answers or self._agent.exit_reason() is not None:
            return
        try:
            self._calls = self._calls or Calls(self._agent.rpc_port, self._agent.rpc_key)
            self._learn(self._calls.members())
            if any(found.alive for found in self.found()):
                self._calls.leave()
                self._agent.wait(LEAVE_S)
        except Exception:  # it is killed then
            return

    def _hang_up(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def _found(tags: dict[Any, Any], alive: bool) -> SeenNode | None:
    """Return the node of an agent; None if it is not a node of gossipq."""
    texts = {str(key): str(text) for key, text in tags.items()}
    address = texts.get("endpoint", "")
    try:
        endpoint(address)
    except ConfigError:
        return None
    load = texts.get("load", "")
    return SeenNode(
        endpoint=address,
        name=texts.get("name", ""),
        copy=texts.get("copy", ""),
        cluster=texts.get("cluster", ""),
        kind=texts.get("kind", "node"),
        load=int(load) if load.isdecimal() and len(load) < 12 else 0,
        alive=alive,
    )


def _place(member: dict[str, Any]) -> str:
    """Return HOST:PORT of an agent, whose address has 4 or 16 bytes."""
    raw, port = member.get("Addr"), member.get("Port")
    data = raw if isinstance(raw, bytes) else str(raw).encode("latin-1", "replace")
    if len(data) not in (4, 16) or not isinstance(port, int):
        return ""
    address = ipaddress.ip_address(data)
    mapped = getattr(address, "ipv4_mapped", None)
    return host_port(str(mapped or address), port)


def _happened(
    before: dict[str, tuple[str, SeenNode]], after: dict[str, tuple[str, SeenNode]]
) -> list[GossipEvent]:
    events = []
    for node, (status, found) in after.items():
        was = before.get(node)
        if was is None or was[0] != status:
            come = "join" if was is None or was[0] == "left" else "back"
            if status == ALIVE or was is not None:
                events.append(
                    _event(
                        come if status == ALIVE else GONE.get(status, "update"), found.name, found.endpoint
                    )
                )
        elif was[1]._replace(load=0) != found._replace(load=0):
            events.append(_event("update", found.name, _difference(was[1], found)))
    events += [
        _event("leave", found.name, found.endpoint)
        for node, (_, found) in before.items()
        if node not in after
    ]
    return events


def _difference(was: SeenNode, found: SeenNode) -> str:
    """Return a text such as "endpoint tcp://a:7700 -> tcp://b:7700, copy ..."."""
    pairs = [
        (name, old, new)
        for name, old, new in zip(SeenNode._fields, was, found, strict=True)
        if old != new and name != "load"
    ]
    return ", ".join(f"{name} {old or '-'} -> {new or '-'}" for name, old, new in pairs)


def _event(what: str, node: str, detail: str) -> GossipEvent:
    return GossipEvent(time.time_ns() // 1_000_000, what, node, detail[: 4 * limits.NAME_BYTES_MAX])
