# Names: `Loader.tasks`
import asyncio

import torch
import stepmem


class Loader:
    def __init__(self):
        self.tasks = []

    async def fetch(self, n):
        await asyncio.sleep(0)
        return torch.full((64,), n)


async def main():
    loader = Loader()
    for step in range(300):
        task = asyncio.create_task(loader.fetch(step))
        loader.tasks.append(task)
        await task
        stepmem.step_end(step)


asyncio.run(main())
