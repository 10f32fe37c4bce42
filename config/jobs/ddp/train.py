"""Two or more processes fit one line together with PyTorch's DDP, on CPUs (gloo) or GPUs (nccl)."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
x = torch.rand(256, 1)
y = 3 * x + 1
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
# What the first process has saved, if all of them were started anew.
states = os.environ.get("NODECTL_CHECKPOINT_DIR", ".")
saved = os.path.join(states, "state.pt")
first = 0
if os.path.exists(saved):
    state = torch.load(saved, weights_only=True)
    model.module.load_state_dict(state["model"])
    first = state["steps"]
for step in range(first, 200):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()  # The gradients of all processes are averaged here.
    optimizer.step()
    if rank == 0 and step % 50 == 49:
        # Whole when it gets its name.
        half = os.path.join(states, ".state.pt")
        torch.save({"model": model.module.state_dict(), "steps": step + 1}, half)
        os.replace(half, saved)
print(f"rank {rank} of {world}: loss {loss.item():.6f}", flush=True)
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
    print(f'nodectl-result: {{"loss": {loss.item()}}}')
dist.destroy_process_group()
