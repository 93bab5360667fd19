"""Native code for the CPU: the loop language, its LLVM back end, hand-written routines, and the runtime."""
