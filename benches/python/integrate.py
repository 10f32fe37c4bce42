"""pyFAI on one thread, for `cargo bench --bench integrate`: answers each line `DETECTOR SPLITTING` on stdin with the best of its
methods of that splitting and the milliseconds of CPU time of one frame.

Without pyFAI it installs it into a virtual environment that ends with the process.
"""

import os
import subprocess
import sys
import tempfile
import time

for name in ("OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["PYFAI_OPENCL"] = "0"

ALGORITHMS = {"no": ("histogram", "csr", "csc"), "bbox": ("csr", "csc"), "full": ("csr", "csc")}
DTYPES = {"Eiger2_4M": "uint32", "Pilatus1M": "int32"}
POINTS = 1000
SECONDS = 0.6


def in_venv():
    """This script again, with pyFAI."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True, stdout=sys.stderr)
        python = os.path.join(place, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "pyFAI==2026.9.0"], check=True, stdout=sys.stderr)
        return subprocess.run([python, __file__]).returncode


def integrator(name):
    import pyFAI

    detector = pyFAI.detector_factory(name)
    rows, columns = detector.shape
    return pyFAI.load({
        "detector": type(detector).__name__, "detector_config": detector.get_config(), "dist": 0.2,
        "poni1": rows * detector.pixel1 * 0.48, "poni2": columns * detector.pixel2 * 0.53,
        "rot1": 0.01, "rot2": -0.008, "rot3": 0.003, "wavelength": 0.7e-10})


def milliseconds(ai, frames, method):
    one = lambda at: ai.integrate1d_ng(frames[at % len(frames)], POINTS, unit="q_nm^-1", method=method, safe=False)
    one(0)
    one(1)
    count, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        one(count)
        count += 1
    return (time.process_time() - began) / count * 1e3


def main():
    try:
        import pyFAI
    except ImportError:
        return in_venv()
    import logging
    import warnings

    import numpy
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    print("pyFAI", pyFAI.version, flush=True)
    known = {}
    for line in sys.stdin:
        name, splitting = line.split()
        if name not in known:
            ai = integrator(name)
            random = numpy.random.default_rng(7)
            frames = [random.poisson(6, ai.detector.shape).astype(DTYPES[name]) for _ in range(4)]
            for frame in frames:
                frame[ai.detector.mask != 0] = numpy.array(-1).astype(DTYPES[name])
            known = {name: (ai, frames)}
        ai, frames = known[name]
        rates = {algorithm: milliseconds(ai, frames, (splitting, algorithm, "cython")) for algorithm in ALGORITHMS[splitting]}
        best = min(rates, key=rates.get)
        ai.reset_engines()
        print(best, rates[best], flush=True)


if __name__ == "__main__":
    sys.exit(main())
