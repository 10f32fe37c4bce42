"""The programs of the book's page on front ends. Each is run as it stands, and prints what the page says."""

import os
import re
import subprocess
import sys

import pytest

NAME = "programs of docs/guide/python-frontends.md"
HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "../../../../docs/guide/python-frontends.md")
LIMIT_SECONDS = 240
# What a program needs beside the package, by the name that it imports.
_NEEDED = ("dask", "emcee", "joblib", "numpy", "optuna", "pandas", "scipy", "sklearn", "submitit", "hydra")


def missing():
    return None if os.path.exists(PAGE) else "no docs/guide/python-frontends.md"


def arguments():
    return [__file__]


def programs():
    """(the title above it, the program, what it prints)."""
    with open(PAGE) as page:
        text = page.read()
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title = part.partition("\n")[0]
        for program, output in re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", part, flags=re.S):
            yield pytest.param(program, output, id=title)


@pytest.mark.parametrize("program, output", list(programs()))
def test_program(program, output, tmp_path):
    for module in _NEEDED:
        if re.search(r"\b(import|from) %s\b" % module, program):
            pytest.importorskip(module)
    path = tmp_path / "program.py"
    path.write_text(program)
    ran = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == output, ran.stdout + ran.stderr
