"""compile(DDP(m)) and DDP(compile(m)): names, and graphs with and without DDPOptimizer."""

import logging

import torch
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(512, 512) for _ in range(4))

    def forward(self, x):
        return self.d(self.c(self.b(self.a(x))))


def graphs(me, order, optimize_ddp):
    """First name in the state_dict, and the number of graphs that are compiled."""
    count = []

    def counting(graph, inputs):  # a backend that needs no C++ compiler
        count.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = optimize_ddp
    model = Layers().to(me.device)
    if order == "compile(DDP(m))":
        model = torch.compile(DDP(model, bucket_cap_mb=1), backend=counting)
    else:
        model = DDP(torch.compile(model, backend=counting), bucket_cap_mb=1)
    model(torch.ones(3, 512, device=me.device)).sum().backward()
    return {"key": next(iter(model.state_dict())), "graphs": len(count)}


@record
def main():
    torch._logging.set_logs(dynamo=logging.ERROR)
    with process_group() as me:
        found = {}
        for order in ("compile(DDP(m))", "DDP(compile(m))"):
            for mode in ("ddp_optimizer", "no_optimization"):
                found[f"{order}, {mode}"] = graphs(me, order, mode)
        results.save("03_compile", {"found": found}, me.device)
        if me.rank == 0:
            print("compiled:", "; ".join(found))


if __name__ == "__main__":
    main()
