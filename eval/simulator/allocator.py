"""A model of PyTorch's CUDACachingAllocator, and what a training loop allocates and frees in each step.

Integers only, so that results do not depend on floating point. numba makes it 100 times faster.

Classic segments and expandable_segments:True. Modelled: 512 B rounding; small pool (requests up to 1 MiB, segments of 2 MiB) and large pool (segments of
20 MiB for requests below 10 MiB, otherwise rounded up to 2 MiB); best fit by size, then address; a split when the remainder is at least 512 B (small) or more
than 1 MiB (large); coalescing on free; empty_cache (wholly free segments go back to the driver); when cudaMalloc fails, cached segments are released and
the request is repeated, then out of memory. Private pools (CUDA graphs, side streams) are segments whose free space no other request can use.
"""
import numpy as np
from numba import njit

MIB = 1 << 20
# block table columns
SIZE, ADDR, PREV, NEXT, FREE, POOL, FN, UNM, FP = 0, 1, 2, 3, 4, 5, 6, 7, 8
NB = 128
# scalar state
(A_CUR, A_PEAK, R_CUR, R_PEAK, CAP, NADDR, NFREEID, NLIVE, _U1, NRETRY, NEXTID, EXPAND, TAIL0,
 TAIL1) = range(14)

# flags per event
F_OPT, F_ZERO, F_GC, F_EMPTY, F_CKPT, F_EVAL_END, F_RESTART, F_CKPT_REL, F_EMA, F_EPOCH = (
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
F_NAMES = dict(opt=1, zero=2, gc=4, empty=8, ckpt=16, eval_end=32, restart=64, ckpt_rel=128,
               ema=256, epoch=512)


@njit(cache=True)
def _bin(size):
    """Quarter-octave size class: only one class has to be searched for the best fit."""
    k = 9
    while (size >> (k + 1)) > 0:
        k += 1
    return (k - 9) * 4 + ((size >> (k - 2)) & 3)


@njit(cache=True)
def _fl_remove(b, B, F, S):
    p = B[b, POOL]
    q = B[b, FP]
    n = B[b, FN]
    if q >= 0:
        B[q, FN] = n
    else:
        F[p, _bin(B[b, SIZE])] = n
    if n >= 0:
        B[n, FP] = q
    B[b, FN] = -1
    B[b, FP] = -1


@njit(cache=True)
def _fl_add(b, B, F, S):
    p = B[b, POOL]
    k = _bin(B[b, SIZE])
    h = F[p, k]
    B[b, FN] = h
    B[b, FP] = -1
    if h >= 0:
        B[h, FP] = b
    F[p, k] = b


@njit(cache=True)
def _newid(freeids, S):
    if S[NFREEID] > 0:
        S[NFREEID] -= 1
        return freeids[S[NFREEID]]
    S[NEXTID] += 1
    return S[NEXTID] - 1


@njit(cache=True)
def _empty_cache(B, F, S, freeids):
    """Return wholly free segments to the driver (expandable: unmap free pages)."""
    if S[EXPAND] == 1:
        for p in range(2):
            page = 2097152 if p == 0 else 20971520
            for k in range(NB):
                b = F[p, k]
                while b >= 0:
                    full = B[b, SIZE] // page * page
                    if full > B[b, UNM]:
                        S[R_CUR] -= full - B[b, UNM]
                        B[b, UNM] = full
                    b = B[b, FN]
        return
    for p in range(2):
        for k in range(NB):
            b = F[p, k]
            while b >= 0:
                nx = B[b, FN]
                if B[b, PREV] < 0 and B[b, NEXT] < 0:
                    _fl_remove(b, B, F, S)
                    S[R_CUR] -= B[b, SIZE]
                    freeids[S[NFREEID]] = b
                    S[NFREEID] += 1
                b = nx


@njit(cache=True)
def _alloc(req, B, F, S, freeids):
    """Returns the block id, or -1 on OOM."""
    if req < 1:
        req = 1
    sz = (req + 511) // 512 * 512
    p = 0 if sz <= 1048576 else 1
    best = -1
    bs = 0
    ba = 0
    for k in range(_bin(sz), NB):
        b = F[p, k]
        while b >= 0:
            s = B[b, SIZE]
            if s >= sz and (best < 0 or s < bs or (s == bs and B[b, ADDR] < ba)):
                best = b
                bs = s
                ba = B[b, ADDR]
            b = B[b, FN]
        if best >= 0:
            break
    if best >= 0:
        if B[best, UNM] > 0:
            need = sz - (B[best, SIZE] - B[best, UNM])
            if need > 0:
                page = 2097152 if p == 0 else 20971520
                need = min(B[best, UNM], (need + page - 1) // page * page)
                if S[R_CUR] + need > S[CAP]:
                    S[NRETRY] += 1
                    S[R_CUR] += B[best, UNM]       # protect this block from the release below
                    keep = B[best, UNM]
                    B[best, UNM] = B[best, SIZE]
                    _empty_cache(B, F, S, freeids)
                    B[best, UNM] = keep
                    S[R_CUR] -= keep
                    if S[R_CUR] + need > S[CAP]:
                        return -1
                B[best, UNM] -= need
                S[R_CUR] += need
                if S[R_CUR] > S[R_PEAK]:
                    S[R_PEAK] = S[R_CUR]
        _fl_remove(best, B, F, S)
        b = best
    elif S[EXPAND] == 1:
        page = 2097152 if p == 0 else 20971520
        t = S[TAIL0 + p]
        grow = sz
        tail_free = t > 0 and B[t, FREE] == 1
        if tail_free:
            grow = sz - B[t, SIZE]
        grow = (grow + page - 1) // page * page
        need = grow + (B[t, UNM] if tail_free else 0)
        if S[R_CUR] + need > S[CAP]:
            S[NRETRY] += 1
            _empty_cache(B, F, S, freeids)
            need = grow + (B[t, UNM] if tail_free else 0)
            if S[R_CUR] + need > S[CAP]:
                return -1
        S[R_CUR] += need
        if S[R_CUR] > S[R_PEAK]:
            S[R_PEAK] = S[R_CUR]
        if tail_free:
            b = t
            _fl_remove(b, B, F, S)
            B[b, UNM] = 0
            B[b, SIZE] += grow
        else:
            b = _newid(freeids, S)
            B[b, SIZE] = grow
            B[b, ADDR] = (p + 1) << 50 if t <= 0 else B[t, ADDR] + B[t, SIZE]
            B[b, PREV] = t if t > 0 else -1
            B[b, NEXT] = -1
            B[b, POOL] = p
            B[b, UNM] = 0
            if t > 0:
                B[t, NEXT] = b
            S[TAIL0 + p] = b
    else:
        if p == 0:
            seg = 2097152
        elif sz < 10485760:
            seg = 20971520
        else:
            seg = (sz + 2097151) // 2097152 * 2097152
        if S[R_CUR] + seg > S[CAP]:
            S[NRETRY] += 1
            _empty_cache(B, F, S, freeids)
            if S[R_CUR] + seg > S[CAP]:
                return -1
        b = _newid(freeids, S)
        B[b, SIZE] = seg
        B[b, ADDR] = S[NADDR]
        S[NADDR] += seg + 2097152
        B[b, PREV] = -1
        B[b, NEXT] = -1
        B[b, POOL] = p
        B[b, UNM] = 0
        S[R_CUR] += seg
        if S[R_CUR] > S[R_PEAK]:
            S[R_PEAK] = S[R_CUR]
    rem = B[b, SIZE] - sz
    if (p == 0 and rem >= 512) or (p == 1 and rem > 1048576):
        r = _newid(freeids, S)
        B[r, SIZE] = rem
        B[r, ADDR] = B[b, ADDR] + sz
        B[r, PREV] = b
        B[r, NEXT] = B[b, NEXT]
        if B[b, NEXT] >= 0:
            B[B[b, NEXT], PREV] = r
        B[b, NEXT] = r
        B[r, POOL] = p
        B[r, FREE] = 1
        B[r, UNM] = min(B[b, UNM], rem)
        B[b, UNM] = 0
        B[b, SIZE] = sz
        if S[EXPAND] == 1 and S[TAIL0 + p] == b:
            S[TAIL0 + p] = r
        _fl_add(r, B, F, S)
    B[b, FREE] = 0
    B[b, UNM] = 0
    S[A_CUR] += B[b, SIZE]
    S[NLIVE] += 1
    if S[A_CUR] > S[A_PEAK]:
        S[A_PEAK] = S[A_CUR]
    return b


@njit(cache=True)
def _free(b, B, F, S, freeids):
    if b < 0:
        return
    S[A_CUR] -= B[b, SIZE]
    S[NLIVE] -= 1
    n = B[b, NEXT]
    if n >= 0 and B[n, FREE] == 1:
        _fl_remove(n, B, F, S)
        B[b, SIZE] += B[n, SIZE]
        B[b, UNM] += B[n, UNM]
        if S[EXPAND] == 1 and S[TAIL0 + B[b, POOL]] == n:
            S[TAIL0 + B[b, POOL]] = b
        B[b, NEXT] = B[n, NEXT]
        if B[n, NEXT] >= 0:
            B[B[n, NEXT], PREV] = b
        freeids[S[NFREEID]] = n
        S[NFREEID] += 1
    q = B[b, PREV]
    if q >= 0 and B[q, FREE] == 1:
        _fl_remove(q, B, F, S)
        B[q, SIZE] += B[b, SIZE]
        B[q, UNM] += B[b, UNM]
        if S[EXPAND] == 1 and S[TAIL0 + B[b, POOL]] == b:
            S[TAIL0 + B[b, POOL]] = q
        B[q, NEXT] = B[b, NEXT]
        if B[b, NEXT] >= 0:
            B[B[b, NEXT], PREV] = q
        freeids[S[NFREEID]] = b
        S[NFREEID] += 1
        b = q
    B[b, FREE] = 1
    _fl_add(b, B, F, S)


@njit(cache=True)
def run_rank(phase, u, flags, leak, leak_free, cache, rec, garb, epacc, slot, evkeep, priv,
             ext, caps, params_sz, opt_sz, grad_sz, act_sz, batch_sz, logit_sz, retain_frac1k,
             eval_keep_leaks, nmax, expand):
    """Run the event programme of one rank.  Returns (out[n,6] int64, n_done, n_retry).

    out columns: allocated, peak_allocated, reserved, peak_reserved at the event's end, the live bytes of the leak as the
    allocator counts them: whole blocks, and the number of live blocks.
    n_done < n means the process hit OOM during event n_done.
    u: int64, per-event size multiplier in 1/1024ths.  retain_frac1k: share of the logits
    tensor that stays referenced across the step boundary, in 1/1024ths.
    """
    n = phase.shape[0]
    out = np.zeros((n, 6), np.int64)
    B = np.full((nmax, 9), -1, np.int64)
    F = np.full((2, NB), -1, np.int64)
    freeids = np.zeros(nmax, np.int64)
    S = np.zeros(16, np.int64)
    nL = act_sz.shape[0]
    acts = np.full(nL, -1, np.int64)
    par = np.full(params_sz.shape[0], -1, np.int64)
    opt = np.full(opt_sz.shape[0], -1, np.int64)
    ema = np.full(params_sz.shape[0], -1, np.int64)
    grad = np.full(grad_sz.shape[0], -1, np.int64)
    stg = np.full(params_sz.shape[0], -1, np.int64)
    glist = np.zeros(n + 8, np.int64)
    elist = np.zeros(n + 8, np.int64)
    vlist = np.zeros(n + 8, np.int64)
    llist = np.zeros(n + 8, np.int64)
    slist = np.zeros(n + 8, np.int64)
    ng = 0
    ne = 0
    nv = 0
    nl = 0
    leaked = 0
    ns = 0
    ns0 = 0
    recb = -1
    kept = -1
    keptb = -1
    priv_res = 0          # reserved bytes in private pools: never reusable
    fresh = True
    for t in range(n):
        fl = flags[t]
        if fl & F_RESTART or fresh:
            S[:] = 0
            F[:] = -1
            S[EXPAND] = expand
            S[NEXTID] = 1
            ng = ne = nv = nl = ns = ns0 = 0
            leaked = 0
            recb = kept = keptb = -1
            priv_res = 0
            opt[:] = -1
            ema[:] = -1
            grad[:] = -1
            stg[:] = -1
            fresh = False
            S[CAP] = caps[t] - ext[t]
            for i in range(params_sz.shape[0]):
                par[i] = _alloc(params_sz[i], B, F, S, freeids)
                if par[i] < 0:
                    return out, t, S[NRETRY]
        S[CAP] = caps[t] - ext[t] - priv_res
        if S[R_CUR] > S[CAP]:
            # the other party's cudaMalloc fails: PyTorch is not asked to give anything back
            return out, t, S[NRETRY]
        S[A_PEAK] = S[A_CUR]
        S[R_PEAK] = S[R_CUR]
        ut = u[t]
        bad = False
        bat = _alloc(batch_sz * ut // 1024, B, F, S, freeids)
        bad |= bat < 0
        if phase[t] == 0:
            if fl & F_CKPT_REL:
                for i in range(stg.shape[0]):
                    _free(stg[i], B, F, S, freeids)
                    stg[i] = -1
            # forward
            for i in range(nL):
                acts[i] = _alloc(act_sz[i] * ut // 1024, B, F, S, freeids)
                bad |= acts[i] < 0
                w = _alloc(act_sz[i] * ut // 5120, B, F, S, freeids)
                bad |= w < 0
                _free(w, B, F, S, freeids)
                if bad:
                    break
            if bad:
                return out, t, S[NRETRY]
            lg = _alloc(logit_sz * ut // 1024, B, F, S, freeids)
            bad |= lg < 0
            _free(kept, B, F, S, freeids)      # `outputs = model(x)` rebinds only now
            kept = -1
            _free(keptb, B, F, S, freeids)
            keptb = -1
            if leak[t] > 0:
                x = _alloc(leak[t], B, F, S, freeids)
                bad |= x < 0
                leaked += B[x, SIZE] if x >= 0 else 0
                llist[nl] = x
                nl += 1
            k = leak_free[t]
            while k > 0 and nl > 0:
                nl -= 1
                leaked -= B[llist[nl], SIZE] if llist[nl] >= 0 else 0
                _free(llist[nl], B, F, S, freeids)
                k -= 1
            if cache[t] > 0:
                bad |= _alloc(cache[t], B, F, S, freeids) < 0
            if rec[t] > 0:
                x = _alloc(rec[t], B, F, S, freeids)
                bad |= x < 0
                _free(recb, B, F, S, freeids)
                recb = x
            if garb[t] > 0:
                x = _alloc(garb[t], B, F, S, freeids)
                bad |= x < 0
                glist[ng] = x
                ng += 1
            if epacc[t] > 0:
                x = _alloc(epacc[t], B, F, S, freeids)
                bad |= x < 0
                elist[ne] = x
                ne += 1
            if slot[t] > 0:
                x = _alloc(slot[t], B, F, S, freeids)
                bad |= x < 0
                slist[ns] = x
                ns += 1
            elif slot[t] < 0:
                k = -slot[t]
                while k > 0 and ns0 < ns:
                    _free(slist[ns0], B, F, S, freeids)
                    ns0 += 1
                    k -= 1
            if priv[t] > 0:
                # private pool: segments that serve one graph capture / one side stream
                seg = (priv[t] + 2097151) // 2097152 * 2097152
                if S[R_CUR] + seg > S[CAP]:
                    _empty_cache(B, F, S, freeids)
                if S[R_CUR] + seg > S[CAP]:
                    return out, t, S[NRETRY]
                priv_res += seg
                S[CAP] -= seg
            if bad:
                return out, t, S[NRETRY]
            # backward
            for j in range(nL):
                i = nL - 1 - j
                g = _alloc(act_sz[i] * ut // 2048, B, F, S, freeids)
                if g < 0:
                    return out, t, S[NRETRY]
                if i < grad_sz.shape[0] and grad[i] < 0:
                    grad[i] = _alloc(grad_sz[i], B, F, S, freeids)
                    if grad[i] < 0:
                        return out, t, S[NRETRY]
                _free(acts[i], B, F, S, freeids)
                acts[i] = -1
                _free(g, B, F, S, freeids)
            if fl & F_OPT:
                if opt.shape[0] > 0 and opt[0] < 0:
                    for i in range(opt.shape[0]):
                        opt[i] = _alloc(opt_sz[i], B, F, S, freeids)
                        bad |= opt[i] < 0
                w = _alloc(params_sz[0] // 2, B, F, S, freeids)
                bad |= w < 0
                _free(w, B, F, S, freeids)
            if fl & F_EMA and ema[0] < 0:
                for i in range(ema.shape[0]):
                    ema[i] = _alloc(params_sz[i], B, F, S, freeids)
                    bad |= ema[i] < 0
            if fl & F_CKPT:
                if stg[0] < 0:
                    for i in range(stg.shape[0]):
                        stg[i] = _alloc(params_sz[i], B, F, S, freeids)
                        bad |= stg[i] < 0
                # synchronous checkpoints release at once; asynchronous ones set F_CKPT_REL later
                if fl & F_CKPT_REL:
                    for i in range(stg.shape[0]):
                        _free(stg[i], B, F, S, freeids)
                        stg[i] = -1
            if bad:
                return out, t, S[NRETRY]
            if fl & F_ZERO:
                for i in range(grad.shape[0]):
                    _free(grad[i], B, F, S, freeids)
                    grad[i] = -1
            if retain_frac1k > 0:
                # keep (a slice of) the logits and the batch alive into the next step
                if retain_frac1k >= 1024:
                    kept = lg
                else:
                    kept = _alloc(logit_sz * ut // 1024 * retain_frac1k // 1024, B, F, S, freeids)
                    if kept < 0:
                        return out, t, S[NRETRY]
                    _free(lg, B, F, S, freeids)
                keptb = bat
            else:
                _free(lg, B, F, S, freeids)
                _free(bat, B, F, S, freeids)
        else:
            # evaluation: activations are freed as the forward proceeds
            prev = -1
            for i in range(nL):
                x = _alloc(act_sz[i] * ut // 1024, B, F, S, freeids)
                _free(prev, B, F, S, freeids)
                prev = x
                if x < 0:
                    return out, t, S[NRETRY]
            lg = _alloc(logit_sz * ut // 1024, B, F, S, freeids)
            _free(prev, B, F, S, freeids)
            if lg < 0 or bad:
                return out, t, S[NRETRY]
            if evkeep[t] > 0:
                x = _alloc(evkeep[t], B, F, S, freeids)
                if x < 0:
                    return out, t, S[NRETRY]
                vlist[nv] = x
                nv += 1
            if leak[t] > 0:
                x = _alloc(leak[t], B, F, S, freeids)
                if x < 0:
                    return out, t, S[NRETRY]
                leaked += B[x, SIZE]
                llist[nl] = x
                nl += 1
            _free(lg, B, F, S, freeids)
            _free(bat, B, F, S, freeids)
            if fl & F_EVAL_END:
                if eval_keep_leaks == 0:
                    for i in range(nv):
                        _free(vlist[i], B, F, S, freeids)
                nv = 0
        if fl & F_GC:
            for i in range(ng):
                _free(glist[i], B, F, S, freeids)
            ng = 0
        if fl & F_EPOCH:
            for i in range(ne):
                _free(elist[i], B, F, S, freeids)
            ne = 0
        if fl & F_EMPTY:
            _empty_cache(B, F, S, freeids)
        out[t, 0] = S[A_CUR]
        out[t, 1] = S[A_PEAK]
        out[t, 2] = S[R_CUR] + priv_res
        pr = S[R_PEAK] + priv_res
        out[t, 3] = pr if pr > out[t, 2] else out[t, 2]
        out[t, 4] = leaked
        out[t, 5] = S[NLIVE]
    return out, n, S[NRETRY]


def selftest():
    """Known answers of the real allocator's size classes."""
    B = np.full((64, 9), -1, np.int64)
    F = np.full((2, NB), -1, np.int64)
    ids = np.zeros(64, np.int64)
    S = np.zeros(16, np.int64)
    S[CAP] = 1 << 40
    S[NEXTID] = 1
    a = _alloc(1, B, F, S, ids)
    assert (S[A_CUR], S[R_CUR]) == (512, 2 * MIB)
    b = _alloc(MIB, B, F, S, ids)
    assert (S[A_CUR], S[R_CUR]) == (512 + MIB, 2 * MIB)
    c = _alloc(MIB + 1, B, F, S, ids)          # large pool, 20 MiB segment
    assert S[R_CUR] == 22 * MIB and S[A_CUR] == 512 + MIB + MIB + 512
    d = _alloc(10 * MIB, B, F, S, ids)         # fits in the remainder of the 20 MiB segment
    assert S[R_CUR] == 22 * MIB
    e = _alloc(11 * MIB, B, F, S, ids)         # own segment, rounded to 2 MiB
    assert S[R_CUR] == 34 * MIB
    assert S[NLIVE] == 5
    for x in (a, b, c, d, e):
        _free(x, B, F, S, ids)
    assert S[A_CUR] == 0 and S[NLIVE] == 0 and S[R_CUR] == 34 * MIB
    _empty_cache(B, F, S, ids)
    assert S[R_CUR] == 0
    # expandable: growth is page by page, and free pages can be unmapped under pressure
    B[:] = -1
    F[:] = -1
    S[:] = 0
    S[CAP] = 100 * MIB
    S[EXPAND] = 1
    S[NEXTID] = 1
    a = _alloc(30 * MIB, B, F, S, ids)
    assert S[R_CUR] == 40 * MIB
    b = _alloc(30 * MIB, B, F, S, ids)
    assert S[R_CUR] == 60 * MIB, S[R_CUR]
    _free(a, B, F, S, ids)
    c = _alloc(60 * MIB, B, F, S, ids)      # 30 free MiB are one page short of contiguous
    assert c > 0 and S[NRETRY] == 1 and S[R_CUR] <= 100 * MIB, (c, S[R_CUR])
    _free(b, B, F, S, ids)
    _free(c, B, F, S, ids)
    assert S[A_CUR] == 0
    _empty_cache(B, F, S, ids)
    assert S[R_CUR] == 0, S[R_CUR]
    return True
