"""Runs a project's `run.py` in a task's directory, as if the shared drive were there: paths below `/media/research_data` and
`/var/sftp` lead to directories of the task. Travels with the job; needs nothing but the standard library."""

import builtins
import io
import json
import os
import pickle
import runpy
import sys

SHARE = "/media/research_data"
WORKER = "/var/sftp"
ONE_PATH = "open stat lstat mkdir listdir scandir remove unlink rmdir access chmod utime readlink".split()
TWO_PATHS = "rename replace link symlink".split()


def main():
    home = os.getcwd()
    with open("ludwigcluster_facts.json") as file:
        facts = json.load(file)
    with open("ludwigcluster_param2vals.pkl", "rb") as file:
        param2val = pickle.load(file)[int(sys.argv[1])]
    project = os.path.join(home, "research_data", facts["project"])
    os.makedirs(project, exist_ok=True)
    with open(os.path.join(project, "params.json"), "w") as file:
        json.dump(param2val, file, default=str)
    chunk = os.path.join(home, "ludwigcluster_chunk.pkl")
    with open(chunk, "wb") as file:
        pickle.dump([param2val], file, 4)
    redirect(home, os.path.join(SHARE, facts["project"]), facts["data"], chunk)
    sys.argv = [facts["run"]]
    sys.path.insert(0, home)
    runpy.run_path(facts["run"], run_name="__main__")


def redirect(home, share, data, chunk):
    """Makes functions that take paths see those of the task."""

    def here(path):
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if not isinstance(text, str) or not text.startswith((SHARE, WORKER)):
            return path
        if text.startswith(WORKER):
            return made(os.path.join(home, "sftp", text[len(WORKER) :].lstrip("/")))
        if text.endswith("_param2val_chunk.pkl"):
            return chunk
        below = os.path.relpath(text, share)
        if below.split(os.sep)[0] in data:
            return os.path.join(home, below)
        return made(os.path.join(home, "research_data", text[len(SHARE) :].lstrip("/")))

    def made(path):
        makedirs(os.path.dirname(path), exist_ok=True)
        return path

    makedirs = real_makedirs()
    for module, name in [(os, name) for name in ONE_PATH] + [(io, "open"), (builtins, "open")]:
        setattr(module, name, Redirected(getattr(module, name), 1, here))
    for name in TWO_PATHS:
        setattr(os, name, Redirected(getattr(os, name), 2, here))


def real_makedirs():
    """`os.makedirs` over the functions as they are now."""
    mkdir = os.mkdir

    def makedirs(path, exist_ok):
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            try:
                mkdir("/".join(parts[:end]))
            except OSError:
                pass

    return makedirs


class Redirected:
    """A function whose first arguments are paths. No function itself, or `pathlib` of Python 3.9 would make a method of it."""

    def __init__(self, function, count, here):
        self.function, self.count, self.here = function, count, here

    def __call__(self, *args, **kwargs):
        return self.function(*map(self.here, args[: self.count]), *args[self.count :], **kwargs)


if __name__ == "__main__":
    main()
