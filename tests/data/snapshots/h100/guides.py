"""The interpretation guide's programs on a real device: one process a program. Usage: guide.py PROGRAM OUTDIR."""
import gc, gzip, io, json, os, pickle, sys
import torch
from torch import nn

program, out = sys.argv[1], sys.argv[2]
stacks = 'all' if program.endswith('_all') else 'python'
name = program.removesuffix('_all')
dev = 'cuda'
M = torch.cuda.memory


def start(**more):
    try:
        M._record_memory_history(max_entries=200000, stacks=stacks, global_record_annotations=True, **more)
    except TypeError:
        M._record_memory_history(max_entries=200000, stacks=stacks, **more)


def save(label):
    torch.cuda.synchronize()
    snapshot = M._snapshot()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    data = pickle.dumps(snapshot)
    with gzip.open(f'{out}/{label}.pickle.gz', 'wb', compresslevel=9) as f:
        f.write(data)
    keep = {k: v for k, v in stats.items() if '.all.' in k or k in ('num_alloc_retries', 'num_ooms', 'max_split_size')}
    json.dump({'torch': torch.__version__, 'device': torch.cuda.get_device_name(), 'free': free, 'total': total, 'stats': keep},
              open(f'{out}/{label}.stats.json', 'w'), indent=1)


class Two(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, data):
        return self.second(self.first(data))


def amp(steps, layers=1, width=4096):
    start()
    model = (nn.Linear(width, width, bias=False) if layers == 1 else Two(width)).to(dev)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler('cuda')
    for step in range(steps):
        data = torch.randn(width, width, device=dev)
        with torch.autocast('cuda', dtype=torch.float16):
            output = model(data)
            loss = (output.float() ** 2).sum() if step == 0 else output.float().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(name, step, 'scale', scaler.get_scale(), 'state', len(optimizer.state))
    save(program)


def accumulate(steps=3, micro=4):
    start()
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(dev)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro):
            data = torch.randn(2048, 1024, device=dev)
            loss = model(data).pow(2).mean() / micro
            loss.backward()
        optimizer.step()
    save(program)


def oomloop():
    torch.cuda.set_per_process_memory_fraction(0.02)
    start()
    model = nn.Linear(2048, 2048).to(dev)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    kept = []
    try:
        for step in range(1000):
            data = torch.randn(1024, 2048, device=dev)
            hidden = model(data)
            loss = hidden.pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(hidden.detach())
    except torch.cuda.OutOfMemoryError as error:
        print('oom at step', step, str(error)[:200])
        save(program)


def before_after():
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(dev)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []

    def steps(n):
        for _ in range(n):
            data = torch.randn(128, 512, device=dev)
            loss = model(data).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(model(data).mean())

    start()
    steps(3)
    losses.clear(); gc.collect(); torch.cuda.empty_cache()
    save('ba.before')
    steps(10)
    save('ba.after')


def ring():
    from collections import deque
    start()
    model = nn.Linear(1024, 1024).to(dev)
    optimizer = torch.optim.Adam(model.parameters())
    prefetch, leak = deque(maxlen=4), []
    for step in range(40):
        prefetch.append(torch.randn(1024, 1024, device=dev))
        loss = model(prefetch[0]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        leak.append(prefetch[-1].mean(dim=1))
        leak.append(torch.zeros(65536, device=dev))
    save(program)


if name == 'amp1': amp(5)
elif name == 'amp1_10': amp(10)
elif name == 'amp2': amp(4, layers=2, width=2048)
elif name == 'accum': accumulate()
elif name == 'oomloop': oomloop()
elif name == 'ba': before_after()
elif name == 'ring': ring()
