"""The names of the package `distributed_computing`, over nodectl."""
