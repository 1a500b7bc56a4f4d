"""What waits behind a key of a key-ordered group, in memory and on disk."""

from types import SimpleNamespace
from typing import Any

from gossipq.core.delivery.consumers import KEY_ORDERED, PartitionView
from gossipq.core.delivery.leases import Leases
from gossipq.core.ledger import key_lane

KEY = 3
LANE = key_lane(KEY)


def test_a_record_that_failed_goes_on_before_those_on_disk_behind_it() -> None:
    """It came back while a later one was held: it waits in memory, and the first of all goes first."""
    group: Any = SimpleNamespace(id=7, state=SimpleNamespace(config=SimpleNamespace(mode=KEY_ORDERED)))
    cursor: Any = SimpleNamespace(state=SimpleNamespace(cursor=0))
    ledger: Any = None
    view, leases = PartitionView(group, 1 << 16, cursor), Leases(ledger)
    assert view.keys is not None
    view.keys.failed(KEY, 8)
    view.keys.parked(KEY, 11)
    view.lanes.wait(LANE, 8, 9, 1)
    leases.let_on(view, KEY)
    assert (list(view.returned), view.draining) == ([(8, 9, 1)], {})
    view.returned.clear(8, 9)
    view.keys.done(KEY, 8)
    leases.let_on(view, KEY)
    assert view.draining == {LANE: 11}
