#!/usr/bin/env python3
"""Makes lab6.h5 and lab6.poni beside it: what a Pilatus 100K sees of LaB6 powder at 30 keV, 10 cm behind it, slightly tilted.

    python3 -m venv venv && venv/bin/pip install h5py hdf5plugin numpy && venv/bin/python make.py

The rings are those of SRM 660c (a = 4.156826 Å, primitive cubic); counts are Poisson's, a few pixels are dead (0xFFFFFFFF).
"""
import os

import h5py
import hdf5plugin
import numpy as np

FRAMES, ROWS, COLUMNS, PIXEL = 6, 195, 487, 172e-6
DISTANCE, PONI1, PONI2, ROT1, ROT2 = 0.1, 0.0172, 0.0405, 0.03, -0.02
WAVELENGTH = 12.398419843320026e-10 / 30
LATTICE = 4.156826e-10

PONI = f"""poni_version: 2.1
Detector: Pilatus100k
Detector_config: {{"orientation": 3}}
Distance: {DISTANCE}
Poni1: {PONI1}
Poni2: {PONI2}
Rot1: {ROT1}
Rot2: {ROT2}
Rot3: 0.0
Wavelength: {WAVELENGTH}
"""


def two_theta():
    """Of each pixel's centre (pyFAI's geometry)."""
    d1, d2 = np.mgrid[0:ROWS, 0:COLUMNS]
    p1, p2 = (d1 + 0.5) * PIXEL - PONI1, (d2 + 0.5) * PIXEL - PONI2
    c1, s1, c2, s2 = np.cos(ROT1), np.sin(ROT1), np.cos(ROT2), np.sin(ROT2)
    t1 = p1 * c2 + p2 * s1 * s2 - DISTANCE * c1 * s2
    t2 = p2 * c1 + DISTANCE * s1
    t3 = p1 * s2 - p2 * c2 * s1 + DISTANCE * c1 * c2
    return np.arctan2(np.hypot(t1, t2), t3)


def expected():
    """Counts: a falling background, and rings of about two pixels."""
    angle = two_theta()
    counts = 0.25 + 1.5 * np.exp(-angle / 0.08)
    for total in sorted({h * h + k * k + l * l for h in range(7) for k in range(7) for l in range(7)} - {0}):
        sine = WAVELENGTH * np.sqrt(total) / (2 * LATTICE)
        if sine < 0.5:
            ring = 2 * np.arcsin(sine)
            counts += 45 / np.sqrt(total) * np.exp(-0.5 * ((angle - ring) / 0.0012) ** 2)
    return counts


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    rng = np.random.default_rng(660)
    mean = expected()
    dead = rng.choice(ROWS * COLUMNS, 40, replace=False)
    with h5py.File("lab6.h5", "w") as file:
        entry = file.create_group("entry_0000")
        entry.attrs["NX_class"] = "NXentry"
        entry["title"] = "LaB6 at 30 keV"
        data = entry.create_dataset(
            "measurement/data", shape=(FRAMES, ROWS, COLUMNS), dtype="u4", chunks=(1, ROWS, COLUMNS),
            **hdf5plugin.Bitshuffle(cname="lz4"))
        for frame in range(FRAMES):
            counts = rng.poisson(mean * (1 + 0.2 * np.sin(frame))).astype(np.uint32)
            counts.ravel()[dead] = 0xFFFFFFFF
            data[frame] = counts
    with open("lab6.poni", "w") as file:
        file.write(PONI)


main()
