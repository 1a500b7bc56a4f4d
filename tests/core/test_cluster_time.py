"""Cluster time: no single wall clock moves it, and it goes on over takeovers, restarts and boots."""

from array import array
from random import Random
from typing import Any, NamedTuple

import pytest

from core.fleet import Fleet
from gossipq.core.raft import cluster_time
from gossipq.core.raft.cluster_time import MS_MAX, ClockRow, ClusterTime, Reading, passed
from gossipq.messages import Subscribe
from gossipq.peer_messages import Append, ChangeVoters, Transfer
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


class Stored(NamedTuple):
    """An entry from which on something waits."""

    term: int
    off_ms: int  #: timer time of its leader minus true time


class Said(NamedTuple):
    """A message of a leader: its time, and the number of its entries."""

    term: int
    time_ms: int
    sure: bool
    behind_ms: int
    entries: int


class Machine:
    """One copy's machine: a wall clock that may be wrong, a boot clock that starts anew with each boot, a
    disk with one row."""

    def __init__(self, name: str, now_ms: int, dice: Random, error_ms: int) -> None:
        self.name, self._dice = name, dice
        self.error_ms = error_ms
        self.row: ClockRow | None = None
        self.term, self.log = 0, list[Stored]()
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

    def hear(self, said: Said, log: list[Stored]) -> None:
        """A message of a leader, whose log is at hand."""
        if said.term < self.term:
            return
        self.term = said.term
        self.time.heard_leader(said.time_ms, said.sure, said.term, said.behind_ms)
        self.time.settle(said.term)
        if self.log != log[: said.entries]:
            self.log = log[: said.entries]
            self.sync()


class Life:
    """Copies under leaders that change, messages that are lost or late, machines that boot; `wrong` of their
    clocks are off by hours to days and jump. True time is that of the world."""

    def __init__(self, seed: int, voters: int, wrong: int, behind: bool, boots: bool = True) -> None:
        self.dice, self._boots = Random(f"{seed}/{voters}/{wrong}/{behind}"), boots
        self.now_ms, self._behind = TRUTH_MS, behind
        names = [f"n{number}" for number in range(voters)]
        self.machines = {
            name: Machine(name, self.now_ms, self.dice, self.dice.randrange(-ERROR_MS, ERROR_MS + 1))
            for name in names
        }
        self._wrong = self.dice.sample(names, wrong)
        self._jump()
        self._late: list[tuple[int, str, Said, list[Stored]]] = []
        self.leader, self.last_ms, self.term = "", 0, 0
        self.ahead_ms = self.late_ms = 0  #: the most that a leader has been that is sure
        self.early_ms = (
            0  #: by which something was early: what is stored while time is late, and due when it is no more
        )
        self._least_ms: int | None = None  # that time has been ahead while something could be stored
        self.gained_ms = -DAY_MS  #: by which a delay was over early, at the most

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
        newest = max(self._newest(name) for name in heard)
        name = self.dice.choice([name for name in heard if self._newest(name) == newest])
        time = self.machines[name].time
        for other in self.machines.values():
            other.time.follow()
        for other in heard:
            if other != name:
                time.heard_copy(other, self.machines[other].time.reading())
        self.term += 1
        for other in heard:
            self.machines[other].term = self.term
        time.lead(names, self.last_ms)
        self.leader = name
        self._store()

    def _newest(self, name: str) -> tuple[int, int]:
        log = self.machines[name].log
        return log[-1].term if log else 0, len(log)

    def _store(self) -> None:
        """Something that waits, unless the leader still waits for clocks."""
        machine = self.machines[self.leader]
        if machine.time.wait_ms is None:
            machine.time.pin()
            machine.log.append(Stored(self.term, machine.time.timer_ms - self.now_ms))
            machine.sync()

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
        elif fault < 0.05 and self._boots:
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
        leader, log = self.machines[self.leader].time, self.machines[self.leader].log
        said = Said(self.term, *leader.told(), len(log))
        late, self._late = self._late, []
        for due_ms, name, words, entries in late:
            if due_ms <= self.now_ms < due_ms + LATE_MS and name != self.leader:
                self.machines[name].hear(words, entries)
            elif self.now_ms < due_ms:
                self._late.append((due_ms, name, words, entries))
        for name, machine in self.machines.items():
            if name == self.leader or not self._arrives():
                continue
            if self.dice.random() < 0.1:
                self._late.append((self.now_ms + self.dice.randrange(LATE_MS), name, said, list(log)))
                continue
            machine.hear(said, log)
            if self._arrives():
                leader.heard_copy(name, machine.time.reading())
                leader.correct(list(self.machines))
        if self.dice.random() < 0.3:
            self.last_ms = max(self.last_ms, leader.now_ms)
            self._store()
            for machine in self.machines.values():
                machine.sync()

    def _look(self) -> None:
        if not self.leader:
            return
        time = self.machines[self.leader].time
        off_ms = time.now_ms - self.now_ms
        stored_ms = [stored.off_ms for stored in self.machines[self.leader].log]
        if stored_ms:
            self.gained_ms = max(self.gained_ms, time.timer_ms - self.now_ms - min(stored_ms))
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


@pytest.mark.parametrize(("voters", "wrong"), [(1, 0), (2, 1), (3, 1), (3, 2), (5, 3)])
def test_no_takeover_no_restart_and_no_wall_clock_makes_a_delay_early(voters: int, wrong: int) -> None:
    """Under every leader that has it, a delay takes at least as long as it should, by true time."""
    for seed in range(60):
        life = Life(seed, voters, wrong, behind=seed % 2 == 1, boots=False)
        for _ in range(300):
            life.step()
            assert life.gained_ms <= 0, f"seed {seed}: {life.gained_ms} ms early"


def test_delays_by_leader_time_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above can fail."""
    monkeypatch.setattr(ClusterTime, "timer_ahead_ms", ClusterTime.ahead_ms)
    with pytest.raises(AssertionError, match="ms early"):
        test_no_takeover_no_restart_and_no_wall_clock_makes_a_delay_early(3, 1)


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
        for boot_ms in range(12_000, 32_000, 1_000):
            time.begin(Now(boot_ms, TRUTH_MS + boot_ms - 1_000))
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
        assert time.mark() == ClockRow("boot", 1_000, TRUTH_MS, False, TRUTH_MS)
        time.heard_leader(TRUTH_MS + 50, False)
        assert time.mark() is None
        time.heard_leader(TRUTH_MS + 50, True)
        assert time.mark() == ClockRow("boot", 1_000, TRUTH_MS + 50, True, TRUTH_MS + 50)

    def test_a_wall_clock_that_disagrees_is_told_by_as_much_as_is_certain(self) -> None:
        time = self.sure()
        time.begin(Now(2_000, TRUTH_MS + 1_000 + DAY_MS))
        time.lead(["a", "b", "c", "d"], TRUTH_MS)
        time.heard_copy("b", Reading(TRUTH_MS - 2_000, 0, False), sent_ms=1_500)
        time.heard_copy("c", Reading(TRUTH_MS + 800, 0, False), sent_ms=1_500)
        assert [time.off_ms(name) for name in "abcd"] == [DAY_MS, -2_500, 0, 0]


class TestTimers:
    """A delay is over when it should be, by the boot time of a machine that all share here."""

    def copy(self, name: str, time_ms: int) -> ClusterTime:
        return ClusterTime(name, "boot", ClockRow("boot", 1_000, time_ms))

    def leader(self, name: str, time_ms: int) -> ClusterTime:
        time = self.copy(name, time_ms)
        time.begin(Now(1_000, 0))
        time.lead(["a", "b", "c"], time_ms - 100)
        return time

    def waits_ms(self, time: ClusterTime, due_ms: int, since_ms: int) -> int:
        """How long a delay takes under a leader that goes on to look every millisecond."""
        at_ms = since_ms
        while time.timer_ms < due_ms:
            at_ms += 1
            time.begin(Now(at_ms, at_ms))
            time.correct(["a", "b", "c"])
        return at_ms - since_ms

    def test_a_better_anchor_of_the_next_leader_makes_no_delay_early(self) -> None:
        """Leader b is 8 ms late, and c has heard of the leader before it in better time."""
        late = self.leader("b", TRUTH_MS - 8)
        time = self.copy("c", TRUTH_MS)
        time.begin(Now(1_000, 0))
        time.heard_leader(late.now_ms, True, 2, late.told()[2])
        time.settle(2)
        time.begin(Now(2_600, 0))
        time.lead(["a", "b", "c"], TRUTH_MS - 8)
        assert time.now_ms >= TRUTH_MS + 1_600 - 4, "leader time is not late"
        assert 2_000 <= self.waits_ms(time, late.timer_ms + 2_000, 2_600) + 1_600 < 2_010

    @pytest.mark.parametrize(("wall_ms", "late_ms"), [(TRUTH_MS + HOUR_MS, 0), (TRUTH_MS - HOUR_MS, 8)])
    def test_a_leader_that_is_slewed_makes_no_delay_early(self, wall_ms: int, late_ms: int) -> None:
        time = self.leader("a", TRUTH_MS)
        for name in "bc":
            time.heard_copy(name, Reading(wall_ms, 0, False))
        due_ms = time.timer_ms + 8_000
        assert self.waits_ms(time, due_ms, 1_000) == 8_000 + late_ms
        assert time.now_ms == TRUTH_MS + 8_000 + (0 if late_ms else 8)

    def test_a_copy_goes_by_the_timer_time_of_the_leader_of_its_last_entry(self) -> None:
        """The next leader is 500 ms late. Without an entry of it this copy goes by the leader before it."""
        time = self.copy("c", TRUTH_MS)
        time.begin(Now(1_000, 0))
        time.heard_leader(TRUTH_MS, True, 2)
        time.settle(2)
        time.heard_leader(TRUTH_MS - 500, True, 3)
        assert time.timer_ms == TRUTH_MS - cluster_time.MARGIN_MS
        time.settle(3)
        assert time.timer_ms == TRUTH_MS - 500 - cluster_time.MARGIN_MS

    def test_a_leader_of_an_older_version_counts_delays_in_leader_time(self) -> None:
        time = self.copy("c", TRUTH_MS)
        time.begin(Now(1_000, 0))
        time.heard_leader(TRUTH_MS - 8, True, 2, Append("b", 0, 0, 0, []).behind_ms)
        time.settle(2)
        assert time.timer_ms == TRUTH_MS - 8 - cluster_time.MARGIN_MS

    def test_a_machine_that_booted_asks_the_others(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS + DAY_MS))
        time.heard_copy("b", Reading(TRUTH_MS, TRUTH_MS, True, 300))
        time.heard_copy("c", Reading(TRUTH_MS, TRUTH_MS, True, 200))
        time.lead(["a", "b", "c"], TRUTH_MS - 10)
        assert (time.now_ms, time.timer_ms) == (TRUTH_MS, TRUTH_MS - 300 - cluster_time.MARGIN_MS)

    def test_what_is_stored_by_a_leader_that_is_not_sure_is_not_early_when_its_time_steps(self) -> None:
        time = ClusterTime("a", "boot", None)
        time.begin(Now(5_000, TRUTH_MS - HOUR_MS))
        time.lead(["a", "b", "c"], 70)
        time.heard_copy("b", Reading(TRUTH_MS - DAY_MS, 0, False))
        time.correct(["a", "b", "c"])
        assert time.timer_ms == time.now_ms == TRUTH_MS - DAY_MS
        time.pin()
        time.heard_copy("c", Reading(TRUTH_MS, 0, False))
        time.correct(["a", "b", "c"])
        assert (time.now_ms, time.timer_ms) == (TRUTH_MS - HOUR_MS, TRUTH_MS - DAY_MS)

    def test_a_lower_timer_time_is_stored_before_anything_that_is_due_by_it(self) -> None:
        time = self.copy("c", TRUTH_MS)
        time.begin(Now(1_000, 0))
        time.heard_leader(TRUTH_MS - 60, True, 2)
        time.settle(2)
        row = time.mark()
        assert row is not None
        assert row.time_ms - row.behind_ms <= time.timer_ms


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
        assert self.fleet.leader.desk.leader_ms - self.fleet.now.wall_ms < 1_000
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


def test_a_clock_of_whole_milliseconds_makes_no_delay_early() -> None:
    """It may be almost a millisecond later than it says."""
    leader = Fleet(1, "a", clock_step_ms=1).leader
    assert [leader.desk.due_after(delay_ms) - leader.desk.timer_ms for delay_ms in (0, 1_000)] == [0, 1_001]
