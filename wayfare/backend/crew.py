"""The crew: threads that wait in native code for parts of a loop, so that handing them out costs about a microsecond.

A Python thread can only be woken through the interpreter's lock, which costs more than many a loop. So each helper is a
Python thread that calls `work` below once and never comes back: it watches a counter for a moment (the next loop often
follows at once), then sleeps. `run` publishes a loop's argument blocks; whoever is awake takes the next block, the
caller among them, so a helper that wakes late costs nothing. Waking one costs the caller some microseconds, so for a
small loop (its size is given as a negative number) sleepers are only woken if such loops follow each other closely.

The order of steps is what makes it safe. Helpers announce themselves (`inside`) before they look whether there is
work (`open`); the caller closes the work first and then waits until nobody is inside. So what `run` was given is never
touched after it returns. One loop at a time: a second caller, or a loop within a loop, does its blocks itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

from wayfare.backend import objects
from wayfare.backend.llvm import RUN
from wayfare.backend.machine import Machine, machine
from wayfare.settings import settings

# How long a helper watches before it sleeps: about 20 microseconds, less than a sleep and a wake-up cost.
_WATCHES = 800

# Cycles between two small loops, about 10 microseconds: if they follow this closely, it pays to wake a helper.
_OFTEN = 25_000

_FIELDS = ("generation", "open", "inside", "next", "count", "done", "busy", "sleepers", "function", "blocks", "bytes",
           "ended", "avoided", "helpers", "enlisted")  # fmt: skip


def _global(name: str) -> str:
    return f"@wayfare_crew_{name}"


def _load(result: str, name: str, order: str = "seq_cst") -> str:
    return f"  {result} = load atomic i64, ptr {_global(name)} {order}, align 8"


def _store(value: str, name: str, order: str = "seq_cst") -> str:
    return f"  store atomic i64 {value}, ptr {_global(name)} {order}, align 8"


def _take(tag: str, after: str) -> str:
    """Take blocks and run them until there are none left."""
    return f"""
take.{tag}:
  %index.{tag} = atomicrmw add ptr {_global("next")}, i64 1 seq_cst
  %mine.{tag} = icmp slt i64 %index.{tag}, %count.{tag}
  br i1 %mine.{tag}, label %do.{tag}, label %{after}
do.{tag}:
  %distance.{tag} = mul i64 %index.{tag}, %bytes.{tag}
  %block.{tag} = getelementptr i8, ptr %blocks.{tag}, i64 %distance.{tag}
  call void %function.{tag}(ptr %block.{tag})
  %before.{tag} = atomicrmw add ptr {_global("done")}, i64 1 seq_cst
  br label %take.{tag}
"""


# A system may put a woken thread on the processor of the one that wakes it, where it waits though another is idle. So
# helpers are kept off the caller's processor: before they are woken, if the caller has moved since the last time.
_PLACE = f"""place:
  %cpu = call i32 @sched_getcpu()
  %here = sext i32 %cpu to i64
{_load("%avoided", "avoided")}
  %same = icmp eq i64 %here, %avoided
  %named = icmp ult i64 %here, 1024
  %stay = xor i1 %same, true
  %moved = and i1 %stay, %named
  br i1 %moved, label %exclude, label %bell
exclude:
{_store("%here", "avoided")}
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr @wayfare_crew_processors, i64 128, i1 false)
  %byte = lshr i64 %here, 3
  %slot = getelementptr i8, ptr %mask, i64 %byte
  %bit = and i64 %here, 7
  %bit.number = trunc i64 %bit to i8
  %single = shl i8 1, %bit.number
  %others = xor i8 %single, -1
  %old = load i8, ptr %slot
  %kept = and i8 %old, %others
  store i8 %kept, ptr %slot
{_load("%helpers", "helpers")}
  br label %each
each:
  %h = phi i64 [ 0, %exclude ], [ %h.next, %tell ]
  %h.more = icmp slt i64 %h, %helpers
  br i1 %h.more, label %tell, label %bell
tell:
  %name = getelementptr i32, ptr @wayfare_crew_names, i64 %h
  %thread = load i32, ptr %name
  %m = call i32 @sched_setaffinity(i32 %thread, i64 128, ptr %mask)
  %h.next = add i64 %h, 1
  br label %each
"""
# Helpers beyond this many are put where the system likes.
_NAMED = 64
_PLACE_DECLARED = f"""@wayfare_crew_processors = internal global [128 x i8] zeroinitializer, align 16
@wayfare_crew_names = internal global [{_NAMED} x i32] zeroinitializer, align 16
declare i32 @gettid()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"""
_ENLIST = f"""  %number = atomicrmw add ptr {_global("enlisted")}, i64 1 seq_cst
  %room = icmp slt i64 %number, {_NAMED}
  br i1 %room, label %enlist, label %begin
enlist:
  %own = call i32 @gettid()
  %name = getelementptr i32, ptr @wayfare_crew_names, i64 %number
  store i32 %own, ptr %name
  %known = atomicrmw add ptr {_global("helpers")}, i64 1 seq_cst
{_store("-1", "avoided")}
  br label %begin
begin:"""


def source(pause: str, clock: str, placed: bool) -> str:
    """The crew as LLVM IR. `pause` is the instruction that makes room for the other thread of a core, `clock` sets %now
    to a time in cycles (0 where there is no such instruction: then helpers are always woken). `placed`: can a thread
    choose its processor here?"""
    know_processors = "%c = call i32 @sched_getaffinity(i32 0, i64 128, ptr @wayfare_crew_processors)" if placed else ""
    place = _PLACE if placed else "place:\n  br label %bell\n"
    enlist, waiting = (_ENLIST, "begin") if placed else ("", "entry")
    fields = "\n".join(f"{_global(name)} = internal global i64 0, align 8" for name in _FIELDS)
    return f"""
{fields}
@wayfare_crew_lock = internal global [128 x i8] zeroinitializer, align 16
@wayfare_crew_bell = internal global [128 x i8] zeroinitializer, align 16
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
{"declare void @llvm.x86.sse2.pause()" if "sse2" in pause else ""}
{"declare i64 @llvm.readcyclecounter()" if "cycle" in clock else ""}
{_PLACE_DECLARED if placed else ""}

define void @wayfare_crew_reset() {{
{chr(10).join(_store("0", name) for name in _FIELDS if name != "generation")}
  %a = call i32 @pthread_mutex_init(ptr @wayfare_crew_lock, ptr null)
  %b = call i32 @pthread_cond_init(ptr @wayfare_crew_bell, ptr null)
  {know_processors}
  ret void
}}

define void @wayfare_crew_work() {{
entry:
{enlist}
{_load("%first", "generation")}
  br label %wait
wait:
  %last = phi i64 [ %first, %{waiting} ], [ %now, %leave ]
  br label %watch
watch:
  %turn = phi i64 [ 0, %wait ], [ %again, %still ]
{_load("%seen", "generation", "acquire")}
  %new = icmp ne i64 %seen, %last
  br i1 %new, label %enter, label %still
still:
  {pause}
  %again = add i64 %turn, 1
  %patient = icmp slt i64 %again, {_WATCHES}
  br i1 %patient, label %watch, label %sleep
sleep:
  %l = call i32 @pthread_mutex_lock(ptr @wayfare_crew_lock)
  %s = atomicrmw add ptr {_global("sleepers")}, i64 1 seq_cst
  br label %listen
listen:
{_load("%heard", "generation")}
  %rung = icmp ne i64 %heard, %last
  br i1 %rung, label %awake, label %doze
doze:
  %w = call i32 @pthread_cond_wait(ptr @wayfare_crew_bell, ptr @wayfare_crew_lock)
  br label %listen
awake:
  %t = atomicrmw sub ptr {_global("sleepers")}, i64 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr @wayfare_crew_lock)
  br label %enter
enter:
  %now = phi i64 [ %seen, %watch ], [ %heard, %awake ]
  %i = atomicrmw add ptr {_global("inside")}, i64 1 seq_cst
{_load("%open", "open")}
  %any = icmp ne i64 %open, 0
  br i1 %any, label %look, label %leave
look:
{_load("%count.helper", "count")}
{_load("%bytes.helper", "bytes")}
{_load("%blocks.number", "blocks")}
  %blocks.helper = inttoptr i64 %blocks.number to ptr
{_load("%function.number", "function")}
  %function.helper = inttoptr i64 %function.number to ptr
  br label %take.helper
{_take("helper", "leave")}
leave:
  %o = atomicrmw sub ptr {_global("inside")}, i64 1 seq_cst
  br label %wait
}}

define void @{RUN}(ptr %function.own, ptr %blocks.own, i64 %count.own, i64 %size) {{
entry:
  %mask = alloca [128 x i8], align 16
  %small = icmp slt i64 %size, 0
  %positive = sub i64 0, %size
  %bytes.own = select i1 %small, i64 %positive, i64 %size
  %claim = cmpxchg ptr {_global("busy")}, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue {{ i64, i1 }} %claim, 1
  br i1 %free, label %publish, label %alone
alone:
  %k = phi i64 [ 0, %entry ], [ %k.next, %one ]
  %more = icmp slt i64 %k, %count.own
  br i1 %more, label %one, label %out
one:
  %k.distance = mul i64 %k, %bytes.own
  %k.block = getelementptr i8, ptr %blocks.own, i64 %k.distance
  call void %function.own(ptr %k.block)
  %k.next = add i64 %k, 1
  br label %alone
publish:
  %f = ptrtoint ptr %function.own to i64
  %p = ptrtoint ptr %blocks.own to i64
{_store("%f", "function")}
{_store("%p", "blocks")}
{_store("%count.own", "count")}
{_store("%bytes.own", "bytes")}
{_store("0", "next")}
{_store("0", "done")}
{_store("1", "open")}
  %g = atomicrmw add ptr {_global("generation")}, i64 1 seq_cst
{_load("%asleep", "sleepers")}
  %any.asleep = icmp sgt i64 %asleep, 0
  br i1 %any.asleep, label %consider, label %take.own
consider:
  {clock}
  %last = load i64, ptr {_global("ended")}
  %pause = sub i64 %now, %last
  %often = icmp ult i64 %pause, {_OFTEN}
  %large = xor i1 %small, true
  %wake = or i1 %often, %large
  br i1 %wake, label %ring, label %take.own
ring:
  br label %place
{place}bell:
  %l = call i32 @pthread_mutex_lock(ptr @wayfare_crew_lock)
  %b = call i32 @pthread_cond_broadcast(ptr @wayfare_crew_bell)
  %u = call i32 @pthread_mutex_unlock(ptr @wayfare_crew_lock)
  br label %take.own
{_take("own", "finish")}
finish:
  %spin = phi i64 [ 0, %take.own ], [ %spin.next, %unfinished ], [ 0, %yield ]
{_load("%done", "done")}
  %all = icmp sge i64 %done, %count.own
  br i1 %all, label %close, label %unfinished
unfinished:
  {pause}
  %spin.next = add i64 %spin, 1
  %long = icmp sgt i64 %spin.next, 2000
  br i1 %long, label %yield, label %finish
yield:
  %y = call i32 @sched_yield()
  br label %finish
close:
{_store("0", "open")}
  br label %empty
empty:
{_load("%left", "inside")}
  %nobody = icmp eq i64 %left, 0
  br i1 %nobody, label %settle, label %linger
linger:
  {pause}
  %z = call i32 @sched_yield()
  br label %empty
settle:
  {clock.replace("%now", "%end")}
  store i64 %end, ptr {_global("ended")}
{_store("0", "busy")}
  br label %out
out:
  ret void
}}
"""


_SERIAL = f"""
define void @{RUN}(ptr %function, ptr %blocks, i64 %count, i64 %size) {{
entry:
  %small = icmp slt i64 %size, 0
  %positive = sub i64 0, %size
  %bytes = select i1 %small, i64 %positive, i64 %size
  br label %test
test:
  %k = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %out
one:
  %distance = mul i64 %k, %bytes
  %block = getelementptr i8, ptr %blocks, i64 %distance
  call void %function(ptr %block)
  %next = add i64 %k, 1
  br label %test
out:
  ret void
}}
"""


class _Crew:
    """The helpers of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready = False
        self.helpers = 0
        self.work: Any = None
        self.reset: Any = None
        self.run: Any = None

    def prepare(self, host: Machine) -> None:
        """Load the native part; kernels refer to it, so it comes before them."""
        with self.lock:
            if self.ready:
                return
            # Windows has other primitives: there the blocks run one after the other.
            threaded = sys.platform != "win32"
            pause = "call void @llvm.x86.sse2.pause()" if host.is_x86 else 'fence syncscope("singlethread") seq_cst'
            clock = "%now = call i64 @llvm.readcyclecounter()" if host.is_x86 else "%now = add i64 0, 0"
            text = source(pause, clock, sys.platform == "linux") if threaded else _SERIAL
            key = objects.key(text)
            made = objects.fetch(key, lambda: {"name": "crew"}, lambda: (text, frozenset()), counts=False)
            host.load(made.code, made.symbols)
            host.add_symbol(RUN, host.address(RUN))
            if threaded:
                function = ctypes.CFUNCTYPE(None)
                self.work = function(host.address("wayfare_crew_work"))
                self.reset = function(host.address("wayfare_crew_reset"))
                self.reset()
            self.run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(host.address(RUN))
            self.ready = True

    def have(self, wanted: int) -> None:
        """Have so many helpers, or as many as the system allows."""
        with self.lock:
            while self.helpers < wanted and self.work is not None:
                helper = threading.Thread(target=self.work, name=f"wayfare-{self.helpers + 1}", daemon=True)
                try:
                    helper.start()
                except RuntimeError:  # too many threads, or the interpreter is ending
                    return
                self.helpers += 1

    def after_fork(self) -> None:
        """Only the thread that forked lives on in the child."""
        self.lock = threading.Lock()
        self.helpers = 0
        if self.reset is not None:
            self.reset()


_crew = _Crew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.after_fork)


def prepare() -> None:
    """Make `RUN` known to LLVM."""
    if not _crew.ready:
        _crew.prepare(machine())


def run(function: int, blocks: int, count: int, size: int) -> None:
    """Call the native function at an address on `count` blocks of `size` bytes; `prepare` was called before."""
    _crew.run(function, blocks, count, size)


def threads() -> int:
    """How many threads a loop may be split over now; the helpers among them are started."""
    wanted = settings.num_threads
    if wanted - 1 > _crew.helpers:
        _crew.have(wanted - 1)
    return wanted
