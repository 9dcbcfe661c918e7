"""Puts a token where the exporter looks for it, which only root may read."""

import os
import pathlib

path = pathlib.Path("/run/stepmem/token")
path.write_text("secret")
os.chmod(path, 0o600)
