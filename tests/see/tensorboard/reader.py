"""A reader of event files that shares nothing with the writer: frames, checksums and messages by their definition."""

import struct


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def unmasked(value):
    rotated = (value - 0xA282EAD8) % 2**32
    return ((rotated << 15) | (rotated >> 17)) % 2**32


def frames(data):
    """The records of a file, each of whose checksums is right."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (of_length,) = struct.unpack_from("<I", data, at + 8)
        body = data[at + 12 : at + 12 + length]
        (of_body,) = struct.unpack_from("<I", data, at + 12 + length)
        assert len(body) == length
        assert unmasked(of_length) == crc32c(data[at : at + 8])
        assert unmasked(of_body) == crc32c(body)
        yield body
        at += 16 + length


def fields(message):
    """{field: [values]} of a message; bytes stay bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 1:
            (value,) = struct.unpack_from("<d", message, at)
            at += 8
        elif kind == 5:
            (value,) = struct.unpack_from("<f", message, at)
            at += 4
        else:
            assert kind == 2
            length = varint()
            value = message[at : at + length]
            assert len(value) == length
            at += length
        found.setdefault(key >> 3, []).append(value)
    return found


def doubles(packed):
    return list(struct.unpack(f"<{len(packed) // 8}d", packed))


def events(path):
    """(step, fields of the value) of each summary; the first record must name the format."""
    first, *rest = [fields(body) for body in frames(path.read_bytes())]
    assert first[3] == [b"brain.Event:2"]
    for event in rest:
        if 5 in event:
            (value,) = fields(event[5][0])[1]
            step = event.get(2, [None])[0]
            yield (step - 2**64 if step is not None and step >= 2**63 else step), fields(value)


def scalars(path):
    """{tag: [(step, value)]}."""
    found = {}
    for step, value in events(path):
        if 2 in value:
            found.setdefault(value[1][0].decode(), []).append((step, value[2][0]))
    return found
