"""One consumer process of the demo: fetches, reports and acks until it is stopped."""

import logging
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection

import gossipq_client
from gossipq_cli.demo.account import checksums, pack_run

FETCH_RECORDS = 1_000
WAIT_S = 0.2


def main(servers: list[str], topic: str, group: str, pipe: Connection) -> None:
    """Report each run of records into `pipe` before its ack, so that a
    kill costs only a redelivery.

    Ends when a message arrives on the pipe. If the pipe closes, it ends at
    once, without its last acks.
    """
    # late acks are expected here, and counted
    logging.getLogger("gossipq_client").setLevel(logging.ERROR)
    with suppress(gossipq_client.LeaseLost), gossipq_client.connect(*servers) as mq:
        try:
            pipe.send_bytes(b"")
            while not pipe.poll():
                take(mq, topic, group, pipe)
            pipe.recv_bytes()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            mq.close(flush=False)  # the demo's nodes are stopping too and may not answer the acks


def take(mq: gossipq_client.Client, topic: str, group: str, pipe: Connection) -> None:
    """Do one fetch: report and ack."""
    batch = mq.fetch(topic, group, n=FETCH_RECORDS, wait=WAIT_S)
    if not batch:
        return
    rows = enumerate(zip(batch, batch.values(), strict=True))
    report = b""
    # rows of one partition whose offsets rise with their numbers are one run
    for (partition, _), run in groupby(rows, lambda row: (row[1][0].partition, row[1][0].offset - row[0])):
        found = [row for _, row in run]
        report += pack_run(partition, found[0][0].offset, checksums(value for _, value in found))
    pipe.send_bytes(report)
    mq.ack_soon(batch)
