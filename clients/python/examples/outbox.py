"""A row and a record that exist both or not at all. Needs a node: gossipq node"""

import sqlite3

import gossipq

db = sqlite3.connect("shop.db")
gossipq.outbox.Outbox().create(db)
db.execute("create table if not exists stock (item text primary key, count integer)")
db.execute("insert or replace into stock values ('figs', 7)")
db.commit()

# -- in the guide
outbox = gossipq.outbox.Outbox()
with db:  # one transaction: both rows, or neither
    db.execute("update stock set count = count - 1 where item = 'figs'")
    outbox.publish(db, "orders", {"item": "figs"}, key="ada")
# --

with gossipq.connect() as mq:
    relay = gossipq.outbox.Relay(mq, "sqlite:///shop.db")  # or in a shell: gossipq outbox relay
    relay.run(until_empty=True)
    print(relay.published, "published")
db.close()
