"""The native part of the thread pool, as LLVM IR; `thread_pool.py` explains how it works."""

from __future__ import annotations

from wayfare.codegen.llvm.module import RUN

# Iterations that a helper spins before it sleeps: about 20 microseconds, less than a sleep and a wake-up cost.
_WATCHES = 800

# Cycles, about 10 microseconds: if small loops follow each other this closely, helpers are woken for them.
_OFTEN = 25_000

# Iterations that a caller spins until all helpers are done, before it sleeps: some tens of microseconds.
_LOOKS = 2000
# Nanoseconds. A wait that is _UNDUE longer than the work means that other programs use the processors. Then callers
# work alone for _ALONE_FIRST, doubled each time it happens again, up to _ALONE_LONGEST.
_UNDUE, _ALONE_FIRST, _ALONE_LONGEST = 300_000, 20_000_000, 640_000_000

_FIELDS = ("generation", "open", "inside", "next", "count", "busy", "sleepers", "function", "blocks", "bytes",
           "ended", "avoided", "helpers", "enlisted", "waiting", "alone_until", "alone_for", "crowded")  # fmt: skip


def _global(name: str) -> str:
    return f"@wayfare_threads_{name}"


def _load(result: str, name: str, order: str = "seq_cst") -> str:
    return f"  {result} = load atomic i64, ptr {_global(name)} {order}, align 8"


def _store(value: str, name: str, order: str = "seq_cst") -> str:
    return f"  store atomic i64 {value}, ptr {_global(name)} {order}, align 8"


def _take(tag: str, after: str, count: str = "") -> str:
    """Take blocks and run them until none is left; `count` is code to run for each."""
    return f"""
take.{tag}:
  %index.{tag} = atomicrmw add ptr {_global("next")}, i64 1 seq_cst
  %mine.{tag} = icmp slt i64 %index.{tag}, %count.{tag}
  br i1 %mine.{tag}, label %do.{tag}, label %{after}
do.{tag}:
  %distance.{tag} = mul i64 %index.{tag}, %bytes.{tag}
  %block.{tag} = getelementptr i8, ptr %blocks.{tag}, i64 %distance.{tag}
  call void %function.{tag}(ptr %block.{tag})
{count}
  br label %take.{tag}
"""


_COUNT = """  %had = load i64, ptr %mine
  %has = add i64 %had, 1
  store i64 %has, ptr %mine"""


# Linux may put a woken thread on the processor of the thread that wakes it, where it waits although another processor
# is idle. So the affinity of helpers excludes the caller's processor; it is updated before they are woken, if the
# caller has moved.
_PIN = f"""pin:
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
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr @wayfare_threads_processors, i64 128, i1 false)
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
  %name = getelementptr i32, ptr @wayfare_threads_names, i64 %h
  %thread = load i32, ptr %name
  %m = call i32 @sched_setaffinity(i32 %thread, i64 128, ptr %mask)
  %h.next = add i64 %h, 1
  br label %each
"""
# While the caller sleeps, helpers may use its processor as well.
_ANYWHERE = f"""
{_store("-1", "avoided")}
{_load("%all", "helpers")}
  br label %next.helper
next.helper:
  %q = phi i64 [ 0, %slow ], [ %q.next, %free.helper ]
  %q.more = icmp slt i64 %q, %all
  br i1 %q.more, label %free.helper, label %doze
free.helper:
  %q.name = getelementptr i32, ptr @wayfare_threads_names, i64 %q
  %q.thread = load i32, ptr %q.name
  %q.m = call i32 @sched_setaffinity(i32 %q.thread, i64 128, ptr @wayfare_threads_processors)
  %q.next = add i64 %q, 1
  br label %next.helper
"""
# The affinity of helpers beyond this many is not set.
_NAMED = 64
_PIN_DECLARED = f"""@wayfare_threads_processors = internal global [128 x i8] zeroinitializer, align 16
@wayfare_threads_names = internal global [{_NAMED} x i32] zeroinitializer, align 16
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
  %name = getelementptr i32, ptr @wayfare_threads_names, i64 %number
  store i32 %own, ptr %name
  %known = atomicrmw add ptr {_global("helpers")}, i64 1 seq_cst
{_store("-1", "avoided")}
  br label %begin
begin:"""


def source(pause: str, clock: str, pinned: bool, monotonic: int) -> str:
    """The thread pool as LLVM IR.

    `pause` is the spin-wait instruction. `clock` sets %now to a time in cycles (0 where there is no such instruction:
    then helpers are always woken). `pinned`: can the affinity of threads be set here? `monotonic` is the number of the
    system's monotonic clock.
    """
    read_affinity = "%c = call i32 @sched_getaffinity(i32 0, i64 128, ptr @wayfare_threads_processors)"
    know_processors = read_affinity if pinned else ""
    pin = _PIN if pinned else "pin:\n  br label %bell\n"
    anywhere = _ANYWHERE if pinned else "  br label %doze"
    enlist, waiting = (_ENLIST, "begin") if pinned else ("", "entry")
    fields = "\n".join(f"{_global(name)} = internal global i64 0, align 8" for name in _FIELDS)
    return f"""
{fields}
@wayfare_threads_lock = internal global [128 x i8] zeroinitializer, align 16
@wayfare_threads_bell = internal global [128 x i8] zeroinitializer, align 16
@wayfare_threads_done = internal global [128 x i8] zeroinitializer, align 16
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @clock_gettime(i32, ptr)
{"declare void @llvm.x86.sse2.pause()" if "sse2" in pause else ""}
{"declare i64 @llvm.readcyclecounter()" if "cycle" in clock else ""}
{_PIN_DECLARED if pinned else ""}

define void @wayfare_threads_reset() {{
{chr(10).join(_store("0", name) for name in _FIELDS if name != "generation")}
  %a = call i32 @pthread_mutex_init(ptr @wayfare_threads_lock, ptr null)
  %b = call i32 @pthread_cond_init(ptr @wayfare_threads_bell, ptr null)
  %d = call i32 @pthread_cond_init(ptr @wayfare_threads_done, ptr null)
  {know_processors}
  ret void
}}

define i64 @wayfare_threads_times_crowded() {{
{_load("%number", "crowded")}
  ret i64 %number
}}

define internal i64 @wayfare_threads_time() {{
  %pair = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {monotonic}, ptr %pair)
  %seconds = load i64, ptr %pair
  %rest = getelementptr i64, ptr %pair, i64 1
  %nanoseconds = load i64, ptr %rest
  %whole = mul i64 %seconds, 1000000000
  %time = add i64 %whole, %nanoseconds
  ret i64 %time
}}

define void @wayfare_threads_work() {{
entry:
{enlist}
{_load("%first", "generation")}
  br label %wait
wait:
  %last = phi i64 [ %first, %{waiting} ], [ %now, %leave ], [ %now, %enter ], [ %now, %tell.caller ]
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
  %l = call i32 @pthread_mutex_lock(ptr @wayfare_threads_lock)
  %s = atomicrmw add ptr {_global("sleepers")}, i64 1 seq_cst
  br label %listen
listen:
{_load("%heard", "generation")}
  %rung = icmp ne i64 %heard, %last
  br i1 %rung, label %awake, label %doze
doze:
  %w = call i32 @pthread_cond_wait(ptr @wayfare_threads_bell, ptr @wayfare_threads_lock)
  br label %listen
awake:
  %t = atomicrmw sub ptr {_global("sleepers")}, i64 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr @wayfare_threads_lock)
  br label %enter
enter:
  %now = phi i64 [ %seen, %watch ], [ %heard, %awake ]
{_load("%wanted", "open")}
  %late = icmp eq i64 %wanted, 0
  br i1 %late, label %wait, label %announce
announce:
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
{_load("%awaited", "waiting")}
  %nobody.waits = icmp eq i64 %awaited, 0
  br i1 %nobody.waits, label %wait, label %tell.caller
tell.caller:
  %tl = call i32 @pthread_mutex_lock(ptr @wayfare_threads_lock)
  %tb = call i32 @pthread_cond_broadcast(ptr @wayfare_threads_done)
  %tu = call i32 @pthread_mutex_unlock(ptr @wayfare_threads_lock)
  br label %wait
}}

define void @{RUN}(ptr %function.own, ptr %blocks.own, i64 %count.own, i64 %size) {{
entry:
  %mask = alloca [128 x i8], align 16
  %mine = alloca i64, align 8
  store i64 0, ptr %mine
  %small = icmp slt i64 %size, 0
  %positive = sub i64 0, %size
  %bytes.own = select i1 %small, i64 %positive, i64 %size
{_load("%until", "alone_until", "monotonic")}
  %crowded = icmp ne i64 %until, 0
  br i1 %crowded, label %ask, label %claim.it
ask:
  %ask.time = call i64 @wayfare_threads_time()
  %still.alone = icmp slt i64 %ask.time, %until
  br i1 %still.alone, label %alone, label %try
try:
{_store("0", "alone_until")}
  br label %claim.it
claim.it:
  %claim = cmpxchg ptr {_global("busy")}, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue {{ i64, i1 }} %claim, 1
  br i1 %free, label %publish, label %alone
alone:
  %k = phi i64 [ 0, %ask ], [ 0, %claim.it ], [ %k.next, %one ]
  %more = icmp slt i64 %k, %count.own
  br i1 %more, label %one, label %out
one:
  %k.distance = mul i64 %k, %bytes.own
  %k.block = getelementptr i8, ptr %blocks.own, i64 %k.distance
  call void %function.own(ptr %k.block)
  %k.next = add i64 %k, 1
  br label %alone
publish:
  %began = call i64 @wayfare_threads_time()
  %f = ptrtoint ptr %function.own to i64
  %p = ptrtoint ptr %blocks.own to i64
{_store("%f", "function")}
{_store("%p", "blocks")}
{_store("%count.own", "count")}
{_store("%bytes.own", "bytes")}
{_store("0", "next")}
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
  br label %pin
{pin}bell:
  %l = call i32 @pthread_mutex_lock(ptr @wayfare_threads_lock)
  %b = call i32 @pthread_cond_broadcast(ptr @wayfare_threads_bell)
  %u = call i32 @pthread_mutex_unlock(ptr @wayfare_threads_lock)
  br label %take.own
{_take("own", "finish", _COUNT)}
finish:
{_store("0", "open")}
  br label %empty
empty:
  %spin = phi i64 [ 0, %finish ], [ %spin.next, %linger ]
{_load("%left", "inside")}
  %nobody = icmp eq i64 %left, 0
  br i1 %nobody, label %settle, label %linger
linger:
  {pause}
  %spin.next = add i64 %spin, 1
  %long = icmp sgt i64 %spin.next, {_LOOKS}
  br i1 %long, label %slow, label %empty
slow:
  %slow.since = call i64 @wayfare_threads_time()
{anywhere}
doze:
  %sl = call i32 @pthread_mutex_lock(ptr @wayfare_threads_lock)
{_store("1", "waiting")}
  br label %check
check:
{_load("%inside.now", "inside")}
  %gone = icmp eq i64 %inside.now, 0
  br i1 %gone, label %awake, label %nap
nap:
  %sw = call i32 @pthread_cond_wait(ptr @wayfare_threads_done, ptr @wayfare_threads_lock)
  br label %check
awake:
{_store("0", "waiting")}
  %su = call i32 @pthread_mutex_unlock(ptr @wayfare_threads_lock)
  %slow.end = call i64 @wayfare_threads_time()
  %waited = sub i64 %slow.end, %slow.since
  ; A helper's last block takes no longer than the caller's blocks took; if the caller ran none, nothing is known.
  %worked = sub i64 %slow.since, %began
  %undue = add i64 %worked, {_UNDUE}
  %longer = icmp sgt i64 %waited, %undue
  %own.blocks = load i64, ptr %mine
  %any.own = icmp ne i64 %own.blocks, 0
  %too.long = and i1 %longer, %any.own
  br i1 %too.long, label %back.off, label %settle
back.off:
  %cr = atomicrmw add ptr {_global("crowded")}, i64 1 seq_cst
{_load("%before", "alone_for")}
  %twice = shl i64 %before, 1
  %few = icmp slt i64 %twice, {_ALONE_FIRST}
  %at.least = select i1 %few, i64 {_ALONE_FIRST}, i64 %twice
  %many = icmp sgt i64 %at.least, {_ALONE_LONGEST}
  %for = select i1 %many, i64 {_ALONE_LONGEST}, i64 %at.least
{_store("%for", "alone_for")}
  %end.alone = add i64 %slow.end, %for
{_store("%end.alone", "alone_until")}
  br label %settled
settle:
  ; The helpers were in time: halve the next pause.
{_load("%pause.was", "alone_for", "monotonic")}
  %never = icmp eq i64 %pause.was, 0
  br i1 %never, label %settled, label %calmer
calmer:
  %half = lshr i64 %pause.was, 1
{_store("%half", "alone_for")}
  br label %settled
settled:
  {clock.replace("%now", "%end")}
  store i64 %end, ptr {_global("ended")}
{_store("0", "busy")}
  br label %out
out:
  ret void
}}
"""


SERIAL = f"""
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
