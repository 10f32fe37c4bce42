"""The networks that training is measured with, as PyTorch has them: `cargo bench --bench train` and benches/device/run."""


def nets(nn):
    """By name the shape of a sample and the layers."""
    return {
        "mlp": ((784,), [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)]),
        "lenet": (
            (1, 28, 28),
            [
                nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
            ],
        ),
    }
