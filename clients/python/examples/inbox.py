"""Has one effect for each record, even if the consumer dies while it handles one.

The transaction that has the effect also stores the ref of the record. Needs a node: gossipq node
"""

import sqlite3

import gossipq

GROUP = "bank"
TRANSFERS = [(b"ada", b"500"), (b"bob", b"-20"), (b"ada", b"-100")]

db = sqlite3.connect("accounts.db")
db.executescript("""
    pragma journal_mode = wal;
    create table if not exists inbox (
        consumers, topic, partition, number, primary key (consumers, topic, partition, number)
    );
    create table if not exists account (name primary key, balance);
""")
add = "insert into account values (?, ?) on conflict do update set balance = balance + excluded.balance"

with gossipq.connect() as mq:
    ids = [f"transfer-{number}" for number in range(len(TRANSFERS))]  # a second run publishes nothing
    names, amounts = zip(*TRANSFERS, strict=True)
    mq.publish_many("transfers", amounts, keys=names, ids=ids)
    # -- in the guide
    for msg in mq.consume("transfers", group=GROUP, credit=100, stop_at_end=True):
        with msg, db:  # one transaction; the ack comes after it
            row = (GROUP, msg.topic, msg.partition, msg.offset)
            if db.execute("insert or ignore into inbox values (?, ?, ?, ?)", row).rowcount:
                db.execute(add, (msg.key.decode(), int(msg.value)))
    # --
    print(dict(db.execute("select name, balance from account order by name")))
