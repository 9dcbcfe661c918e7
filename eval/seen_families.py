"""Families of the test set: jobs that the detector was not tuned on. They are written as those of simulator/families.py are, but differ in structure.

Shares are of the headroom. Where a range has no unit it counts steps.
"""
import numpy as np

from simulator.families import MIB, add_evaluation

SEED_SALT = 0x7E57FA11

RANGES = dict(
    fatal_at=('u', 0.15, 0.95),
    rollout_every=('li', 64, 512),
    rollout_share=('u', 0.1, 0.4),
    experience=('l', 0.02, 0.12),
    replay_size=('u', 0.2, 0.6),
    adapters=('i', 2, 6),
    adapter_size=('l', 0.008, 0.04),
    adapter_dwell=('li', 100, 1500),
    groups=('i', 3, 8),
    group_size=('l', 0.008, 0.03),
    unfreeze_frac=('u', 0.1, 0.4),
    autotunes=('i', 10, 60),
    graphs=('i', 20, 80),
    graph_size=('l', 0.0005, 0.003),
    preemptions=('i', 6, 15),
    communicators=('i', 3, 8),
    communicator_mib=('l', 40, 400),
    queue_depth=('i', 4, 16),
    queue_size=('l', 0.002, 0.012),
    gc_lengthen=('u', 0.01, 0.03),
    gc_cycles=('li', 4, 20),
    gc_slow_amp=('l', 0.08, 0.25),
    log_every=('c', [50, 100, 200, 500]),
    trims=('li', 15, 200),
    trim_share=('u', 0.3, 0.8),
    epochs=('i', 6, 40),
    hooks_a=('u', 1.6, 2.0),
    resume_at=('u', 0.15, 0.6),
    tail=('u', 1.5, 2.2),
    rare_p=('l', 0.002, 0.02),
    shards=('i', 20, 60),
    bad_share=('u', 0.2, 0.5),
)


def hold(c, start, stop, share):
    """Holds a tensor from one step to another. The one that was taken first is freed first."""
    c['slots'] += [(start, share), (stop, -1)]


def add_rollouts(c, q):
    c['n_train'] = min(c['n_train'], 120_000)
    every = q('rollout_every')
    c['eval'] = dict(every=every, n=max(2, int(every * q('rollout_share'))), u=q('eval_u'), keep=q('experience'),
                     labelled=bool(q.rng.random() < .5), step_mode='shared')
    size = q('experience')
    for at in range(every, c['n_train'], every):
        hold(c, at, at + every - 2, size * float(q.rng.uniform(0.5, 1.0)))


def add_communicators(c, q):
    for _ in range(q('communicators')):
        c['ext_events'].append((max(1e-4, 0.6 * float(q.rng.random()) ** 3), q('communicator_mib') * MIB))


def rlhf(c, q):
    """Rollouts alternate with updates, through which the experience of the last rollout stays."""
    add_rollouts(c, q)
    c['u'] = [('iid', q('noise') * .5)]


def replay_preallocated(c, q):
    """After a warm-up the whole replay buffer is allocated at once, and soon afterwards a target network."""
    at = int(q.rng.integers(200, 5000))
    c['slots'] = [(at, q('replay_size'))]
    c['ema_at'] = at + int(q.rng.integers(1, 500))
    c['u'] = [('iid', q('noise_small'))]


def adapters_switched(c, q):
    """Adapters are loaded on demand; when more than a few are there the oldest is dropped, after the new one has come."""
    kept, size, dwell = q('adapters'), q('adapter_size'), q('adapter_dwell')
    at = n = 0
    while (at := at + 3 + int(q.rng.exponential(dwell))) < c['n_train']:
        c['slots'].append((at, size * float(q.rng.choice([0.5, 1, 2]))))
        n += 1
        if n > kept:
            c['slots'].append((at + 1, -1))
    c['u'] = [('iid', q('noise') * .5)]


def unfreezing(c, q):
    """One group of layers after the other is unfrozen early in the run; each brings gradients and optimizer states that stay."""
    points = np.sort(q.rng.uniform(0.01, q('unfreeze_frac'), q('groups')))
    c['slots'] = [(float(at), q('group_size')) for at in points]
    c['u'] = [('iid', q('noise') * .5)]
    c['ckpt'] = dict(every=q('ckpt_every'), hold=0)


def progressive_resizing(c, q):
    """Images grow in stages, and once the batch is cut to make room; the cache is emptied now and then."""
    c['u'] = [('stages', q('stages'), q('u_lo'), q('ramp_frac')), ('stages', 2, float(q.rng.uniform(1.3, 2)), 0.95),
              ('iid', q('noise_small'))]
    c['empty'] = q('empty_every')


def curriculum_of_buckets(c, q):
    """Batches come from buckets of similar length, and the buckets get longer."""
    c['u'] = [('ramp', q('u_lo'), q('ramp_frac') * .7), ('bucket', q('noise'), q('dwell')), ('iid', q('noise_small'))]
    c['retain'] = q.rng.choice([0, 1024])


def metrics_each_epoch(c, q):
    """Each epoch collects metrics and drops them after its evaluation; the best model so far stays, and is replaced ever more rarely."""
    add_evaluation(c, q)
    c['epoch_len'] = c['eval']['every'] = q('epoch_len')
    c['epacc'] = q('epacc_amp')
    size, copies = float(q.rng.uniform(0.02, 0.1)), 0
    for i, at in enumerate(range(c['epoch_len'], c['n_train'], c['epoch_len'])):
        if q.rng.random() < 1 / (1 + 0.3 * i):
            c['slots'] += [(at + 1, size)] + [(at + 2, -1)] * (copies > 0)
            copies += 1
    c['u'] = [('iid', q('noise') * .5)]


def averaging_late(c, q):
    """Averaging of the weights starts in the second half of the run."""
    c['ema_at'] = int(c['n_train'] * q.rng.uniform(0.5, 0.8))
    c['u'] = [('iid', q('noise'))]
    if q.rng.random() < .5:
        add_evaluation(c, q)


def compile_warmup(c, q):
    """At first kernels are tuned with big workspaces and many graphs are captured; a resume captures them again."""
    at = 1
    for _ in range(q('autotunes')):
        at += int(q.rng.integers(3, 60))
        hold(c, at, at + 1, float(q.rng.uniform(0.02, 0.4)))
    c['caches'] = [('recompile', q('graph_size'), q('graphs'), float(q.rng.uniform(0.03, 0.15)), where) for where in ('live', 'priv')]
    if q.rng.random() < .5:
        c['restarts'] = [(int(c['n_train'] * q.rng.uniform(.2, .8)), 500)]
    c['u'] = [('bucket', q('noise'), q('dwell'))]


def preempted(c, q):
    """A job on preemptible machines, padded to the longest of each batch, resumes many times from checkpoints written asynchronously."""
    points = np.unique((q.rng.uniform(0.02, 0.98, q('preemptions')) * c['n_train']).astype(int))
    c['ckpt'] = dict(every=int(q.rng.choice([500, 1000, 2000])), hold=q('ckpt_async'))
    c['restarts'] = [(int(at), int(q.rng.integers(0, c['ckpt']['every']))) for at in points]
    c['u'] = [('iid', q('noise')), ('bucket', q('noise') * .5, q('dwell'))]
    c['caches'] = [('zipf', q('cache_size') * .5, q('zipf_s'), q('zipf_n'))]


def lazy_communicators(c, q):
    """Groups of ranks get their communicators when they first talk: memory outside the allocator grows in a few steps."""
    add_communicators(c, q)
    c['world'] = max(c['world'], 2)
    c['u'] = [('iid', q('noise') * .5)]


def neighbour_grows(c, q):
    """Another process on the device grows through most of the run; this one does not."""
    c['other'] = dict(kind='grows', size=float(q.rng.uniform(0.2, 0.6)))
    c['u'] = [('iid', q('noise') * .5)]


def prefetch_queue(c, q):
    """Batches are prefetched to the device into a queue whose length wanders between nothing and its bound."""
    depth, size, length, at = q('queue_depth'), q('queue_size'), 0, 1
    while (at := at + 1 + int(q.rng.exponential(40))) < c['n_train']:
        grow = length < depth and (length == 0 or q.rng.random() < .5)
        c['slots'].append((at, size * float(q.rng.uniform(0.5, 1.5)) if grow else -1))
        length += 1 if grow else -1
    c['u'] = [('iid', q('noise') * .5)]


def gc_lengthens(c, q):
    """Cycles of garbage are collected ever more rarely, as the interpreter holds more objects."""
    c['gc'] = dict(period=q('gc_period') * 3, amp=q('gc_amp') * .6, jitter=q('gc_jitter'), lengthen=q('gc_lengthen'))
    c['u'] = [('iid', q('noise_small'))]


def leak(c, q, kind='linear', onset=0.0, **more):
    """Adds a leak that fills the headroom before the run ends, and returns the steps that it takes."""
    share = (0.97 - onset) * q('fatal_at')
    c['leak'] = dict(kind=kind, oom_frac=onset + share, onset=onset, ranks='all', p=1.0, a=1.0, signal='live') | more
    return share * c['n_train']


def leak_of(c, q, sizes, **more):
    """Adds a leak whose growth at each step is proportional to `sizes`."""
    n = c['n_train']
    held = np.cumsum(sizes)
    first = np.nonzero(held)[0][0]
    fatal = int(first + (0.97 * n - first) * q('fatal_at'))
    # Job knows powers of the share of the run that has passed: this is the exponent that yields the wanted share of the headroom at each step.
    a = np.ones(n)
    a[1:] = np.log(np.maximum(held[1:] / held[fatal], 1e-12)) / np.log(np.arange(1, n) / n)
    c['leak'] = dict(kind='pow', oom_frac=1.0, onset=0.0, ranks='all', a=a, signal='live') | more


def rare_sizes(c, q):
    """Of each step: mostly nothing, now and then a size with a heavy tail."""
    return (q.rng.random(c['n_train']) < q('rare_p')) * (1 + q.rng.pareto(q('tail'), c['n_train']))


def outputs_logged(c, q):
    """A logger keeps the outputs of every k-th step on the device."""
    steps = leak(c, q, 'burst')
    c['leak']['unit_frac'] = q('log_every') / steps
    c['u'] = [('iid', q('noise') * .5)]
    c['retain'] = 100


def history_trimmed(c, q):
    """A list of losses with their graphs is trimmed now and then, but never to what it was."""
    steps = leak(c, q)
    c['leak']['partial'] = int(steps / q('trims')), q('trim_share')
    c['u'] = [('iid', q('noise') * .5)]


def shapes_cached(c, q):
    """A cache without bound has an entry for each pair of source and target lengths that has been seen."""
    lengths = (q.rng.lognormal(5.5, q.rng.uniform(0.6, 1.0), (c['n_train'], 2)) / q.rng.choice([1, 8])).astype(np.int64)
    sizes = np.zeros(c['n_train'])
    first = np.unique(lengths[:, 0] << 32 | lengths[:, 1], return_index=True)[1]
    sizes[first] = lengths[first].sum(1)
    leak_of(c, q, sizes)
    c['u'] = [('iid', q('noise'))]


def hooks_pile_up(c, q):
    """Hooks are registered again and again, and each keeps an output at every step: growth gets faster."""
    leak(c, q, 'accel', a=q('hooks_a'))
    c['u'] = [('iid', q('noise') * .5)]


def each_epoch(c, q):
    """Each epoch leaves its iterator's buffers behind, beside metrics that are freed."""
    epochs = q('epochs')
    steps = leak(c, q, 'burst', unit_frac=1 / epochs)
    c['epoch_len'], c['epacc'] = int(steps / epochs), q('epacc_amp')
    c['u'] = [('sorted', q('noise') * .5, 1)]


def half_of_the_ranks(c, q):
    """Every second rank of a pipeline keeps activations that it has sent, each at its own rate."""
    c['world'] = max(c['world'], 4)
    leak(c, q, ranks='half')
    c['u'] = [('iid', q('noise') * .5)]
    c['accum'] = q('accum')


def one_expert(c, q):
    """On one rank an expert's overflow buffers, of very different sizes, are never given back."""
    c['world'] = max(c['world'], 4)
    leak_of(c, q, rare_sizes(c, q), ranks='one')
    c['u'] = [('moe', q('moe_sigma'))]


def after_resume(c, q):
    """The first life is healthy; the job leaks from its resume on, with a warm-up of caches in both."""
    at = int(c['n_train'] * q('resume_at'))
    c['restarts'] = [(at, int(q.rng.integers(0, 2000)))]
    c['caches'] = [('exp', q('cache_size') * .5, q('cache_tau') * .1, q('cache_units'))]
    leak(c, q, 'pow', onset=(at + 1) / c['n_train'])
    c['u'] = [('iid', q('noise') * .5)]


def under_slow_gc(c, q):
    """A leak under a lot of garbage, which is collected only a few times before the memory is full."""
    steps = leak(c, q)
    c['gc'] = dict(period=steps / q('gc_cycles'), amp=q('gc_slow_amp'), jitter=q('gc_jitter'), lengthen=0.0)


def heavy_tails(c, q):
    """Now and then a document's activations are kept, and the lengths of documents have a heavy tail."""
    leak_of(c, q, rare_sizes(c, q))
    c['u'] = [('iid', q('noise'))]


def graphs_recaptured(c, q):
    """From some point on graphs are captured again into new private pools, between evaluations: only reserved memory grows."""
    add_evaluation(c, q)
    leak(c, q, 'reserved', onset=float(q.rng.uniform(0.02, 0.4)), signal='reserved', unit=int(q.rng.integers(256, 1024)) * MIB)
    c['u'] = [('bucket', q('noise'), q('dwell'))]


def root_of_gathers(c, q):
    """The communication library keeps buffers outside the allocator, on the rank that gathers; other processes come and go."""
    c['world'] = max(c['world'], 2)
    add_communicators(c, q)
    c['other'] = dict(kind='visits', size=0.1)
    leak(c, q, 'external', onset=float(q.rng.uniform(0.02, 0.4)), ranks='one', signal='external', unit=int(q.rng.integers(16, 300)) * MIB)
    c['u'] = [('iid', q('noise') * .5)]


def rollouts_kept(c, q):
    """Of each rollout some experience is kept for good; updates add nothing."""
    add_rollouts(c, q)
    leak(c, q, 'eval')


def slow_in_noise(c, q):
    """A leak that needs most of the run, in a job of varying lengths, evaluations and lost pushes."""
    leak(c, q)
    c['leak']['oom_frac'] = float(q.rng.uniform(0.7, 0.95))
    add_evaluation(c, q)
    c['u'] = [('iid', q('noise')), ('ar', q('noise') * .5, q('ar_rho')), ('bucket', 0.15, q('dwell'))]
    c['dirty'] = dict(drop=q('drop'), dup=q('dup'), ooo=q('ooo'), burst=bool(q.rng.random() < .5))


def bad_shards(c, q):
    """Only samples of some shards are kept, so that growth stops and goes on."""
    n = q('shards')
    bad = q.rng.random(n) < q('bad_share')
    bad[int(q.rng.integers(0, n // 4))] = True
    leak_of(c, q, np.repeat(bad, -(-c['n_train'] // n))[:c['n_train']].astype(float))
    c['u'] = [('iid', q('noise') * .5)]


def longer_outputs_kept(c, q):
    """Outputs are kept while a curriculum makes them longer: use and leak grow together."""
    lo, frac = q('u_lo'), q('ramp_frac')
    passed = np.arange(c['n_train']) / c['n_train']
    leak_of(c, q, lo + (1 - lo) * np.minimum(1, passed / frac))
    c['u'] = [('ramp', lo, frac), ('iid', q('noise') * .5)]


HEALTHY = [rlhf, replay_preallocated, adapters_switched, unfreezing, progressive_resizing, curriculum_of_buckets, metrics_each_epoch,
           averaging_late, compile_warmup, preempted, lazy_communicators, neighbour_grows, prefetch_queue, gc_lengthens]
LEAKS = [outputs_logged, history_trimmed, shapes_cached, hooks_pile_up, each_epoch, half_of_the_ranks, one_expert, after_resume, under_slow_gc,
         heavy_tails, graphs_recaptured, root_of_gathers, rollouts_kept, slow_in_noise, bad_shards, longer_outputs_kept]
