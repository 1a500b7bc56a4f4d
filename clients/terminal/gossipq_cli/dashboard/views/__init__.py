"""The seven views, by name; each a list, or several, and a way to draw them in a given size."""

from gossipq_cli.dashboard.state import Ui
from gossipq_cli.dashboard.views.base import Lister
from gossipq_cli.dashboard.views.clients import Clients
from gossipq_cli.dashboard.views.groups import GroupPage, Groups
from gossipq_cli.dashboard.views.growth import GrowthView
from gossipq_cli.dashboard.views.messages import Messages, RecordPage
from gossipq_cli.dashboard.views.nodes import NodePage, Nodes
from gossipq_cli.dashboard.views.overview import Overview
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
PAGES: dict[str, Lister] = {
    "nodes": NodePage(),
    "topics": TopicPage(),
    "groups": GroupPage(),
    "messages": RecordPage(),
}


def view_of(ui: Ui) -> Lister:
    """The view, or the page of what was opened in it."""
    return PAGES[ui.view] if ui.path else LISTS[ui.view]
