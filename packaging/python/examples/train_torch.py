"""A PyTorch model reads handwritten digits. Its workers share their parameters: `nodectl run train_torch.toml`. By hand, `python train_torch.py`,
it trains alone."""

import numpy
import torch

from nodectl.params import ParameterServer
from nodectl.torch import DistributedOptimizer

EPOCHS, BATCH = 20, 32

# So small a model is slower on several threads, the more so where workers share cores.
torch.set_num_threads(1)
# The same for all workers: what the model begins with, and which digits are held back.
torch.manual_seed(2)
rows = torch.from_numpy(numpy.loadtxt("digits/digits.csv.gz", delimiter=",", dtype="float32"))
rows = rows[torch.randperm(len(rows))]
images, digits = rows[:, :-1].reshape(-1, 1, 8, 8) / 16, rows[:, -1].long()
training = len(rows) * 9 // 10
batches = training // BATCH

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding="same"),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
with ParameterServer.connect(optimizer="adam", rate=5e-3, decay="cosine", decay_steps=EPOCHS * batches) as server:
    optimizer = DistributedOptimizer(model, server)
    while server.step < EPOCHS * batches:
        epoch, batch = divmod(server.step, batches)
        order = torch.randperm(training, generator=torch.Generator().manual_seed(epoch))
        # This worker's share of the batch.
        mine = order[batch * BATCH : (batch + 1) * BATCH][server.worker :: server.workers]
        loss = torch.nn.functional.cross_entropy(model(images[mine]), digits[mine])
        loss.backward()
        optimizer.step(len(mine))
        optimizer.zero_grad()
    with torch.no_grad():
        right = model(images[training:]).argmax(1) == digits[training:]

print('nodectl-result: {"validation_accuracy": %.4f}' % right.float().mean())
torch.save(model.state_dict(), "model.pt")
