"""Shows the dead letters of a group, and replays one of them. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.publish_many("invoices", [b"17 for ada", b"3 for nobody"])
    for msg in mq.consume("invoices", group="books", stop_at_end=True):
        if b"nobody" in msg.value:
            msg.reject("no such customer")
        else:
            msg.ack()
    # -- in the guide
    for letter in mq.dead("invoices", "books").letters():
        print(letter.offset, letter.reason, letter.error, letter.value)
    mq.dead("invoices", "books").replay()  # ready again, for this group only; purge() removes them
    # --
    for msg in mq.consume("invoices", group="books", stop_at_end=True):
        with msg:
            print("again:", msg.value.decode())
