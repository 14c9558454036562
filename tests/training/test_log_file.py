"""Files that grow, on disks and in buckets, and TensorBoard's events in them."""

import struct

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog

from spectral_flax.training import log_file
from spectral_flax.training.event_file import EventFile
from spectral_flax.training.log_file import LogFile
from spectral_flax.training.run_directory import absolute


class Bucket:
    """An object in a bucket, which can be replaced but not appended to."""

    def __init__(self, content: bytes | None = None):
        self.content, self.uploads, self.parent = content, 0, self

    def __str__(self) -> str:
        return "gs://bucket/runs/a/metrics.jsonl"

    def mkdir(self, **_) -> None:
        """Buckets have no directories."""

    def exists(self) -> bool:
        return self.content is not None

    def read_bytes(self) -> bytes:
        return self.content or b""

    def write_bytes(self, content: bytes) -> None:
        self.content, self.uploads = content, self.uploads + 1


def test_a_disk_has_each_write_at_once(tmp_path):
    path = epath.Path(tmp_path / "new" / "log")
    for line in (b"one\n", b"two\n"):
        log = LogFile(path)
        log.write(line)
        assert path.read_bytes().endswith(line)
        log.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_bucket_has_all_of_it_once_a_minute_and_when_asked(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(log_file.time, "monotonic", lambda: now[0])
    bucket = Bucket(b"kept\n")
    log = LogFile(bucket)
    for index in range(90):
        now[0] += 1.0
        log.write(b"%d\n" % index)
    assert bucket.uploads == 2
    log.flush()
    assert bucket.content == b"kept\n" + b"".join(b"%d\n" % index for index in range(90))
    log.write(b"last\n")
    log.close()
    assert bucket.content.endswith(b"89\nlast\n") and bucket.uploads == 4


def crc32c(data: bytes) -> int:
    """Castagnoli's, bit by bit as RFC 3720 defines it."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """As the TFRecord format stores a checksum: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_events_are_records_that_tensorboard_reads(tmp_path):
    file = EventFile(epath.Path(tmp_path), first_step=8)
    file.write(9, {"train/loss": 0.5, "eval/accuracy": 1.0})
    file.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked(data[:8]),)
        record, data = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[:4]) == (masked(record),)
        events.append(Event.FromString(record))
        data = data[4:]
    version, resumed, *scalars = events
    assert version.file_version == "brain.Event:2"
    assert (resumed.step, resumed.session_log.status) == (8, SessionLog.START)
    found = [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in scalars]
    assert found == [(9, "train/loss", 0.5), (9, "eval/accuracy", 1.0)]
    assert all(event.wall_time > 1.7e9 for event in events)


@pytest.mark.parametrize("path", ["gs://bucket/runs/a", "s3://bucket/a"])
def test_the_path_of_a_bucket_stays_what_it_is(path):
    assert str(absolute(path)) == path


def test_other_paths_become_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(absolute("runs/../a")) == str(tmp_path / "a")
    assert str(absolute("~/a")) == str(tmp_path / "home" / "a")
