"""Faults of nodes: each fault strikes, lasts for a while, and is mended."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from random import Random

from chaos.places import Places
from e2e.cluster import Cluster, hung
from gossipq.errors import GossipqError
from gossipq_client import connect
from waiting import until

RETURN_S = 8.0  #: after its start leadership goes back to a node soon
DAY_S = 24 * 3600
TAKEOVER_S = 4.0  #: a fault that lasts longer makes others take over
CLOCK_STEPS_S = (-DAY_S, -3600, -30, 5, 300, DAY_S)
DELAYS_MS = (20, 60, 200)  #: each way
LOSSES = (0.01, 0.05, 0.2)  #: each way
SLOW_SYNCS_MS = (20, 100, 400)
MOVED_S = 120.0  #: until copies are where they belong after a change of members


class Arena:
    def __init__(self, nodes: Cluster, places: Places, random: Random) -> None:
        self.nodes, self.places, self.random = nodes, places, random

    def others(self, number: int) -> list[int]:
        return [each for each in range(len(self.nodes.members)) if each != number]

    def set_member(self, number: int, state: str) -> None:
        """As an operator does, asking the other nodes: "leaving", "in", or "gone"; until it is taken."""
        others = [self.nodes.members[other].endpoint for other in self.others(number)]

        def is_set() -> bool:
            try:
                with connect(*others) as mq:
                    mq.admin.set_member(self.nodes.members[number].name, state, self.places.secret)
            except GossipqError:  # for some seconds, a killed node counts as living
                return False
            return True

        until(is_set, MOVED_S, f"a node is not {state}")


Fault = Callable[[Arena, int], AbstractContextManager[None]]  #: (arena, the number of the node that it hits)


@contextmanager
def kill(arena: Arena, victim: int) -> Iterator[None]:
    member = arena.nodes.members[victim]
    member.kill()
    yield
    member.start()


@contextmanager
def kill_two(arena: Arena, victim: int) -> Iterator[None]:
    second = arena.random.choice(arena.others(victim))
    with kill(arena, victim), kill(arena, second):
        yield


@contextmanager
def kill_all(arena: Arena, victim: int) -> Iterator[None]:
    for member in arena.nodes.members:
        member.kill()
    yield
    arena.nodes.start_at_once()


@contextmanager
def restart(arena: Arena, victim: int) -> Iterator[None]:
    """As for an upgrade: it hands over what it leads and ends."""
    assert arena.nodes.members[victim].stop() == 0
    yield
    arena.nodes.members[victim].start()


@contextmanager
def drain(arena: Arena, victim: int) -> Iterator[None]:
    """Taken out of service, and taken back."""
    arena.set_member(victim, "leaving")
    yield
    arena.set_member(victim, "in")


@contextmanager
def replace(arena: Arena, victim: int) -> Iterator[None]:
    """It dies with its disk, and an empty one takes its place. Only when all others have everything: two
    disks lost at once are more than any majority survives."""
    arena.nodes.wait_healthy(len(arena.nodes.members), patience_s=MOVED_S)
    member = arena.nodes.members[victim]
    member.kill()
    yield
    arena.set_member(victim, "gone")
    shutil.rmtree(member.data)
    other = arena.nodes.members[arena.random.choice(arena.others(victim))]
    member.flags = (*member.flags, "--peer", other.endpoint)  # the first would found another cluster
    member.start()
    arena.nodes.wait_healthy(len(arena.nodes.members), patience_s=MOVED_S)


@contextmanager
def one_more(arena: Arena, victim: int) -> Iterator[None]:
    """A node joins, takes its part, and leaves for good."""
    nodes = arena.nodes
    number = len(nodes.members)
    guest = nodes.make()
    guest.start()

    def votes() -> int | None:
        """Of the guest; None: a node does not say in time, on a busy machine."""
        try:
            copy, told = guest.status().copy, nodes.statuses()
        except GossipqError:
            return None
        with_it = [row for status in told for row in status.copies if row.copy == copy]
        return sum(row.role in ("leader", "follower") and row.shard > 0 for row in with_it)

    until(votes, MOVED_S, "a node that joined is given nothing")
    yield
    arena.set_member(number, "leaving")
    until(lambda: votes() == 0, MOVED_S, "a node that leaves keeps its copies")
    guest.kill()
    arena.set_member(number, "gone")
    nodes.members.remove(guest)
    shutil.rmtree(guest.data)


@contextmanager
def pause(arena: Arena, victim: int) -> Iterator[None]:
    member = arena.nodes.members[victim]
    member.pause()
    yield
    member.resume()


@contextmanager
def hang(arena: Arena, victim: int) -> Iterator[None]:
    """Its workers stand still while their sockets answer."""
    with ExitStack() as held:
        try:
            for pid in arena.nodes.members[victim].worker_pids():
                held.enter_context(hung(pid))
        except GossipqError:
            pass  # it does not say who its workers are: still starting
        yield


@contextmanager
def isolate(arena: Arena, victim: int) -> Iterator[None]:
    assert arena.places.network is not None
    arena.places.network.plug(victim, False)
    yield
    arena.places.network.plug(victim, True)


@contextmanager
def _deaf(arena: Arena, pairs: list[tuple[int, int]]) -> Iterator[None]:
    assert arena.places.network is not None
    for source, target in pairs:
        arena.places.network.deaf(source, target, True)
    yield
    for source, target in pairs:
        arena.places.network.deaf(source, target, False)


@contextmanager
def mute(arena: Arena, victim: int) -> Iterator[None]:
    """It hears the other nodes, and they do not hear it."""
    with _deaf(arena, [(victim, other) for other in arena.others(victim)]):
        yield


@contextmanager
def unheard(arena: Arena, victim: int) -> Iterator[None]:
    """The other way round."""
    with _deaf(arena, [(other, victim) for other in arena.others(victim)]):
        yield


@contextmanager
def torn_wire(arena: Arena, victim: int) -> Iterator[None]:
    """Two nodes do not see each other; everybody else sees both."""
    other = arena.random.choice(arena.others(victim))
    with _deaf(arena, [(victim, other), (other, victim)]):
        yield


@contextmanager
def halves(arena: Arena, victim: int) -> Iterator[None]:
    """The victim is among the fewer; clients see all."""
    fewer = [victim, *arena.random.sample(arena.others(victim), (len(arena.nodes.members) - 1) // 2 - 1)]
    more = [number for number in range(len(arena.nodes.members)) if number not in fewer]
    with _deaf(arena, [pair for one in fewer for two in more for pair in ((one, two), (two, one))]):
        yield


@contextmanager
def slow_wire(arena: Arena, victim: int) -> Iterator[None]:
    """Everything to and from it takes longer."""
    assert arena.places.network is not None
    delay_ms = arena.random.choice(DELAYS_MS)
    with arena.places.network.bad(victim, delay_ms, 0.0, arena.random.randrange(10**6)):
        yield


@contextmanager
def lossy_wire(arena: Arena, victim: int) -> Iterator[None]:
    """Some of it gets lost."""
    assert arena.places.network is not None
    with arena.places.network.bad(victim, 1, arena.random.choice(LOSSES), arena.random.randrange(10**6)):
        yield


@contextmanager
def flapping(arena: Arena, victim: int) -> Iterator[None]:
    assert arena.places.network is not None
    for _ in range(arena.random.randrange(3, 8)):
        for on in (False, True):
            arena.places.network.plug(victim, on)
            time.sleep(arena.random.uniform(0.1, 0.8))
    yield


@contextmanager
def full_disk(arena: Arena, victim: int) -> Iterator[None]:
    """Of the victim, or of a node that has a small one."""
    disk = arena.places.disks.get(victim) or arena.random.choice(list(arena.places.disks.values()))
    disk.fill()
    yield
    disk.free()


@contextmanager
def full_return(arena: Arena, victim: int) -> Iterator[None]:
    """It is killed, comes back, and its disk is full before leadership is handed back to it."""
    member = arena.nodes.members[victim]
    member.kill()
    time.sleep(TAKEOVER_S)
    member.start()
    time.sleep(RETURN_S)
    arena.places.disks[victim].fill()
    yield
    arena.places.disks[victim].free()


@contextmanager
def clock(arena: Arena, victim: int) -> Iterator[None]:
    """Its wall clock is a day ahead, and then it is killed: its followers take over, and later it comes
    back with that clock."""
    arena.places.clocks[victim].set(DAY_S)
    time.sleep(1)
    with kill(arena, victim):
        yield
    arena.places.clocks[victim].set(0)


@contextmanager
def clock_steps(arena: Arena, victim: int) -> Iterator[None]:
    """Its wall clock jumps while it works, forth or back, and later jumps back."""
    arena.places.clocks[victim].set(arena.random.choice(CLOCK_STEPS_S))
    yield
    arena.places.clocks[victim].set(0)


@contextmanager
def slow_sync(arena: Arena, victim: int) -> Iterator[None]:
    """Each sync of its disk takes longer."""
    flag = arena.places.flags[victim]
    flag.write_bytes(bytes(arena.random.choice(SLOW_SYNCS_MS)))
    yield
    flag.unlink()


@contextmanager
def stuck_sync(arena: Arena, victim: int) -> Iterator[None]:
    flag = arena.places.flags[victim]
    flag.touch()
    yield
    flag.unlink()


#: no node serves while these last
STANDSTILLS: tuple[Fault, ...] = (kill_all,)


def possible(places: Places, nodes: int) -> list[Fault]:
    """The faults that this machine allows; kills and pauses come more often."""
    found: list[Fault] = [kill, kill, kill, pause, pause, hang, kill_all]
    found += [restart, drain, replace, one_more]
    if nodes >= 5:
        found += [kill_two, kill_two, kill_two]
    if places.network is not None:
        found += [isolate, isolate, mute, unheard, torn_wire, halves, flapping, slow_wire, lossy_wire]
    if places.disks:
        found.append(full_disk)
    if places.flags:
        found += [stuck_sync, slow_sync, clock, clock_steps]
    return found


def by_name(places: Places, nodes: int) -> dict[str, Fault]:
    """Each fault once, also those that only one kind of run has."""
    found = {fault.__name__: fault for fault in possible(places, nodes)}
    return found | ({"full_return": full_return} if places.disks else {})
