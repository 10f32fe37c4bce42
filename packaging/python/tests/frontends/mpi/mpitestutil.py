"""What mpi4py's tests of its executor ask of their other tests."""


def disable_mpi_spawn():
    return False
