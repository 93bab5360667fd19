"""Model files written byte by byte: those that the onnx package would not make."""


def varint(n):
    """A number, seven bits a byte."""
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def field(number, contents):
    """A field that holds a text, bytes or a message."""
    return varint(number << 3 | 2) + varint(len(contents)) + contents


def with_graph(graph):
    """The bytes of a model with this graph."""
    return b"\x08\x0a" + field(8, b"\x10\x15") + field(7, graph)


def deep(levels):
    """A model of so many decisions inside one another."""
    graph = b""
    for _ in range(levels):
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    return with_graph(graph)
