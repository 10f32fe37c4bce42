"""Runs a project's `run.py` in a task's directory, as if the shared drive were there: `/media/research_data` and `/var/sftp` are
directories of the task. Travels with the job; needs nothing but the standard library.

Where the system lets a process have mounts of its own (root; others by user namespaces), these are real, for every program and
library that `run.py` uses. Elsewhere Python's own functions are told so: `open`, `os`, `pathlib` and what is built on them.
"""

import atexit
import builtins
import ctypes
import io
import json
import os
import pickle
import runpy
import sys

SHARE = "/media/research_data"
WORKER = "/var/sftp"
CHUNK = "_param2val_chunk.pkl"
ONE_PATH = "open stat lstat mkdir listdir scandir remove unlink rmdir access chmod chdir utime readlink".split()
TWO_PATHS = "rename replace link symlink".split()
# Of <linux/mount.h> and <linux/sched.h>.
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def main():
    home = os.getcwd()
    with open("ludwigcluster_facts.json") as file:
        facts = json.load(file)
    with open("ludwigcluster_param2vals.pkl", "rb") as file:
        param2val = pickle.load(file)[int(sys.argv[1])]
    project = os.path.join(home, "research_data", facts["project"])
    os.makedirs(project, exist_ok=True)
    os.makedirs(os.path.join(home, "sftp"), exist_ok=True)
    with open(os.path.join(project, "params.json"), "w") as file:
        json.dump(param2val, file, default=str)
    chunk = os.path.join(home, "ludwigcluster_chunk.pkl")
    with open(chunk, "wb") as file:
        pickle.dump([param2val], file, 4)
    try:
        Mounts(home).make(project, facts["data"])
        # A program may name any host in it.
        patch(lambda path: chunk if path.startswith(SHARE) and path.endswith(CHUNK) else path)
    except OSError:
        patch(Paths(home, os.path.join(SHARE, facts["project"]), facts["data"], chunk).here)
    sys.argv = [facts["run"]]
    # What is imported from a directory of sources, and by its name.
    sys.path[:0] = [home, *(os.path.join(home, name) for name in facts["sources"] if os.path.isdir(name))]
    runpy.run_path(facts["run"], run_name="__main__")


class Mounts:
    """Mounts that this process and those that it starts see, and nobody else. Whatever the system does not allow is an OSError."""

    def __init__(self, home):
        self.home = home
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.covers = 0

    def make(self, project, data):
        self.begin()
        for target, source in ((SHARE, "research_data"), (WORKER, "sftp")):
            self.cover(target)
            self.bind(os.path.join(self.home, source), target)
        for name in data:
            source, place = os.path.join(self.home, name), os.path.join(project, name)
            target = os.path.join(SHARE, os.path.relpath(place, os.path.join(self.home, "research_data")))
            if os.path.isdir(source):
                os.makedirs(place, exist_ok=True)
            else:
                # Not to be taken for a result.
                open(place, "a").close()
                atexit.register(self.remove, target, place)
            self.bind(source, target)
        os.chdir(self.home)

    def begin(self):
        user, group = os.getuid(), os.getgid()
        if user == 0:
            self.check(self.libc.unshare(CLONE_NEWNS))
        else:
            self.check(self.libc.unshare(CLONE_NEWNS | CLONE_NEWUSER))
            for name, text in (("setgroups", "deny"), ("uid_map", "%d %d 1" % (user, user)), ("gid_map", "%d %d 1" % (group, group))):
                with open("/proc/self/" + name, "w") as file:
                    file.write(text)
        self.mount("none", "/", MS_REC | MS_PRIVATE)

    def cover(self, path):
        """Makes a directory to mount on, over the nearest that is there: the system's own stays as it is."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        if parent == "/":
            raise OSError("there is no %s" % path)
        copy = os.path.join(self.home, ".nodectl_cover%d" % self.covers)
        self.covers += 1
        os.mkdir(copy)
        for entry in os.scandir(parent):
            target = os.path.join(copy, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
                continue
            if entry.is_dir():
                os.mkdir(target)
            else:
                open(target, "w").close()
            self.bind(entry.path, target)
        os.makedirs(os.path.join(copy, os.path.relpath(path, parent)))
        self.bind(copy, parent)

    def bind(self, source, target):
        self.mount(source, target, MS_BIND | MS_REC)

    def mount(self, source, target, flags):
        self.check(self.libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None))

    def check(self, result):
        if result:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def remove(self, target, place):
        self.check(self.libc.umount2(os.fsencode(target), MNT_DETACH))
        os.remove(place)


class Paths:
    """Paths of the task for those of the shared drive."""

    def __init__(self, home, share, data, chunk):
        self.home, self.share, self.data, self.chunk = home, share, data, chunk
        self.mkdir = os.mkdir

    def here(self, path):
        if not path.startswith((SHARE, WORKER)):
            return path
        if path.startswith(WORKER):
            return self.made(os.path.join(self.home, "sftp", path[len(WORKER) :].lstrip("/")))
        if path.endswith(CHUNK):
            return self.chunk
        below = os.path.relpath(path, self.share)
        if below.split(os.sep)[0] in self.data:
            return os.path.join(self.home, below)
        return self.made(os.path.join(self.home, "research_data", path[len(SHARE) :].lstrip("/")))

    def made(self, path):
        """With the directory that it is in."""
        parts = os.path.dirname(path).split("/")
        for end in range(2, len(parts) + 1):
            try:
                self.mkdir("/".join(parts[:end]))
            except OSError:
                pass
        return path


def patch(here):
    """Makes Python's functions that take paths see others."""

    def seen(path):
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        text = os.fsdecode(path)
        found = here(text)
        return path if found == text else os.fsencode(found) if isinstance(os.fspath(path), bytes) else found

    for module, name in [(os, name) for name in ONE_PATH] + [(io, "open"), (builtins, "open")]:
        setattr(module, name, Redirected(getattr(module, name), 1, seen))
    for name in TWO_PATHS:
        setattr(os, name, Redirected(getattr(os, name), 2, seen))


class Redirected:
    """A function whose first arguments are paths. No function itself, or `pathlib` of Python 3.9 would make a method of it."""

    def __init__(self, function, count, here):
        self.function, self.count, self.here = function, count, here

    def __call__(self, *args, **kwargs):
        return self.function(*map(self.here, args[: self.count]), *args[self.count :], **kwargs)


if __name__ == "__main__":
    main()
