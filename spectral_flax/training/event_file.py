"""TensorBoard's event files, written at once.

tensorboardX has the messages and the checksums. Its writer is not used: it writes in a thread that
a full disk ends, after which the run would wait for room in the thread's queue for ever, and it
writes to buckets through a client library of its own.
"""

import socket
import struct
import time
from collections.abc import Mapping

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from spectral_flax.training.log_file import LogFile


class EventFile:
    """Scalars of one run of a process. TensorBoard hides what earlier files say from `first_step`.

    Raises UserError when the disk does not take them.
    """

    def __init__(self, directory: epath.Path, first_step: int):
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._file = LogFile(directory / name)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends named values of a step."""
        for name, value in values.items():
            self._write(Event(step=step, summary=scalar(name, value)))

    def flush(self) -> None:
        """Makes all that was written outlast this process."""
        self._file.flush()

    def close(self) -> None:
        """Flushes."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        header = struct.pack("<Q", len(data))
        self._file.write(header + _checksum(header) + data + _checksum(data))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
