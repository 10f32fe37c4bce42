"""The names of mpi4py that tests of its executor look up when they are imported, here and on workers. There is no MPI."""

from types import SimpleNamespace

_world = SimpleNamespace(Get_size=lambda: 1)
MPI = SimpleNamespace(COMM_WORLD=_world, COMM_SELF=_world, get_vendor=lambda: ("none", (0,)))
