"""Families of simulated jobs beside those of the design: what its generator can draw and its public set leaves out.

They are drawn with the design's allocator and ranges. `own` is the name of their set.
"""
import simulate

OWN_SALT = 0x0DD5


def unfreeze(c, q):
    """Gradual unfreezing: a staircase of gradients and optimizer state that ends; even or uneven, on all ranks."""
    n_stairs, even = int(q.rng.integers(3, 7)), bool(q.rng.random() < 0.6)
    first, last = float(q.rng.uniform(0.03, 0.15)), float(q.rng.uniform(0.3, 0.8))
    height = float(q.rng.uniform(0.03, 0.14))
    for i in range(n_stairs):
        at = first + (last - first) * i / (n_stairs - 1) * (1.0 if even else float(q.rng.uniform(0.7, 1.0)))
        c["slots"].append((at, height * (1.0 if even else float(q.rng.uniform(0.5, 1.5)))))
    c["u"] = [("iid", q("noise_small"))]


def kept_copies(c, q):
    """A copy of the model at the first checkpoint, or at each of the first two, as for an average of them."""
    every = q("ckpt_every")
    c["ckpt"] = dict(every=every, hold=0)
    height = float(q.rng.uniform(0.03, 0.25))
    c["slots"] += [(i * every, height) for i in range(1, int(q.rng.integers(2, 4)))]
    c["u"] = [("iid", q("noise_small"))]


def gc_longer(c, q):
    """Garbage whose collections come less and less often."""
    c["gc"] = dict(period=q("gc_period"), amp=q("gc_amp") * 0.6, jitter=q("gc_jitter"), lengthen=0.03)
    c["u"] = [("iid", q("noise_small"))]


def neighbour_grows(c, q):
    """Another process on the device grows and stops."""
    c["other"] = dict(kind="grows", size=0.3)
    c["u"] = [("iid", q("noise") * 0.5)]


def batch_ramp(c, q):
    """The batch grows in stages while a cache fills."""
    c["u"] = [("stages", q("stages"), q("u_lo"), q("ramp_frac")), ("iid", q("noise") * 0.3)]
    c["caches"] = [("exp", q("cache_size") * 0.7, q("cache_tau"), q("cache_units"))]


def accelerating(c, q):
    """A leak that grows faster and faster."""
    simulate._leak(c, q, kind="accel", a=float(q.rng.uniform(1.3, 2.2)))
    c["u"] = [("iid", q("noise") * 0.5)]


def bursts(c, q):
    """A leak in bursts, a few percent of the room each."""
    simulate._leak(c, q, kind="burst", unit_frac=float(q.rng.uniform(0.03, 0.12)))
    c["u"] = [("iid", q("noise") * 0.5)]


def half_of_ranks(c, q):
    """Every second rank leaks, each at its own pace."""
    c["world"] = max(c["world"], 4)
    simulate._leak(c, q, ranks="half")
    c["u"] = [("iid", q("noise") * 0.5)]


def trimmed(c, q):
    """A leak whose owner gives back a part from time to time."""
    simulate._leak(c, q, partial=(int(q.rng.integers(200, 2000)), float(q.rng.uniform(0.2, 0.6))))
    c["u"] = [("iid", q("noise") * 0.5)]


HEALTHY = (unfreeze, kept_copies, gc_longer, neighbour_grows, batch_ramp)
LEAKS = (accelerating, bursts, half_of_ranks, trimmed)


def families(which, cls=None):
    """The names of a set's families, of one class or of all."""
    if which != "own":
        return simulate.families(which, cls) if cls else simulate.families(which)
    own = [family.__name__ for family in HEALTHY] if cls in (None, "healthy") else []
    return own + ([family.__name__ for family in LEAKS] if cls in (None, "leak") else [])


def make_run(which, family, seed):
    if which != "own":
        return simulate.make_run(which, family, seed)
    tables = simulate.tables
    mine = {family.__name__: (family, "healthy") for family in HEALTHY} | {family.__name__: (family, "leak") for family in LEAKS}
    simulate.tables = lambda _: (simulate.PUBLIC, OWN_SALT, mine)
    try:
        return simulate.make_run("own", family, seed)
    finally:
        simulate.tables = tables
