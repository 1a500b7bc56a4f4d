"""Sends the parcels of one customer, follows the first, and asks for one bill. Needs a node and office.py"""

from order import Order

from gossipq_client import connect

with connect() as mq:
    mq.create_topic("bills", if_not_exists=True)
    orders = [Order(f"o-{number}", "ada", 100) for number in range(1, 4)]
    # of one order, only one parcel waits or is packed at a time
    parcels = [mq.publish("parcels", each, unique=each.number, keep_result="1h") for each in orders]
    again = mq.publish("parcels", orders[0], unique="o-1", keep_result="1h")
    print("the same parcel:", again.ref == parcels[0].ref)
    print("cancelled", mq.cancel(parcels[2], reason="ada wants it no more"))
    billed = mq.join(parcels, then=("bills", "ada"), timeout="1h", keep_result="1h")
    for job in mq.follow(parcels[0]):
        if job.progress is not None and not job.ended:
            print(f"{job.progress:.0%} {job.text}")
    print(mq.result(parcels[0]))
    print(mq.result(billed, timeout="30s"))
