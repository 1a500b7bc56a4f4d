"""Functions that make the dialects, for the entry points of the group `gossipq.dialects`."""

from gossipq_dialects.options import KapokMqOptions, MoonMqOptions, QueueServerOptions, XxlMqOptions
from gossipq_gateway.dialect import Dialect, Wanted


def kapokmq(wanted: Wanted) -> Dialect:
    """Make KapokMQ: WebSocket, console and HTTP at its address."""
    from gossipq_dialects.kapokmq import KapokMq

    return KapokMq(wanted.own_place(), wanted.options_as(KapokMqOptions))


def moonmq(wanted: Wanted) -> Dialect:
    """Make moonmq: TCP at its address, HTTP at the second one."""
    from gossipq_dialects.moonmq import MoonMq

    if wanted.http is None:
        wanted.own_place()
    return MoonMq(wanted.at, wanted.http, wanted.options_as(MoonMqOptions), wanted.hosts)


def queue_server(wanted: Wanted) -> Dialect:
    """Make queue_server: TCP at its address, and UDP on the same port."""
    from gossipq_dialects.queue_server import QueueServer

    return QueueServer(wanted.own_place(), wanted.options_as(QueueServerOptions))


def xxl_mq(wanted: Wanted) -> Dialect:
    """Make xxl-mq: its OpenAPI, under the port of HTTP."""
    from gossipq_dialects.xxl_mq import XxlMq

    return XxlMq(wanted.options_as(XxlMqOptions))


def prettyq(wanted: Wanted) -> Dialect:
    """Make prettyQ: its query, under the port of HTTP."""
    from gossipq_dialects.prettyq.pages import PrettyQ

    return PrettyQ()
