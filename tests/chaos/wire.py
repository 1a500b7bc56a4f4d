"""A bad wire: `python wire.py WIRE TAP DELAY_MS LOSS SEED` takes each frame that comes out of the network
device WIRE and puts it into TAP, a device that it makes, and the other way round; each DELAY_MS later, or,
with the chance LOSS, never. It says "ready" when TAP is there. The kernel needs no module for it.

What it carries has the head that the kernel gives to virtual machines, so checksums and large segments that
are still to be made pass as they are.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from random import Random

ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 3, 263, 15, 4
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR, ALL_OFFLOADS = 0x2, 0x1000, 0x4000, 0xF
FRAME_BYTES, BUFFER_BYTES = 1 << 17, 8 << 20


def main(wire: str, tap: str, delay_ms: float, loss: float, seed: str) -> None:
    random, delay_s = Random(seed), delay_ms / 1000
    near = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    near.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    near.bind((wire, ETH_P_ALL))
    far = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(far, TUNSETIFF, struct.pack("16sH22x", tap.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(far, TUNSETOFFLOAD, ALL_OFFLOADS)
    print("ready", flush=True)
    under_way: deque[tuple[float, int, bytes]] = deque()  #: when it is due, where it goes, the frame
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for file in select.select([near, far], [], [], wait_s)[0]:
            if file is near:
                frame, (_, _, kind, *_) = near.recvfrom(FRAME_BYTES)
                if kind == PACKET_OUTGOING:  # it was put there from here
                    continue
                target = far
            else:
                frame, target = os.read(far, FRAME_BYTES), near.fileno()
            if random.random() >= loss:
                under_way.append((time.monotonic() + delay_s, target, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, target, frame = under_way.popleft()
            try:
                os.write(target, frame)
            except OSError:
                continue  # the wire is down: what was on it is lost


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
