"""The kinds of alarms that a node raises, with meaning, question and command of each.

`gossipq help alarm-NAME` prints them. `alarm_lag` is counted per partition, like all limits, because the
leader of a partition can check it alone.
"""

from typing import NamedTuple

CRITICAL, WARNING = "critical", "warning"
TOPIC = "_alarms"  #: the topic to which alarms are published when they are raised and cleared


class Kind(NamedTuple):
    """A kind of alarm."""

    severity: str
    meaning: str
    check: str
    #: the command that helps or shows more; words in capitals are filled in from the alarm
    verb: str


KINDS: dict[str, Kind] = {
    "lag": Kind(
        WARNING,
        "A group is behind by more records of a partition than its alarm_lag allows (that of the group, or "
        "else of its topic).",
        "Are its consumers there, and do they keep up? Is the group paused, or does it wait for a key or a "
        "route?",
        "gossipq why TOPIC --group GROUP",
    ),
    "dead_letters": Kind(
        WARNING,
        "Records of a group have become dead letters within the last minutes: they failed too often, were "
        "rejected, expired or "
        "could not be decoded.",
        "Read the reason of the newest ones. When the cause is gone, replay them; nothing removes them by "
        "itself.",
        "gossipq dlq ls TOPIC -g GROUP",
    ),
    "store_full": Kind(
        CRITICAL,
        "A worker refuses publishes, because its disk or its store is nearly full. Acks, deletes and "
        "consuming continue.",
        "How much is free, and which topic holds most of it?",
        "gossipq topic ls",
    ),
    "disk_low": Kind(
        WARNING,
        "The disk of a worker has less than twice the reserve left; below the reserve publishes are refused.",
        "Which topic grows, and is there a group that does not ack and so keeps its records?",
        "gossipq topic ls",
    ),
    "write_failed": Kind(
        CRITICAL,
        "A write to disk failed. The worker has discarded its state in memory and keeps trying to open its "
        "store again. No confirmed record is lost, but the worker serves nothing until it succeeds.",
        "The log of the node names the error. Is the disk full, read-only, or broken?",
        "gossipq doctor --data DIR",
    ),
    "out_of_memory": Kind(
        CRITICAL,
        "A worker ran out of memory. It has discarded its state in memory and opens its store again. No "
        "confirmed record is lost, and its disk is not full.",
        "How much memory does the machine, or the service, have, and what else uses it?",
        "gossipq status",
    ),
    "slow_disk": Kind(
        WARNING,
        "A commit takes more than 100 ms on average: every confirm waits for it.",
        "Who else writes to that disk? Is it a network disk, or near its limit?",
        "gossipq doctor --data DIR",
    ),
    "shard_damaged": Kind(
        CRITICAL,
        "A shard stopped, because what is on disk is not what was written, or was written by a later "
        "version. The other "
        "shards keep working.",
        "Stop the node and verify its store. A copy of the shard on another node has the records; without "
        "one, restore a "
        "backup.",
        "gossipq store verify --data DIR",
    ),
    "unaccounted": Kind(
        CRITICAL,
        "The counters of a group do not add up: published since its start is not ready + in flight + "
        "retrying + parked + "
        "acked + dead + "
        "voided + dropped + removed. This is a fault of gossipq.",
        "Keep the data directory as it is, and report it together with the output of the command below.",
        "gossipq group show TOPIC GROUP -o json",
    ),
    "worker_down": Kind(
        CRITICAL,
        "A worker process is not running; it is started again with a growing pause. Its shards are not "
        "served meanwhile.",
        "The log of the node says why it ended. Ports taken, disk gone, memory limit reached?",
        "gossipq status",
    ),
    "worker_hangs": Kind(
        CRITICAL,
        "A worker process is running and has not responded for several seconds: it is stopped, swapped "
        "out, or "
        "waits for its disk.",
        "Is the machine overloaded, does the disk answer, is the process stopped (state T or D in ps)?",
        "gossipq status",
    ),
    "worker_restarts": Kind(
        WARNING,
        "A worker process ended and was started again within the last ten minutes. Nothing confirmed is lost "
        "by that.",
        "The log of the node says why it ended.",
        "gossipq status",
    ),
    "insecure": Kind(
        WARNING,
        "The node listens on an address that other machines reach, and does not authenticate its callers.",
        "Is that network private? If not, bind loopback, or block others with a firewall.",
        "gossipq config show",
    ),
    "last_copy": Kind(
        CRITICAL,
        "A shard that had copies on several disks has only one that is in sync. It keeps serving, and a "
        "confirm means one disk until the others are back.",
        "Which nodes are silent? Start them, or let them catch up; a node that is gone for good is replaced "
        "after replace_ms.",
        "gossipq cluster ls",
    ),
    "copy_behind": Kind(
        WARNING,
        "A copy of a shard is not in sync with its leader: its node is silent, or too slow. One more "
        "failure may stop that "
        "shard, or leave it with one copy.",
        "Is the node running, can the others reach it, does its disk answer?",
        "gossipq cluster ls",
    ),
    "clock": Kind(
        WARNING,
        "The wall clock of a node is more than 2 s off the time of its cluster. This matters later: if all "
        "machines reboot at the same time, delays and expiries may be off by that much.",
        "Is the clock of that machine set by NTP? If every node is listed, the time of the cluster is off; "
        "it corrects itself slowly (an hour in six weeks).",
        "gossipq doctor",
    ),
    "pair": Kind(
        WARNING,
        "The cluster is two nodes without a witness: every confirmed record is on both disks, but neither "
        "takes over from the "
        "other.",
        "Add a small third host as a witness: it votes and stores no records.",
        "gossipq node --witness --join HOST",
    ),
    "gossip": Kind(
        WARNING,
        "The Serf agent of the node is not running, or finds no other. Only the discovery of new nodes is "
        "affected.",
        "Is serf installed, is its port free and reachable by TCP and UDP, is the secret the same "
        "everywhere?",
        "gossipq cluster events",
    ),
}
