"""What a process uses, read from /proc."""

import os


def memory_bytes(pid):
    """VmRSS and VmHWM from /proc/PID/status."""
    with open(f"/proc/{pid}/status") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM")}


def cpu_seconds(pid):
    """CPU time of a process.

    Where the kernel has them, the scheduler's own nanoseconds over all threads; no thread may end
    during the measurement. Otherwise utime + stime, which count in steps of 10 ms: a quarter of
    what the target allows in 20 s.
    """
    try:
        return sum(map(scheduled_seconds, tasks_of(pid)))
    except FileNotFoundError:
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def nvml_cpu_seconds(pid):
    """CPU time of the threads that poll NVML."""
    polling = [task for task in tasks_of(pid) if read(f"{task}/comm").startswith("nvml")]
    return sum(map(scheduled_seconds, polling))


def tasks_of(pid):
    """The folder of each thread of a process."""
    return [f"/proc/{pid}/task/{task}" for task in os.listdir(f"/proc/{pid}/task")]


def scheduled_seconds(task):
    return int(read(f"{task}/schedstat").split()[0]) / 1e9


def read(path):
    with open(path) as file:
        return file.read()
