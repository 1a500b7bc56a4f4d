"""The seven views by name: each has one or more lists, and draws them in a given size."""

from gossipq_cli.dashboard.state import Ui
from gossipq_cli.dashboard.views.base import Lister
from gossipq_cli.dashboard.views.clients import ClientPage, Clients
from gossipq_cli.dashboard.views.groups import GroupPage, Groups
from gossipq_cli.dashboard.views.growth import GrowthView
from gossipq_cli.dashboard.views.jobs import JobsPage, SchedulePage
from gossipq_cli.dashboard.views.messages import Messages, RecordPage
from gossipq_cli.dashboard.views.nodes import NodePage, Nodes
from gossipq_cli.dashboard.views.overview import Overview
from gossipq_cli.dashboard.views.shards import ShardPage
from gossipq_cli.dashboard.views.topics import TopicPage, Topics

LISTS: dict[str, Lister] = {
    "overview": Overview(),
    "nodes": Nodes(),
    "topics": Topics(),
    "groups": Groups(),
    "clients": Clients(),
    "messages": Messages(),
    "growth": GrowthView(),
}
PAGES: dict[tuple[str, int], Lister] = {  #: by view, and number of names that lead to the page
    ("nodes", 1): NodePage(),
    ("nodes", 2): ShardPage(),
    ("topics", 1): TopicPage(),
    ("groups", 2): GroupPage(),
    ("groups", 3): JobsPage(),
    ("groups", 4): SchedulePage(),
    ("clients", 1): ClientPage(),
    ("messages", 1): RecordPage(),
}


def view_of(ui: Ui) -> Lister:
    """Return the view, or its opened page."""
    return PAGES[ui.view, len(ui.path)] if ui.path else LISTS[ui.view]
