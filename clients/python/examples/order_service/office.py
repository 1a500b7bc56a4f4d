"""The office: packs parcels, bills them together, reports daily. Needs a node: gossipq run office:mq"""

import time

from order import Order

from gossipq_client import Message, connect

mq = connect()
BOXES = 4


@mq.consumer("parcels", group="office")
def pack(message: Message, order: Order) -> dict[str, object]:
    for box in range(1, BOXES + 1):
        if message.cancelled:  # whoever cancelled it does not wait for the rest
            break
        time.sleep(0.2)  # stands for the work
        message.progress(box / BOXES, f"box {box} of {BOXES}")
    return {"number": order.number, "boxes": box}


@mq.consumer("bills", group="office")
def bill(message: Message, customer: str) -> str:
    done = [job for job in message.joined if job.state == "succeeded"]
    boxes = sum(mq.result(job.ref)["boxes"] for job in done)
    return f"{customer}: {len(done)} of {len(message.joined)} parcels, {boxes} boxes"


# a record each weekday at 7 o'clock
@mq.consumer("reports", group="office", cron="0 7 * * mon-fri", tz="Europe/Berlin")
def report(kind: str) -> None:
    print("report", kind or "of the morning")
