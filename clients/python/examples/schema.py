"""Declares the schema of the values of a topic. Needs a node: gossipq node"""

import msgspec

import gossipq


class Sale(msgspec.Struct):
    user: str
    amount: float
    note: str | None = None


with gossipq.connect() as mq:
    mq.create_topic("sales", if_not_exists=True)
    # -- in the guide
    mq.schema("sales", Sale)  # also a dataclass, or a JSON Schema; later: mq.schema("sales")
    mq.publish("sales", Sale("ada", 12.5))
    mq.publish("sales", b'{"user": "bob", "amount": 3}')
    # --
    try:
        mq.publish("sales", b'{"user": "eve", "amount": "3"}')
    except gossipq.BadRequest as error:
        print(error)
