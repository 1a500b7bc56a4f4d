"""The bank: pays orders and writes receipts. Needs a node: gossipq run bank:mq"""

import os

from order import Order

from gossipq_client import Message, Reject, Retry, connect

mq = connect()


def charge(order: Order) -> None:
    """Stands for a payment service, which is closed while BANK=closed."""
    if os.environ.get("BANK") == "closed":
        raise Retry("200ms", reason="the bank is closed")


# the orders of one customer are paid one at a time, in order
@mq.consumer("orders", group="bank", mode="key_ordered", attempts_max=3)
def pay(message: Message, order: Order) -> None:
    if order.cents <= 0:
        raise Reject("nothing to pay")  # a dead letter at once
    charge(order)
    message.ack_with("receipts", {"number": order.number, "paid": order.cents})  # both or neither
    print("paid", order.number)
