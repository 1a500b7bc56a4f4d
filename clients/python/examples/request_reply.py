"""Sends a request and waits for its reply, which is the return value of a handler.

Needs a node: gossipq node
"""

import threading
import time

import gossipq

mq, desk = gossipq.connect(), gossipq.connect()


# -- in the guide
@desk.consumer("prices", group="desk")
def price(item: str) -> dict:
    return {"item": item, "cents": 120}


# --
answering = threading.Thread(target=desk.run)  # another program, usually
answering.start()
mq.create_topic("prices", if_not_exists=True)
while not any(group.consumers for group in mq.topic("prices").groups()):
    time.sleep(0.05)  # a request fails at once without a consumer
# -- in the guide
print(mq.request("prices", "apple", timeout=5).value)
# --
desk.stop()
answering.join()
mq.close()
desk.close()
