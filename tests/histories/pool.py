"""The client of a pool, for a history: updates and tasks in turn, until its stdin ends. What it and its workers see goes to a file
as JSON lines; workers append to it themselves, from whatever node they are on."""

import json
import os
import sys
import threading
import time

from nodectl import Pool

NOTES, NAME, PACE = sys.argv[1], sys.argv[2], float(sys.argv[3])


class Worker:
    def __init__(self, notes, name):
        import os
        import uuid

        self.notes, self.name, self.seen = notes, name, []
        self.me = f"{os.getpid()}-{uuid.uuid4().hex[:6]}"

    def note(self, **fields):
        import json
        import os
        import time

        line = json.dumps({"unix_ns": time.time_ns(), "pool": self.name, "worker": self.me, **fields}) + "\n"
        descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def handle_update(self, number):
        self.seen.append(number)
        self.note(event="applied", update=number)

    def run(self, item, seconds):
        import time

        time.sleep(seconds)
        return [item, item * item, self.me, len(self.seen)]


def note(**fields):
    Worker.note(client, **fields)


client = Worker(NOTES, NAME)
client.me = "client"
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
item, update = 0, 0
try:
    with Pool(Worker, {"args": [NOTES, NAME]}, cpus=1, max_workers=4, retries=1000, name=NAME) as pool:
        note(event="opened", job=pool.job)
        while not over.is_set():
            update += 1
            note(event="update", update=update)
            pool.update_workers(update)
            batch = []
            for _ in range(12):
                note(event="asked", item=item, after=update)
                batch.append((item, pool.submit(item, PACE)))
                item += 1
            for number, future in batch:
                told, value, worker, seen = future.result(timeout=150)
                note(event="result", item=number, told=told, value=value, by=worker, seen=seen)
        note(event="closed", items=item)
except BaseException as error:
    note(event="failed", error=f"{type(error).__name__}: {error}"[:500])
    sys.exit(1)
