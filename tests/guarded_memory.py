"""NumPy's memory with walls around it: reading or writing past the end of an array ends the process at once.

Every array lies at the end of its pages, before a page that nobody may touch, and after another. What is not given a
value holds a pattern that is easily told. Only for tests, in a process of their own. The code is LLVM's language and
not Python, because NumPy frees arrays while an error is on its way, and Python would take that for its own.
"""

import ctypes
import mmap

import llvmlite.binding as llvm
import numpy as np

PATTERN = 0xF5
_PAGE = mmap.PAGESIZE

# Of each block: a page that holds its size, a wall, the pages whose end is the array, a wall.
_CODE = f"""
@live = global i64 0
@most = global i64 0
@damaged = global i64 0
@refuse_over = global i64 {1 << 33}

declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @mprotect(ptr, i64, i32)
declare ptr @memset(ptr, i32, i64)
declare ptr @memcpy(ptr, ptr, i64)

define i64 @pages(i64 %size) {{
  %some = icmp eq i64 %size, 0
  %least = select i1 %some, i64 1, i64 %size
  %more = add i64 %least, {_PAGE - 1}
  %whole = and i64 %more, {-_PAGE}
  ret i64 %whole
}}

define ptr @take(i64 %size, i32 %fill) {{
  %bound = load i64, ptr @refuse_over
  %large = icmp ugt i64 %size, %bound
  br i1 %large, label %none, label %go
none:
  ret ptr null
go:
  %pages = call i64 @pages(i64 %size)
  %all = add i64 %pages, {3 * _PAGE}
  %base = call ptr @mmap(ptr null, i64 %all, i32 3, i32 {mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}, i32 -1, i64 0)
  %number = ptrtoint ptr %base to i64
  %failed = icmp eq i64 %number, -1
  br i1 %failed, label %none, label %got
got:
  store i64 %size, ptr %base
  %wall = getelementptr i8, ptr %base, i64 {_PAGE}
  %a = call i32 @mprotect(ptr %wall, i64 {_PAGE}, i32 0)
  %first = getelementptr i8, ptr %base, i64 {2 * _PAGE}
  %end = getelementptr i8, ptr %first, i64 %pages
  %b = call i32 @mprotect(ptr %end, i64 {_PAGE}, i32 0)
  %c = call ptr @memset(ptr %first, i32 {PATTERN}, i64 %pages)
  %some = icmp eq i64 %size, 0
  %least = select i1 %some, i64 1, i64 %size
  %more = add i64 %least, 15
  %aligned = and i64 %more, -16
  %back = sub i64 0, %aligned
  %at = getelementptr i8, ptr %end, i64 %back
  %d = call ptr @memset(ptr %at, i32 %fill, i64 %size)
  %live = load i64, ptr @live
  %now = add i64 %live, %size
  store i64 %now, ptr @live
  %most = load i64, ptr @most
  %higher = icmp ugt i64 %now, %most
  %peak = select i1 %higher, i64 %now, i64 %most
  store i64 %peak, ptr @most
  ret ptr %at
}}

define ptr @guarded_malloc(ptr %ctx, i64 %size) {{
  %at = call ptr @take(i64 %size, i32 {PATTERN})
  ret ptr %at
}}

define ptr @guarded_calloc(ptr %ctx, i64 %count, i64 %each) {{
  %size = mul i64 %count, %each
  %at = call ptr @take(i64 %size, i32 0)
  ret ptr %at
}}

define ptr @guarded_realloc(ptr %ctx, ptr %old, i64 %size) {{
  %at = call ptr @take(i64 %size, i32 {PATTERN})
  %failed = icmp eq ptr %at, null
  %fresh = icmp eq ptr %old, null
  %done = or i1 %failed, %fresh
  br i1 %done, label %out, label %copy
copy:
  %number = ptrtoint ptr %old to i64
  %page = and i64 %number, {-_PAGE}
  %head = sub i64 %page, {2 * _PAGE}
  %base = inttoptr i64 %head to ptr
  %had = load i64, ptr %base
  %less = icmp ult i64 %had, %size
  %count = select i1 %less, i64 %had, i64 %size
  %c = call ptr @memcpy(ptr %at, ptr %old, i64 %count)
  call void @guarded_free(ptr null, ptr %old, i64 0)
  br label %out
out:
  ret ptr %at
}}

define void @look(ptr %from, ptr %to) {{
entry:
  br label %next
next:
  %here = phi ptr [%from, %entry], [%after, %more]
  %over = icmp uge ptr %here, %to
  br i1 %over, label %out, label %more
more:
  %byte = load i8, ptr %here
  %same = icmp eq i8 %byte, {PATTERN - 256}
  %wrong = select i1 %same, i64 0, i64 1
  %sofar = load i64, ptr @damaged
  %total = add i64 %sofar, %wrong
  store i64 %total, ptr @damaged
  %after = getelementptr i8, ptr %here, i64 1
  br label %next
out:
  ret void
}}

define void @guarded_free(ptr %ctx, ptr %at, i64 %_size) {{
  %nothing = icmp eq ptr %at, null
  br i1 %nothing, label %out, label %go
go:
  %number = ptrtoint ptr %at to i64
  %page = and i64 %number, {-_PAGE}
  %first = inttoptr i64 %page to ptr
  %base = getelementptr i8, ptr %first, i64 {-2 * _PAGE}
  %size = load i64, ptr %base
  %pages = call i64 @pages(i64 %size)
  %end = getelementptr i8, ptr %first, i64 %pages
  %behind = getelementptr i8, ptr %at, i64 %size
  call void @look(ptr %first, ptr %at)
  call void @look(ptr %behind, ptr %end)
  %live = load i64, ptr @live
  %now = sub i64 %live, %size
  store i64 %now, ptr @live
  %all = add i64 %pages, {3 * _PAGE}
  %c = call i32 @munmap(ptr %base, i64 %all)
  br label %out
out:
  ret void
}}
"""


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = [
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8),
        *[(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")],
    ]  # fmt: skip


class GuardedMemory:
    """`start()` gives NumPy this memory in the thread at hand. `live` bytes are taken, `most` were since `reset()`;
    `damaged` counts bytes beside arrays that were written to."""

    def __init__(self):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_CODE), machine)
        self._engine.finalize_object()

    def start(self):
        """From now on."""
        find = self._engine.get_function_address
        self._handler = _Handler(b"guarded", 1, None, *[find(f"guarded_{name}") for name in
                                                        ("malloc", "calloc", "realloc", "free")])  # fmt: skip
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        table = ctypes.cast(pointer(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
        set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])  # PyDataMem_SetHandler
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._name = b"mem_handler"
        set_handler(new(ctypes.addressof(self._handler), self._name, None))

    def _number(self, name):
        return ctypes.c_int64.from_address(self._engine.get_global_value_address(name))

    live = property(lambda self: self._number("live").value)
    most = property(lambda self: self._number("most").value)
    damaged = property(lambda self: self._number("damaged").value)

    def reset(self):
        """Count anew."""
        self._number("most").value = self.live


def shows_pattern(array):
    """Are there elements that nobody gave a value?"""
    raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return bool(raw.size) and bool((raw.reshape(-1, array.itemsize) == PATTERN).all(1).any())
