"""Files of other kinds, told by their first bytes, so that a wrong file is refused by its name with the way out."""

from __future__ import annotations

__all__ = ["ONNX", "kind_of_file"]

ONNX = "an ONNX model"
_CONVERT = (
    "Nothing in it was read. Convert it once, in PyTorch: "
    "`from safetensors.torch import save_file` and "
    "`save_file(torch.load('{stem}', weights_only=True), 'model.safetensors')`."
)
_PICKLE_START = b"(]})cIFSVNlKMJLGX\x80"
_BY_START = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes it, with a pickle inside, which could run any code", _CONVERT),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of an old torch.save, a pickle, which could run any code",
     _CONVERT),
    (b"\x93NUMPY", "a NumPy file", "Read it with wf.from_numpy(numpy.load('{stem}'))."),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "Read it with h5py and make tensors of its arrays."),
    (b"\x1f\x8b", "gzip-compressed", "Unpack it first."),
    (b"GGUF", "a GGUF file", "Convert it to safetensors first."),
    (b"version https://git-lfs", "a pointer of Git LFS in place of the file", "Fetch the file with: git lfs pull."),
)  # fmt: skip


def kind_of_file(start: bytes, end: bytes, name: str) -> tuple[str, str] | None:
    """What a file is by its first and last bytes, and what to do about it; None if it looks like nothing known.

    A safetensors file of the right length can begin like a pickle, so ask only when it is none.
    """
    for magic, kind, fix in _BY_START:
        if start.startswith(magic):
            return kind, fix.replace("{stem}", name)
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "a web page", "Perhaps the server answered a download with it: open it in a browser."
    # Its first fields are the version of the format and the name of who wrote it.
    if start[:1] == b"\x08" and start[1:2] < b"\x20" and start[2:3] == b"\x12":
        return ONNX, "Run it with ONNX Runtime; wf.onnx.inspect says what is in it."
    protocol = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if protocol or (start[:1] and start[:1] in _PICKLE_START and end.endswith(b".")):
        return "a pickle, which could run any code", _CONVERT.replace("{stem}", name)
    return None
