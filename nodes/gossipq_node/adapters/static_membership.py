"""The Membership of a node that is told the others' addresses: nothing is found, nothing happens."""

from collections.abc import Mapping

from gossipq.values import GossipEvent
from gossipq_node.ports import SeenNode
from gossipq_node.settings import GossipSettings


class StaticMembership:
    state = ""
    queued = 0

    def __init__(self, settings: GossipSettings) -> None:
        self._found = [
            SeenNode(peer) for peer in dict.fromkeys(settings.peers) if peer != settings.member.endpoint
        ]

    def found(self) -> list[SeenNode]:
        return list(self._found)

    def events(self) -> list[GossipEvent]:
        return []

    def tell(self, tags: Mapping[str, str]) -> None:
        """Nobody listens."""

    def close(self) -> None: ...
