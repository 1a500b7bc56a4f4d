"""Rules for when an alarm is raised and cleared, from facts that the caller already has. The
caller also passes the time.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from gossipq import alarms
from gossipq.core.delivery import alarm_lag
from gossipq.core.ledger import Ledger
from gossipq.limits import MINUTE_MS
from gossipq.texts import many
from gossipq.types import PartitionKey, partition_of
from gossipq.values import Alarm

#: percent of alarm_lag; a lag alarm is cleared only below it, so that it does not come and go
CLEAR_PERCENT = 80
DEAD_WINDOW_MS = 5 * MINUTE_MS  #: dead letters of the last minutes raise an alarm
REPORTED_MAX = 100  #: most alarms of one kind that a worker reports
SLOW_COMMIT_US = 100_000
RESTART_WINDOW_MS = 10 * MINUTE_MS
HANGS_MS = 5_000  #: time without a sign of life


def alarm(name: str, node: str, subject: str, text: str, command: str = "") -> Alarm:
    """An alarm of one of the kinds in gossipq.alarms."""
    kind = alarms.KINDS[name]
    return Alarm(
        name=name, severity=kind.severity, node=node, subject=subject, text=text, command=command or kind.verb
    )


class Watch:
    """Watches the groups of the shards that a worker leads."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._behind: set[tuple[str, str]] = set()  #: (topic, group) with a lag alarm
        #: (boot time, dead letters), oldest first
        self._dead: dict[tuple[str, str], deque[tuple[int, int]]] = {}

    def look(self, ledgers: Iterable[Ledger], boot_ms: int) -> list[Alarm]:
        """Alarms of the groups. Costs a few steps for each group and partition."""
        behind: dict[tuple[str, str], tuple[int, PartitionKey, int]] = {}
        dead: dict[tuple[str, str], int] = {}
        unaccounted: dict[tuple[str, str], int] = {}
        for ledger in ledgers:
            for partition, cursors in ledger.cursors.items():
                state = ledger.partitions[partition]
                topic = ledger.topics[state.topic_id]
                for group_id, cursor in cursors.items():
                    group = ledger.groups[group_id]
                    name = topic.name, group.name
                    dead[name] = dead.get(name, 0) + cursor.state.dead
                    if difference := cursor.unaccounted():
                        unaccounted[name] = unaccounted.get(name, 0) + abs(difference)
                    allowed = alarm_lag(group.config, topic.config)
                    row = cursor.behind(state.next), partition, allowed
                    if allowed and self._too_far(name, row[0], allowed) and row > behind.get(name, (0, 0, 0)):
                        behind[name] = row
        self._behind = set(behind)
        lags = [self._lag(name, *behind[name]) for name in sorted(behind, key=lambda name: -behind[name][0])]
        return [
            *lags[:REPORTED_MAX],
            *self._rising(dead, boot_ms)[:REPORTED_MAX],
            *self._differences(unaccounted)[:REPORTED_MAX],
        ]

    def _too_far(self, name: tuple[str, str], lag: int, allowed: int) -> bool:
        return lag > allowed or (name in self._behind and lag * 100 > allowed * CLEAR_PERCENT)

    def _lag(self, name: tuple[str, str], lag: int, partition: PartitionKey, allowed: int) -> Alarm:
        topic, group = name
        where = (
            f"group {group} on {topic} is {many(lag, 'record')} behind in partition {partition_of(partition)}"
        )
        text = f"{where}; alarm_lag is {allowed:,}"
        return alarm("lag", self._node, f"{topic}/{group}", text, f"gossipq why {topic} --group {group}")

    def _rising(self, dead: dict[tuple[str, str], int], boot_ms: int) -> list[Alarm]:
        """Alarms of groups with more dead letters than at the beginning of the window."""
        found = []
        for name, count in dead.items():
            seen = self._dead.setdefault(name, deque())
            while seen and (seen[0][0] < boot_ms - DEAD_WINDOW_MS or seen[0][1] > count):
                seen.popleft()  # too old, or letters were replayed or purged
            if not seen or seen[-1][1] != count:
                seen.append((boot_ms, count))
            if count > seen[0][1]:
                new = many(count - seen[0][1], "new dead letter")
                # other workers may know of more
                text = f"at least {new} in group {name[1]} on {name[0]}"
                command = f"gossipq dlq ls {name[0]} -g {name[1]}"
                found.append(alarm("dead_letters", self._node, "/".join(name), text, command))
        for name in self._dead.keys() - dead.keys():
            del self._dead[name]
        return found

    def _differences(self, unaccounted: dict[tuple[str, str], int]) -> list[Alarm]:
        return [
            alarm(
                "unaccounted",
                self._node,
                f"{topic}/{group}",
                f"the counters of group {group} on {topic} differ by {difference:,}",
                f"gossipq group show {topic} {group} -o json",
            )
            for (topic, group), difference in unaccounted.items()
        ]


class RaisedAlarms:
    """Keeps when each alarm was first raised. A repeated alarm stays the same one,
    even if its text changes.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], int] = {}

    def stamp(self, raised: Iterable[Alarm], wall_ms: int) -> list[Alarm]:
        """Returns one alarm for each name and subject, with the time when it was first raised."""
        found = {key_of(each): each for each in raised}
        self._since = {key: self._since.get(key, wall_ms) for key in found}
        return [
            msgspec.structs.replace(each, since_ms=self._since[key]) for key, each in sorted(found.items())
        ]


def key_of(raised: Alarm) -> tuple[str, str, str]:
    return raised.node, raised.name, raised.subject
