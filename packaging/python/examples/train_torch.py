"""A PyTorch model whose workers share their parameters. By hand, it trains alone: `python train_torch.py`. On a cluster, `nodectl run` of

    kind = "train"
    command = ["python3", "train_torch.py"]
    workers = 2
    outputs = ["model.pt"]
"""

import torch

from nodectl.params import ParameterServer
from nodectl.torch import DistributedOptimizer

torch.manual_seed(0)
x = torch.randn(512, 8)
y = torch.sin(x.sum(1, keepdim=True))

model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
with ParameterServer.connect(optimizer="adam", rate=5e-3) as server:
    optimizer = DistributedOptimizer(model, server)
    # This worker's share of the samples.
    inputs, targets = x[server.worker :: server.workers], y[server.worker :: server.workers]
    while server.step < 300:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step(len(inputs))
        optimizer.zero_grad()

print("worker %d of %d: loss %.4f" % (server.worker, server.workers, loss.item()))
torch.save(model.state_dict(), "model.pt")
