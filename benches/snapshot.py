#!/usr/bin/env python3
"""Measures `stepmem snapshot show --json` beside a plain unpickling of the same file, in the same run.

  snapshot.py STEPMEM [--events N,N] [--file PICKLE] [--runs N] [--peers VENV] [--torch VENV]

Without --file it writes snapshots of a simulated training loop: so many trace entries, the stacks of which are shared as
PyTorch shares them. CPU is user and system time; memory is the peak of the process. The best of the runs counts.

With --peers (a virtual environment with ptmem and pt-snap-cli) or --torch (one with PyTorch, whose memory_viz needs no GPU) these programs
read the file of 1.5 million events, or --file, once each.
"""
import argparse
import glob
import os
import pickle
import subprocess
import sys
import tempfile

LOAD = '''
import pickle, sys
class Safe(pickle.Unpickler):
    def find_class(self, *_):
        raise ValueError
Safe(open(sys.argv[1], "rb")).load()
'''
MEASURE = '''
import os, resource, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, use = os.wait4(pid, 0)
print(use.ru_utime + use.ru_stime, use.ru_maxrss * 1024, os.waitstatus_to_exitcode(status), file=sys.stderr)
'''
MIB = 1 << 20


class Job:
    """Two layers of blocks that come and go, and 64 KiB a step that stay."""

    def __init__(self):
        self.trace, self.live, self.frames, self.known = [], {}, {}, {}
        self.free, self.next, self.now = {}, 0x7F0000000000, 1_760_000_000_000_000

    def frame(self, file, line, name):
        key = file, line, name
        if key not in self.frames:
            self.frames[key] = {'name': name, 'filename': file, 'line': line}
        return self.frames[key]

    def stack(self, line, depth=18):
        """A new list of the same frames, as every captured stack is."""
        if line not in self.known:
            inner = [self.frame('??', 0, f'at::_ops::op{i}::call(at::Tensor const&)') for i in range(depth)]
            outer = [self.frame('/srv/train/model.py', line, 'Block.forward'), self.frame('/srv/train/train.py', 122, 'train_step')]
            self.known[line] = inner + outer
        return list(self.known[line])

    def event(self, action, address, size, frames):
        self.now += 17
        self.trace.append({'action': action, 'addr': address, 'size': size, 'stream': 0, 'time_us': self.now,
                           'compile_context': ''.join(['N', '/A']), 'user_metadata': '', 'frames': frames})

    def alloc(self, size, line):
        reuse = self.free.setdefault(size, [])
        if reuse:
            address = reuse.pop()
        else:
            address, self.next = self.next, self.next + 2 * MIB
        frames = self.stack(line)
        self.live[address] = size, frames
        self.event('alloc', address, size, frames)
        return address

    def drop(self, address):
        size, _ = self.live.pop(address)
        frames = self.stack(200, 6)
        self.event('free_requested', address, size, frames)
        self.event('free_completed', address, size, frames)
        self.free[size].append(address)

    def snapshot(self, n_events):
        marks = []
        while len(self.trace) < n_events:
            marks.append({'stage': 'START', 'name': 'Optimizer.step#AdamW.step', 'device': 0, 'time_us': self.now + 1})
            kept = [self.alloc(512 * (1 + i % 40), 60 + i) for i in range(120)]
            self.alloc(65536, 126)
            for address in reversed(kept):
                self.drop(address)
        return {'segments': [self.segment(address, *of) for address, of in sorted(self.live.items())],
                'device_traces': [self.trace], 'external_annotations': marks}

    @staticmethod
    def segment(address, size, frames):
        rest = {'address': address + size, 'size': 2 * MIB - size, 'requested_size': 0, 'state': 'inactive', 'frames': []}
        block = {'address': address, 'size': size, 'requested_size': size, 'state': 'active_allocated', 'frames': frames}
        return {'device': 0, 'address': address, 'total_size': 2 * MIB, 'allocated_size': size, 'active_size': size, 'requested_size': size,
                'stream': 0, 'segment_type': 'small', 'segment_pool_id': (0, 0), 'is_expandable': False, 'frames': [], 'blocks': [block, rest]}


class Failed(Exception):
    """A program that did not end well."""


def measure(command, runs, **variables):
    """The least CPU seconds and peak bytes of some runs."""
    best = None
    for _ in range(runs):
        done = subprocess.run([sys.executable, '-I', '-S', '-c', MEASURE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True,
                              env={**os.environ, **variables})
        cpu, peak, code = done.stderr.strip().splitlines()[-1].split()
        if int(code) != 0:
            raise Failed(f'{command[0]} ended with {code}: {done.stderr[-300:]}')
        best = min(best or (float(cpu), int(peak)), (float(cpu), int(peak)))
    return best


def peers(a, path, folder):
    """Prints what other programs take for the same file; those that are not installed have no row."""
    commands = []
    for venv in [a.peers] if a.peers else []:
        commands += [('ptmem --summary', [f'{venv}/bin/ptmem', '--summary', path]),
                     ('pt-snap import', [f'{venv}/bin/pt-snap', 'import', path, '--output-dir', f'{folder}/db', '--no-focus'])]
    for script in glob.glob(f'{a.torch}/lib/python3*/site-packages/torch/cuda/_memory_viz.py') if a.torch else []:
        commands.append(('memory_viz trace_plot', [f'{a.torch}/bin/python', script, 'trace_plot', path, '-o', f'{folder}/plot.html']))
    for name, command in commands:
        try:
            cpu, peak = measure(command, 1, HOME=folder)
            print(f'  {name:24} {cpu:7.2f} s {peak / MIB:6.0f} MiB', flush=True)
        except Failed as failed:
            print(f'  {name:24} {failed}', flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('stepmem')
    p.add_argument('--events', default='750000,1500000,3000000')
    p.add_argument('--file')
    p.add_argument('--runs', type=int, default=3)
    p.add_argument('--peers', metavar='VENV')
    p.add_argument('--torch', metavar='VENV')
    a = p.parse_args()
    print(f'{"file":>9} {"events":>10} {"show":>8} {"load":>8} {"ratio":>6} {"show peak":>10} {"load peak":>10}')
    with tempfile.TemporaryDirectory() as folder:
        for n_events in [0] if a.file else [int(n) for n in a.events.split(',')]:
            path = a.file or os.path.join(folder, 'snapshot.pickle')
            if not a.file:
                write(path, n_events)
            ours, ours_peak = measure([os.path.abspath(a.stepmem), 'snapshot', 'show', path, '--json'], a.runs)
            load, load_peak = measure([sys.executable, '-I', '-S', '-c', LOAD, path], 1)
            print(f'{os.path.getsize(path) / 1e6:6.0f} MB {n_events or "":>10} {ours:6.2f} s {load:6.2f} s {load / ours:5.1f}x '
                  f'{ours_peak / MIB:6.0f} MiB {load_peak / MIB:6.0f} MiB', flush=True)
            if n_events in (0, 1_500_000):
                peers(a, path, folder)


def write(path, n_events):
    """In a process of its own: its memory would count into the peak of what it starts."""
    if os.fork() == 0:
        with open(path, 'wb') as out:
            pickle.dump(Job().snapshot(n_events), out, protocol=4)
        os._exit(0)
    if os.wait()[1] != 0:
        sys.exit('writing failed')


if __name__ == '__main__':
    main()
