"""Files of Snakemake's jobs, where nodes share no file system: sources and inputs travel to the node, outputs and logs come back."""

from __future__ import annotations

import io
import os
import shlex
import tarfile
import time
from typing import Any, Dict, Iterable, Iterator, List

from nodectl import _jobs, _upload
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

#: What a task packs, and what is in it.
ARCHIVE = "outputs.tar"
# Where files of the workflow stand in the task's directory: read-only, so that links to them are put where rules look for them.
_BELOW = "workflow"
_PACK = """
status=$?
for path in %s; do [ -e "$path" ] && printf '%%s\\0' "$path"; done >outputs.list
tar --create --dereference --null --files-from outputs.list --file %s
exit $status"""

quoted = shlex.quote


class NotBelow(Exception):
    """A file is outside of the workflow's directory, which is all that travels."""


def script(job: JobExecutorInterface, run: str) -> str:
    """What a task runs: `run` among the workflow's files; then it packs what the job has made."""
    made = " ".join(quoted(path) for path in _made(job))
    return 'cp --recursive --symbolic-link "$PWD/%s/." . || exit 1\n%s%s' % (_BELOW, run, _PACK % (made, quoted(ARCHIVE)))


def upload(node: str, dag: Any, job: JobExecutorInterface) -> str:
    """The hash of the manifest of the workflow's sources and the job's inputs. Fails with NotBelow, OSError, NodeError."""
    named: Dict[str, str] = {}
    for path in [*dag.get_sources(), *dag.workflow.overwrite_configfiles, *_local(job.input)]:
        path = _below(os.fspath(path))
        for file in _all_of(path):
            named["%s/%s" % (_BELOW, file)] = os.path.abspath(file)
    return _upload.upload(node, [], named=named)


def fetch(node: str, result: Dict[str, Any], job: JobExecutorInterface) -> None:
    """Puts what a job has made in its place, as made now: clocks of other machines may be wrong, and Snakemake compares times."""
    output = result["outputs"][0]
    content = _jobs.blob(node, output["hash"], result["node"])
    made = _made(job)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            name = os.path.normpath(member.name)
            if not any(name == path or name.startswith(path + os.sep) for path in made) or not (member.isfile() or member.isdir()):
                raise NotBelow("the node sent %s, which the job does not make" % member.name)
            member.mtime = time.time()
            archive.extract(member, ".", set_attrs=True)


def _made(job: JobExecutorInterface) -> List[str]:
    """The job's outputs, logs and benchmarks."""
    benchmark = getattr(job, "benchmark", None)
    return [_below(path) for path in _local([*job.output, *job.log, *([benchmark] if benchmark else [])])]


def _local(paths: Iterable[Any]) -> Iterator[str]:
    """Those that no storage of Snakemake's keeps."""
    return (str(path) for path in paths if not getattr(path, "is_storage", False))


def _below(path: str) -> str:
    found = os.path.relpath(path)
    if found == os.pardir or found.startswith(os.pardir + os.sep):
        text = "%s is outside of the workflow's directory %s, and only what is in there travels to the nodes\nhint: put it there"
        raise NotBelow(text % (path, os.getcwd()))
    return found


def _all_of(path: str) -> Iterator[str]:
    """A file, or all in a directory."""
    if not os.path.isdir(path):
        yield path
        return
    for directory, _, names in os.walk(path):
        for name in names:
            yield os.path.join(directory, name)
