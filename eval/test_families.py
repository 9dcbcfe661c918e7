"""Families of a second test set: jobs of many kinds of training, written by an author who has not seen the detector. The form is that of simulator/families.py.

Shares are of the headroom. Where a range has no unit it counts steps.
"""
import numpy as np

from simulator.families import MIB, add_evaluation

SEED_SALT = 0x2B1D5EED

RANGES = dict(
    fill_at=('l', 0.04, 0.95),
    survives=('p', 0.1),
    lazy_every=('c', [4, 8, 16, 16, 32]),
    penalty=('l', 0.02, 0.15),
    sample_every=('li', 500, 6000),
    sample_steps=('c', [20, 30, 50, 100]),
    sample_size=('l', 0.005, 0.08),
    swap_size=('u', 0.03, 0.2),
    graph_noise=('u', 0.25, 0.6),
    table=('l', 0.003, 0.02),
    doublings=('i', 3, 5),
    table_done=('u', 0.02, 0.25),
    teacher=('u', 0.05, 0.3),
    teacher_every=('li', 300, 4000),
    trials=('i', 8, 60),
    trial_size=('u', 0.05, 0.3),
    sorted_epoch=('u', 0.01, 0.12),
    tasks=('i', 3, 12),
    head_size=('l', 0.003, 0.02),
    changes=('i', 3, 9),
    shard=('u', 0.05, 0.4),
    outer_every=('c', [50, 100, 200, 500, 1000]),
    outer_size=('u', 0.03, 0.2),
    streams=('li', 1500, 25_000),
    shuffle_size=('l', 0.02, 0.15),
    shuffle_units=('i', 8, 40),
    suite_every=('li', 200, 1200),
    suite_len=('li', 60, 400),
    kv_size=('l', 0.05, 0.3),
    day=('li', 2500, 30_000),
    day_depth=('u', 0.2, 0.9),
    heaps=('u', 0.6, 0.9),
    merges=('i', 8, 50),
    merge_start=('u', 0.02, 0.5),
    failures=('i', 4, 20),
    fail_p=('u', 0.2, 0.8),
    stage_at=('u', 0.15, 0.7),
    snapshots=('i', 8, 40),
    slowing=('u', 0.55, 0.9),
    stuck=('i', 5, 30),
    stuck_p=('u', 0.15, 0.7),
    drift=('u', 0.3, 0.9),
)


def hold(c, start, stop, share):
    """Holds a tensor between two steps. The oldest is freed first."""
    c['slots'] += [(int(start), share), (int(stop), -1)]


def grows(c, q, sizes, fatal=None, **more):
    """A leak that grows at each step in proportion to `sizes`, and has taken the headroom at step `fatal`; now and then it takes only a part of it by the end."""
    n = c['n_train']
    held = np.cumsum(np.asarray(sizes, float))
    first = int(np.nonzero(held)[0][0])
    if fatal is None:
        fatal = first + int(0.97 * (n - first) * q('fill_at'))
    fatal = min(max(fatal, first, 200), n - 1)
    full = held[-1] * float(q.rng.uniform(1.2, 3)) if q('survives') else held[fatal]
    # The simulator knows powers of the share of the run that has passed: the exponent of each step gives the wanted share of the headroom.
    a = np.ones(n)
    a[1:] = np.log(np.maximum(held[1:] / full, 1e-12)) / np.log(np.arange(1, n) / n)
    c['leak'] = dict(kind='pow', oom_frac=1.0, onset=0.0, ranks='all', p=1.0, a=a, signal='live') | more


def steady(c, q, kind, onset=0.0, **more):
    """A leak of a constant rate that fills the headroom before the end, or now and then does not."""
    frac = float(q.rng.uniform(1.2, 3)) if q('survives') else onset + (0.97 - onset) * q('fill_at')
    c['leak'] = dict(kind=kind, oom_frac=frac, onset=onset, ranks='all', p=1.0, a=1.0, signal='live') | more


def at_events(c, q, points, count, spread=0.3, **more):
    """A leak at each of some steps; about `count` of them fill the headroom."""
    sizes = np.zeros(c['n_train'])
    points = np.unique(np.asarray(points, int))
    sizes[points] = q.rng.uniform(1 - spread, 1 + spread, len(points))
    grows(c, q, sizes, int(points[min(count, len(points)) - 1]), **more)


def daily(c, q):
    """Traffic of each step, which follows the time of the day."""
    return 1 + q('day_depth') * np.sin(2 * np.pi * (np.arange(c['n_train']) / q('day') + q.rng.random()))


def add_trials(c, q):
    """Trials of a sweep, one after the other: a model of its own size, which goes when, or just after, the next one comes. Returns their first steps."""
    n = q('trials')
    starts = np.unique((np.cumsum(q.rng.uniform(0.3, 1.7, n)) / n * 0.97 * c['n_train']).astype(int))
    starts = starts[(starts > 10) & (starts < c['n_train'] - 10)]
    late, top = q.rng.random() < .5, q('trial_size')
    for i, at in enumerate(starts):
        c['slots'].append((int(at), top * float(q.rng.choice([0.25, 0.5, 0.5, 1]))))
        if i:
            c['slots'].append((int(at) + (1 if late else -1), -1))
    c['u'] = [('bucket', q('noise'), c['n_train'] / n), ('iid', q('noise_small'))]
    return starts


def add_phases(c, q):
    """Collection of experience alternates with updates, unlabelled or not."""
    every = int(q.rng.integers(100, 800))
    c['n_train'] = min(c['n_train'], 100_000)
    c['eval'] = dict(every=every, n=max(3, every // int(q.rng.integers(4, 12))), u=q('eval_u') * .6, keep=q('eval_keep') * .5,
                     labelled=bool(q.rng.random() < .4), step_mode='shared')


def gan_lazy_penalty(c, q):
    """A GAN whose penalties, every few steps, need a graph of the gradients; averaged weights come early."""
    every, size = q('lazy_every'), q('penalty')
    c['n_train'] = min(c['n_train'], 120_000)
    for at in range(every, c['n_train'] - 2, every):
        hold(c, at, at + 1, size * float(q.rng.uniform(0.8, 1.2)))
    c['ema_at'] = int(q.rng.integers(1, 3000))
    c['u'] = [('iid', q('noise_small'))]


def diffusion_sampled(c, q):
    """A diffusion model with aspect-ratio buckets; now and then the averaged weights are swapped in and images are sampled and kept till the grid is drawn."""
    c['eval'] = dict(every=q('sample_every'), n=q('sample_steps'), u=q('eval_u'), keep=q('sample_size'), labelled=bool(q.rng.random() < .5),
                     step_mode='shared')
    size, every = q('swap_size'), c['eval']['every']
    for at in range(every - 1, c['n_train'] - 2, every):
        hold(c, at, at + 1, size)
    c['ema_at'] = int(q.rng.integers(1, 5000))
    c['u'] = [('bucket', q('noise') * .6, 1)]


def gnn_sampled(c, q):
    """A graph network on sampled neighbourhoods of very different sizes, with features of popular nodes cached on the device."""
    c['u'] = [('iid', q('graph_noise'))]
    c['pad'], c['retain'] = 1, int(q.rng.choice([0, 1024]))
    c['caches'] = [('zipf', q('cache_size'), q('zipf_s'), q('zipf_n'))]
    c['epoch_len'], c['epacc'] = q('epoch_len'), q('epacc_amp') * .3


def tables_double(c, q):
    """Hash tables of embeddings double, each time copied to a new one, until they reach their bound, from where on they evict."""
    n = q('doublings')
    ends = np.sort(c['n_train'] * q('table_done') * 0.5 ** (n - np.arange(n + 1) + q.rng.uniform(-.3, .3, n + 1)))
    ends = np.maximum(ends.astype(int), 5 + 4 * np.arange(n + 1))
    size = q('table')
    for i, at in enumerate(ends):
        c['slots'] += [(int(at), size * 2 ** i)] + [(int(at) + 1, -1)] * (i > 0)
    c['u'] = [('iid', q('noise') * .4)]
    c['rec_cache'] = q('cache_size') * .5


def teacher_offloaded(c, q):
    """The teacher comes from the host for a while to label some batches ahead, and goes again."""
    size, every = q('teacher'), q('teacher_every')
    at = every
    while at < c['n_train'] - every:
        stay = max(2, int(every * q.rng.uniform(0.03, 0.3)))
        hold(c, at, at + stay, size)
        at += stay + max(3, int(every * q.rng.uniform(0.6, 1.1)))
    c['u'] = [('iid', q('noise') * .5)]
    c['empty'] = q('empty_every') if q.rng.random() < .4 else None


def sweep(c, q):
    """Trials of a hyperparameter sweep in one process, with models and batches of different sizes."""
    add_trials(c, q)
    c['empty'] = q('empty_every') if q.rng.random() < .5 else None
    if q.rng.random() < .5:
        add_evaluation(c, q)


def speech_sorted_first(c, q):
    """Utterances come sorted by length in the first epoch and shuffled afterwards; workspaces grow with the longest one so far."""
    c['u'] = [('ramp', q('u_lo'), q('sorted_epoch')), ('iid', q('noise'))]
    c['rec_cache'], c['pad'] = q('cache_size'), 1
    c['retain'] = int(q.rng.choice([0, 100, 1024]))
    if q.rng.random() < .5:
        add_evaluation(c, q)


def multi_task(c, q):
    """Each step draws a task; heads and their optimizer states come when a task is first drawn, some of them only after a while."""
    size = q('head_size')
    for at in np.unique(3 + q.rng.exponential(0.03 * c['n_train'] * q.rng.random(), q('tasks')).astype(int)):
        c['slots'].append((int(at), size * float(q.rng.uniform(0.3, 2))))
    c['u'] = [('bucket', q('noise'), 1), ('iid', q('noise_small'))]
    add_evaluation(c, q)
    c['accum'] = q('accum')


def elastic(c, q):
    """Ranks leave and join: at each restart the shard of each rank is larger or smaller than before."""
    points = np.unique((q.rng.uniform(0.03, 0.97, q('changes')) * c['n_train']).astype(int))
    c['restarts'] = [(int(at), int(q.rng.integers(0, 800))) for at in points]
    top = q('shard')
    for at in [0, *points]:
        c['slots'].append((int(at) + 2, top * float(q.rng.choice([0.1, 0.3, 0.6, 1]))))
    c['world'] = max(c['world'], 2)
    c['u'] = [('iid', q('noise') * .4)]
    c['ckpt'] = dict(every=q('ckpt_every'), hold=0)


def outer_optimizer(c, q):
    """Local steps, and every few hundred an outer step that needs the differences to the shared weights for some steps."""
    every, size = q('outer_every'), q('outer_size')
    delay = int(q.rng.integers(1, max(2, every // 4)))
    for at in range(every, c['n_train'] - every, every):
        hold(c, at, at + delay, size)
    c['ema_at'], c['world'] = every, max(c['world'], 2)
    c['ckpt'] = dict(every=q('ckpt_every'), hold=q('ckpt_async'))
    c['u'] = [('iid', q('noise') * .3)]


def streamed_shards(c, q):
    """A shuffle buffer on the device fills at the start of each streamed shard and is drained at its end; shards have different lengths."""
    length, size, units = q('streams'), q('shuffle_size'), q('shuffle_units')
    at = 2
    while True:
        stop = at + max(400, int(length * q.rng.uniform(0.5, 1.5)))
        if stop + 2 * units >= c['n_train']:
            break
        step = max(1, int((stop - at) * q.rng.uniform(0.05, 0.3) / units))
        for i in range(units):
            c['slots'] += [(at + i * step, size / units), (stop + i, -1)]
        at = stop + units + 1
    c['u'] = [('iid', q('noise'))]
    c['dirty'] = dict(drop=q('drop') * .5, dup=q('dup'), ooo=q('ooo'), burst=True) if q.rng.random() < .4 else None


def suites_of_generation(c, q):
    """More evaluation than training: suites generate with a cache of keys and values that grows till each suite's end."""
    c['n_train'] = min(c['n_train'], 80_000)
    c['eval'] = dict(every=q('suite_every'), n=q('suite_len'), u=q('eval_u') * .5, keep=q('kv_size'), labelled=bool(q.rng.random() < .5),
                     step_mode='shared')
    c['u'] = [('iid', q('noise') * .5)]


def penalty_kept(c, q):
    """The graphs of a GAN's penalty stay alive, more of them when adaptive augmentation is strong: the rate wanders."""
    n, knots = c['n_train'], int(q.rng.integers(10, 60))
    walk = np.cumsum(q.rng.normal(0, q('drift'), knots)) * 0.5
    rate = np.exp(np.interp(np.arange(n), np.linspace(0, n, knots), walk - walk.mean()))
    grows(c, q, rate * (np.arange(n) % q('lazy_every') == 0))
    c['u'] = [('iid', q('noise_small'))]
    c['ema_at'] = int(q.rng.integers(1, 3000))


def uploads_stuck(c, q):
    """Frequent asynchronous checkpoints; of some the upload never ends and its staging copy stays."""
    every = int(np.clip(c['n_train'] / q.rng.integers(60, 300), 100, 3000))
    c['ckpt'] = dict(every=every, hold=max(2, min(q('ckpt_async'), every // 3)))
    points = np.arange(every, c['n_train'] - 1, every)
    points = points[q.rng.random(len(points)) < q('stuck_p')]
    at_events(c, q, points, q('stuck'), ranks=str(q.rng.choice(['all', 'one'])))
    c['u'] = [('iid', q('noise') * .5)]


def history_appended(c, q):
    """A graph network appends historical embeddings instead of replacing them, on the ranks of some partitions; a real cache warms up beside."""
    c['world'] = max(c['world'], 2)
    grows(c, q, q.rng.lognormal(0, q('graph_noise') * 2, c['n_train']), ranks=str(q.rng.choice(['half', 'all'])))
    c['u'] = [('iid', q('graph_noise'))]
    c['caches'] = [('zipf', q('cache_size'), q('zipf_s'), q('zipf_n'))]
    c['pad'] = 1


def ids_without_eviction(c, q):
    """Tables of embeddings get a row for each new identifier and evict none; new ones come ever more rarely, and more by day; tables grow by chunks."""
    t = np.arange(c['n_train']) + 1.0
    held = np.cumsum(t ** (q('heaps') - 1) * np.maximum(0.02, daily(c, q)))
    fatal = int(0.97 * c['n_train'] * q('fill_at'))
    chunk = held[fatal] / q.rng.integers(20, 300)
    grows(c, q, np.diff(np.floor(held / chunk), prepend=0.0), fatal)
    c['u'] = [('iid', q('noise') * .4)]


def merges_leave_weights(c, q):
    """Low-rank adapters are merged into a large frozen model at intervals, and each merge leaves something of the old weights behind."""
    c['opt_mult'], c['util_static'] = 0.1, float(q.rng.uniform(0.3, 0.5))
    count, begin = q('merges'), int(q('merge_start') * c['n_train'])
    every = max(60, int((c['n_train'] * 0.97 - begin) * q('fill_at') / count))
    points = np.arange(begin + every, c['n_train'] - 10, every)
    layers = int(q.rng.integers(1, 6))
    at_events(c, q, (points[:, None] + np.arange(layers)).ravel(), count * layers)
    c['gc'] = dict(period=q('gc_period'), amp=q('gc_amp') * .4, jitter=q('gc_jitter'), lengthen=0.0)
    c['u'] = [('iid', q('noise') * .5)]


def side_streams(c, q):
    """A job of long and short contexts offloads on side streams whose pools are never used again: reserved memory grows."""
    steady(c, q, 'reserved', signal='reserved', unit=int(np.exp(q.rng.uniform(np.log(20), np.log(200)))) * MIB)
    c['u'] = [('bucket', q('noise') * 1.5, q('dwell') * .1), ('iid', q('noise'))]
    c['retain'] = 1024
    c['ckpt'] = dict(every=q('ckpt_every'), hold=q('ckpt_async'))


def failed_trials_kept(c, q):
    """A sweep in one process: the traceback of a failed trial keeps what it had on the device."""
    starts = add_trials(c, q)
    bad = starts[1:][q.rng.random(len(starts) - 1) < q('fail_p')]
    at_events(c, q, bad if len(bad) > 2 else starts[1:], q('failures'), spread=0.8)
    c['empty'] = q('empty_every') if q.rng.random() < .5 else None


def distilled_late(c, q):
    """A stage of distillation begins in the middle of the run: the teacher comes, and from then on its features are kept."""
    at = int(q('stage_at') * c['n_train'])
    c['slots'] = [(at, q('teacher') * .6)]
    lag = int(q.rng.choice([0, 0, 1000]))
    steady(c, q, 'linear', onset=(at + lag) / c['n_train'], p=float(q.rng.choice([1.0, 0.5, 0.1])))
    c['u'] = [('iid', q('noise'))]
    if q.rng.random() < .5:
        add_evaluation(c, q)


def groups_rebuilt(c, q):
    """At each change of membership the groups of ranks are built again within the process, and the old ones' buffers outside the allocator stay."""
    c['world'] = max(c['world'], 2)
    steady(c, q, 'external', signal='external', unit=int(np.exp(q.rng.uniform(np.log(150), np.log(1500)))) * MIB)
    c['accum'] = q('accum')
    c['u'] = [('iid', q('noise') * .4)]
    if q.rng.random() < .5:
        c['other'] = dict(kind='visits', size=0.15)


def league_kept(c, q):
    """Self-play adds a copy of the policy to the league at each advance, ever more rarely, and never drops one."""
    add_phases(c, q)
    count, power = q('snapshots'), q('slowing')
    end = 0.97 * c['n_train'] * q('fill_at')
    points = end * (np.arange(1, 4 * count) / count) ** (1 / power) * q.rng.uniform(0.97, 1.03, 4 * count - 1)
    at_events(c, q, points[(points > 5) & (points < c['n_train'] - 5)], count, spread=0.05)
    c['u'] = [('iid', q('noise') * .4)]


def sessions_not_closed(c, q):
    """States of streaming sessions are held for as long as they last, more of them by day; those that end without a goodbye stay for good."""
    traffic = np.maximum(0.02, daily(c, q))
    size, level, length = q('shuffle_size') / 30, 15 * traffic, 0
    at = 2
    while (at := at + 1 + int(q.rng.exponential(30))) < c['n_train']:
        grow = length < 1 or q.rng.random() < 1 / (1 + np.exp((length - level[at]) / 2))
        c['slots'].append((at, size * float(q.rng.uniform(0.5, 1.5)) if grow else -1))
        length += 1 if grow else -1
    p = float(np.exp(q.rng.uniform(np.log(0.005), np.log(0.3))))
    grows(c, q, (q.rng.random(c['n_train']) < p * traffic / traffic.max()) * q.rng.lognormal(0, 0.5, c['n_train']))
    c['u'] = [('iid', q('noise') * .6)]


def generations_kept(c, q):
    """One rank generates between the updates, and keeps some caches of keys and values of each round."""
    add_evaluation(c, q, labelled=bool(q.rng.random() < .5))
    c['eval']['step_mode'], c['eval']['keep'] = 'shared', q('kv_size') * .5
    c['world'] = max(c['world'], 2)
    steady(c, q, 'eval', onset=float(q.rng.choice([0.0, q.rng.uniform(0.05, 0.4)])), ranks='one')
    c['u'] = [('iid', q('noise') * .5), ('ar', q('noise') * .3, q('ar_rho'))]


HEALTHY = [gan_lazy_penalty, diffusion_sampled, gnn_sampled, tables_double, teacher_offloaded, sweep, speech_sorted_first, multi_task, elastic,
           outer_optimizer, streamed_shards, suites_of_generation]
LEAKS = [penalty_kept, uploads_stuck, history_appended, ids_without_eviction, merges_leave_weights, side_streams, failed_trials_kept, distilled_late,
         groups_rebuilt, league_kept, sessions_not_closed, generations_kept]
