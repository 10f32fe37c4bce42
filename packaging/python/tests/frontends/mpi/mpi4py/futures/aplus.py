"""mpi4py's futures that can be chained, whose tests are not run."""

ThenableFuture = None
