"""One consumer process of the demo: fetch, report what came, ack, until told to stop."""

from itertools import groupby
from multiprocessing.connection import Connection

import gossipq_client
from gossipq_cli.demo.account import checksums, pack_run

FETCH_RECORDS = 1_000
WAIT_S = 0.2


def main(server: str, topic: str, group: str, pipe: Connection) -> None:
    """Reports run by run into `pipe` before each ack: a kill between the two costs a redelivery, never a record.

    Ends when anything comes down the pipe, or its other end is gone.
    """
    with gossipq_client.connect(server) as mq:
        pipe.send_bytes(b"")
        while not pipe.poll():
            batch = mq.fetch(topic, group, n=FETCH_RECORDS, wait=WAIT_S)
            if not batch:
                continue
            rows = enumerate(zip(batch, batch.values(), strict=True))
            report = b""
            # rows whose offset rises with their number lie side by side in one partition
            for (partition, _), run in groupby(rows, lambda row: (row[1][0].partition, row[1][0].offset - row[0])):
                found = [row for _, row in run]
                report += pack_run(partition, found[0][0].offset, checksums(value for _, value in found))
            pipe.send_bytes(report)
            mq.ack(batch)
