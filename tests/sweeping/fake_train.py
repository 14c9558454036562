"""Stands in for `python -m spectral_flax.train`: leaves the same files, in no time.

What it does with a run is in $FAKE_DIR/NAME.json: {"config": {...}, "does": WHAT, "steps": N}.
"""

import json
import os
import pathlib
import signal
import sys
import time

workdir = pathlib.Path(sys.argv[sys.argv.index("--workdir") + 1])
fake = pathlib.Path(os.environ["FAKE_DIR"])
plan = json.loads((fake / f"{workdir.name}.json").read_text())
with (fake / "started").open("a") as file:
    file.write(f"{workdir.name}\n")
stopped = False


def stop(*_):
    global stopped
    stopped = True


def checkpoint(step):
    (workdir / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)


signal.signal(signal.SIGTERM, stop)
if plan["does"] == "fail":
    print("error: no such data; prepare it")
    sys.exit(1)
workdir.mkdir(parents=True, exist_ok=True)
(workdir / "config.json").write_text(json.dumps(plan["config"]))
if plan["does"] == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if plan["does"] == "slow":
    checkpoint(1)
    (fake / "is_slow").touch()
    deadline = time.monotonic() + plan["seconds"]
    while time.monotonic() < deadline and not stopped:
        time.sleep(0.02)
    if stopped:
        checkpoint(2)
        print("stopped and saved at step 2; the same command resumes it")
        sys.exit(0)
checkpoint(plan["steps"])
summary = {"steps": plan["steps"], "eval/accuracy": 0.5}
(workdir / "summary.json").write_text(json.dumps(summary))
