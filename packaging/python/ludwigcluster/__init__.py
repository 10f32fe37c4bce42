"""The names of the package `ludwigcluster`, over nodectl."""
