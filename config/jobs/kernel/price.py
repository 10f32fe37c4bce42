"""Prints what the job `option` found: price.py, where its results are in option/. Needs nothing but Python."""

import array
import glob
import json
import math

# As in option.toml.
SPOT, RATE, VOLATILITY, YEARS = 100.0, 0.05, 0.2, 1.0
PATHS = 16384 * 32 * 2


def sums(path):
    """The sums of both columns of a .npy file of 32-bit floats."""
    with open(path, "rb") as file:
        content = file.read()
    header = 10 + int.from_bytes(content[8:10], "little")
    numbers = array.array("f", content[header:])
    return math.fsum(numbers[0::2]), math.fsum(numbers[1::2])


def black_scholes(strike):
    """Black and Scholes (1973)."""
    def normal(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    spread = VOLATILITY * math.sqrt(YEARS)
    upper = (math.log(SPOT / strike) + (RATE + VOLATILITY ** 2 / 2) * YEARS) / spread
    return SPOT * normal(upper) - strike * math.exp(-RATE * YEARS) * normal(upper - spread)


def main():
    prices = {}
    print("strike   Monte Carlo          Black and Scholes")
    for path in sorted(glob.glob("option/*/price-*.npy")):
        strike = path.split("price-")[1].removesuffix(".npy")
        price, square = sums(path)
        # Above the true error: each draw and its opposite cancel in part.
        error = math.sqrt((square - price ** 2) / PATHS)
        print(f"{strike:>6}   {price:.3f} ± {error:.3f}   {black_scholes(float(strike)):>16.3f}")
        prices[strike] = round(price, 4)
    print(f"nodectl-result: {json.dumps(prices)}")


main()
