"""Counts primes: a table that takes a while to make, and many short questions to it."""


class Primes:
    def __init__(self, limit):
        print("sieving up to", limit)
        self.is_prime = bytearray([1]) * limit
        self.is_prime[:2] = b"\0" * 2
        for number in range(2, int(limit**0.5) + 1):
            if self.is_prime[number]:
                multiples = range(number * number, limit, number)
                self.is_prime[multiples.start :: number] = bytes(len(multiples))

    def run(self, start, count=100_000):
        part = self.is_prime[start : start + count]
        return {"primes": sum(part), "largest": start + part.rindex(1)}
