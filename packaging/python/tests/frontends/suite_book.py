"""The programs of the book's pages on front ends and on graphs. Each is run as it stands, and prints what the page says."""

import os
import re
import subprocess
import sys

import pytest

NAME = "programs of docs/guide/python-frontends.md, graphs.md and open.md"
CORES = "2"
HERE = os.path.dirname(os.path.abspath(__file__))
PAGES = [os.path.join(HERE, "../../../../docs/guide", name) for name in ("python-frontends.md", "graphs.md", "open.md")]
LIMIT_SECONDS = 240
# What a program needs beside the package, by the name that it imports.
_NEEDED = ("dask", "deap", "dynesty", "emcee", "joblib", "numpy", "optuna", "pandas", "scipy", "sklearn", "submitit", "hydra", "ewoks")


def missing():
    return None if all(map(os.path.exists, PAGES)) else "no docs/guide"


def arguments():
    return [__file__]


def text():
    pages = []
    for path in PAGES:
        with open(path) as page:
            pages.append(page.read())
    return "\n".join(pages)


def programs():
    """(the title above it, the program, what it prints)."""
    for part in re.split(r"^## ", text(), flags=re.M)[1:]:
        title = part.partition("\n")[0]
        for program, output in re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", part, flags=re.S):
            yield pytest.param(program, output, id=title)


def workflows():
    """(the Snakefile, what is in its last file)."""
    return re.findall(r"```snakemake\n(.*?)```.*?```text\n(.*?)```", text(), flags=re.S)


@pytest.mark.parametrize("program, output", list(programs()))
def test_program(program, output, tmp_path):
    for module in _NEEDED:
        if re.search(r"\b(import|from) %s\b" % module, program):
            pytest.importorskip(module)
    path = tmp_path / "program.py"
    path.write_text(program)
    # A program of which the first line says how it is called shows nothing.
    called = re.match(r"# python \S+ (.*)\n", program)
    said = ran(tmp_path, str(path), *(called[1].split() if called else []))
    assert called or said == output, said


@pytest.mark.parametrize("snakefile, total", workflows())
def test_workflow(snakefile, total, tmp_path):
    pytest.importorskip("snakemake")
    (tmp_path / "Snakefile").write_text(snakefile)
    ran(tmp_path, "-m", "snakemake", "--executor", "nodectl", "--jobs", "100", "--latency-wait", "1")
    assert (tmp_path / "total.txt").read_text() == total


def test_the_page_names_the_packages_extras():
    with open(os.path.join(HERE, "../../pyproject.toml")) as project:
        table = re.search(r"^\[project\.optional-dependencies\]\n((?:.+\n)*)", project.read(), flags=re.M)
    extras = re.findall(r"^(\w+) =", table[1], flags=re.M)
    with open(PAGES[0]) as page:
        said = page.read().partition("Extras of the")[2].partition("\n\n")[0]
    assert extras and [extra for extra in extras if "`%s`" % extra not in said] == []


def ran(directory, *arguments):
    """What a program printed that ended well."""
    process = subprocess.run([sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout
