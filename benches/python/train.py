"""PyTorch's side of `cargo bench --bench train`: reads "NET STEPS", answers with the CPU-seconds of so many steps.

PyTorch is installed into a virtual environment beside the build, once; without a network there is no comparison.
"""

import pathlib
import subprocess
import sys
import time

threads = int(sys.argv[1])
try:
    import torch
except ImportError:
    venv = pathlib.Path(__file__).resolve().parents[2] / "target" / "bench-venv"
    python = venv / "bin" / "python"
    if pathlib.Path(sys.executable) == python or (not python.exists() and subprocess.call([sys.executable, "-m", "venv", venv])):
        sys.exit("SKIPPED: no virtual environment with PyTorch")
    install = [python, "-m", "pip", "install", "--quiet", "torch", "numpy"]
    if subprocess.call([python, "-c", "import torch"], stderr=subprocess.DEVNULL) and subprocess.call(install):
        sys.exit("SKIPPED: PyTorch cannot be installed")
    sys.exit(subprocess.call([python, __file__, *sys.argv[1:]]))

from torch import nn  # noqa: E402

from nets import nets  # noqa: E402

torch.set_num_threads(threads)
torch.manual_seed(1)


def prepare(shape, layers):
    model = nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.rand(64, *shape), torch.arange(64) % 10


prepared = {name: prepare(*of) for name, of in nets(nn).items()}
print(f"PyTorch {torch.__version__}, eager, {threads} threads", flush=True)
for line in sys.stdin:
    name, steps = line.split()
    model, optimizer, inputs, targets = prepared[name]
    begun = time.process_time()
    for _ in range(int(steps)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
    print(time.process_time() - begun, flush=True)
