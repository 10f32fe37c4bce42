"""A node's part in a pool, reduced to what a client can tell: real worker processes (the real shim), tasks dealt out, updates
in order, deaths blamed on the task that ran. For tests of the client and the shim against each other."""

import asyncio
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

from nodectl import _frames as frames
from nodectl._frames import HEADER, MAX_CHUNK_BYTES

SHIM = os.path.join(os.path.dirname(__file__), "../../../src/worker/persistent/shim.py")
HELLO, READY, INIT_FAILED, EXIT = 16, 17, 18, 4
ANY = 1 << 62
DEPTH = 64
RETRIES = 3


def message(kind, id, payload=b"", flags=0):
    parts, view = [], memoryview(payload)
    while len(view) > MAX_CHUNK_BYTES:
        parts += [HEADER.pack(kind, frames.MORE, MAX_CHUNK_BYTES, id), view[:MAX_CHUNK_BYTES]]
        view = view[MAX_CHUNK_BYTES:]
    return b"".join([*parts, HEADER.pack(kind, flags, len(view), id), view])


async def messages(reader):
    partial = {}
    while True:
        try:
            kind, flags, length, id = HEADER.unpack(await reader.readexactly(HEADER.size))
            payload = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        if flags & frames.MORE:
            partial.setdefault((kind, id), bytearray()).extend(payload)
            continue
        if (kind, id) in partial:
            whole = partial.pop((kind, id))
            whole += payload
            payload = bytes(whole)
        yield kind, flags, id, payload


class Worker:
    def __init__(self, host, process, reader, writer):
        self.host, self.process, self.reader, self.writer = host, process, reader, writer
        self.tasks = []
        self.ready = False
        self.answered = 0

    async def serve(self, pool):
        self.writer.write(message(frames.INIT, 0, pool.init))
        if pool.snapshot:
            self.writer.write(message(frames.UPDATE, *pool.snapshot))
        for number, payload in pool.updates:
            self.writer.write(message(frames.UPDATE, number, payload))
        async for kind, _, id, payload in messages(self.reader):
            if kind == READY:
                self.ready = True
                pool.tell_status()
            elif kind == INIT_FAILED:
                pool.init_failures += 1
                if pool.init_failures >= min(3, self.host.workers):
                    pool.writer.write(message(frames.ERROR, 0, json.loads(payload.split(b"\n")[0])["traceback"].encode()))
                break
            else:
                if kind in (frames.DONE, frames.FAILED):
                    self.tasks.remove(id)
                    self.answered += 1
                    pool.arguments.pop(id, None)
                pool.writer.write(message(kind, id, payload))
                await pool.writer.drain()
            pool.deal()
        pool.worker_ended(self)


class Pool:
    def __init__(self, host, writer):
        self.host, self.writer = host, writer
        self.workers, self.queue, self.arguments, self.asked, self.telling = [], [], {}, set(), set()
        self.updates, self.snapshot, self.deaths, self.init_failures = [], None, {}, 0
        self.init = b""
        self.request = {}

    async def serve(self, reader):
        async for kind, flags, id, payload in messages(reader):
            if kind == frames.OPEN:
                self.request = json.loads(payload)
                self.host.requests.append(self.request)
            elif kind == frames.INIT:
                self.init = payload
                self.host.opened += 1
                opened = {"job": "%016x" % self.host.opened, "node": "00" * 32}
                self.writer.write(message(frames.OPENED, 0, json.dumps(opened).encode()))
                for _ in range(self.host.workers):
                    self.start_worker()
            elif kind == frames.RUN and flags & frames.PULL:
                self.queue.append(id)
            elif kind == frames.RUN:
                self.arguments[id] = payload
                if flags & frames.TELL:
                    self.telling.add(id)
                if id in self.asked:
                    self.asked.discard(id)
                    self.queue.insert(0, id)
                else:
                    self.queue.append(id)
            elif kind == frames.UPDATE:
                self.updates.append((id, payload))
                self.broadcast(id, payload)
            elif kind == frames.SNAPSHOT:
                self.snapshot, self.updates = (id, payload), [one for one in self.updates if one[0] > id]
            elif kind == frames.CANCEL:
                self.queue = [one for one in self.queue if one != id]
                self.host.cancelled.add(id)
            elif kind == frames.CLOSE:
                break
            self.deal()
        self.end()

    def start_worker(self):
        asyncio.get_running_loop().create_task(self.host.start_worker(self))

    def broadcast(self, number, payload):
        for worker in self.workers:
            worker.writer.write(message(frames.UPDATE, number, payload))

    def deal(self):
        while self.queue:
            # A new worker begins with one task: the one that ended the last worker shows itself so, for answers of
            # the tasks before it may have been lost with the worker.
            most = self.request.get("max_tasks_per_worker") or ANY
            ready = [
                one
                for one in self.workers
                if one.ready and len(one.tasks) < min(DEPTH, 1 + one.answered, most - one.answered)
            ]
            if not ready:
                return
            id = self.queue.pop(0)
            if id not in self.arguments:
                self.asked.add(id)
                self.writer.write(message(frames.SEND, id))
                continue
            worker = min(ready, key=lambda worker: len(worker.tasks))
            worker.tasks.append(id)
            worker.writer.write(message(frames.RUN, id, self.arguments[id]))
            if id in self.telling:
                self.writer.write(message(frames.STARTED, id))

    def worker_ended(self, worker):
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        worker.writer.close()
        if worker.tasks:
            blamed = worker.tasks.pop(0)
            self.deaths[blamed] = self.deaths.get(blamed, 0) + 1
            if self.deaths[blamed] > RETRIES:
                self.writer.write(message(frames.LOST, blamed, b"the task ended %d workers" % self.deaths[blamed]))
            else:
                worker.tasks.append(blamed)
            self.queue[:0] = worker.tasks
        self.tell_status()
        if not self.init_failures:
            self.start_worker()

    def tell_status(self):
        ready = sum(worker.ready for worker in self.workers)
        status = {"workers": ready, "nodes": min(ready, 1), "starting": len(self.workers) - ready}
        self.writer.write(message(frames.STATUS, 0, json.dumps(status).encode()))

    def end(self):
        self.host.pools.discard(self)
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.writer.close()
        self.writer.close()


class FakeHost:
    """Answers at `api.sock` of a directory of its own. `kill` is what a lost node looks like."""

    def __init__(self, workers=2, directory=None):
        self.workers = workers
        self.own = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="nodectl-")
        self.requests, self.opened, self.pools, self.cancelled, self.processes = [], 0, set(), set(), []
        self.blobs = {}
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)

        async def start():
            path = os.path.join(self.directory, "api.sock")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self.server = await asyncio.start_unix_server(self._client, path)
            started.set()

        self.loop.run_until_complete(start())
        self.loop.run_forever()

    async def _client(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()  # Somebody asked whether the node runs.
            return
        if b"Upgrade: nodectl-pool/1" not in head:
            status, answer = await self._answer(head, reader)
            body = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
            writer.close()
            return
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: nodectl-pool/1\r\n\r\n")
        pool = Pool(self, writer)
        self.pools.add(pool)
        with contextlib.suppress(asyncio.CancelledError):
            await pool.serve(reader)

    async def _answer(self, head, reader):
        """Status and JSON for a request other than that of a pool's stream."""
        request, *headers = head.decode().split("\r\n")
        if request.startswith("GET /v1/node "):
            return 200, {"solo": True}
        if not request.startswith("PUT /v1/blobs "):
            return 404, {"error": "what"}
        length = next(int(line[15:]) for line in headers if line.lower().startswith("content-length:"))
        content = await reader.readexactly(length)
        stored = hashlib.sha256(content).hexdigest()
        self.blobs[stored] = content
        return 200, {"hash": stored, "bytes": length}

    def unpack(self, manifest, directory):
        """Lays the files of a manifest out."""
        data = io.BytesIO(self.blobs[manifest])

        def varint():
            number = shift = 0
            while True:
                (byte,) = data.read(1)
                number |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    return number

        for _ in range(varint()):
            path = os.path.join(directory, data.read(varint()).decode())
            varint()
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(self.blobs[data.read(32).hex()])
            data.read(1)

    async def start_worker(self, pool):
        directory = tempfile.mkdtemp(dir=self.directory)
        if pool.request.get("inputs"):
            self.unpack(pool.request["inputs"], directory)
        path = os.path.join(directory, "s")
        attached = asyncio.Event()
        server = await asyncio.start_unix_server(lambda *pair: attached.pair(*pair), path)
        attached.pair = lambda reader, writer: (setattr(attached, "streams", (reader, writer)), attached.set())
        process = subprocess.Popen(
            [sys.executable, "-u", SHIM],
            env={**os.environ, "NODECTL_WORKER_SOCKET": path, "NODECTL_WORKER_TOKEN": "0" * 32, **pool.request["env"]},
            cwd=directory,
            stdin=subprocess.DEVNULL,
        )
        self.processes.append(process)
        await attached.wait()
        server.close()
        reader, writer = attached.streams
        async for kind, _, _, payload in messages(reader):
            assert (kind, payload) == (HELLO, b"0" * 32), (kind, payload)
            break
        worker = Worker(self, process, reader, writer)
        if pool not in self.pools:
            writer.close()
            return
        pool.workers.append(worker)
        await worker.serve(pool)

    def kill(self):
        """All streams break; nobody answers any more."""

        async def stop():
            self.server.close()
            for pool in list(self.pools):
                pool.end()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
            self.loop.call_soon(self.loop.stop)

        asyncio.run_coroutine_threadsafe(stop(), self.loop)
        self.thread.join()
        for process in self.processes:
            process.kill()
            process.wait()
        self.loop.close()

    def restart(self):
        """A node that comes back, at the same place. Who made the directory still removes it."""
        own = self.own
        self.__init__(self.workers, self.directory)
        self.own = own

    def close(self):
        self.kill()
        if self.own:
            shutil.rmtree(self.directory, ignore_errors=True)
