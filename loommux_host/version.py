"""The version, where it costs nothing to read: the lookup in the package's metadata takes 60 ms of a start."""

VERSION = "0.1.0"
