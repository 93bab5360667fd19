"""LLVM through llvmlite: from IR text to object code for this processor, and from object code to callable addresses.

llvmlite is a large library, so it is only imported when the first kernel is built.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import Any

from wayfare.codegen.math.library import symbol_address
from wayfare.core.locks import lock

# Held while code is compiled or loaded. A fork waits for it: the thread that holds it would not exist in the child.
BUILDING = lock()


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor that code is compiled for; part of every key of the disk cache."""

    name: str
    features: str
    llvm: str
    # Vector lanes of 32 bits.
    lanes: int
    # Does it have conversion instructions for f16? Without them LLVM calls compiler-rt functions, which are not loaded.
    half: bool


class Machine:
    """The target machine and the JIT engine of this process."""

    def __init__(self) -> None:
        llvmlite: Any = importlib.import_module("llvmlite")
        binding: Any = importlib.import_module("llvmlite.binding")
        self.binding = binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        features = binding.get_host_cpu_features()
        target = binding.Target.from_default_triple()
        flat = features.flatten()
        name = binding.get_host_cpu_name()
        wide = bool(features.get("avx512f"))
        self.is_x86 = target.triple.startswith(("x86", "i386", "i686"))
        half = bool(features.get("f16c")) or not self.is_x86
        version = f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"
        self.processor = Processor(name, flat, version, 16 if wide else 8, half)
        self._target: Any = target.create_target_machine(cpu=name, features=flat, opt=2)
        # The engine takes ownership of its target machine, so it needs a second one.
        own = target.create_target_machine(cpu=name, features=flat, opt=2)
        helpers = _TO_HALF if half and self.is_x86 else ""
        self._engine: Any = binding.create_mcjit_compiler(binding.parse_assembly(helpers), own)
        # Never unloaded: pool threads may still run its code when the interpreter exits.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
        self._symbols: set[str] = set()

    def optimised(self, text: str) -> Any:
        """Parse, verify and optimise IR text. LLVM's vectorisers are off: the IR already uses vectors."""
        binding = self.binding
        parsed = binding.parse_assembly(text)
        parsed.verify()
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = binding.create_pass_builder(self._target, options)
        builder.getModulePassManager().run(parsed, builder)
        return parsed

    def object_code(self, text: str) -> bytes:
        """Compile IR text to an object file."""
        with BUILDING:
            return bytes(self._target.emit_object(self.optimised(text)))

    def assembly(self, text: str) -> str:
        """Compile IR text to assembly."""
        with BUILDING:
            return str(self._target.emit_assembly(self.optimised(text)))

    def load(self, code: bytes, symbols: frozenset[str]) -> None:
        """Load object code; `symbols` are the library functions it calls."""
        with BUILDING:
            for symbol in symbols - self._symbols:
                self.add_symbol(symbol, symbol_address(symbol))
            self._engine.add_object_file(self.binding.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def add_symbol(self, symbol: str, address: int) -> None:
        """Make a function callable by name from code that is loaded later."""
        self.binding.add_symbol(symbol, address)
        self._symbols.add(symbol)

    def address(self, function: str) -> int:
        """The address of a loaded function."""
        found = int(self._engine.get_function_address(function))
        if not found:
            raise RuntimeError(f"LLVM does not find the function {function}")
        return found


# LLVM may merge two conversions into one from f64 to f16 (around copysign). No processor has that instruction, so LLVM
# calls __truncdfhf2 of compiler-rt, which is not in the process; this defines it. The f32 in between is rounded to odd,
# see `Body._odd`.
_TO_HALF = """
declare double @llvm.fabs.f64(double)
define half @__truncdfhf2(double %x) {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %last = and i32 %bits, 1
  %even = icmp eq i32 %last, 0
  %inexact = fcmp one double %back, %x
  %off = and i1 %even, %inexact
  %size = call double @llvm.fabs.f64(double %back)
  %wanted = call double @llvm.fabs.f64(double %x)
  %further = fcmp ogt double %size, %wanted
  %by = select i1 %further, i32 -1, i32 1
  %step = select i1 %off, i32 %by, i32 0
  %moved = add i32 %bits, %step
  %odd = bitcast i32 %moved to float
  %half = fptrunc float %odd to half
  ret half %half
}
"""

_machine: list[Machine] = []


def machine() -> Machine:
    """The machine of this process. Raises if llvmlite is missing or broken."""
    if not _machine:
        with BUILDING:
            if not _machine:
                _machine.append(Machine())
    return _machine[0]
