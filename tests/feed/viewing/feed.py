"""A feed in a process of its own: a server, and a trainer that reads from it until SIGTERM."""

import signal
import sys
import threading
import time

import numpy as np

import mpwds


def picture(number):
    image = np.zeros((3, 32, 32), np.uint8)
    image[number % 3] = 200
    return image, number % 10, f"key {number}"


def main():
    ended = []  # an event could not be set while it is waited for, as its lock is held then
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    size = 8 if "small" in sys.argv else 16
    dataset = mpwds.DataPipeline(range(10_000_000)).map(picture).batched(size)
    with mpwds.Server(dataset, "tcp://127.0.0.1:0", workers=2) as server:
        serving = threading.Thread(target=server.serve)
        serving.start()
        if "trainer" in sys.argv:
            with mpwds.RemoteLoader(server.url, output="numpy") as loader:  # without torch
                for number, _ in enumerate(loader):
                    if number == 10:
                        print(server.url, flush=True)
                    time.sleep(0.02)
                    if ended:
                        break
        else:
            print(server.url, flush=True)
            while not ended:
                time.sleep(0.02)
        server.stop()
        serving.join()


if __name__ == "__main__":
    main()
