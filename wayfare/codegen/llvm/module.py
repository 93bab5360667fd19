"""Loops to LLVM IR modules.

A kernel reads one argument block of 64-bit words: three sizes, then for each operand its address and its byte strides
along the three axes (outer, rows, elements of a row). A loop is vectorised in one of two ways:

    along    lanes run along the row.
    across   lanes are neighbouring rows. Used when those are contiguous in memory (a sum over the first dimension).

Along the vectorised axis every operand has a class: "c" contiguous, "b" broadcast, "s" strided. The remainder is done
under a mask, so there is no scalar version of a loop. A module has two functions:

    NAME.rows(block)                  one argument block
    NAME.call(arrays…, blocks, count) NumPy array objects: addresses are read out of them, and the address words of the
                                      blocks are offsets. Several blocks run in the thread pool; a negative count means
                                      that sleeping threads are not woken for them.
"""

from __future__ import annotations

from wayfare.codegen.llvm.nest import SIZES, WORDS_PER_OPERAND, Across, Along, Layout, block_words
from wayfare.codegen.loop.language import Loop

__all__ = ["DATA_OFFSET", "RUN", "SIZES", "WORDS_PER_OPERAND", "Layout", "block_words", "module"]

# The function that runs argument blocks in several threads; defined by `thread_pool_code`.
RUN = "wayfare_threads_run"
# The offset of the data pointer in a NumPy array object; `kernel.available` checks it once.
DATA_OFFSET = 16


def module(loop: Loop, layout: Layout, lanes: int, name: str) -> str:
    """The IR of a kernel. The loop must be lowered to primitives first."""
    nest = (Across if layout.mode == "across" else Along)(loop, layout, lanes, name)
    functions = nest.functions()
    declared: dict[str, str] = {}
    for f in functions:
        declared |= f.declared
    parts = ["\n".join(f.text) for f in functions]
    parts.append(_call(loop, name))
    return "\n\n".join([*parts, *sorted(declared.values())]) + "\n"


def _call(loop: Loop, name: str) -> str:
    count = len(loop.inputs) + len(loop.outputs)
    words = block_words(loop)
    objects = ", ".join(f"ptr %object{k}" for k in range(count))
    lines = [
        f"define void @{name}.call({objects}, ptr %given, i64 %parts) {{",
        "entry:",
        "  %small = icmp slt i64 %parts, 0",
        "  %opposite = sub i64 0, %parts",
        "  %count = select i1 %small, i64 %opposite, i64 %parts",
        f"  %words = mul i64 %count, {words}",
        "  %blocks = alloca i64, i64 %words, align 16",
        "  br label %fill",
        "fill:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %fill ]",
        f"  %start = mul i64 %i, {words}",
    ]
    for k in range(count):
        lines.append(f"  %field{k} = getelementptr i8, ptr %object{k}, i64 {DATA_OFFSET}")
        lines.append(f"  %data{k} = load i64, ptr %field{k}")
    addresses = {SIZES + WORDS_PER_OPERAND * k: k for k in range(count)}
    for word in range(words):
        lines.append(f"  %at{word} = add i64 %start, {word}")
        lines.append(f"  %from{word} = getelementptr i64, ptr %given, i64 %at{word}")
        lines.append(f"  %word{word} = load i64, ptr %from{word}")
        value = f"%word{word}"
        if word in addresses:
            k = addresses[word]
            lines.append(f"  %address{k} = add i64 %data{k}, %word{word}")
            value = f"%address{k}"
        lines.append(f"  %to{word} = getelementptr i64, ptr %blocks, i64 %at{word}")
        lines.append(f"  store i64 {value}, ptr %to{word}")
    lines += [
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %count",
        "  br i1 %more, label %fill, label %go",
        "go:",
        "  %alone = icmp eq i64 %count, 1",
        "  br i1 %alone, label %single, label %several",
        "single:",
        f"  call void @{name}.rows(ptr %blocks)",
        "  ret void",
        "several:",
        f"  %size = select i1 %small, i64 {-8 * words}, i64 {8 * words}",
        f"  call void @{RUN}(ptr @{name}.rows, ptr %blocks, i64 %count, i64 %size)",
        "  ret void",
        "}",
        f"declare void @{RUN}(ptr, ptr, i64, i64)",
    ]
    return "\n".join(lines)
