"""Cancels a job that runs. Needs a node: gossipq node"""

import threading
import time

import gossipq

with gossipq.connect() as mq, gossipq.connect() as worker:
    begun = threading.Event()

    # -- in the guide
    @worker.consumer("films", group="renderers")
    def render(frames: int, msg: gossipq.Message) -> None:
        begun.set()
        while not msg.cancelled:
            time.sleep(0.01)  # the work on a frame

    # --
    working = threading.Thread(target=worker.run)
    working.start()
    receipt = mq.publish("films", 240)
    begun.wait(30)
    # -- in the guide
    mq.cancel(receipt)
    # --
    print(mq.job(receipt).state)
    worker.stop()
    working.join()
