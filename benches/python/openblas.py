"""OpenBLAS's f32 matrix product on one thread, by numpy, for `cargo bench --bench ops`: answers each line `m n k` on stdin with
the milliseconds of CPU time of one product.

Without numpy it installs it into a virtual environment that ends with the process.
"""

import os
import subprocess
import sys
import tempfile
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"


def in_venv():
    """This script again, with numpy."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True, stdout=sys.stderr)
        python = os.path.join(place, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy"], check=True, stdout=sys.stderr)
        return subprocess.run([python, __file__]).returncode


def main():
    try:
        import numpy
    except ImportError:
        return in_venv()
    print("numpy", numpy.__version__, flush=True)
    for line in sys.stdin:
        m, n, k = map(int, line.split())
        a = numpy.random.rand(m, k).astype("float32")
        b = numpy.random.rand(k, n).astype("float32")
        c = numpy.empty((m, n), "float32")
        numpy.matmul(a, b, out=c)
        times = max(1, int(1e9 / (m * n * k)))
        began = time.process_time()
        for _ in range(times):
            numpy.matmul(a, b, out=c)
        print((time.process_time() - began) / times * 1e3, flush=True)
    return 0


sys.exit(main())
