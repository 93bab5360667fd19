"""The native function behind command lists: it fills in addresses, then calls each function on its argument blocks."""

from __future__ import annotations

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.module import DATA_OFFSET, RUN
from wayfare.codegen.routines.routine import Routine, function, pointer, word


def _write(_host: Machine) -> str:
    """Words: the address of the array objects; a table of (destination, object number, offset) and its length; the
    commands (function, blocks, number of blocks, bytes of a block, 1 to use the thread pool) and their number."""
    writer = Writer()
    objects, table, entries = pointer(writer, 0), pointer(writer, 1), word(writer, 2)
    commands, count = pointer(writer, 3), word(writer, 4)
    fill_addresses(writer, objects, table, entries)
    with writer.loop("0", count, 1) as i:
        called, first, many, size, threaded = fields(writer, commands, i, 5)
        target, blocks = writer.pointer(called), writer.pointer(first)
        with writer.loop("0", threaded, 1):
            writer.do(f"call void @{RUN}(ptr {target}, ptr {blocks}, i64 {many}, i64 {size})")
        here = writer.select(writer.compare("eq", threaded, 0), many, "0")
        run_blocks(writer, target, blocks, here, size)
    writer.declared[RUN] = f"declare void @{RUN}(ptr, ptr, i64, i64)"
    return function(writer)


def fill_addresses(writer: Writer, objects: str, table: str, entries: str) -> None:
    """Store the address of each entry of a table (destination, object number, offset)."""
    with writer.loop("0", entries, 1) as i:
        to, number, offset = fields(writer, table, i, 3)
        array = writer.load("ptr", writer.element("ptr", objects, number))
        data = writer.load("i64", writer.moved(array, DATA_OFFSET))
        writer.store("i64", writer.add(data, offset), writer.pointer(to))


def run_blocks(writer: Writer, target: str, blocks: str, count: str, size: str) -> None:
    """Call a function on argument blocks that lie `size` bytes apart."""
    with writer.loop("0", count, 1) as k:
        writer.do(f"call void {target}(ptr {writer.at(blocks, (k, size))})")


def fields(writer: Writer, table: str, row: str, count: int) -> list[str]:
    """The words of a row of a table."""
    entry = writer.element(f"[{count} x i64]", table, row)
    return [writer.load("i64", writer.element("i64", entry, k)) for k in range(count)]


RUN_LIST = Routine("run_list", _write)
