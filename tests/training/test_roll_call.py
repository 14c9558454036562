"""Processes of a run meet before JAX joins them; here each is a thread with a socket."""

import concurrent.futures
import contextlib
import socket
import threading
import time

import pytest

from spectral_flax.errors import UserError
from spectral_flax.training.roll_call import roll_call

IN_USE = "is in use by another program"


@pytest.fixture
def address():
    """A free one on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def call(address, *callers, timeout_s=20.0):
    """Calls as each (index, count) at once; returns what each was told, "" for all present."""

    def one(caller):
        try:
            roll_call(address, *caller, timeout_s)
        except UserError as error:
            assert "\n" not in str(error)
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(callers)) as pool:
        return list(pool.map(one, callers))


def test_all_meet_in_any_order_and_again_at_once(address):
    for order in ((0, 1, 2, 3), (3, 1, 2, 0)):
        assert call(address, *((index, 4) for index in order)) == [""] * 4
    assert call(address, (0, 1)) == [""]


def test_a_late_process_0_is_waited_for(address):
    late = threading.Timer(0.5, roll_call, (address, 0, 2, 20.0))
    late.start()
    assert call(address, (1, 2)) == [""]
    late.join()


def test_those_who_came_are_told_who_is_missing(address):
    told = call(address, (0, 5), (1, 5), (3, 5), timeout_s=1.0)
    assert len(set(told)) == 1
    assert "3 of 5 processes are present after 1 s, missing 2, 4;" in told[0]
    assert "SPECTRAL_FLAX_JOIN_SECONDS" in told[0] and address in told[0]


def test_without_process_0(address):
    (told,) = call(address, (2, 3), timeout_s=0.5)
    assert f"process 2 of 3 found no process 0 at {address} after 0.5 s" in told
    assert "refused" in told


def test_one_who_left_while_it_waited_is_missing(address):
    host, port = address.split(":")

    def leave():
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(b"spectral_flax 1 of 4\n")
                    time.sleep(0.3)
                return
            time.sleep(0.02)

    leaver = threading.Thread(target=leave)
    leaver.start()
    told = call(address, (0, 4), (2, 4), timeout_s=1.5)
    leaver.join()
    assert "2 of 4 processes are present after 1.5 s, missing 1, 3;" in told[0]
    assert told[1] == told[0]


def test_strangers_are_neither_counted_nor_answered(address):
    """A port scanner, a browser, and one that says nothing, while the run gathers."""
    host, port = address.split(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, address, (0, 2))
        for word in (b"", b"GET / HTTP/1.1\r\n\r\n", b"spectral_flax x of 2\n", b"\xff" * 9000):
            for _ in range(100):
                with contextlib.suppress(OSError):
                    with socket.create_connection((host, int(port))) as stranger:
                        stranger.sendall(word)
                    break
                time.sleep(0.02)
        assert call(address, (1, 2)) == [""]
        assert first.result() == [""]


def test_the_address_is_in_use(address):
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:
        (told,) = call(address, (0, 2), timeout_s=0.5)
        assert f"the coordinator address {address} {IN_USE}" in told and "another port" in told
        # To the others it is a listener that never says `go`: it hangs up on them.
        server.settimeout(5.0)
        hang_up = threading.Thread(target=lambda: server.accept()[0].close())
        hang_up.start()
        (told,) = call(address, (1, 2), timeout_s=0.2)
        hang_up.join()
        assert "no process 0 of this run" in told or "reset" in told


@pytest.mark.parametrize(
    "callers, words",
    [
        ([(0, 3), (1, 3), (1, 3)], "two processes are number 1 of 3"),
        ([(0, 3), (1, 2)], "process 1 was told of 2 processes and process 0 of 3"),
        ([(0, 2), (5, 6)], "process 5 was told of 6 processes and process 0 of 2"),
    ],
)
def test_processes_that_disagree_are_told(address, callers, words):
    told = call(address, *callers)
    assert all(words in text and "JAX_PROCESS_ID" in text for text in told)


@pytest.mark.parametrize(
    "address, index, count, words",
    [
        ("localhost", 0, 2, "'localhost'; expected HOST:PORT"),
        ("localhost:x", 0, 2, "expected HOST:PORT"),
        ("localhost:70000", 0, 2, "expected HOST:PORT"),
        ("localhost:1", 2, 2, "process 2 of 2"),
    ],
)
def test_bad_places(address, index, count, words):
    with pytest.raises(UserError, match=words):
        roll_call(address, index, count, 1.0)
