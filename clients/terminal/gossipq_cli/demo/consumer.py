"""One consumer process of the demo: fetch, report what came, ack, until told to stop."""

import logging
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection

import gossipq_client
from gossipq_cli.demo.account import checksums, pack_run

FETCH_RECORDS = 1_000
WAIT_S = 0.2


def main(servers: list[str], topic: str, group: str, pipe: Connection) -> None:
    """Reports run by run into `pipe` before each ack: a kill between the two costs a redelivery, never a
    record.

    Ends when anything comes down the pipe; at once, without its last acks, when the other end of the pipe is
    gone.
    """
    logging.getLogger("gossipq_client").setLevel(logging.ERROR)  # late acks are part of the play, and counted
    with suppress(gossipq_client.LeaseLost), gossipq_client.connect(*servers) as mq:
        try:
            pipe.send_bytes(b"")
            while not pipe.poll():
                take(mq, topic, group, pipe)
            pipe.recv_bytes()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            mq.close(flush=False)  # the demo's nodes end as well: an ack may find nobody


def take(mq: gossipq_client.Client, topic: str, group: str, pipe: Connection) -> None:
    """One fetch: report and ack."""
    batch = mq.fetch(topic, group, n=FETCH_RECORDS, wait=WAIT_S, create=True)
    if not batch:
        return
    rows = enumerate(zip(batch, batch.values(), strict=True))
    report = b""
    # rows whose offset rises with their number lie side by side in one partition
    for (partition, _), run in groupby(rows, lambda row: (row[1][0].partition, row[1][0].offset - row[0])):
        found = [row for _, row in run]
        report += pack_run(partition, found[0][0].offset, checksums(value for _, value in found))
    pipe.send_bytes(report)
    mq.ack(batch)
