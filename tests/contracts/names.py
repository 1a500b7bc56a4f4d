"""A name server for tests: it knows what it is told, and keeps whoever asks for a name of a `silent` one
waiting."""

import threading

ANSWER_S = 20.0  #: after which a silent server is given up


class Names:
    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self._closed = threading.Event()

    def look_up(self, name: str) -> list[str]:
        self.asked.append(name)
        if name in self.silent:
            self._closed.wait(ANSWER_S)
        if name not in self.addresses:
            raise OSError(f"{name} is not known")
        return list(self.addresses[name])

    def close(self) -> None:
        self._closed.set()
