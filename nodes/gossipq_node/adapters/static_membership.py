"""The Membership of a node with configured addresses: it finds nothing and reports no events."""

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
        """Does nothing."""

    def close(self) -> None: ...
