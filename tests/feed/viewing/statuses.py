"""What servers say of themselves, written by hand."""


def stage(seconds, elements, storage=False, nbytes=0):
    return [int(seconds * 1e9), elements, storage, nbytes]


def reading(seconds, waiting_s=0.0, batches=0, **more):
    """A worker's counters after some seconds, all of them in an epoch."""
    working_s = seconds - waiting_s
    return {
        "active_ns": int(seconds * 1e9),
        "waiting_ns": int(waiting_s * 1e9),
        "batches": batches,
        "samples": 64 * batches,
        "nbytes": 1_000_000 * batches,
        "cpu_ns": int(working_s * 1e9),
        "queued_ns": 0,
        "other": stage(0, 0),
        "writing": stage(0.1 * working_s, batches),
        "stages": {
            "tarfile_to_samples()": stage(0.2 * working_s, 64 * batches, True, 10**6 * batches),
            "decode('rgb8')": stage(0.7 * working_s, 64 * batches),
        },
        "skipped": {},
        "restarts": 0,
        "assigned_ns": int(seconds * 1e9),
        "pid": 0,
        "server": "",
        "lost_s": 0.0,
        "shard": "s3://data/train-000017.tar",
        **more,
    }


def worker(number, reading, **more):
    return {
        "worker": number,
        "pid": 1000 + number,
        "client": "gpu1:77",
        "state": "running",
        "epoch": 3,
        "unacknowledged_bytes": 500_000,
        "window_bytes": 2_000_000,
        "counters": reading,
        **more,
    }


def client(name="gpu1:77", batches=0, **more):
    return {
        "client": name,
        "address": "10.0.0.7",
        "group": "",
        "rank": 0,
        "world_size": 1,
        "workers": 2,
        "batches": batches,
        "nbytes": 1_000_000 * batches,
        "began_s": 4999.0,
        "connected_s": 100.0,
        "silent_s": 0.2,
        **more,
    }


def status(time_s, workers, clients=None, **more):
    return {
        "url": "tcp://cpu1:7880",
        "server": "a1",
        "host": "cpu1",
        "pid": 7,
        "version": "0.1.0",
        "uptime_s": float(time_s),
        "time_s": 5000.0 + time_s,
        "dataset": ["train-{000..099}.tar", "decode('rgb8')", "batched(64)"],
        "fingerprint": "ab12",
        "classes": [],
        "draining": False,
        "capacity": 2,
        "cores": 16,
        "workers": workers,
        "clients": [client()] if clients is None else clients,
        "dropped": {},
        **more,
    }


def answering(answers):
    """A class in the place of ``StatusClient``: it returns an answer after the other, and raises errors."""

    class StatusClient:
        silent = ()

        def __init__(self, urls, folder, *, insecure):
            self.timeouts = []

        def status(self, timeout):
            self.timeouts.append(timeout)
            answer = next(answers)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        def close(self): ...

    return StatusClient
