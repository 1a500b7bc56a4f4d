"""Waits for the result of a job, and for a job that fails. Needs a node: gossipq node"""

import threading

import gossipq

with gossipq.connect() as mq, gossipq.connect() as worker:
    mq.create_topic("resize", attempts_max=1, if_not_exists=True)

    @worker.consumer("resize", group="workers")
    def resize(size: dict) -> dict:
        if size["width"] <= 0:
            raise ValueError(f"a width of {size['width']}")
        return {"width": size["width"] // 2, "height": size["height"] // 2}

    working = threading.Thread(target=worker.run)
    working.start()
    # -- in the guide
    receipt = mq.publish("resize", {"width": 640, "height": 480}, keep_result="1h")
    print(mq.result(receipt.ref, timeout="30s"))
    # --
    wrong = mq.publish("resize", {"width": 0, "height": 480}, keep_result="1h")
    try:
        mq.result(wrong, timeout="30s")
    except gossipq.JobFailed as failed:
        print(failed.job.state, failed.job.error)
    worker.stop()
    working.join()
