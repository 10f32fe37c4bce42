"""The kinds of packages that `packaging/packages` makes, one a module: `make(product)` returns a file's name and its content."""
