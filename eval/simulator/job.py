"""Simulated jobs: a family's description becomes the figures that each rank pushes, NVML's readings of its device, and the truth about its leak."""
import zlib
from dataclasses import dataclass, field

import numpy as np
from scipy.signal import lfilter

from . import allocator as al
from .allocator import F_NAMES as FL, MIB
from .counts import kind_of, noise_of_counts
from .families import Draw, plain_job

# Bytes of a device of 24, 80 and 141 GB, as its driver reports them.
CAPS = {24: 25_386_352_640, 80: 85_520_809_984, 141: 150_754_820_096}


@dataclass
class Job:
    """The pushes of a job, its readings from NVML, and the truth about it."""

    family: str
    seed: int
    truth: dict
    ranks: list          # dict of arrays per rank
    step: np.ndarray
    time: np.ndarray
    phase: np.ndarray    # 0 train, 1 eval, as LABELLED in the pushes
    total: int
    nvml: list = field(default_factory=list)     # per rank: (time, dev_used, proc_used)
    _order: list = field(default_factory=list)

    @property
    def world(self):
        return len(self.ranks)

    def pushes(self, r):
        """Arrays in arrival order for rank r: step,time,allocated,peak_allocated,reserved,
        peak_reserved,blocks,phase."""
        o = self._order[r]
        k = self.ranks[r]
        return dict(step=self.step[o], time=self.time[o], phase=self.phase[o],
                    allocated=k['allocated'][o], peak_allocated=k['peak_allocated'][o],
                    reserved=k['reserved'][o], peak_reserved=k['peak_reserved'][o], blocks=k['blocks'][o], event=o)


def _u_series(models, n, rng_shared, rng_rank, lives):
    """Per-step size multiplier, normalised to max 1 (sequence length is capped in practice)."""
    logu = np.zeros(n)
    cap = 1.0
    lin = np.ones(n)
    for m in models:
        k = m[0]
        if k == 'iid':
            logu += rng_rank.normal(0, m[1], n) if m[1] > 0 else 0
        elif k == 'ar':
            s, rho = m[1], m[2]
            e = rng_shared.normal(0, 1, n) * 0.7 + rng_rank.normal(0, 1, n) * 0.7
            x = lfilter([np.sqrt(1 - rho * rho)], [1, -rho], e)
            logu += s * x
        elif k == 'sorted':
            s, sgn = m[1], m[2]
            ep = lives['epoch_len']
            x = rng_rank.normal(0, s, n)
            for a in range(0, n, ep):
                seg = np.sort(x[a:a + ep])
                x[a:a + ep] = seg if sgn > 0 else seg[::-1]
            logu += x
        elif k == 'bucket':
            s, dw = m[1], m[2]
            nb = int(rng_shared.integers(3, 9))
            lev = rng_shared.normal(0, s, nb)
            x = np.zeros(n)
            t = 0
            while t < n:
                d = 1 + int(rng_shared.exponential(dw))
                x[t:t + d] = lev[int(rng_shared.integers(nb))]
                t += d
            logu += x
        elif k == 'stages':
            nst, lo, frac = m[1], m[2], m[3]
            edges = np.sort(rng_shared.uniform(0.02, frac, nst - 1)) * n
            lv = np.linspace(lo, 1.0, nst)
            lin *= lv[np.searchsorted(edges, np.arange(n))]
        elif k == 'ramp':
            lo, frac = m[1], m[2]
            lin *= lo + (1 - lo) * np.minimum(1, np.arange(n) / (frac * n))
        elif k == 'moe':
            s = m[1]
            e = rng_rank.standard_t(5, n)
            x = lfilter([np.sqrt(1 - .98 ** 2)], [1, -.98], e)
            sh = np.cumsum(rng_rank.random(n) < 5e-4) % 7
            logu += s * x + 0.4 * s * np.sin(sh)
        else:
            raise ValueError(k)
    sd = np.std(logu)
    u = np.exp(np.clip(logu - logu.mean(), -4 * sd - 1e-9, 2.5 * sd + 1e-9)) * lin
    return u / max(1e-9, u.max() if cap else 1)


def _arrivals(n, kind, rng, *a):
    """Event indices at which one unit of a cache is added."""
    if kind == 'exp':
        tau, units = a
        x = (np.arange(units) + rng.uniform(0.2, 0.8, units)) / units
        return -tau * np.log1p(-np.minimum(x, 1 - 1e-9))
    if kind == 'log':
        t0, k = a
        i = np.arange(int(k * np.log1p(n / t0)) + 2)
        return t0 * np.expm1((i + rng.uniform(0, 1, len(i))) / k)
    if kind == 'zipf':
        s, N = a
        p = 1.0 / np.arange(1, N + 1) ** s
        p = p / p.sum()
        return rng.exponential(1, N) / p
    raise ValueError(kind)


def make_job(families, name, seed):
    """The job of a family: it depends on the family's name, the seed and the families' salt alone."""
    function, cls = families.members[name]
    root = np.random.SeedSequence([families.salt, zlib.crc32(name.encode()), int(seed)])
    s_cfg, s_tl, s_sh, s_push, *s_ranks, s_counts = root.spawn(4 + 16 + 1)
    q = Draw(families.ranges, np.random.Generator(np.random.PCG64(s_cfg)))
    c = plain_job(q)
    c['block_noise'] = kind_of(name)
    function(c, q)
    shrink = 1.0
    for _ in range(8):
        job = _generate(name, seed, cls, c, s_tl, s_sh, s_push, s_ranks, s_counts, shrink)
        truth = job.truth
        # A job must not run out of memory unless it leaks, nor before its leak has begun.
        if not truth['oom'] or (c['leak'] is not None and truth['oom_event'] > truth['onset_event'] + 100):
            break
        shrink *= 0.85
    return job


def _generate(family, seed, cls, c, s_tl, s_sh, s_push, s_ranks, s_counts, shrink):
    R = lambda s: np.random.Generator(np.random.PCG64(np.random.SeedSequence(
        s.entropy, spawn_key=s.spawn_key)))
    rt, rs = R(s_tl), R(s_sh)
    n_train, world = c['n_train'], c['world']
    total = CAPS[c['cap']]
    # ---- sizes
    static = total * c['util_static']
    p = static / (1 + 1 + c['opt_mult'])
    w6 = np.array([.22, .19, .17, .16, .14, .12])
    params_sz = (p * w6).astype(np.int64)
    opt_sz = np.concatenate([p * w6 * c['opt_mult'] / 2] * 2).astype(np.int64)
    grad_sz = (p * w6).astype(np.int64)
    trans = total * c['util_trans'] * shrink
    logit = trans * c['logit_share']
    wa = np.exp(rt.normal(0, 0.6, 12))
    wa /= wa.sum()
    act_sz = ((trans - logit) / 1.06 * wa).astype(np.int64)
    batch = 4 * MIB
    peak_est = static + trans
    head = total - c['ext0'] - peak_est
    head = max(head, 0.05 * total)
    # ---- timeline: train events with evals, restarts
    ev, every = c['eval'], (c['eval']['every'] if c['eval'] else 0)
    tr_step = np.arange(1, n_train + 1, dtype=np.int64)
    life = np.zeros(n_train, np.int64)
    for at, back in c['restarts']:
        b = min(back, tr_step[at] - 1 if at < n_train else 0)
        tr_step[at:] -= b
        life[at:] += 1
    is_ev_after = np.zeros(n_train, bool)
    if ev:
        is_ev_after[(np.arange(n_train) + 1) % every == 0] = True
    reps = np.ones(n_train, np.int64) + is_ev_after * (ev['n'] if ev else 0)
    src = np.repeat(np.arange(n_train), reps)
    first = np.zeros(len(src), bool)
    first[np.concatenate([[0], np.cumsum(reps)[:-1]])] = True
    phase = (~first).astype(np.int64)
    n = len(src)
    step = tr_step[src].copy()
    if ev and ev['step_mode'] == 'shared':
        # the counter runs through evaluation too
        step = step + np.cumsum(phase)
    is_tr = phase == 0
    ti = np.nonzero(is_tr)[0]                # event index of each train step
    m = len(ti)
    flags = np.zeros(n, np.int64)
    A = c['accum']
    k_tr = np.arange(m)
    okopt = (k_tr % A == A - 1)
    lf = life[:m]
    # amp skips at the start of each life
    starts = np.concatenate([[0], np.nonzero(np.diff(lf))[0] + 1])
    for s0 in starts:
        j = np.nonzero(okopt[s0:s0 + (c['amp_skips'] + 1) * A])[0][:c['amp_skips']]
        okopt[s0 + j] = False
    flags[ti[okopt]] |= FL['opt']
    if c['zero_at_end']:
        flags[ti[k_tr % A == A - 1]] |= FL['zero']
    for s0 in starts[1:]:
        flags[ti[s0]] |= FL['restart']
    if c['ema_at']:
        for s0 in starts:
            if s0 + c['ema_at'] < m:
                flags[ti[s0 + c['ema_at']]] |= FL['ema']
    ck_ev = np.zeros(0, np.int64)
    if c['ckpt']:
        kk = np.arange(c['ckpt']['every'] - 1, m, c['ckpt']['every'])
        ck_ev = kk
        flags[ti[kk]] |= FL['ckpt']
        h = c['ckpt']['hold']
        rel = kk + h
        flags[ti[rel[rel < m]]] |= FL['ckpt_rel']
    if c['empty']:
        flags[ti[c['empty'] - 1::c['empty']]] |= FL['empty']
    if ev:
        last = np.nonzero(~is_tr & np.concatenate([is_tr[1:], [True]]))[0]
        flags[last] |= FL['eval_end']
    if c['epoch_len']:
        flags[ti[c['epoch_len'] - 1::c['epoch_len']]] |= FL['epoch']
    # ---- time
    dt = c['dt'] * np.exp(rt.normal(0, 0.05, n))
    dt[~is_tr] *= 0.4
    if len(ck_ev):
        dt[ti[ck_ev]] += rt.uniform(3, 25, len(ck_ev))
    for s0 in starts[1:]:
        dt[ti[s0]] += rt.uniform(90, 900)
    time = 1.76e9 + float(rt.integers(0, 10_000_000)) + np.cumsum(dt)
    # ---- shared (all ranks) events
    gc_idx = np.zeros(0, np.int64)
    if c['gc']:
        g = c['gc']
        t, pts, per = 0.0, [], g['period']
        while t < m:
            t += per * (1 + g['jitter'] * rt.uniform(-1, 1))
            per *= 1 + g['lengthen']
            if t < m:
                pts.append(int(t))
        gc_idx = np.array(pts, np.int64)
        flags[ti[gc_idx]] |= FL['gc']
    # ---- other processes on the device
    other = np.zeros(n, np.int64)
    if c['other']:
        o = c['other']
        if o['kind'] == 'visits':
            t = 0
            while t < n:
                a = int(rt.exponential(n / 12)) + 1
                d = int(rt.exponential(n / 20)) + 1
                other[t + a:t + a + d] = int(head * o['size'] * rt.uniform(.2, 1))
                t += a + d
        elif o['kind'] == 'grows':
            other = (head * o['size'] * np.minimum(1, np.arange(n) / (0.8 * n))).astype(np.int64)
        other = other // (2 * MIB) * (2 * MIB)
    # ---- leak plan
    lk = c['leak']
    onset_tr, oom_tr, rate = None, None, 0.0
    leak_ranks = []
    if lk:
        leak_ranks = list(range(world))
        if lk['ranks'] == 'one':
            leak_ranks = [int(rt.integers(world))]
        elif lk['ranks'] == 'half':
            leak_ranks = list(range(0, world, 2))
        onset_tr = int(lk['onset'] * n_train)
        span = max(200.0, lk['oom_frac'] * n_train - onset_tr)
        if c['restarts'] and lk['kind'] == 'linear':
            span = max(200.0, lk['oom_frac'] * n_train)
        rate = head / span
    ext_evt = np.zeros(n, np.int64)
    ext_ev = [(0, c['ext0'] * 0.6), (1, c['ext0'] * 0.25), (int(3 + rt.integers(20)),
              c['ext0'] * 0.15)] + list(c['ext_events'])
    for at, sz in ext_ev:
        i = at if at >= 1 else int(at * n)
        if i < n:
            ext_evt[i:] += int(sz)
    # ---- ranks
    ranks, truth_cum, ooms, orders = [], [], [], []
    n_done_min, oom_rank = n, None
    raw = []
    for r in range(world):
        rr = R(s_ranks[r])
        rsu = R(s_sh)
        u_tr = _u_series(c['u'], m, rsu, rr, dict(epoch_len=max(1, c['epoch_len'])))
        u = np.zeros(n)
        u[ti] = u_tr
        if ev:
            ne = int((~is_tr).sum())
            u[~is_tr] = min(ev['u'], 2.2) * np.exp(rr.normal(0, 0.03, ne)) * 0.9
            # evaluation has no activations to keep: same peak needs a bigger batch
        # sequence lengths are padded to a multiple (1 = unpadded) of 1/1024 of the longest
        ui = np.ceil(u * 1024 / c['pad']).astype(np.int64) * c['pad']
        z = lambda: np.zeros(n, np.int64)
        leak, leak_free, cache, rec, garb, epacc, slot, evkeep, priv = (z() for _ in range(9))
        ext = ext_evt.copy()
        fl = flags.copy()
        for cc in c['caches']:
            k = cc[0]
            for li, s0 in enumerate(starts):
                s1 = starts[li + 1] if li + 1 < len(starts) else m
                L = s1 - s0
                if L <= 0:
                    continue
                if k in ('exp', 'log', 'zipf'):
                    if k == 'exp':
                        size, tau, units = cc[1] * head, cc[2], cc[3]
                        at = _arrivals(L, 'exp', rr, tau, units)
                        unit = size / units
                    elif k == 'zipf':
                        size, s, N = cc[1] * head, cc[2], cc[3]
                        at = _arrivals(L, 'zipf', rr, s, N)
                        unit = size / N
                    else:
                        size, t0, units = cc[1] * head, cc[2], cc[3]
                        kk_ = units / np.log1p(n_train / t0)
                        at = _arrivals(L, 'log', rr, t0, kk_)
                        unit = size / units
                    at = at[at < L].astype(np.int64)
                    np.add.at(cache, ti[s0 + at], max(512, int(unit)))
                elif k == 'recompile':
                    size, cnt, frac, where = cc[1] * head, cc[2], cc[3], cc[4]
                    at = (rsu.uniform(0, frac, cnt) ** 2 / frac * L).astype(np.int64)
                    np.add.at(cache if where == 'live' else priv, ti[s0 + np.minimum(at, L - 1)],
                              int(size))
                elif k == 'linflat':
                    size, frac, units = cc[1] * head, cc[2], cc[3]
                    at = (np.arange(units) / units * frac * L).astype(np.int64)
                    np.add.at(cache, ti[s0 + at], max(512, int(size / units)))
        if c['rec_cache'] > 0:
            rm = np.maximum.accumulate(u_tr)
            newrec = np.concatenate([[True], rm[1:] > rm[:-1]])
            for s0 in starts[1:]:
                newrec[s0] = True
            rec[ti] = np.where(newrec, (rm * c['rec_cache'] * head * 0.5).astype(np.int64), 0)
        if c['gc']:
            per = max(1.0, m / max(1, len(gc_idx)))
            g = c['gc']['amp'] * head / per
            garb[ti] = np.maximum(512, (g * rr.uniform(.5, 1.5, m)).astype(np.int64))
        if c['epoch_len'] and c['epacc'] > 0:
            epacc[ti] = np.maximum(512, int(c['epacc'] * head / c['epoch_len']))
        if ev and ev['keep'] > 0:
            evkeep[~is_tr] = max(512, int(ev['keep'] * head / ev['n']))
        for at, dv in c['slots']:
            i = int(at * m) if at < 1 else int(at)
            if i < m:
                slot[ti[i]] = int(dv * head) if dv > 0 else int(dv)
        eval_keep_leaks = 0
        # -- the leak itself
        cum = np.zeros(n)
        if lk and r in leak_ranks:
            kind = lk['kind']
            on = np.zeros(m, bool)
            if c['restarts']:
                on[:] = True
            on[onset_tr:] = True
            scale = 1.0 if lk['ranks'] != 'half' else (0.6 + 0.8 * r / max(1, world))
            if kind in ('linear', 'fixed'):
                s = lk['bytes'] if kind == 'fixed' else rate * scale
                pz = lk['p']
                hit = on & (rr.random(m) < pz) if pz < 1 else on
                sz = s / pz * rr.uniform(0.8, 1.2, m)
                # a sub-512 B rate still costs whole 512 B blocks: leak every few steps instead
                if s / pz < 512:
                    hit &= rr.random(m) < s / pz / 512
                    sz[:] = 512
                leak[ti[hit]] = np.maximum(1, sz[hit]).astype(np.int64)
                if lk.get('partial'):
                    # every `every` steps the owner trims part of what it holds
                    evy, fr = lk['partial']
                    leak[ti[hit]] = (leak[ti[hit]] / (1 - fr)).astype(np.int64)
                    leak_free[ti[evy - 1::evy]] = int(evy * fr)
            elif kind == 'stops':
                on[int((onset_tr + lk['for'] * n_train)):] = False
                leak[ti[on]] = max(1, int(rate))
            elif kind in ('pow', 'log', 'accel', 'burst'):
                tt = np.maximum(0, np.arange(m) - onset_tr).astype(float)
                if kind == 'log':
                    t0 = 2000.0
                    G = lk['frac'] * head * np.log1p(tt / t0) / np.log1p(m / t0)
                    unit = max(512.0, G[-1] / 2000)
                elif kind == 'burst':
                    G = rate * tt
                    unit = lk['unit_frac'] * head
                else:
                    G = head * (tt / span) ** lk['a']
                    unit = max(512.0, min(8 * MIB, head / 4000))
                units = np.floor(G / unit)
                leak[ti] = (np.diff(units, prepend=0.0) * unit).astype(np.int64)
            elif kind == 'cat':
                # One tensor, which torch.cat replaces by a longer one. Both are there for a moment: half of the headroom is the end.
                grown = rate / 2 * np.maximum(0, np.arange(m) - onset_tr)
                for s0 in starts[1:]:
                    grown[s0:] -= grown[s0]
                rec[ti] = grown.astype(np.int64)
                cum = rec[ti][np.cumsum(is_tr) - 1].astype(float)
            elif kind == 'eval':
                per_eval = rate * every / ev['n']
                em = ~is_tr & (src >= onset_tr)
                leak[em] = max(512, int(per_eval))
            elif kind == 'ckpt':
                per_ck = rate * c['ckpt']['every']
                kk = ck_ev[ck_ev >= onset_tr]
                leak[ti[kk]] = max(512, int(per_ck))
            elif kind == 'reserved':
                unit = lk['unit']
                G = rate * np.maximum(0, np.arange(m) - onset_tr) * (1.0)
                k_ = np.diff(np.floor(G / unit + rr.uniform(0, 1)), prepend=0.0).clip(0)
                priv[ti] += (k_ * unit).astype(np.int64)
            elif kind == 'external':
                unit = lk['unit'] // (2 * MIB) * (2 * MIB) or 2 * MIB
                G = np.zeros(n)
                G[ti] = rate * np.maximum(0, np.arange(m) - onset_tr)
                G = np.maximum.accumulate(G)
                add = (np.floor(G / unit) * unit).astype(np.int64)
                # a restart gives everything back
                for s0 in starts[1:]:
                    add[ti[s0]:] -= add[ti[s0]]
                ext = ext + add
            # Of tensors, the allocator says below what their blocks take.
            if kind in ('reserved', 'external'):
                step_leak = (-(-priv // (2 * MIB)) * (2 * MIB) if kind == 'reserved' else
                             np.maximum(0, np.diff(ext - ext_evt, prepend=0)))
                cum = np.cumsum(step_leak.astype(float))
                for s0 in starts[1:]:
                    cum[ti[s0]:] -= cum[ti[s0]]
        nmax = int(n * 0.02 + 4000 + 3 * ((leak > 0).sum() + (cache > 0).sum() + 2 * (
            np.bincount(np.searchsorted(gc_idx, k_tr)).max() if c['gc'] else 0) + (
            c['epoch_len'] * 2 if c['epacc'] else 0) + (ev['n'] if ev else 0) + np.abs(slot).sum()
            * 0 + (slot != 0).sum() + (rec > 0).sum() * 0))
        caps = (total - other).astype(np.int64)
        out, nd, nretry = al.run_rank(
            phase, ui, fl, leak, leak_free, cache, rec, garb, epacc, slot, evkeep, priv, ext, caps,
            params_sz, opt_sz, grad_sz, act_sz, batch, int(logit), int(c['retain']),
            eval_keep_leaks, nmax, c['expand'])
        blocks = out[:, 5].copy()
        if lk and r in leak_ranks:
            if lk['kind'] not in ('reserved', 'external', 'cat'):
                cum = out[:, 4].astype(float)
            if lk['kind'] == 'pow' and np.ndim(lk['a']) == 1:
                # Above, entries are summed up to units. In a real program each has a block of its own. Less growth than this is rounding.
                own = z()
                own[ti] = np.diff(G, prepend=0.0) > 1e-10 * head
                own = np.cumsum(own - (leak > 0))
                for s0 in starts[1:]:
                    own[ti[s0]:] -= own[ti[s0] - 1]
                blocks += own
        if c['block_noise']:
            # During an evaluation they stay.
            blocks += noise_of_counts(c['block_noise'], m, starts, s_counts, r)[np.cumsum(is_tr) - 1]
        raw.append((out, ext, other, cum, u, blocks))
        if nd < n_done_min:
            n_done_min, oom_rank = nd, r
    nd = n_done_min
    labelled = phase if (not ev or ev['labelled']) else np.zeros_like(phase)
    rp = R(s_push)
    nvml = []
    straggle = []
    for r in range(world):
        out, ext, other, cum, u, blocks = raw[r]
        ranks.append(dict(allocated=out[:nd, 0].copy(), peak_allocated=out[:nd, 1].copy(),
                          reserved=out[:nd, 2].copy(), peak_reserved=out[:nd, 3].copy(), blocks=blocks[:nd],
                          ext=ext[:nd], other=other[:nd], leak_cum=cum[:nd]))
        o = np.arange(nd)
        straggle.append(0.0)
        if c['dirty']:
            d = c['dirty']
            keep = rp.random(nd) >= d['drop'] * (0.3 if d['burst'] else 1.0)
            if d['burst']:
                for _ in range(int(nd / 4000) + 1):
                    a = int(rp.integers(max(1, nd)))
                    keep[a:a + int(rp.integers(20, 1500))] = False
            key_ = o.astype(float)
            late = rp.random(nd) < d['ooo']
            key_[late] += rp.uniform(1, 16, int(late.sum()))
            o2 = o[keep]
            k2 = key_[keep]
            dup = rp.random(len(o2)) < d['dup']
            o2 = np.concatenate([o2, o2[dup]])
            k2 = np.concatenate([k2, k2[dup] + rp.uniform(0.1, 8, int(dup.sum()))])
            o = o2[np.argsort(k2, kind='stable')]
            straggle[-1] = float(rp.exponential(3.0))
        orders.append(o)
        # nvml samples
        if nd:
            t = np.arange(time[0] + rp.uniform(0, c['nvml_every']), time[nd - 1], c['nvml_every'])
            i = np.searchsorted(time[:nd], t)              # event in progress at t
            i = np.minimum(i, nd - 1)
            prev = np.maximum(i - 1, 0)
            early = rp.random(len(t)) < 0.3
            res = np.where(early, out[prev, 2], out[i, 3])
            proc = res + ext[i]
            used = proc + other[i] + 300 * MIB + 60 * MIB   # driver + other small users
        else:
            t = used = proc = np.zeros(0)
        nvml.append((t, used, proc))
    oom = nd < n
    truth = dict(family=family, seed=int(seed), cls=cls, leak=bool(lk),
                 kind=lk['kind'] if lk else None, signal=lk['signal'] if lk else None,
                 leak_ranks=leak_ranks, oom=bool(oom),
                 oom_event=int(nd) if oom else None, oom_rank=oom_rank, n_events=int(nd),
                 headroom=int(head), total=int(total), world=world, restarts=len(c['restarts']),
                 straggle=straggle, onset_event=None, onset_step=None, oom_step=None,
                 oom_time=None, onset_time=None, bytes_per_step=None, oom_step_extrapolated=None,
                 n_planned=int(n))
    if lk:
        cum = raw[leak_ranks[0]][3]
        nz = np.nonzero(cum > 0)[0]
        on_e = int(nz[0]) if len(nz) else n - 1
        if c['restarts'] and lk['kind'] == 'linear':
            on_e = 0
        if on_e >= nd:
            on_e = max(0, nd - 1)
        truth['onset_event'] = on_e
        truth['onset_step'] = int(step[on_e])
        truth['onset_time'] = float(time[on_e])
        e = max(on_e + 1, nd - 1)
        ntr = max(1, int(is_tr[on_e:e].sum()))
        life0 = 0
        if len(starts) > 1:                       # rate within the last life
            s_last = ti[starts[starts <= np.searchsorted(ti, max(0, nd - 1))][-1]]
            life0 = max(on_e, s_last)
            ntr = max(1, int(is_tr[life0:e].sum()))
            truth['bytes_per_step'] = float((cum[min(e, n - 1)] - cum[life0]) / ntr)
        else:
            truth['bytes_per_step'] = float((cum[min(e, n - 1)] - cum[on_e]) / ntr)
        if lk['kind'] in ('linear', 'fixed', 'cat', 'eval', 'ckpt', 'reserved', 'external') and rate > 0:
            sp = (head / 2 if lk['kind'] == 'cat' else head) / (truth['bytes_per_step'] or 1)
            truth['oom_step_extrapolated'] = int(truth['onset_step'] + sp)
        if oom:
            truth['oom_step'] = int(step[nd]) if nd < n else None
            truth['oom_time'] = float(time[nd])
    return Job(family, int(seed), truth, ranks, step[:nd], time[:nd],
               labelled[:nd], int(total), nvml, orders)
