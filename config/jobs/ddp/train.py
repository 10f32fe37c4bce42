"""Two or more processes fit one line together with PyTorch's DDP, on CPUs (gloo) or GPUs (nccl)."""

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
for step in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()  # The gradients of all processes are averaged here.
    optimizer.step()
print(f"rank {rank} of {world}: loss {loss.item():.6f}", flush=True)
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
    print(f'nodectl-result: {{"loss": {loss.item()}}}')
dist.destroy_process_group()
