"""Runs a program, and makes the client push after some of its steps, so that the exporter's request reaches it then.

The program lasts for less than a second, in which searches may take all of the time.

    python run.py STEP PROGRAM
"""

import runpy
import sys

import stepmem
from stepmem._holders import allowance

allowance.SHARE_OF_WINDOW = allowance.CREDIT_SECONDS = 10.0

request_at, program = int(sys.argv[1]), sys.argv[2]
step_end = stepmem.step_end
n_steps = 0


def step_end_and_push(n=None):
    global n_steps
    step_end(n)
    n_steps += 1
    if n_steps == request_at:
        assert stepmem.flush(10)


stepmem.step_end = step_end_and_push
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
assert stepmem.flush(10)
