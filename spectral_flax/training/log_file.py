"""Files that grow while a run trains: on a disk, and on storage that cannot append (gs://)."""

import time
from typing import IO

from etils import epath

from spectral_flax.errors import UserError

_UPLOAD_SECONDS = 60.0


class LogFile:
    """Appends bytes to a file. Every error of the disk becomes a UserError that names the file.

    On a disk each write reaches the kernel at once. An object in a bucket can only be replaced, so
    there the whole file is uploaded once a minute, and by `flush`.
    """

    def __init__(self, path: epath.Path):
        """Opens path at its end, and makes it if it is not there."""
        self._path = path
        self._remote = "://" in str(path)
        self._file: IO[bytes] | None = None
        self._content, self._uploaded = bytearray(), 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self._remote:
                self._file = path.open("ab")
            elif path.exists():
                self._content += path.read_bytes()
        except OSError as error:
            raise self._error(error) from error

    def write(self, data: bytes) -> None:
        """Appends."""
        try:
            if self._file is not None:
                self._file.write(data)
                self._file.flush()
        except OSError as error:
            raise self._error(error) from error
        if self._remote:
            self._content += data
            if time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
                self.flush()

    def flush(self) -> None:
        """Makes all that was written outlast this process."""
        if not self._remote:
            return
        try:
            self._path.write_bytes(bytes(self._content))
        except OSError as error:
            raise self._error(error) from error
        self._uploaded = time.monotonic()

    def close(self) -> None:
        """Flushes. Of a full disk, `write` has told."""
        self.flush()
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise self._error(error) from error

    def _error(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write {self._path}: {error.strerror or error}; put that right and run the "
            "same command again, which resumes from the last checkpoint"
        )
