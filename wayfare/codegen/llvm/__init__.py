"""The loop language as LLVM IR, and LLVM IR as machine code."""
