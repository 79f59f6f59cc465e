"""Executors of this package, a file each. `thalweg.executors` lists them, and those of installed packages."""
