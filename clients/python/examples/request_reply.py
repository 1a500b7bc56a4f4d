"""Asks and is answered: what a handler returns is the reply. Needs a node: gossipq node"""

import threading

from gossipq_client import connect

mq, desk = connect(), connect()


# -- in the guide
@desk.consumer("prices", group="desk", create=True)
def price(item: str) -> dict:
    return {"item": item, "cents": 120}


# --
answering = threading.Thread(target=desk.run)  # another program, usually
answering.start()
# -- in the guide
print(mq.request("prices", "apple", timeout=5).value)
# --
desk.stop()
answering.join()
mq.close()
desk.close()
