"""Ports that nobody else is given while we start, stop and start again what listens on them."""

import socket

LOOPBACK = "127.0.0.1"


class Port:
    """A free port, reserved until it is released.

    The socket is bound and never listens. The kernel gives its port to nobody who asks for a free one, yet a
    server that sets SO_REUSEADDR, as all of ours do, may still listen on it (socket(7), ip(7)).
    """

    def __init__(self, wanted: int = 0) -> None:
        """Reserve the wanted port if nobody has it, else any."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((LOOPBACK, wanted))
        except OSError:
            self._socket.bind((LOOPBACK, 0))
        self.number = int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.number}"

    def release(self) -> None:
        self._socket.close()
