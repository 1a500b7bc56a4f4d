"""Publishes one record, then a list. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    one = mq.publish("orders", b"17 apples", key=b"ada", headers={"shop": "north"})
    print("on disk at offset", one.offset)
    many = mq.publish_many("orders", [b"3 pears", b"9 plums", b"1 quince"])
    print(many.count, "more from offset", many.offset)
