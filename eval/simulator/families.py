"""Families of simulated jobs: the ranges that their parameters are drawn from, and what each family changes in a job.

A family is a function `family(c, q)`. It changes `c`, the description of a job that `plain_job` draws, with values that `q` draws: `q("noise")` draws
from the range of that name, `q.rng` is NumPy's generator. Its class is what a perfect detector would find: `healthy`, `leak`, or `ambiguous` where
that cannot be told before the growth ends. Amounts of memory are shares of the headroom, the capacity minus everything at the typical peak, unless a unit is named.
"""
from dataclasses import dataclass

import numpy as np

MIB = 1 << 20
GIB = 1 << 30

# How a value is drawn: "u" uniform, "l" log-uniform, "i" integer, "li" log-uniform integer, "c" one of a list, "p" True with that probability.
RANGES = dict(
    cap=('c', [24, 80, 80, 80, 141]),
    world=('c', [1, 1, 2, 2, 2, 4, 8]),
    n_train=('li', 50_000, 200_000),
    dt=('l', 0.15, 2.0),
    util_static=('u', 0.20, 0.45),
    util_trans=('u', 0.15, 0.40),
    ext0_gib=('u', 0.5, 2.0),
    retain=('c', [0, 0, 100, 1024]),
    logit_share=('u', 0.04, 0.25),
    amp_skips=('i', 0, 12),
    noise=('u', 0.05, 0.40),
    noise_small=('u', 0.0, 0.03),
    ar_rho=('c', [0.9, 0.99, 0.999, 0.9997]),
    epoch_len=('li', 1500, 20_000),
    dwell=('li', 50, 3000),
    stages=('i', 3, 8),
    ramp_frac=('u', 0.2, 1.0),
    u_lo=('u', 0.15, 0.5),
    eval_every=('li', 500, 5000),
    eval_len=('li', 10, 150),
    eval_u=('u', 0.8, 1.8),
    eval_keep=('l', 0.002, 0.10),
    ckpt_every=('li', 500, 8000),
    ckpt_async=('li', 5, 120),
    gc_period=('li', 200, 900),
    gc_amp=('l', 0.005, 0.10),
    gc_jitter=('u', 0.0, 0.4),
    epacc_amp=('l', 0.002, 0.025),
    cache_size=('l', 0.005, 0.12),
    cache_tau=('l', 800, 60_000),
    cache_units=('li', 20, 2000),
    zipf_s=('u', 0.6, 1.6),
    zipf_n=('li', 64, 8192),
    recompiles=('i', 3, 14),
    recompile_size=('l', 0.002, 0.02),
    accum=('c', [2, 4, 8, 16, 32]),
    empty_every=('li', 200, 5000),
    restarts=('i', 1, 5),
    moe_sigma=('u', 0.1, 0.35),
    drop=('u', 0.02, 0.30),
    dup=('u', 0.0, 0.05),
    ooo=('u', 0.0, 0.05),
    oom_frac=('u', 0.10, 0.95),
    no_oom=('p', 0.2),
    onset_frac=('u', 0.15, 0.75),
    leak_p=('l', 0.03, 0.2),
    pow_a=('u', 0.7, 0.9),
    fast_steps=('li', 800, 5000),
    replay_fill=('u', 0.15, 0.6),
    big_cache=('u', 0.30, 0.70),
    epacc_big=('u', 0.10, 0.40),
)

SEED_SALT = 0x5EED01


class Draw:
    """Draws named parameters from their ranges."""

    def __init__(self, table, rng):
        self.table, self.rng = table, rng

    def __call__(self, name):
        k, *a = self.table[name]
        r = self.rng
        if k == 'u':
            v = float(r.uniform(a[0], a[1]))
        elif k == 'l':
            v = float(np.exp(r.uniform(np.log(a[0]), np.log(a[1]))))
        elif k == 'i':
            v = int(r.integers(a[0], a[1] + 1))
        elif k == 'li':
            v = int(round(np.exp(r.uniform(np.log(a[0]), np.log(a[1])))))
        elif k == 'c':
            v = a[0][int(r.integers(len(a[0])))]
        elif k == 'p':
            v = bool(r.random() < a[0])
        else:
            raise ValueError(k)
        return v


def plain_job(q):
    """Draws what every job has. A family turns on the rest."""
    return dict(
        cap=q('cap'), world=q('world'), n_train=q('n_train'), dt=q('dt'),
        util_static=q('util_static'), util_trans=q('util_trans'), ext0=q('ext0_gib') * GIB,
        retain=q('retain'), logit_share=q('logit_share'), amp_skips=q('amp_skips'),
        u=[('iid', q('noise_small'))], u_max=1.0, rank_u=True,
        eval=None, ckpt=None, gc=None, epoch_len=0, epacc=0.0, caches=[], rec_cache=0.0,
        accum=1, empty=None, slots=[], restarts=[], ema_at=0, leak=None, ext_events=[],
        other=None, dirty=None, nvml_every=15.0,
        opt_mult=q.rng.choice(
            [2.0, 3.0, 4.0]), expand=int(q.rng.random() < 0.4), zero_at_end=bool(q.rng.random() < 0.8),
        pad=int(q.rng.choice([1, 16, 16, 64])))


@dataclass(frozen=True)
class Families:
    """Families by name, each a function and its class, with the ranges and the salt that their jobs are drawn with."""

    members: dict
    ranges: dict
    salt: int

    def names(self):
        """The names of all families: healthy ones first, then leaks, then ambiguous ones."""
        order = ("healthy", "leak", "ambiguous")
        return sorted(self.members, key=lambda name: order.index(self.members[name][1]))


DEV = Families({}, RANGES, SEED_SALT)


def family(cls):
    """Adds a function to the families of the class."""
    def add(function):
        DEV.members[function.__name__] = function, cls
        return function
    return add


@family("healthy")
def fixed_shape(c, q):
    c['u'] = [('iid', 0.0)]


@family("healthy")
def warmup_amp(c, q):
    c['amp_skips'] = int(q.rng.integers(5, 60))
    c['ema_at'] = int(q.rng.integers(200, 6000))
    c['u'] = [('iid', q('noise'))]


@family("healthy")
def varlen_noise(c, q):
    c['u'] = [('iid', q('noise'))]
    c['retain'] = q.rng.choice([100, 1024])


@family("healthy")
def varlen_drift(c, q):
    c['u'] = [('ar', q('noise'), q('ar_rho'))]
    c['retain'] = q.rng.choice([100, 1024])


@family("healthy")
def sorted_by_length(c, q):
    c['epoch_len'] = q('epoch_len')
    c['u'] = [('sorted', q('noise'), int(q.rng.choice([-1, 1])))]
    c['retain'] = q.rng.choice([0, 100, 1024])


@family("healthy")
def bucketed(c, q):
    c['u'] = [('bucket', q('noise'), q('dwell'))]
    c['retain'] = q.rng.choice([0, 100, 1024])


@family("healthy")
def seqlen_stages(c, q):
    c['u'] = [('stages', q('stages'), q('u_lo'), q('ramp_frac')), ('iid', q('noise_small'))]
    c['retain'] = q.rng.choice([0, 100, 1024])


@family("healthy")
def curriculum_linear(c, q):
    c['u'] = [('ramp', q('u_lo'), q('ramp_frac')), ('iid', q('noise') * 0.5)]
    c['retain'] = q.rng.choice([0, 100, 1024])


def add_evaluation(c, q, labelled=True):
    c['eval'] = dict(every=q('eval_every'), n=q('eval_len'), u=q('eval_u'), keep=q('eval_keep'),
                     labelled=labelled, step_mode=str(q.rng.choice(['shared', 'held'])))


@family("healthy")
def periodic_eval(c, q):
    add_evaluation(c, q)


@family("healthy")
def eval_unlabelled(c, q):
    add_evaluation(c, q, labelled=False)
    c['eval']['step_mode'] = 'shared'


@family("healthy")
def checkpoint_spikes(c, q):
    c['ckpt'] = dict(every=q('ckpt_every'), hold=0)


@family("healthy")
def checkpoint_async(c, q):
    c['ckpt'] = dict(every=q('ckpt_every'), hold=q('ckpt_async'))


@family("healthy")
def gc_sawtooth(c, q):
    c['gc'] = dict(period=q('gc_period'), amp=q('gc_amp'), jitter=q('gc_jitter'), lengthen=0.0)
    c['u'] = [('iid', q('noise_small'))]


@family("healthy")
def epoch_accumulate(c, q):
    c['epoch_len'] = q('epoch_len')
    c['epacc'] = q('epacc_amp')
    c['u'] = [('iid', q('noise') * 0.5)]


@family("healthy")
def cache_exp(c, q):
    c['caches'] = [('exp', q('cache_size'), q('cache_tau'), q('cache_units'))]


@family("healthy")
def cache_zipf(c, q):
    c['caches'] = [('zipf', q('cache_size'), q('zipf_s'), q('zipf_n'))]
    c['u'] = [('iid', q('noise') * 0.5)]


@family("healthy")
def cache_log(c, q):
    c['caches'] = [('log', q('cache_size'), q('cache_tau'), q('cache_units'))]


@family("healthy")
def recompiles(c, q):
    c['caches'] = [('recompile', q('recompile_size'), q('recompiles'), 0.35, 'live'),
                   ('recompile', q('recompile_size'), q('recompiles'), 0.35, 'priv')]
    c['u'] = [('bucket', q('noise'), q('dwell'))]


@family("healthy")
def grad_accum(c, q):
    c['accum'] = q('accum')
    c['u'] = [('iid', q('noise') * 0.6)]


@family("healthy")
def empty_cache(c, q):
    c['empty'] = q('empty_every')
    c['u'] = [('iid', q('noise'))]
    if q.rng.random() < 0.5:
        add_evaluation(c, q)


@family("healthy")
def moe_routing(c, q):
    c['u'] = [('moe', q('moe_sigma'))]
    c['rec_cache'] = q('cache_size')
    c['retain'] = q.rng.choice([0, 100])


@family("healthy")
def fragmentation(c, q):
    c['u'] = [('iid', max(0.2, q('noise'))), ('bucket', 0.2, q('dwell'))]
    c['retain'] = 1024
    c['gc'] = dict(period=q('gc_period'), amp=q('gc_amp') * 0.5, jitter=0.4, lengthen=0.0)
    c['caches'] = [('zipf', q('cache_size') * 0.5, q('zipf_s'), q('zipf_n'))]


@family("healthy")
def restart_resume(c, q):
    add_restarts(c, q)
    c['u'] = [('iid', q('noise'))]
    c['caches'] = [('exp', q('cache_size'), q('cache_tau') * 0.2, q('cache_units'))]


def add_restarts(c, q):
    n = c['n_train']
    pts = np.sort(q.rng.uniform(0.05, 0.95, q('restarts')))
    c['restarts'] = [(int(p * n), int(q.rng.integers(0, 2000))) for p in pts]


@family("healthy")
def dirty_pushes(c, q):
    c['dirty'] = dict(drop=q('drop'), dup=q('dup'), ooo=q('ooo'), burst=bool(q.rng.random() < .5))
    c['u'] = [('iid', q('noise'))]
    c['retain'] = q.rng.choice([0, 100, 1024])
    add_evaluation(c, q)


@family("healthy")
def other_process(c, q):
    """Another process on the same device comes and goes (NVML used moves; ours does not)."""
    c['other'] = dict(kind='visits', size=0.3)
    c['u'] = [('iid', q('noise') * 0.5)]


@family("healthy")
def kitchen_sink(c, q):
    r = q.rng
    c['u'] = [('iid', q('noise'))]
    c['retain'] = r.choice([0, 100, 1024])
    if r.random() < .5:
        c['u'].append(('bucket', q('noise') * 0.5, q('dwell')))
    if r.random() < .6:
        add_evaluation(c, q, labelled=bool(r.random() < .7))
        if not c['eval']['labelled']:
            c['eval']['step_mode'] = 'shared'
    if r.random() < .6:
        c['ckpt'] = dict(every=q('ckpt_every'), hold=int(r.choice([0, 0, 20])))
    if r.random() < .5:
        c['gc'] = dict(period=q('gc_period'), amp=q('gc_amp') * .6, jitter=q('gc_jitter'),
                       lengthen=0.0)
    if r.random() < .5:
        c['caches'].append(('exp', q('cache_size') * .6, q('cache_tau'), q('cache_units')))
    if r.random() < .3:
        c['caches'].append(('zipf', q('cache_size') * .6, q('zipf_s'), q('zipf_n')))
    if r.random() < .4:
        c['accum'] = q('accum')
    if r.random() < .3:
        c['empty'] = q('empty_every')
    if r.random() < .3:
        add_restarts(c, q)
    if r.random() < .4:
        c['dirty'] = dict(drop=q('drop') * .5, dup=q('dup'), ooo=q('ooo'), burst=False)
    if r.random() < .4:
        c['epoch_len'] = q('epoch_len')
        c['epacc'] = q('epacc_amp')


# Healthy in truth, but no detector can know before the growth ends.
@family("ambiguous")
def replay_fill(c, q):
    c['caches'] = [('linflat', q('replay_fill'), float(q.rng.uniform(0.1, 0.8)),
                    int(q.rng.integers(200, 4000)))]


@family("ambiguous")
def epoch_accumulate_big(c, q):
    c['epoch_len'] = int(q('epoch_len') * 2)
    c['epacc'] = q('epacc_big')


@family("ambiguous")
def cache_big_slow(c, q):
    c['caches'] = [('exp', q('big_cache'), float(np.exp(q.rng.uniform(np.log(1e4), np.log(1e5)))),
                    q('cache_units'))]


def add_leak(c, q, kind='linear', **kw):
    no_oom = q('no_oom')
    f = q('oom_frac') if not no_oom else float(q.rng.uniform(1.3, 4.0))
    d = dict(kind=kind, oom_frac=f, onset=0.0, ranks='all', p=1.0, a=1.0, signal='live')
    d.update(kw)
    c['leak'] = d


@family("leak")
def graph_linear(c, q):
    add_leak(c, q)
    c['u'] = [('iid', q('noise') * 0.5)]


@family("leak")
def eval_append(c, q):
    add_evaluation(c, q, labelled=bool(q.rng.random() < .7))
    if not c['eval']['labelled']:
        c['eval']['step_mode'] = 'shared'
    add_leak(c, q, kind='eval')


@family("leak")
def small_scalar(c, q):
    """100 KB a step whatever the capacity; OOMs only if the run is long enough."""
    add_leak(c, q, kind='fixed', bytes=int(np.exp(q.rng.uniform(np.log(80_000), np.log(160_000)))))
    c['n_train'] = max(c['n_train'], 120_000)
    c['u'] = [('iid', q('noise_small'))]


@family("leak")
def cache_sqrt(c, q):
    add_leak(c, q, kind='pow', a=0.5, onset=0.002)


@family("leak")
def cache_pow(c, q):
    add_leak(c, q, kind='pow', a=q('pow_a'), onset=0.002)


@family("leak")
def one_rank(c, q):
    c['world'] = max(c['world'], 4)
    add_leak(c, q, ranks='one')
    c['u'] = [('iid', q('noise') * .5)]


@family("leak")
def late_onset(c, q):
    on = q('onset_frac')
    add_leak(c, q, onset=on)
    if c['leak']['oom_frac'] < 1:
        c['leak']['oom_frac'] = on + (0.98 - on) * float(q.rng.uniform(0.05, 1.0))
    else:
        c['leak']['oom_frac'] += on
    c['u'] = [('iid', q('noise'))]
    if q.rng.random() < .5:
        add_evaluation(c, q)


@family("leak")
def intermittent(c, q):
    add_leak(c, q, p=q('leak_p'))
    c['u'] = [('iid', q('noise') * .5)]


@family("leak")
def masked_noise(c, q):
    add_leak(c, q)
    c['retain'] = 1024
    c['u'] = [('iid', max(0.25, q('noise'))), ('ar', 0.15, 0.99)]


@family("leak")
def reserved_only(c, q):
    add_leak(c, q, kind='reserved', signal='reserved', unit=int(q.rng.integers(8, 200)) * MIB)
    c['u'] = [('iid', q('noise') * .6)]


@family("leak")
def external(c, q):
    add_leak(c, q, kind='external', signal='external', unit=int(q.rng.integers(2, 120)) * MIB)
    c['u'] = [('iid', q('noise') * .5)]


@family("leak")
def fast(c, q):
    c['n_train'] = 50_000
    c['leak'] = None
    add_leak(c, q)
    c['leak']['oom_frac'] = q('fast_steps') / c['n_train']
    c['u'] = [('iid', q('noise_small'))]


@family("leak")
def fast_late(c, q):
    on = q('onset_frac')
    add_leak(c, q, onset=on)
    c['leak']['oom_frac'] = on + q('fast_steps') / c['n_train']
    c['u'] = [('iid', q('noise'))]


@family("leak")
def with_gc_sawtooth(c, q):
    gc_sawtooth(c, q)
    add_leak(c, q)


@family("leak")
def with_restarts(c, q):
    add_restarts(c, q)
    add_leak(c, q)
    c['leak']['oom_frac'] = float(q.rng.uniform(.1, .5))
    c['u'] = [('iid', q('noise') * .5)]


@family("leak")
def with_stages(c, q):
    seqlen_stages(c, q)
    add_leak(c, q)


@family("leak")
def with_dirty_pushes(c, q):
    dirty_pushes(c, q)
    add_leak(c, q)


@family("leak")
def per_checkpoint(c, q):
    c['ckpt'] = dict(every=q('ckpt_every'), hold=0)
    add_leak(c, q, kind='ckpt')
    c['u'] = [('iid', q('noise') * .5)]


@family("leak")
def with_cache(c, q):
    c['caches'] = [('exp', q('cache_size'), q('cache_tau'), q('cache_units'))]
    add_leak(c, q, onset=float(q.rng.choice([0., 0.1])))


@family("leak")
def with_kitchen_sink(c, q):
    kitchen_sink(c, q)
    add_leak(c, q, onset=float(q.rng.choice([0., 0., q('onset_frac') * .6])))


@family("ambiguous")
def log_unbounded(c, q):
    """Grows forever, but logarithmically: running out of memory is astronomically far. Either verdict is fair."""
    add_leak(c, q, kind='log', oom_frac=1e9, frac=q('cache_size') * 2)
