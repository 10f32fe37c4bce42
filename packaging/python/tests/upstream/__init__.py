"""CPython's own tests of `ProcessPoolExecutor` and `multiprocessing.Pool`, run against `Executor` and `Pool`.

    python3 -m tests.upstream [PATTERN...]

The interpreter brings the tests: its package `test` (Debian: `libpython3.11-testsuite`). Each test has a process of its own, and a
limit. `exclusions/cpython.txt`, one folder up, names each test that does not run or is not meant to pass, with the reason.
"""
