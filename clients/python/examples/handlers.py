"""Registers functions as consumers. The type annotation decodes the value and checks it.

Needs a node: gossipq node

Run it as it is, or leave that to the command line: gossipq run handlers:mq --processes 4
"""

from dataclasses import dataclass

import gossipq

mq = gossipq.connect()


@dataclass
class Order:
    item: str
    count: int


# -- in the guide
@mq.consumer("shop", group="packers", workers=4)
def pack(order: Order) -> None:  # or bytes, str, dict, a Struct; async def; the message itself
    print(f"{order.count} {order.item} packed")  # returning acks the record; raising fails it


# --
if __name__ == "__main__":
    orders = [b'{"item": "apples", "count": 17}', b'{"item": "pears", "count": "some"}']
    mq.publish_many("shop", orders)
    mq.run(stop_at_end=True)  # without it: until SIGTERM or Ctrl-C, which let running handlers finish
    for letter in mq.dead("shop", "packers").letters():
        print(letter.reason, letter.error)
    mq.close()
