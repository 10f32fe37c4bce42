#!/usr/bin/env python3
"""The other side of `cargo bench --bench integrate_files`: hdf5plugin's decompression, and pyFAI from file to pattern.

    frames.py make DIR                    frames.h5 (Eiger 4M, bitshuffle-LZ4), frames.poni, and its chunks
    frames.py decode DIR                  prints frames per CPU-second of one thread
    frames.py pattern DIR SPLITTING       the same from frames.h5 to patterns, with pyFAI's fastest method of that splitting
"""
import ctypes
import glob
import logging
import os
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYFAI_OPENCL", "0")
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import h5py  # noqa: E402
import hdf5plugin  # noqa: E402
import numpy as np  # noqa: E402

FRAMES, ROWS, COLUMNS = 8, 2167, 2070
# Measured as pyFAI's fastest of each splitting on one thread.
METHODS = {"no": ("no", "csc", "cython"), "bbox": ("bbox", "csc", "cython"), "full": ("full", "csr", "cython")}
PONI = """poni_version: 2.1
Detector: Eiger4M
Detector_config: {"orientation": 3}
Distance: 0.2
Poni1: 0.08
Poni2: 0.075
Rot1: 0.01
Rot2: -0.005
Rot3: 0.0
Wavelength: 1e-10
"""


def make(directory):
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0:ROWS, 0:COLUMNS]
    radius = np.hypot(y - 1100, x - 1000)
    mean = 8 * np.exp(-radius / 500) + 0.5
    for ring in range(9):
        mean += 30 * np.exp(-0.5 * ((radius - (120 + 110 * ring)) / 3) ** 2)
    gap = np.zeros((ROWS, COLUMNS), bool)
    for row in (514, 1065, 1616):
        gap[row:row + 37] = True
    gap[:, 1030:1040] = True
    with h5py.File(f"{directory}/frames.h5", "w") as file:
        data = file.create_dataset("entry/data/data", shape=(FRAMES, ROWS, COLUMNS), dtype="u4", chunks=(1, ROWS, COLUMNS),
                                   **hdf5plugin.Bitshuffle(cname="lz4"))
        for frame in range(FRAMES):
            counts = rng.poisson(mean).astype(np.uint32)
            counts[gap] = 0xFFFFFFFF
            data[frame] = counts
    with open(f"{directory}/frames.poni", "w") as file:
        file.write(PONI)


def library():
    path = [name for name in glob.glob(hdf5plugin.PLUGIN_PATH + "/*") if "bshuf" in name][0]
    lib = ctypes.CDLL(path)
    lib.bshuf_decompress_lz4.restype = ctypes.c_int64
    lib.bshuf_decompress_lz4.argtypes = [ctypes.c_void_p, ctypes.c_void_p] + 3 * [ctypes.c_size_t]
    return lib


def decompress(lib, chunk, out):
    """A chunk by the library that hdf5plugin's filter calls, without HDF5 around it."""
    block = int.from_bytes(chunk[8:12], "big") // out.itemsize
    source = ctypes.cast(ctypes.c_char_p(chunk), ctypes.c_void_p).value + 12
    assert lib.bshuf_decompress_lz4(source, out.ctypes.data, out.size, out.itemsize, block) > 0


def decode(directory):
    with h5py.File(f"{directory}/frames.h5") as file:
        data = file["entry/data/data"]
        chunks = [data.id.read_direct_chunk((frame, 0, 0))[1] for frame in range(FRAMES)]
    lib, out, best = library(), np.empty((ROWS, COLUMNS), np.uint32), 0
    for _ in range(3):
        begin = time.thread_time()
        for chunk in chunks:
            decompress(lib, chunk, out)
        best = max(best, FRAMES / (time.thread_time() - begin))
    print(best)


def pattern(directory, splitting):
    import pyFAI
    ai, lib = pyFAI.load(f"{directory}/frames.poni"), library()
    out = np.empty((ROWS, COLUMNS), np.uint32)

    def one(data, frame):
        decompress(lib, data.id.read_direct_chunk((frame, 0, 0))[1], out)
        return ai.integrate1d_ng(out, 1000, unit="q_nm^-1", method=METHODS[splitting], error_model="poisson",
                                 dummy=4294967295, delta_dummy=1.5).intensity

    with h5py.File(f"{directory}/frames.h5") as file:
        data = file["entry/data/data"]
        one(data, 0)
        best = 0
        for _ in range(3):
            begin = time.process_time()
            result = np.array([one(data, frame) for frame in range(FRAMES)])
            with h5py.File(f"{directory}/theirs.h5", "w") as written:
                written["data"] = result
            best = max(best, FRAMES / (time.process_time() - begin))
    print(best)


if __name__ == "__main__":
    {"make": make, "decode": decode, "pattern": pattern}[sys.argv[1]](*sys.argv[2:])
