"""Waits until every process of a run has come, and says who has not.

jax.distributed also waits, but at its time-out its C++ client aborts the process with a stack trace
that names nobody, and a coordinator address in use ends it with a segmentation fault (JAX 0.12). So
the processes first meet here, over the same address: each tells process 0 its number, and process 0
answers all of them at once, with `go` or with why not.
"""

import contextlib
import errno
import re
import select
import socket
import sys
import time

from spectral_flax.errors import UserError

_GREETING = re.compile(r"spectral_flax (\d+) of (\d+)")
_LONGEST = 4096  # bytes of a line; whoever sends more is no process of ours
_NOTICE_SECONDS = 10.0  # of waiting before one is told for whom
_GRACE_SECONDS = 10.0  # between the time-outs of process 0, which knows more, and the others
_RETRY_SECONDS = 0.2


def roll_call(address: str, index: int, count: int, timeout_s: float) -> None:
    """Returns once all `count` processes have called; this is the index-th.

    address: HOST:PORT of process 0. Raises UserError, in every process that is there, when some
    are missing after timeout_s seconds, when two have the same index, when they disagree about the
    count, and when another program uses the address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"the coordinator address is '{address}'; expected HOST:PORT")
    if not 0 <= index < count:
        raise UserError(f"this is process {index} of {count}; expected an index from 0 to COUNT-1")
    if index == 0:
        with _listen(address, int(port)) as listener:
            _Register(listener, address, count, time.monotonic() + timeout_s, timeout_s).call()
    else:
        _answer(address, (host.strip("[]"), int(port)), index, count, timeout_s)


def _listen(address: str, port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise UserError(f"cannot listen at {address}: {error.strerror}") from error
        raise UserError(
            f"the coordinator address {address} is in use by another program on this machine; end "
            "it, or choose another port in JAX_COORDINATOR_ADDRESS (launch/local.sh --port)"
        ) from error


class _Register:
    """Process 0's list of who has called."""

    def __init__(
        self, listener: socket.socket, address: str, count: int, deadline: float, s: float
    ):
        self._listener, self._address, self._count = listener, address, count
        self._deadline, self._timeout_s = deadline, s
        self._callers: dict[int, socket.socket] = {}

    def call(self) -> None:
        """Answers all callers once all are there; raises UserError if they never are."""
        notice = time.monotonic() + _NOTICE_SECONDS
        with contextlib.ExitStack() as connections:
            while len(self._callers) < self._count - 1:
                now = time.monotonic()
                if now > self._deadline:
                    self._refuse(self._missing(f"after {self._timeout_s:g} s"))
                if now > notice:
                    notice = float("inf")
                    print(f"waiting: {self._missing('so far')}", file=sys.stderr, flush=True)
                if select.select([self._listener], [], [], _RETRY_SECONDS)[0]:
                    connection, _ = self._listener.accept()
                    connections.enter_context(connection)
                    self._admit(connection)
                self._callers = {i: c for i, c in self._callers.items() if _is_open(c)}
            self._tell("go")

    def _admit(self, connection: socket.socket) -> None:
        match = _GREETING.fullmatch(_line(connection, 1.0))
        if not match:
            return  # no process of a run; it is closed with the others
        index, count = map(int, match.groups())
        self._callers = {i: c for i, c in self._callers.items() if _is_open(c)}
        if count == self._count and 0 < index < count and index not in self._callers:
            self._callers[index] = connection
            return
        reason = (
            f"process {index} was told of {count} processes and process 0 of {self._count}"
            if count != self._count
            else f"two processes are number {index} of {count}"
        )
        self._callers[-1] = connection  # it is told as well
        self._refuse(
            f"{reason}; give each its own JAX_PROCESS_ID and all the same JAX_NUM_PROCESSES"
        )

    def _missing(self, when: str) -> str:
        absent = [i for i in range(1, self._count) if i not in self._callers]
        names = ", ".join(map(str, absent[:20])) + (", ..." if len(absent) > 20 else "")
        return (
            f"{len(self._callers) + 1} of {self._count} processes are present {when}, missing "
            f"{names}; start the same command on every host (process 0 listens at "
            f"{self._address}; SPECTRAL_FLAX_JOIN_SECONDS is the time-out)"
        )

    def _refuse(self, reason: str) -> None:
        self._tell(f"no {reason}")
        raise UserError(reason)

    def _tell(self, answer: str) -> None:
        for connection in self._callers.values():
            with contextlib.suppress(OSError):  # it has left; jax.distributed will notice
                connection.sendall(f"{answer}\n".encode())


def _answer(
    address: str, target: tuple[str, int], index: int, count: int, timeout_s: float
) -> None:
    """Calls until process 0 answers, which it does to all at once."""
    deadline = time.monotonic() + timeout_s
    problem = "nothing answers"
    while (now := time.monotonic()) < deadline:
        try:
            with socket.create_connection(target, timeout=max(deadline - now, 0.1)) as connection:
                connection.sendall(f"spectral_flax {index} of {count}\n".encode())
                answer = _line(connection, deadline - now + timeout_s + _GRACE_SECONDS)
        except OSError as error:  # not there yet, as a host or as a listener
            problem = error.strerror or str(error) or problem
        else:
            if answer == "go":
                return
            if answer.startswith("no "):
                raise UserError(answer.removeprefix("no "))
            problem = "what listens there is no process 0 of this run"
        time.sleep(_RETRY_SECONDS)
    raise UserError(
        f"process {index} of {count} found no process 0 at {address} after {timeout_s:g} s "
        f"({problem}); start the same command on every host, see that the address can be reached "
        "from here, or wait longer with SPECTRAL_FLAX_JOIN_SECONDS"
    )


def _line(connection: socket.socket, timeout_s: float) -> str:
    """The line that comes within the time; "" if none does."""
    connection.settimeout(timeout_s)
    received = b""
    with contextlib.suppress(OSError):
        while b"\n" not in received and len(received) < _LONGEST:
            part = connection.recv(_LONGEST)
            if not part:
                break
            received += part
    return received.decode(errors="replace").partition("\n")[0] if b"\n" in received else ""


def _is_open(connection: socket.socket) -> bool:
    """Whether the other side still waits; it says no more, so what there is to read is its end."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False
