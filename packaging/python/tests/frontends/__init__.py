"""The libraries that nodectl plugs into: their own tests, run with nodectl in its place, and the programs of the book's page.

    target/python-frontends/bin/python -m tests.frontends [SUITE...]

`tests/run` makes that virtual environment. `exclusions/SUITE.txt`, one folder up, names each of their tests that does not run or is not
meant to pass, with the reason.
"""
