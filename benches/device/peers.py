"""What others reach on the device that benches/device/run measures: PyTorch's products, copies and training steps on CUDA,
pyFAI's integration by OpenCL. Each figure is a line of JSON in the file that BENCH_RECORD names. Nothing is installed: what is
not there is skipped, and exit status 77 says that nothing was.
"""

import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from nets import nets  # noqa: E402

RECORD = os.environ.get("BENCH_RECORD", os.devnull)


def record(what, value, unit, reference):
    line = {"what": what, "value": value, "unit": unit, "bar": None, "reference": reference}
    with open(RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
    print(f"  {what:<52} {value:12.4g} {unit}  {reference}")


def pytorch():
    try:
        import torch
    except ImportError as error:
        return print(f"SKIPPED: PyTorch: {error}")
    if not torch.cuda.is_available():
        return print("SKIPPED: PyTorch has no CUDA device here")
    name = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}"

    def seconds(work, rounds=5):
        """Of the fastest of some rounds; the first one warms up."""
        times = []
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        return min(times[1:])

    for what, kind, tf32 in (
        ("f32", torch.float32, False),
        ("TF32", torch.float32, True),
        ("f16", torch.float16, False),
        ("bf16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for size in (512, 1024, 2048, 4096, 8192):
            a, b = (torch.rand(size, size, device="cuda", dtype=kind) for _ in range(2))
            repeats = max(1, (4096 // size) ** 3)
            took = seconds(lambda: [a @ b for _ in range(repeats)]) / repeats
            record(f"cuBLAS {what} product of {size}³", 2 * size**3 / took / 1e12, "TFLOPS", name)

    size = 256 << 20
    here, there = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(there)
    record("CUDA upload from pinned memory", size / seconds(lambda: there.copy_(here, non_blocking=True)) / 1e9, "GB/s", name)
    record("CUDA download to pinned memory", size / seconds(lambda: here.copy_(there, non_blocking=True)) / 1e9, "GB/s", name)
    record("CUDA copy on the device", 2 * size / seconds(lambda: other.copy_(there)) / 1e9, "GB/s", name)
    training(torch, name)


def training(torch, name, batch=64, steps=100):
    """The networks of `cargo bench --bench train`, steps as it does them."""
    nn = torch.nn
    for net, (shape, layers) in nets(nn).items():
        model = nn.Sequential(*layers).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        inputs, targets = torch.rand(batch, *shape), torch.arange(batch) % 10
        times = []
        for _ in range(4):
            begun = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda())
                loss.backward()
                optimizer.step()
                loss.item()
            times.append(time.perf_counter() - begun)
        record(f"PyTorch {net}: samples a second", steps * batch / min(times[1:]), "/s", name)


def pyfai():
    try:
        import numpy
        import pyopencl
        from pyFAI import detector_factory, version
        from pyFAI.integrator.azimuthal import AzimuthalIntegrator
    except ImportError as error:
        return print(f"SKIPPED: pyFAI by OpenCL: {error}")
    try:
        platforms = [platform for platform in pyopencl.get_platforms() if platform.get_devices(pyopencl.device_type.GPU)]
    except pyopencl.Error as error:
        return print(f"SKIPPED: pyFAI by OpenCL: {error}")
    if not platforms:
        return print("SKIPPED: pyFAI by OpenCL: no GPU")
    for detector in ("Eiger2_4M", "Pilatus1M"):
        device = detector_factory(detector)
        rows, columns = (extent * pixel for extent, pixel in zip(device.shape, (device.pixel1, device.pixel2)))
        integrator = AzimuthalIntegrator(
            dist=0.2, poni1=rows * 0.48, poni2=columns * 0.53, rot1=0.01, rot2=-0.008, rot3=0.003, wavelength=0.7e-10, detector=device
        )
        frame = numpy.random.default_rng(1).integers(0, 13, device.shape, dtype=numpy.int32)
        for splitting in ("no", "bbox", "full"):
            method, times = (splitting, "csr", "opencl"), []
            for _ in range(12):
                begun = time.perf_counter()
                integrator.integrate1d(frame, 1000, unit="q_nm^-1", method=method)
                times.append(time.perf_counter() - begun)
            record(f"pyFAI {detector} {splitting}", 1 / statistics.median(times[2:]), "frames/s", f"pyFAI {version}, OpenCL")


pytorch()
pyfai()
sys.exit(0 if os.path.exists(RECORD) and "PyTorch" in open(RECORD, encoding="utf-8").read() else 77)
