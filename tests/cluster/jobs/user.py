"""Trains as any user: it pushes over a socket that it cannot replace, and may not do what an operator does."""

import errno
import pathlib
import socket
import time

import stepmem

try:
    pathlib.Path("/run/stepmem/mine").touch()
    raise SystemExit("the directory of the socket can be written")
except OSError as error:
    if error.errno != errno.EROFS:
        raise

for step in range(1, 31):
    with stepmem.step(step):
        time.sleep(0.05)

connection = socket.socket(socket.AF_UNIX)
connection.connect("/run/stepmem/push.sock")
connection.sendall(b'POST /v1/nvml/release HTTP/1.1\r\nHost: stepmem\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{"for_seconds":1}')
print("release:", connection.recv(4096).decode().splitlines()[0])
