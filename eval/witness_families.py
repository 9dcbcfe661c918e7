"""Families of a third test set: what training programs keep on the device, varied in what the number of live blocks shows against what bytes show. Their author
has not seen the detector. The form is that of simulator/families.py.

Shares are of the headroom. Where a range has no unit it counts steps. Jobs are of 3,000 to 100,000 steps, half of them below 20,000, so that most
lengths below are shares of the run.
"""
import numpy as np

from simulator.families import MIB
from simulator.job import CAPS

SEED_SALT = 0x317C355

RANGES = dict(
    n_train=('li', 3000, 100_000),
    n_train_long=('li', 30_000, 100_000),
    world=('c', [1, 1, 1, 2, 2, 4, 8]),
    dt=('l', 0.25, 4.0),
    full_at=('u', 0.15, 0.95),
    outlives=('p', 0.12),
    # Bytes of what a step leaves: a scalar with its graph's small tensors, a mask, an embedding of some tokens.
    tiny_bytes=('l', 4_000, 120_000),
    # Of lists that are cleared. A batch's scores are 512 B to some MiB.
    list_size=('l', 0.0005, 0.06),
    n_epochs=('li', 4, 60),
    print_every=('li', 50, 1000),
    document=('li', 30, 500),
    document_spread=('u', 0.5, 1.1),
    graph_size=('l', 0.01, 0.15),
    n_episodes=('li', 150, 4000),
    episodes_size=('l', 0.02, 0.15),
    episodes_until=('u', 0.08, 0.5),
    data_size=('l', 0.01, 0.15),
    first_epoch=('u', 0.03, 0.3),
    n_captions=('li', 300, 6000),
    captions_size=('l', 0.003, 0.06),
    captions_tau=('u', 0.02, 0.15),
    n_lazy=('li', 30, 600),
    lazy_size=('l', 0.005, 0.08),
    lazy_skew=('u', 0.5, 1.2),
    lru_limit=('c', [16, 32, 64, 128, 128, 256]),
    # Of 400 tokens; it grows with the square.
    mask_size=('l', 0.000004, 0.00006),
    length_spread=('u', 0.3, 0.8),
    length_pad=('c', [8, 16, 32, 64]),
    n_validations=('li', 4, 40),
    validation_batches=('li', 40, 1500),
    validation_keep=('l', 0.005, 0.2),
    by_hand_every=('li', 200, 4000),
    by_hand_size=('l', 0.0005, 0.05),
    n_layers=('i', 6, 24),
    layer_tensors=('i', 4, 24),
    thawed_size=('l', 0.02, 0.15),
    thawed_until=('u', 0.4, 0.9),
    n_stages=('i', 3, 7),
    stacked_size=('l', 0.03, 0.2),
    bank_size=('l', 0.004, 0.08),
    bank_pieces=('li', 30, 800),
    bank_until=('u', 0.01, 0.12),
    n_averages=('i', 2, 4),
    # A copy in half precision, or of the trained part alone.
    average_share=('u', 0.15, 0.5),
    in_flight=('li', 8, 64),
    in_flight_size=('l', 0.01, 0.1),
    ramp_until=('u', 0.1, 0.6),
    routing_every=('li', 20, 500),
    routing_size=('l', 0.001, 0.02),
    pairs=('c', [10, 20, 50, 100, 100]),
    pair_size=('l', 0.0002, 0.001),
    columns=('c', [10, 20, 20, 30]),
    column_size=('l', 0.001, 0.006),
    averaging_from=('u', 0.5, 0.75),
    n_errors=('i', 5, 30),
    n_kept_checkpoints=('i', 6, 40),
    middle=('u', 0.2, 0.7),
    n_trims=('i', 4, 40),
    left_after_trim=('u', 0.1, 0.5),
    epochs_until_full=('li', 25, 200),
    left_per_epoch=('li', 1, 12),
    rare_share=('l', 0.002, 0.02),
    growth_of_episodes=('l', 3, 20),
    n_rebuilds=('i', 8, 40),
    n_preemptions=('i', 1, 3),
)


def room(c):
    """Bytes of the headroom."""
    total = CAPS[c['cap']]
    return max(total * (1 - c['util_static'] - c['util_trans']) - c['ext0'], 0.05 * total)


def put(c, events):
    """Takes and drops tensors. Of each event the step, and the share that is taken, or minus the number of tensors that are dropped, the oldest first. A step
    has room for one event: others move to the next steps."""
    last = 0
    for at, value in sorted(events, key=lambda event: event[0]):
        last = max(int(at), last + 1)
        c['slots'].append((last, value if value < 0 else max(value, 512 / room(c))))


def keep_until(c, q, ends, size):
    """A list that gets an entry at each step and is cleared at `ends`, steps in order. The longest list takes `size`."""
    ends = np.unique(np.asarray(ends, int))
    ends = ends[ends < c['n_train']].tolist()
    entry, events, start = size / np.diff([0, *ends, c['n_train']]).max(), [], 1
    for end in [*ends, c['n_train']]:
        sizes = entry * q.rng.uniform(0.9, 1.1, max(0, end - start))
        events += list(zip(range(start, end), sizes.tolist())) + [(end, start - end)] * (start < end)
        start = end + 1
    put(c, events)


def ends_of_epochs(c, q, n, spread=0.4):
    """The last steps of `n` epochs that differ in length, which fill the run but for a part of the last one."""
    lengths = q.rng.uniform(1 - spread, 1 + spread, n)
    return (np.cumsum(lengths) / lengths[:-1].sum() * c['n_train'] * q.rng.uniform(0.9, 0.99))[:-1].astype(int)


def validate(c, q, keep=None, labelled=None):
    """Evaluations at even distances, that keep a tensor for each batch until they end."""
    every = max(60, c['n_train'] // q('n_validations'))
    batches = int(np.clip(q('validation_batches'), 5, every))
    labelled = bool(q.rng.random() < .7) if labelled is None else labelled
    c['eval'] = dict(every=every, n=batches, u=q('eval_u') * .7, keep=q('validation_keep') if keep is None else keep, labelled=labelled,
                     step_mode='shared' if not labelled or q.rng.random() < .5 else 'held')


def steadily(c, q, kind, onset=0.0, **more):
    """A leak of a constant rate that fills what it can before the end, or now and then a part of it. Returns the steps that it would take."""
    n = c['n_train']
    steps = max(300.0, (n * float(q.rng.uniform(1.2, 3)) if q('outlives') else (0.97 - onset) * n * q('full_at')))
    c['leak'] = dict(kind=kind, oom_frac=onset + steps / n, onset=onset, ranks='all', p=1.0, a=1.0, signal='live') | more
    return steps


def tiny(c, q, **more):
    """A leak of some bytes at each step, in runs long enough that they come to a hundredth of the headroom or more."""
    if c['n_train'] < 30_000:
        c['n_train'] = q('n_train_long')
    c['leak'] = dict(kind='fixed', bytes=max(q('tiny_bytes'), 0.01 * room(c) / c['n_train']), oom_frac=4.0, onset=0.0, ranks='all', p=1.0, a=1.0, signal='live') | more


def entries(c, q, sizes, fatal=None, **more):
    """A leak of one tensor at each step where `sizes` has a size, which has taken the headroom at step `fatal`, or now and then a part of it at the end."""
    n = c['n_train']
    held = np.cumsum(np.asarray(sizes, float))
    first = int(np.argmax(held > 0))
    if fatal is None:
        fatal = first + int(0.97 * (n - first) * q('full_at'))
    full = held[-1] * float(q.rng.uniform(1.2, 3)) if q('outlives') else held[min(max(fatal, first, 300), n - 1)]
    # The simulator raises the share of the run that has passed to a power: that of each step is what yields the wanted share of the headroom.
    a = np.ones(n)
    a[1:] = np.log(np.maximum(held[1:] / full, 1e-12)) / np.log(np.arange(1, n) / n)
    c['leak'] = dict(kind='pow', oom_frac=1.0, onset=0.0, ranks='all', p=1.0, a=a, signal='live') | more


def bunches(c, q, points, tensors, count, **more):
    """A leak of some tensors at each of some points, one at a step from there on. `count` points fill the headroom."""
    points = np.unique(np.asarray(points, int))
    sizes = np.zeros(c['n_train'] + tensors)
    for at in points:
        sizes[at:at + tensors] = q.rng.uniform(0.6, 1.4, tensors)
    entries(c, q, sizes[:c['n_train']], int(points[min(count, len(points)) - 1]) + tensors - 1, **more)


def even_points(c, q, count, start=0.0):
    """Steps at even distances until the end, of which `count` come before a leak is to have filled the headroom."""
    begin = start * c['n_train']
    every = max(20, int((0.97 * c['n_train'] - begin) * q('full_at') / count))
    return np.arange(int(begin) + every, c['n_train'] - 40, every)


def scores_until_epoch_ends(c, q):
    """A classifier keeps each batch's scores on the device until AUROC is computed at the epoch's end (torchmetrics with list states); sampling makes epochs of
    different lengths."""
    keep_until(c, q, ends_of_epochs(c, q, q('n_epochs')), q('list_size'))
    c['u'] = [('iid', q('noise') * .5)]
    if q.rng.random() < .5:
        validate(c, q, keep=0.01)


def losses_until_printed(c, q):
    """Detached losses of each step are kept until a line is printed, and other ones until the epoch's end: scalars of 512 bytes in two nested lists."""
    every = q('print_every')
    keep_until(c, q, np.cumsum(q.rng.uniform(0.8, 1.2, int(c['n_train'] / every) + 1) * every)[:-1], 1e-9)
    c['epoch_len'], c['epacc'] = max(200, c['n_train'] // q('n_epochs')), 1e-9
    c['u'] = [('iid', q('noise'))]
    c['retain'] = 1024


def graph_until_document_ends(c, q):
    """A recurrent language model carries its state with its graph from step to step and detaches it where a document ends; lengths have a heavy tail."""
    lengths = q('document') * q.rng.lognormal(0, q('document_spread'), int(3 * c['n_train'] / 30))
    ends = np.cumsum(np.clip(lengths, 3, 0.2 * c['n_train']))
    keep_until(c, q, ends[ends < c['n_train']], q('graph_size'))
    c['u'] = [('iid', q('noise') * .3)]


def episodes_fill_replay(c, q):
    """A replay buffer on the device gets episode after episode until its limit, and from then on each one pushes the oldest out (deque with maxlen)."""
    until = q('episodes_until') * c['n_train']
    n = min(q('n_episodes'), int(until / 3))
    at, every, events, held = 1.0, until / n, [], 0
    size = q('episodes_size') / n
    while (at := at + every * float(q.rng.uniform(0.5, 1.5))) < c['n_train'] - 2:
        events.append((at, size * float(np.clip(q.rng.lognormal(0, 0.4), 0.2, 3))))
        held += 1
        events += [(at, -1)] * (held > n)
    put(c, events)
    c['u'] = [('iid', q('noise') * .3)]
    c['ema_at'] = int(q.rng.integers(1, 500))


def batches_cached_in_first_epoch(c, q):
    """A loader keeps each batch of a small data set on the device when it first comes; later epochs read from there."""
    c['epoch_len'] = int(q('first_epoch') * c['n_train'])
    epoch = c['epoch_len'] / c['n_train']
    c['caches'] = [('linflat', q('data_size'), epoch, max(20, c['epoch_len'] // int(q.rng.choice([1, 1, 2, 4]))))]
    c['u'] = [('iid', q('noise') * .4)]
    if q.rng.random() < .5:
        validate(c, q, keep=0.005)


def captions_encoded_once(c, q):
    """A diffusion model is tuned with few captions, drawn with replacement; the text encoder's output for each is kept once it was made. A resume starts
    anew."""
    c['caches'] = [('exp', q('captions_size'), q('captions_tau') * c['n_train'], q('n_captions'))]
    c['u'] = [('bucket', q('noise') * .5, 1)]
    if q.rng.random() < .4:
        c['restarts'] = [(int(c['n_train'] * q.rng.uniform(.3, .7)), int(q.rng.integers(0, 200)))]
    c['ema_at'] = int(q.rng.integers(1, 1000))


def states_at_first_gradient(c, q):
    """Conditional layers get their two moments of Adam when they first have a gradient; the rare ones wait for long."""
    n = q('n_lazy')
    rate = 1 / np.arange(1, n + 1) ** q('lazy_skew')
    first = 2 + q.rng.exponential(1, n) / rate * 0.3 * c['n_train'] * rate[-1] * q.rng.uniform(0.2, 1)
    sizes = q('lazy_size') / n / 2 * q.rng.choice([0.25, 1, 1, 2], n)
    put(c, [(at, float(size)) for at, size in zip(first, sizes) if at < c['n_train'] for _ in range(2)])
    c['u'] = [('iid', q('noise') * .4)]
    c['accum'] = int(q.rng.choice([1, 1, 4]))


def masks_by_length(c, q):
    """Attention masks and position tables are cached by length, up to a limit at which the oldest goes: each is small, and hits get common."""
    limit, size, pad = q('lru_limit'), q('mask_size'), q('length_pad')
    lengths = np.clip(q.rng.lognormal(6, q('length_spread'), c['n_train']) / pad, 1, 8192 / pad).astype(int)
    cache, events = {}, []
    for at, length in enumerate(lengths.tolist()):
        if length in cache or (events and at < events[-1][0] + 2):
            continue
        cache[length] = at
        events.append((at, size * (length * pad / 400) ** 2))
        if len(cache) > limit:
            del cache[next(iter(cache))]
            events.append((at + 1, -1))
    put(c, events)
    c['u'] = [('iid', q('length_spread') * .5)]
    c['pad'] = 16


def outputs_until_validation_ends(c, q):
    """Outputs of a whole validation set are kept on the device until the metric is computed (a Trainer without eval_accumulation_steps)."""
    validate(c, q)
    c['u'] = [('iid', q('noise') * .5)]
    if q.rng.random() < .5:
        c['ckpt'] = dict(every=c['eval']['every'], hold=0)


def collected_by_hand(c, q):
    """Automatic collection is off and gc.collect is called each so many steps (Megatron's manual-gc); cycles with small tensors wait for it."""
    c['gc'] = dict(period=min(q('by_hand_every'), c['n_train'] // 4), amp=q('by_hand_size'), jitter=0.0, lengthen=0.0)
    c['u'] = [('iid', q('noise') * .6)]
    if q.rng.random() < .5:
        c['ckpt'] = dict(every=max(200, c['n_train'] // int(q.rng.integers(5, 20))), hold=0)


def thawed_layer_by_layer(c, q):
    """A pretrained network is unfrozen from its top to its bottom over most of the run (ULMFiT): each layer brings gradients and moments, many tensors."""
    layers, tensors = q('n_layers'), q('layer_tensors')
    points = np.linspace(0, q('thawed_until'), layers + 1)[1:] * c['n_train']
    size = q('thawed_size') / layers / tensors
    put(c, [(at, size * float(q.rng.choice([0.1, 0.5, 1, 2]))) for at in points for _ in range(tensors)])
    c['u'] = [('iid', q('noise') * .4)]
    validate(c, q, keep=0.002)


def depth_stacked(c, q):
    """A curriculum adds modules: the network is grown by stacking at stages that get longer, with weights and moments, and the batch is cut so that
    activations stay as large."""
    stages, tensors = q('n_stages'), q('layer_tensors')
    points = np.cumsum(1.5 ** np.arange(stages)) / np.sum(1.5 ** np.arange(stages)) * 0.75 * c['n_train']
    size = q('stacked_size') / stages / tensors
    put(c, [(at, size * float(q.rng.uniform(0.5, 1.5))) for at in points for _ in range(tensors)])
    c['u'] = [('iid', q('noise') * .3)]


def feature_bank_by_cat(c, q):
    """Features of past batches are joined to one tensor with torch.cat until the bank is full (a cross-batch memory); some programs make it anew in each
    epoch."""
    pieces, size = q('bank_pieces'), q('bank_size')
    epochs = q('n_epochs') if q.rng.random() < .5 else 1
    span = min(q('bank_until') * c['n_train'], 0.8 * c['n_train'] / epochs)
    pieces = max(5, min(pieces, int(span / 3)))
    events = []
    for epoch in range(epochs):
        begin = 3 + int(epoch * c['n_train'] / epochs)
        for i in range(pieces):
            at = begin + int(i * span / pieces)
            events += [(at, size * (i + 1) / pieces)] + [(at + 1, -1)] * (i + epoch > 0)
    put(c, events)
    c['u'] = [('iid', q('noise') * .3)]


def averages_at_several_decays(c, q):
    """Averages of the weights with several decays, of which each begins at its own step, the last late in the run."""
    total, n = CAPS[c['cap']], q('n_averages')
    copy = total * c['util_static'] / (2 + c['opt_mult']) / room(c) * q('average_share')
    put(c, [(at * c['n_train'], copy / 6) for at in np.sort(q.rng.uniform(0.01, 0.85, n)) for _ in range(6)])
    c['u'] = [('iid', q('noise') * .5)]
    c['ckpt'] = dict(every=max(150, c['n_train'] // int(q.rng.integers(5, 25))), hold=0)


def queue_ramps_up(c, q):
    """Samples of generators that start one after the other wait on the trainer's device (asynchronous reinforcement learning): the queue gets longer as more
    of them run, then wanders about its level."""
    most, until = q('in_flight'), q('ramp_until') * c['n_train']
    size, held, events, at = q('in_flight_size') / most, 0, [], 2
    while (at := at + 1 + int(q.rng.exponential(max(2.0, until / most / 12)))) < c['n_train']:
        level = most * min(1.0, (at + 1) / until)
        grow = held < 1 or (held < 1.5 * most and q.rng.random() < 1 / (1 + np.exp((held - level) / 2)))
        events.append((at, size * float(q.rng.uniform(0.5, 1.5)) if grow else -1))
        held += 1 if grow else -1
    put(c, events)
    c['u'] = [('iid', q('noise') * .4)]
    c['dirty'] = dict(drop=q('drop') * .4, dup=q('dup'), ooo=q('ooo'), burst=False) if q.rng.random() < .4 else None


def router_logits_until_logged(c, q):
    """A mixture of experts keeps its router's logits until the balance of load is logged, every so many steps; the count is noisy by the lists of tokens."""
    c['epoch_len'], c['epacc'] = q('routing_every'), q('routing_size')
    c['u'] = [('moe', q('moe_sigma'))]
    c['rec_cache'] = q('cache_size') * .5
    c['block_noise'] = 'routing'


def curvature_pairs(c, q):
    """L-BFGS keeps pairs of steps and differences of gradients until its history is full, and then drops the oldest pair for each new one; it is reset a few
    times."""
    pairs, size, held, at, events = q('pairs'), q('pair_size'), 0, 3, []
    every = max(5, int(c['n_train'] * q.rng.uniform(0.02, 0.3) / pairs))
    resets = set(q.rng.integers(1, max(2, c['n_train'] // every), int(q.rng.integers(0, 4))).tolist())
    for i in range((c['n_train'] - 10) // every):
        if i in resets and held:
            events.append((at, -held))
            held = 0
        events += [(at, size), (at, size)]
        held += 2
        if held > 2 * pairs:
            events.append((at, -2))
            held -= 2
        at += every
    put(c, events)
    c['opt_mult'] = 2.0


def deviations_kept_late(c, q):
    """SWAG: from the second half on the weights' deviation from their mean is kept once an epoch, each as a tensor, until there are some dozens; then the oldest
    goes."""
    columns, size = q('columns'), q('column_size')
    begin = q('averaging_from') * c['n_train']
    every = (0.98 * c['n_train'] - begin) / (columns * q.rng.uniform(1.2, 3))
    events = []
    for i in range(int((0.98 * c['n_train'] - begin) / every)):
        events += [(begin + i * every, size)] + [(begin + i * every, -1)] * (i >= columns)
    put(c, events)
    c['ema_at'] = int(begin)
    c['u'] = [('iid', q('noise') * .5)]
    validate(c, q, keep=0.003)


def loss_summed_with_graph(c, q):
    """`total += loss` keeps the small tensors of each step's graph, in a job whose lengths vary a lot: no step differs in bytes from its noise."""
    tiny(c, q)
    c['u'] = [('iid', max(0.2, q('noise'))), ('bucket', 0.2, q('dwell'))]
    c['retain'] = 1024


def errors_kept_with_frames(c, q):
    """Batches that fail are skipped, and the list of errors keeps each traceback's frame with its activations: few large tensors at chance times."""
    count = q('n_errors')
    points = 5 + np.cumsum(q.rng.exponential(0.97 * q('full_at') * c['n_train'] / count, 8 * count))
    bunches(c, q, points[points < c['n_train'] - 20], int(q.rng.integers(1, 4)), count)
    c['u'] = [('iid', q('noise'))]


def predictions_by_cat(c, q):
    """All predictions so far are one tensor, to which torch.cat joins each batch's, and nothing resets it: bytes grow, the count does not."""
    steadily(c, q, 'cat', onset=float(q.rng.choice([0.0, 0.0, q('middle') * .5])))
    c['u'] = [('iid', q('noise') * .5)]


def gathered_by_cat(c, q):
    """The first rank joins the embeddings that it gathers to one tensor without end, while each epoch's scores on all ranks are a list that is cleared."""
    c['world'] = max(c['world'], 2)
    steadily(c, q, 'cat', ranks='one')
    keep_until(c, q, ends_of_epochs(c, q, q('n_epochs')), q('list_size'))
    validate(c, q, keep=0.004)
    c['u'] = [('iid', q('noise') * .4)]


def hard_examples_kept(c, q):
    """Samples with a high loss are kept for later and never used: how many a step keeps wanders with the learning rate's cycles, from none to all."""
    n, knots = c['n_train'], int(q.rng.integers(6, 30))
    p = np.interp(np.arange(n), np.linspace(0, n, knots), q.rng.uniform(0, 1, knots) ** 2)
    entries(c, q, (q.rng.random(n) < p) * q.rng.lognormal(0, 0.6, n))
    c['u'] = [('iid', q('noise') * .6)]
    c['dirty'] = dict(drop=q('drop') * .5, dup=q('dup'), ooo=q('ooo'), burst=bool(q.rng.random() < .5)) if q.rng.random() < .4 else None


def step_outputs_not_cleared(c, q):
    """`validation_step_outputs` is appended to and not cleared after the evaluation, as upgraded Lightning modules do: each evaluation adds its batches."""
    validate(c, q, keep=0.003)
    steadily(c, q, 'eval')
    c['leak']['oom_frac'] = max(c['leak']['oom_frac'], 4 * c['eval']['every'] / c['n_train'])
    c['u'] = [('iid', q('noise') * .5)]


def figures_of_evaluations(c, q):
    """A dashboard keeps a few images of each evaluation on the device, while the evaluation's own outputs are freed."""
    validate(c, q)
    count = max(4, int(0.97 * c['n_train'] * q('full_at') / c['eval']['every']))
    points = np.arange(1, c['n_train'] // c['eval']['every']) * c['eval']['every'] + 1
    if len(points) < 6:
        c['eval']['every'] = c['n_train'] // 10
        points = np.arange(1, 10) * c['eval']['every'] + 1
    points = points[points < c['n_train'] - 20]
    c['eval']['n'] = min(c['eval']['n'], c['eval']['every'])
    bunches(c, q, points, int(q.rng.integers(2, 17)), count)
    c['u'] = [('iid', q('noise') * .5)]


def full_state_kept(c, q):
    """The rank that writes checkpoints keeps the gathered weights of each, dozens of tensors (FSDP's full state dict in a history of checkpoints)."""
    c['world'] = max(c['world'], 2)
    count = q('n_kept_checkpoints')
    points = even_points(c, q, count)
    c['ckpt'] = dict(every=int(points[1] - points[0]), hold=0)
    bunches(c, q, points, min(int(q.rng.integers(6, 49)), c['ckpt']['every'] - 2), count, ranks='one')
    c['u'] = [('iid', q('noise') * .5)]


def debugging_from_the_middle(c, q):
    """After the first bad loss, in the middle of the run, a debugging hook keeps an activation at each step, while lists of each epoch go on to be cleared."""
    steadily(c, q, 'linear', onset=q('middle'), p=float(q.rng.choice([1.0, 1.0, 0.25])))
    c['epoch_len'], c['epacc'] = max(100, c['n_train'] // q('n_epochs')), q('epacc_amp')
    c['u'] = [('iid', q('noise'))]


def tail_trimmed(c, q):
    """A history of small tensors is trimmed now and then to a share of what it has gained, so that the count falls far and often but never to what it was."""
    steps = steadily(c, q, 'linear')
    c['leak']['partial'] = max(10, int(steps / q('n_trims'))), 1 - q('left_after_trim')
    c['u'] = [('iid', q('noise') * .7)]


def floor_rises_each_epoch(c, q):
    """Each epoch clears its list of outputs but for a few that callbacks hold on to: a saw in count and bytes, whose floor rises."""
    count = q('epochs_until_full')
    points = even_points(c, q, count)
    c['epoch_len'], c['epacc'] = int(points[1] - points[0]), q('list_size')
    bunches(c, q, points, min(q('left_per_epoch'), c['epoch_len'] - 2), count)
    c['u'] = [('iid', q('noise') * .6)]


def router_statistics_with_graph(c, q):
    """Statistics of a mixture of experts are appended with their graph, small tensors under a count that is noisy by the routing and bytes that are as well."""
    tiny(c, q, p=float(q.rng.choice([1.0, 1.0, 0.3])))
    c['u'] = [('moe', q('moe_sigma')), ('iid', q('noise') * .3)]
    c['rec_cache'] = q('cache_size') * .3
    c['block_noise'] = 'routing'


def cached_by_object(c, q):
    """A cache on a function of tensors has them as keys, which never equal each other, so that it grows at each miss of a step; a preempted run starts anew."""
    tiny(c, q, p=float(q.rng.uniform(0.1, 1.0)))
    c['restarts'] = sorted((int(at * c['n_train']), int(q.rng.integers(0, 500))) for at in q.rng.uniform(0.2, 0.9, q('n_preemptions')))
    c['u'] = [('iid', q('noise')), ('ar', q('noise') * .3, q('ar_rho'))]
    c['retain'] = 1024


def survivors_of_collections(c, q):
    """Cycles are collected in bunches, but at each collection a cycle with a finalizer's reference stays: garbage comes and goes above a floor that rises."""
    count = int(q.rng.integers(20, 150))
    points = even_points(c, q, count)
    c['gc'] = dict(period=int(points[1] - points[0]), amp=q('gc_amp'), jitter=q('gc_jitter'), lengthen=0.0)
    bunches(c, q, points, int(q.rng.integers(1, 5)), count)
    c['u'] = [('iid', q('noise') * .4)]
    c['block_noise'] = 'cycles'


def episodes_grow_longer(c, q):
    """A replay buffer has no limit. As the agent improves its episodes get longer and fewer: bytes grow as fast as ever while the count slows down."""
    n = c['n_train']
    length = np.exp(np.log(q('growth_of_episodes')) * np.arange(n) / n)
    entries(c, q, (q.rng.random(n) < float(q.rng.uniform(0.1, 0.8)) / length) * length * q.rng.lognormal(0, 0.3, n))
    c['u'] = [('iid', q('noise') * .5)]


def augmented_after_first_epoch(c, q):
    """Batches are cached in the first epoch, which is meant, and later epochs add some augmented ones under new keys, which is not: the count goes on rising,
    but more slowly."""
    epoch = q('first_epoch')
    c['caches'] = [('linflat', q('data_size'), epoch, int(epoch * c['n_train']))]
    steadily(c, q, 'linear', onset=epoch, p=float(q.rng.uniform(0.05, 0.6)))
    c['u'] = [('iid', q('noise') * .5)]


def old_optimizers_kept(c, q):
    """At each stage of the schedule the optimizer is made anew, and a scheduler keeps the old one with its moments: steps of many tensors, far apart."""
    count = q('n_rebuilds')
    points = even_points(c, q, count, start=float(q.rng.choice([0.0, 0.0, q('middle') * .7])))
    bunches(c, q, points, min(int(q.rng.integers(8, 41)), int(points[1] - points[0]) - 2), count)
    c['u'] = [('iid', q('noise') * .5)]
    if q.rng.random() < .5:
        validate(c, q, keep=0.005)


def rarely_under_noise(c, q):
    """One step in some hundreds keeps a tensor, in a GAN whose list of recent samples is trimmed to random lengths: the count moves by dozens each step."""
    steadily(c, q, 'linear', p=max(q('rare_share'), 40 / c['n_train']))
    c['u'] = [('iid', q('noise') * .4)]
    c['block_noise'] = str(q.rng.choice(['history', 'history', 'offload']))


def pools_of_dead_threads(c, q):
    """Each evaluation starts a thread with streams of its own whose pools stay reserved, while a list of scores makes the count rise and fall as it should."""
    steadily(c, q, 'reserved', signal='reserved', unit=int(q.rng.integers(20, 200)) * MIB)
    keep_until(c, q, ends_of_epochs(c, q, q('n_epochs')), q('list_size') * .3)
    c['u'] = [('iid', q('noise') * .4)]


HEALTHY = [scores_until_epoch_ends, losses_until_printed, graph_until_document_ends, episodes_fill_replay, batches_cached_in_first_epoch, captions_encoded_once,
           states_at_first_gradient, masks_by_length, outputs_until_validation_ends, collected_by_hand, thawed_layer_by_layer, depth_stacked,
           feature_bank_by_cat, averages_at_several_decays, queue_ramps_up, router_logits_until_logged, curvature_pairs, deviations_kept_late]
LEAKS = [loss_summed_with_graph, errors_kept_with_frames, predictions_by_cat, gathered_by_cat, hard_examples_kept, step_outputs_not_cleared,
         figures_of_evaluations, full_state_kept, debugging_from_the_middle, tail_trimmed, floor_rises_each_epoch, router_statistics_with_graph, cached_by_object,
         survivors_of_collections, episodes_grow_longer, augmented_after_first_epoch, old_optimizers_kept, rarely_under_noise, pools_of_dead_threads]
