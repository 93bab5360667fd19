"""From the loop language to LLVM IR, and from LLVM IR to machine code."""
