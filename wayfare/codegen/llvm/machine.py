"""LLVM itself: IR text to object code for this processor, and object code to callable addresses.

llvmlite is imported when the first kernel is wanted, not before: it is a large library, and small programs never need
it.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import Any

from wayfare.codegen.math.library import symbol_address
from wayfare.core.locks import lock

# Held by whoever makes or loads code. A fork waits for it: in the child there would be nobody to finish the work.
BUILDING = lock()


@dataclass(frozen=True, slots=True)
class Processor:
    """What code is made for; part of every key of the cache on disk."""

    name: str
    features: str
    llvm: str
    # Vector lanes of 32 bits.
    lanes: int
    # Can it convert half precision itself? If not, LLVM would call library functions that are not there.
    half: bool


class Machine:
    """One target and one place for loaded code, for the life of the process."""

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
        # The engine takes its target machine over, so it gets one of its own.
        own = target.create_target_machine(cpu=name, features=flat, opt=2)
        helpers = _TO_HALF if half and self.is_x86 else ""
        self._engine: Any = binding.create_mcjit_compiler(binding.parse_assembly(helpers), own)
        # Helpers may still be in loaded code when the interpreter ends, so it is never unloaded.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
        self._symbols: set[str] = set()

    def optimised(self, text: str) -> Any:
        """An LLVM module from IR text: checked, then simplified. Loops are written as vectors already."""
        binding = self.binding
        parsed = binding.parse_assembly(text)
        parsed.verify()
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = binding.create_pass_builder(self._target, options)
        builder.getModulePassManager().run(parsed, builder)
        return parsed

    def object_code(self, text: str) -> bytes:
        """Machine code in an object file."""
        with BUILDING:
            return bytes(self._target.emit_object(self.optimised(text)))

    def assembly(self, text: str) -> str:
        """The machine code as text."""
        with BUILDING:
            return str(self._target.emit_assembly(self.optimised(text)))

    def load(self, code: bytes, symbols: frozenset[str]) -> None:
        """Bring object code into the process; `symbols` are the library functions it calls."""
        with BUILDING:
            for symbol in symbols - self._symbols:
                self.add_symbol(symbol, symbol_address(symbol))
            self._engine.add_object_file(self.binding.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def add_symbol(self, symbol: str, address: int) -> None:
        """Let code that is loaded from now on call a function by this name."""
        self.binding.add_symbol(symbol, address)
        self._symbols.add(symbol)

    def address(self, function: str) -> int:
        """Where a loaded function begins."""
        found = int(self._engine.get_function_address(function))
        if not found:
            raise RuntimeError(f"LLVM has lost the function {function}")
        return found


# LLVM may make a conversion of f64 to f16 of what was written as two (a sign that is copied from one to the other). No
# processor has it, so it calls this function of the compiler's own library, which is not in the process. The f32
# between the two is rounded to odd, so it is never halfway between two f16, nor equal to one it was not equal to.
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
    """The one machine; raises whatever is wrong with llvmlite here."""
    if not _machine:
        with BUILDING:
            if not _machine:
                _machine.append(Machine())
    return _machine[0]
