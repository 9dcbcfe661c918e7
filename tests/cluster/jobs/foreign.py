"""Puts a file that is not a socket where the exporter's socket belongs."""

import pathlib

pathlib.Path("/run/stepmem/push.sock").write_text("not a socket")
