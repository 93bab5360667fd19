"""Safetensors files with small faults, for tests that read thousands of them."""

import re


def mutated(data, rng):
    """One to four small changes to the header, whose length mostly fits again: else nothing else would be looked at."""
    length = int.from_bytes(data[:8], "little")
    header, rest = bytearray(data[8 : 8 + length]), data[8 + length :]
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(header) + 1)
        change = rng.randrange(6)
        if change == 0:
            header[place : place + 1] = bytes([rng.randrange(256)])
        elif change == 1:
            del header[place : place + rng.choice([1, 1, 2, 9])]
        elif change == 2:
            header[place:place] = rng.choice([b"0", b"9", b"-", b"{", b"[", b"]", b"}", b'"', b",", b"1e9", b"\\"])
        elif change == 3:
            number = rng.choice(list(re.finditer(rb"\d+", bytes(header))) or [None])
            if number is not None:
                header[slice(*number.span())] = str(rng.choice([0, 1, 2, 3, 6, 8, 24, 2**31, 2**63, 2**64])).encode()
        else:
            other = rng.randrange(len(header) + 1)
            header[place:place] = header[other : other + rng.choice([1, 5, 20, 60])]
    length = rng.choice([len(header)] * 9 + [0, 1, 2**31, 2**63, len(header) - 1, len(header) + 1]) % 2**64
    return (length.to_bytes(8, "little") + header + rest)[: rng.choice([None] * 9 + [rng.randrange(len(data))])]
