"""Files damaged at random, for tests that read thousands of them."""

# Numbers that a length, a count or a size of a file may be replaced by: of seven bits a byte, and of eight bytes.
_NUMBERS = (
    b"\x00", b"\x01", b"\x7f", b"\xff\x7f", b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\x80" * 4,
    b"\xff" * 8, b"\x00" * 8, b"\x00\x00\x00\x80\x00\x00\x00\x00",
)  # fmt: skip


def damaged(data, rng, within=None):
    """The bytes with one to four changes: bits, cuts, parts taken out, doubled or moved, numbers that say too much.

    `within` bounds where changes are made: where damage can do most.
    """
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        end = max(1, min(len(data), within or len(data)))
        place, other = rng.randrange(end), rng.randrange(end)
        how = rng.randrange(10)
        if how < 3:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif how < 5 and data:
            data[place] ^= 1 << rng.randrange(8)
        elif how == 5:
            del data[place : place + rng.choice((1, 1, 2, 4, 9, 40))]
        elif how == 6:
            data[place:place] = data[other : other + rng.choice((1, 2, 8, 30, 200))]
        elif how == 7:
            data[place : place + rng.choice((1, 2, 8, 30))] = data[other : other + rng.choice((1, 2, 8, 30))]
        elif how == 8:
            data[place : place + 1] = rng.choice(_NUMBERS)
        else:
            del data[rng.randrange(len(data) + 1) :]
    return bytes(data)
