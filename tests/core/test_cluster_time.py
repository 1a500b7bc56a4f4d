"""Cluster time: no single wall clock moves it, and it goes on over takeovers, restarts and boots."""

from array import array
from random import Random
from typing import Any

import pytest

from core.fleet import Fleet
from gossipq.core.raft import cluster_time
from gossipq.core.raft.cluster_time import MS_MAX, ClockRow, ClusterTime, Reading, passed
from gossipq.messages import Subscribe
from gossipq.peer_messages import ChangeVoters, Transfer
from gossipq.types import DELAY, ID_HASH, TTL, Now
from gossipq.values import Start

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ERROR_MS = 50  #: of a clock that is right
LATE_MS = 5_000  #: of a message
TRUTH_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("clocks", "voters", "found"),
    [
        ([5], 1, 5),
        ([], 1, None),
        ([5, 9], 2, 5),
        ([9], 2, None),
        ([5, 9, 7], 3, 7),
        ([5, 9], 3, 5),
        ([9], 3, None),
        ([1, 2, 3, 4, 5], 5, 3),
        ([1, 2, 3], 5, 1),
    ],
)
def test_what_a_majority_of_clocks_have_passed(clocks: list[int], voters: int, found: int | None) -> None:
    assert passed(clocks, voters) == found


class Machine:
    """One copy's machine: a wall clock that may be wrong, a boot clock that starts anew with each boot, a
    disk with one row."""

    def __init__(self, name: str, now_ms: int, dice: Random, error_ms: int) -> None:
        self.name, self._dice = name, dice
        self.error_ms = error_ms
        self.row: ClockRow | None = None
        self.boots = 0
        self.boot(now_ms)

    def boot(self, now_ms: int) -> None:
        self.boots += 1
        self._booted_ms = now_ms - self._dice.randrange(1, 100_000)
        self.restart(now_ms)

    def restart(self, now_ms: int) -> None:
        """The process alone."""
        self.time = ClusterTime(self.name, f"boot {self.boots}", self.row)
        self.begin(now_ms)
        self.heard_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        self.time.begin(Now(now_ms - self._booted_ms, now_ms + self.error_ms))

    def sync(self) -> None:
        self.row = self.time.mark() or self.row


class Life:
    """Copies under leaders that change, messages that are lost or late, machines that boot; `wrong` of their
    clocks are off by hours to days and jump. True time is that of the world."""

    def __init__(self, seed: int, voters: int, wrong: int, behind: bool) -> None:
        self.dice = Random(f"{seed}/{voters}/{wrong}/{behind}")
        self.now_ms, self._behind = TRUTH_MS, behind
        names = [f"n{number}" for number in range(voters)]
        self.machines = {
            name: Machine(name, self.now_ms, self.dice, self.dice.randrange(-ERROR_MS, ERROR_MS + 1))
            for name in names
        }
        self._wrong = self.dice.sample(names, wrong)
        self._jump()
        self._late: list[tuple[int, str, tuple[int, bool]]] = []
        self.leader, self.last_ms = "", 0
        self.ahead_ms = self.late_ms = 0  #: the most that a leader has been that is sure
        self.early_ms = (
            0  #: by which something was early: what is stored while time is late, and due when it is no more
        )
        self._least_ms: int | None = None  # that time has been ahead while something could be stored

    def _jump(self) -> None:
        for name in self._wrong:
            off_ms = self.dice.choice((HOUR_MS, DAY_MS, 7 * DAY_MS))
            self.machines[name].error_ms = off_ms * (self.dice.choice((-1, 1)) if self._behind else 1)

    def _arrives(self) -> bool:
        return self.dice.random() < 0.9

    def elect(self) -> None:
        """Who answers is a majority with the candidate; everybody's last entry is known to it."""
        names = list(self.machines)
        quorum = len(names) // 2 + 1
        heard = self.dice.sample(names, self.dice.randrange(quorum, len(names) + 1))
        name = self.dice.choice(heard)
        time = self.machines[name].time
        for other in self.machines.values():
            other.time.follow()
        for other in heard:
            if other != name:
                time.heard_copy(other, self.machines[other].time.reading())
        time.lead(names, self.last_ms)
        self.leader = name

    def step(self) -> None:
        dice, machines = self.dice, self.machines
        self.now_ms += dice.choice(
            (20, 200, 1_000, 60_000, HOUR_MS) if dice.random() < 0.05 else (20, 200, 600)
        )
        for machine in machines.values():
            machine.begin(self.now_ms)
        fault = dice.random()
        if fault < 0.02:
            self._jump()
        elif fault < 0.04:
            self._restart(dice.sample(list(machines), dice.randrange(1, len(machines) + 1)), boots=False)
        elif fault < 0.05:
            self._restart(dice.sample(list(machines), dice.randrange(1, len(machines) + 1)), boots=True)
        elif fault < 0.08 or not self.leader:
            self.leader = ""
        if not self.leader:
            self.elect()
        self._beat()
        self._look()

    def _restart(self, names: list[str], boots: bool) -> None:
        for name in names:
            machine = self.machines[name]
            if boots:
                machine.boot(self.now_ms)
            else:
                machine.restart(self.now_ms)
            if name == self.leader:
                self.leader = "" if len(self.machines) > 1 else name
        if len(self.machines) == 1 or (not self.leader and self.dice.random() < 0.5):
            self.elect()

    def _beat(self) -> None:
        """One round of signs of life, some lost, some late; and sometimes an entry."""
        if not self.leader:
            return
        leader = self.machines[self.leader].time
        said = leader.now_ms, leader.sure
        late, self._late = self._late, []
        for due_ms, name, words in late:
            if due_ms <= self.now_ms < due_ms + LATE_MS:
                self.machines[name].time.heard_leader(*words)
            elif self.now_ms < due_ms:
                self._late.append((due_ms, name, words))
        for name, machine in self.machines.items():
            if name == self.leader or not self._arrives():
                continue
            if self.dice.random() < 0.1:
                self._late.append((self.now_ms + self.dice.randrange(LATE_MS), name, said))
                continue
            machine.time.heard_leader(*said)
            if self._arrives():
                leader.heard_copy(name, machine.time.reading())
                leader.correct(list(self.machines))
        if self.dice.random() < 0.3:
            self.last_ms = max(self.last_ms, leader.now_ms)
            for machine in self.machines.values():
                machine.sync()

    def _look(self) -> None:
        if not self.leader:
            return
        time = self.machines[self.leader].time
        off_ms = time.now_ms - self.now_ms
        self.ahead_ms = max(self.ahead_ms, off_ms)
        if time.sure:
            self.late_ms = max(self.late_ms, -off_ms)
            self._least_ms = off_ms if self._least_ms is None else min(off_ms, self._least_ms)
            self.early_ms = max(self.early_ms, off_ms - self._least_ms)


@pytest.mark.parametrize(("voters", "wrong"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_no_minority_of_wall_clocks_makes_anything_early(voters: int, wrong: int) -> None:
    for seed in range(60):
        life = Life(seed, voters, wrong, behind=voters % 2 == 1)
        for _ in range(300):
            life.step()
        assert life.ahead_ms < 2 * ERROR_MS, f"seed {seed}: {life.ahead_ms} ms ahead"
        assert max(life.early_ms, life.late_ms) < 2 * LATE_MS, f"seed {seed}: {life.late_ms} ms late"


def test_a_leader_that_trusts_its_own_wall_clock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above can fail."""
    monkeypatch.setattr(cluster_time, "passed", lambda clocks, voters: max(clocks))
    with pytest.raises(AssertionError, match=r"ms (ahead|late)"):
        test_no_minority_of_wall_clocks_makes_anything_early(3, 1)


class TestRules:
    def sure(self, boot_ms: int = 1_000, time_ms: int = TRUTH_MS) -> ClusterTime:
        return ClusterTime("a", "boot", ClockRow("boot", boot_ms, time_ms))

    def test_who_was_told_by_a_sure_leader_goes_on_without_any_wall_clock(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS + DAY_MS))
        time.heard_leader(TRUTH_MS, True)
        time.begin(Now(9_000, TRUTH_MS + DAY_MS))
        time.lead(["a", "b", "c"], TRUTH_MS - 10)
        assert time.now_ms == TRUTH_MS + 4_000

    def test_the_latest_sure_anchor_of_a_voter_counts(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS + DAY_MS))
        time.heard_copy("b", Reading(TRUTH_MS + DAY_MS, TRUTH_MS + 7, True))
        time.heard_copy("c", Reading(TRUTH_MS + DAY_MS, TRUTH_MS + DAY_MS, False))
        time.lead(["a", "b", "c"], TRUTH_MS - 10)
        assert time.sure
        assert time.now_ms >= TRUTH_MS + 7

    def test_without_one_time_waits_for_a_majority_and_is_sure_with_all(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS + DAY_MS))
        time.lead(["a", "b", "c"], 70)
        assert time.now_ms == 70
        time.heard_copy("b", Reading(TRUTH_MS - DAY_MS, 0, False))
        time.correct(["a", "b", "c"])
        assert (time.now_ms, time.sure) == (TRUTH_MS - DAY_MS, False)
        time.heard_copy("c", Reading(TRUTH_MS, 0, False))
        time.correct(["a", "b", "c"])
        assert (time.now_ms, time.sure) == (TRUTH_MS, True)

    def test_two_of_three_clocks_that_agree_are_enough(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS))
        time.lead(["a", "b", "c"], 70)
        assert time.wait_ms == 5_000 + cluster_time.WAIT_MS
        time.heard_copy("b", Reading(TRUTH_MS - 1_500, 0, False))
        time.correct(["a", "b", "c"])
        assert (time.now_ms, time.sure, time.wait_ms) == (TRUTH_MS - 1_500, True, None)

    def test_a_leader_waits_for_more_clocks_and_not_for_ever(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS))
        time.lead(["a", "b", "c"], 70)
        time.heard_copy("b", Reading(TRUTH_MS - HOUR_MS, 0, False))
        time.correct(["a", "b", "c"])
        time.begin(Now(7_999, TRUTH_MS))
        assert time.wait_ms == 8_000
        time.begin(Now(8_000, TRUTH_MS))
        assert time.wait_ms is None

    def test_sure_time_is_slewed_and_never_steps(self) -> None:
        time = self.sure()
        time.begin(Now(1_000, TRUTH_MS))
        time.lead(["a", "b", "c"], TRUTH_MS)
        for name in "bc":
            time.heard_copy(name, Reading(TRUTH_MS + HOUR_MS, 0, False))
        time.begin(Now(11_000, TRUTH_MS + 10_000))
        time.correct(["a", "b", "c"])
        assert time.now_ms == TRUTH_MS + 10_000 + 10, "two of three are an hour ahead"
        for name in "bc":
            time.heard_copy(name, Reading(TRUTH_MS + 10_000 - HOUR_MS, 0, False))
        time.begin(Now(31_000, TRUTH_MS + 30_000))
        time.correct(["a", "b", "c"])
        assert time.now_ms == TRUTH_MS + 30_000 - 10, "two of three are an hour behind"

    def test_one_clock_alone_moves_no_running_time(self) -> None:
        time = self.sure()
        time.begin(Now(1_000, TRUTH_MS))
        time.lead(["a"], TRUTH_MS)
        time.begin(Now(1_000 + DAY_MS, TRUTH_MS + 9 * DAY_MS))
        time.correct(["a"])
        assert time.now_ms == TRUTH_MS + DAY_MS

    def test_clocks_before_the_last_entry_are_known_to_be_wrong(self) -> None:
        """A machine without a battery starts in 1970, and is set a little later."""
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, 9_000))
        time.lead(["a"], TRUTH_MS)
        assert (time.now_ms, time.sure) == (TRUTH_MS, False)
        time.begin(Now(6_000, TRUTH_MS + DAY_MS))
        time.correct(["a"])
        assert (time.now_ms, time.sure) == (TRUTH_MS + DAY_MS, True)

    @pytest.mark.parametrize(("boot", "boot_ms"), [("another", 5_000), ("boot", 999)])
    def test_another_boot_has_no_anchor(self, boot: str, boot_ms: int) -> None:
        time = ClusterTime("a", boot, ClockRow("boot", 1_000, TRUTH_MS))
        time.begin(Now(boot_ms, 5))
        assert time.reading() == Reading(5, 0, False)

    def test_an_anchor_falls_no_faster_than_a_leader_may_be_slewed(self) -> None:
        time = self.sure()
        time.begin(Now(11_000, 0))
        time.heard_leader(TRUTH_MS, True)  # ten seconds late
        assert time.now_ms == TRUTH_MS + 10_000 - 20

    @pytest.mark.parametrize("said", [-1, 0, MS_MAX, 2**70])
    def test_times_that_are_none_are_not_believed(self, said: int) -> None:
        time = self.sure()
        time.begin(Now(2_000, TRUTH_MS))
        time.heard_leader(said, True)
        time.heard_copy("b", Reading(said, TRUTH_MS + DAY_MS, True))
        time.lead(["a", "b"], 1)
        assert time.now_ms == TRUTH_MS + 1_000

    def test_an_anchor_is_stored_when_it_has_moved(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(1_000, 0))
        assert time.mark() is None
        time.heard_leader(TRUTH_MS, False)
        assert time.mark() == ClockRow("boot", 1_000, TRUTH_MS, False)
        time.heard_leader(TRUTH_MS + 50, False)
        assert time.mark() is None
        time.heard_leader(TRUTH_MS + 50, True)
        assert time.mark() == ClockRow("boot", 1_000, TRUTH_MS + 50)

    def test_a_wall_clock_that_disagrees_is_told_by_as_much_as_is_certain(self) -> None:
        time = self.sure()
        time.begin(Now(2_000, TRUTH_MS + 1_000 + DAY_MS))
        time.lead(["a", "b", "c", "d"], TRUTH_MS)
        time.heard_copy("b", Reading(TRUTH_MS - 2_000, 0, False), sent_ms=1_500)
        time.heard_copy("c", Reading(TRUTH_MS + 800, 0, False), sent_ms=1_500)
        assert [time.off_ms(name) for name in "abcd"] == [DAY_MS, -2_500, 0, 0]


class Shop:
    """Three copies with what a clock could spoil: a record that is due in an hour, one that lives for an
    hour, a known id, and one that is acked and kept for a week."""

    def __init__(self) -> None:
        self.fleet = fleet = Fleet(1, "abc")
        self.partition = fleet.topic(retention_ms=7 * DAY_MS, dedup_ms=7 * DAY_MS)
        self.subscribe(fleet)
        fleet.publish(self.partition, b"later", fixed={DELAY: array("Q", [HOUR_MS])})
        fleet.publish(self.partition, b"lives", fixed={TTL: array("Q", [HOUR_MS])})
        self.known()
        fleet.run(500)
        self.stored = self.state.next

    def subscribe(self, fleet: Fleet) -> None:
        fleet.tell(Subscribe(1, "g", [Start(self.partition)], 0, 0))
        fleet.run(200)

    def known(self) -> None:
        self.fleet.publish(self.partition, b"once", fixed={ID_HASH: array("Q", [7])})

    @property
    def state(self) -> Any:
        return self.fleet.leader.ledger.partitions[self.partition]

    def check(self) -> None:
        """After some seconds nothing has become due, nothing is over, the id is known."""
        self.fleet.run(20_000)
        self.known()
        self.fleet.run(500)
        assert self.fleet.leader.leader_ms - self.fleet.now.wall_ms < 1_000
        assert (self.state.first, self.state.next, self.state.scheduled) == (0, self.stored, 1)
        (cursor,) = self.fleet.leader.ledger.cursors[self.partition].values()
        assert cursor.state.dead == 0


@pytest.mark.parametrize("off_ms", [HOUR_MS, DAY_MS, 8 * DAY_MS, -DAY_MS])
class TestOneWrongClock:
    def test_of_who_takes_over(self, off_ms: int) -> None:
        shop = Shop()
        wrong = next(name for name in "bca" if name != shop.fleet.leader.replica.me)
        shop.fleet.wall_off = {wrong: off_ms}
        shop.fleet.away = {shop.fleet.leader.replica.me}
        for _ in range(20):
            shop.fleet.run(1_000)
            if shop.fleet.serving and shop.fleet.leader.replica.me != wrong:
                shop.fleet.tell(Transfer(wrong))
        assert shop.fleet.leader.replica.me == wrong
        shop.check()

    def test_of_who_leadership_is_handed_to(self, off_ms: int) -> None:
        shop = Shop()
        name = next(name for name in "bca" if name != shop.fleet.leader.replica.me)
        shop.fleet.wall_off = {name: off_ms}
        shop.fleet.run(1_000)
        shop.fleet.tell(Transfer(name))
        shop.fleet.run(2_000)
        assert shop.fleet.leader.replica.me == name
        shop.check()

    def test_of_a_copy_that_is_new(self, off_ms: int) -> None:
        shop = Shop()
        fleet, old = shop.fleet, list("abc")
        fleet.wall_off = {"d": off_ms}
        fleet.open("d")
        gone = next(name for name in "cb" if name != fleet.leader.replica.me)
        old.remove(gone)
        for change in (
            ChangeVoters(list("abc"), [], ["d"]),
            ChangeVoters(list("abcd"), [], []),
            ChangeVoters([*old, "d"], [], []),
        ):
            fleet.tell(change)
            fleet.run(2_000)
        fleet.tell(Transfer("d"))
        fleet.run(2_000)
        assert fleet.leader.replica.me == "d"
        shop.check()

    def test_when_all_processes_start_again(self, off_ms: int) -> None:
        shop = Shop()
        shop.fleet.wall_off = {"b": off_ms}
        for name in "abc":
            shop.fleet.open(name)
        shop.fleet.run(10_000)
        shop.check()

    def test_when_all_machines_boot(self, off_ms: int) -> None:
        shop = Shop()
        fleet = shop.fleet
        fleet.wall_off = {"b": off_ms}
        fleet.now = Now(5_000, fleet.now.wall_ms + 60_000)
        fleet._settings["boot"] = "another"
        for name in "abc":
            fleet.open(name)
        fleet.run(10_000)
        shop.check()


def test_a_leader_serves_from_the_turn_on_that_begins_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears the clock that it waited for in the middle of a turn: what it took in that very turn would
    bear the time before, and be due, or over, early."""
    fleet, waits = Fleet(1, "abc"), [True]
    partition = fleet.topic()
    monkeypatch.setattr(
        ClusterTime, "wait_ms", property(lambda time: time._now.boot_ms + 1_000 if waits else None)
    )
    fleet.away = {fleet.leader.replica.me}
    fleet.run(5_000)
    assert fleet.leader.replica.commit == fleet.leader.last
    assert not fleet.serving
    led = fleet.led
    led.inbox.append(waits.clear)
    fleet.publish(partition, b"in the same turn")
    fleet.run(50)
    codes = [answer.code for seen in led.seen for _, request_id, answer in seen.replies if request_id == 9]
    assert codes == ["busy"]
    fleet.run(50)
    fleet.publish(partition, b"after it")
    fleet.run(200)
    assert fleet.leader.ledger.partitions[partition].next == 1


def test_the_leader_names_the_copy_whose_clock_is_wrong() -> None:
    fleet = Fleet(1, "abc")
    wrong = next(name for name in "abc" if name != fleet.leader.replica.me)
    fleet.wall_off = {wrong: DAY_MS}
    fleet.run(2_000)
    off_ms = {row.copy: row.clock_ms for row in fleet.leader.copies()}
    assert DAY_MS - 200 < off_ms.pop(wrong) <= DAY_MS
    assert all(abs(each) < 200 for each in off_ms.values())
