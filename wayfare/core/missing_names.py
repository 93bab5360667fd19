"""Names of PyTorch that Wayfare does not have, with advice on what to write instead, for the error messages."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["LEFT_OUT", "MissingModules", "NotThere", "near_in", "nearest", "no_such_name"]

_OLD = {
    name: f"use wf.tensor(data, dtype=wf.{kind}), or wf.empty(size, dtype=wf.{kind}) if a size was given"
    for name, kind in {
        "BoolTensor": "bool", "ByteTensor": "uint8", "CharTensor": "int8", "ShortTensor": "int16", "IntTensor": "int32",
        "LongTensor": "int64", "HalfTensor": "float16", "FloatTensor": "float32", "DoubleTensor": "float64",
    }.items()
}  # fmt: skip
_WINDOWS = {
    f"{name}_window": f"use wf.signal.windows.{name}(n, sym=False)"
    for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
}


def _each(names: str, advice: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


# package → name → what to write.
LEFT_OUT = {
    "wayfare": {
        **_OLD,
        **_WINDOWS,
        "GradScaler": "use wf.amp.GradScaler",
        **_each("float8_e4m3fn float8_e5m2", "use wf.float16 or wf.bfloat16 to store numbers in less room"),
        **_each("uint16 uint32 uint64", "use wf.int32 or wf.int64"),
        **_each("complex complex32 complex64 complex128 cfloat cdouble polar view_as_complex view_as_real",
                "complex numbers are out of scope; keep the real and imaginary parts as two real tensors"),
        **_each("fft stft istft", "Fourier transforms need complex numbers, which are out of scope; "
                "without a gradient, numpy.fft takes t.numpy()"),
        "distributions": "there are no distribution objects; draw with wf.normal, wf.multinomial or wf.bernoulli, "
                         "and take log-probabilities from wf.log_softmax",
        "jit": "use wf.compile for speed, and wf.export or wf.onnx.export for a file",
        **_each("fx _dynamo", "use wf.graph(t) to read a graph, and explain() of a compiled function"),
        "profiler": "use wf.profile()",
        **_each("sparse sparse_coo_tensor sparse_csr_tensor", "there are no sparse tensors; gradients of look-ups stay "
                "rows by themselves, and wf.segment_sum adds up rows by group"),
        **_each("quantization ao qint8 quint8 quantize_per_tensor", "there are no quantised tensors; use wf.float32"),
        "multiprocessing": "use Python's multiprocessing: tensors can be pickled; "
                           "processes that train together are started by: wayfare launch -n 4 train.py",
        "hub": "there is no hub; wf.load reads safetensors files",
        **_each("channels_last channels_last_3d contiguous_format preserve_format memory_format",
                "memory formats change nothing here; leave memory_format= out"),
        **_each("strided layout", "every tensor is strided; leave layout= out"),
        "set_default_tensor_type": "use wf.set_default_dtype",
        "range": "use wf.arange, which leaves the end out",
        **_each("functional", "its functions are names of wf itself, or of wf.nn.functional"),
        **_each("xpu mps mtia", "its devices are the CPU and CUDA; ask wf.accelerator.is_available() first"),
        **_each("Stream Event", "use wf.cuda.Stream and wf.cuda.Event"),
        "get_device_module": "the module of a GPU is wf.cuda, and wf.accelerator serves any kind",
        "OutOfMemoryError": "use wf.errors.OutOfMemoryError",
        **_each("eig symeig", "for a symmetric matrix use wf.linalg.eigh; other eigenvalues are complex numbers"),
        **_each("solve lstsq", "use wf.linalg.solve or wf.linalg.lstsq"),
        **_each("storage Storage FloatStorage UntypedStorage", "memory is NumPy's: t.numpy() shares it"),
        "to_dlpack": "t.__dlpack__() does it; other libraries take the tensor itself",
    },
    "wayfare.Tensor": {
        "new": "use t.new_empty, t.new_zeros, t.new_full or t.new_tensor",
        **_each("storage untyped_storage storage_type set_ const_data_ptr share_memory_ is_shared",
                "memory is NumPy's: t.numpy() shares it, and t.data_ptr() is its address"),
        **_each("cfloat cdouble chalf imag", "complex numbers are out of scope; keep two real tensors"),
        **_each("stft istft",
                "Fourier transforms need complex numbers, which are out of scope; numpy.fft takes t.numpy()"),
        **_each("to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc to_dense coalesce "
                "is_coalesced is_sparse_csr indices crow_indices col_indices sparse_mask sparse_dim dense_dim smm",
                "there are no sparse tensors; wf.segment_sum adds up rows by group"),
        **_each("dequantize int_repr q_scale q_zero_point qscheme is_quantized", "there are no quantised tensors"),
        **_each("gpu is_gpu xpu ipu mtia is_mps is_xpu is_ipu is_xla is_meta is_vulkan",
                "devices are the CPU and CUDA (t.is_cuda, t.cuda()); leave it out"),
        **_each("to_mkldnn is_mkldnn dim_order layout", "every tensor is strided; leave it out"),
        **_each("eig symeig", "for a symmetric matrix use wf.linalg.eigh; other eigenvalues are complex numbers"),
        **_each("solve lstsq", "use wf.linalg.solve or wf.linalg.lstsq"),
        **_each("map_ map2_ apply_", "use the function on the whole tensor, or wf.vmap"),
        **_each("resize resize_as", "use t.reshape, or t.resize_ for other memory"),
        "reinforce": "multiply the log-probability by the reward, and call backward()",
        "volatile": "use wf.no_grad()",
        "values": "there are no sparse tensors; t.numpy() is the array of all elements",
        "index": "use t[i], t.index_select or t.gather",
        "name": "tensors have no names; keep them in a dictionary",
        "is_nested": "use wf.Ragged for rows of different lengths",
    },
    "wayfare.nn": {
        **{f"Lazy{name}": f"there are no lazy modules; give nn.{name} its size (the error of a call names it)"
           for name in ("Linear", *(f"{kind}{n}d" for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
                                    for n in (1, 2, 3)))},
        "DataParallel": "use nn.parallel.DistributedDataParallel, with processes that wayfare launch starts",
        **_each("AdaptiveLogSoftmaxWithLoss LinearCrossEntropyLoss", "use nn.Linear and nn.CrossEntropyLoss"),
        "CrossMapLRN2d": "use nn.LocalResponseNorm",
        "NLLLoss2d": "use nn.NLLLoss, which takes images too",
        "modules": "its names are in wf.nn itself",
        **_each("quantized qat quantizable intrinsic", "there are no quantised layers"),
    },
    "wayfare.nn.utils": {
        **_each("weight_norm spectral_norm parametrize parametrizations",
                "weights are not reparametrised yet; compute the weight in forward and call wf.nn.functional.linear"),
        **_each("remove_weight_norm remove_spectral_norm", "weights are not reparametrised yet"),
        "clip_grad_norm": "use clip_grad_norm_",
        "stateless": "use wf.func.functional_call",
        "prune": "there is no pruning; multiply a weight by a mask under wf.no_grad()",
    },
    "wayfare.optim": {
        **_each("ASGD Adafactor Muon Rprop", "not there yet; wf.fused_update makes an update of your own"),
        "swa_utils": "not there yet; average under wf.no_grad(): mean.lerp_(p, 1 / (n + 1))",
    },
    "wayfare.cuda": {
        "amp": "use wf.amp",
        **_each("CUDAGraph graph graphs make_graphed_callables graph_pool_handle",
                "use wf.compile, which replays its plans as CUDA graphs"),
        **_each("memory_snapshot memory", "use wf.debug.leaks(), or wf.profile() for memory over time"),
        **_each("nvtx profiler", "use wf.profile()"),
        **_each("utilization temperature power_draw clock_rate memory_usage list_gpu_processes",
                "ask nvidia-smi, or the package nvidia-ml-py"),
        **_each("nccl comm", "wf.distributed sends tensors of the CPU"),
        **_each("ipc_collect caching_allocator_alloc caching_allocator_delete change_current_allocator MemPool "
                "use_mem_pool", "memory is CuPy's pool; wf.cuda.empty_cache() gives back what is free"),
        **_each("memory_cached max_memory_cached", "use wf.cuda.memory_reserved"),
        "default_generators": "there is one generator for all devices: wf.default_generator",
        **{name: advice.replace("dtype=", "device='cuda', dtype=") for name, advice in _OLD.items()},
        **_each("set_sync_debug_mode get_sync_debug_mode", "docs/gpu.md says what waits for the GPU"),
    },
    "wayfare.utils": {
        **_each("cpp_extension", "there are no extensions in C++; wf.fused and wf.compile make native code"),
        **_each("model_zoo", "there is no zoo of models; wf.load reads safetensors files"),
        **_each("bottleneck benchmark", "use wf.profile()"),
        "mobile_optimizer": "use wf.export or wf.onnx.export for a file",
    },
    "wayfare.utils.data": {
        **_each("dataset dataloader sampler", "its names are in wf.utils.data itself"),
        "datapipes": "there are no pipes; use wf.data.IterableDataset",
    },
    "wayfare.autograd": {
        **_each("variable", "use the tensor itself; t.requires_grad_() makes it a leaf that gets a gradient"),
        **_each("anomaly_mode", "use wf.autograd.detect_anomaly()"),
        **_each("grad_mode", "use wf.no_grad, wf.enable_grad or wf.set_grad_enabled"),
        "Variable": "use the tensor itself; t.requires_grad_() makes it a leaf that gets a gradient",
        "profiler": "use wf.profile()",
        "forward_ad": "use wf.func.jvp",
    },
}  # fmt: skip


class NotThere:
    """Stands in a class for a missing name: accessing it raises an AttributeError with advice."""

    def __init__(self, package: str, name: str) -> None:
        self.package, self.name = package, name

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        raise no_such_name(self.package, self.name)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The public name that was most likely meant; None if none is similar enough.

    Python's own suggestion takes "ne" for "new". Here a name of up to three letters may only differ in case; a longer
    one must have nearly all letters right, and the first one.
    """
    public = sorted(other for other in known if not other.startswith("_") and other != name)
    plain = _plain(name)
    same = [other for other in public if _plain(other) == plain]
    if same or len(plain) < 4:
        return same[0] if same else None
    turned = [other for other in public if other[0] == name[0] and sorted(other) == sorted(name)]
    near = [other for other in public if other[0].lower() == name[0].lower()]
    # On a tie the alphabetically first: BatchNorm1d before BatchNorm3d.
    close = difflib.get_close_matches(name, near, n=3, cutoff=0.82)
    matches = turned or sorted(close, key=lambda other: (-_alike(name, other), other))
    return matches[0] if matches else None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _alike(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, name).ratio()


# Submodules that count as public names, in addition to those in `wayfare.__all__`.
_MODULES = ("functional", "init", "lr_scheduler", "parameter", "rnn", "utils")


def _public(module: Any) -> list[str]:
    """The public names of a module, without modules that it merely imports."""
    held = getattr(module, "__dict__", {})
    listed = held.get("__all__", ()) if getattr(module, "__name__", "") == "wayfare" else _MODULES
    return [name for name in dir(module) if name in listed or not isinstance(held.get(name), ModuleType)]


def near_in(owner: Any, name: str) -> str | None:
    """The attribute of an object or module of Wayfare that was most likely meant."""
    return nearest(name, _public(owner) if isinstance(owner, ModuleType) else dir(owner))


def no_such_name(package: str, name: str, advice: str | None = None) -> AttributeError:
    """The error for a name that a package does not have, with advice if there is some."""
    known = advice or LEFT_OUT.get(package, {}).get(name)
    if known:
        text = f"{package}.{name}: {known}"
    else:
        near = None if name.startswith("_") else near_in(sys.modules.get(package), name)
        text = f"module {package!r} has no attribute {name!r}" + (f". Did you mean {near!r}?" if near else "")
    # With `obj=None` Python adds no suggestion of its own when it prints the error.
    return AttributeError(text, name=name, obj=None)


class MissingModules:
    """The last finder of modules: `import wayfare.jit` raises the same advice as the attribute `wayfare.jit`.

    `rooms` maps public modules to their real places, because Python asks by the real name.
    """

    def __init__(self, rooms: Mapping[str, str]) -> None:
        self._public = {f"wayfare.{room}": f"wayfare.{name}" for name, room in rooms.items()}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """None, or an error with advice where a module of this package is left out."""
        parent, _, name = fullname.rpartition(".")
        if not parent.startswith("wayfare"):
            return
        room = ".".join(parent.split(".")[:3])
        parent = self._public.get(room, room) + parent[len(room) :]
        fullname = f"{parent}.{name}"
        advice = LEFT_OUT.get(parent, {}).get(name)
        if advice is None and name in getattr(sys.modules.get(parent), "__dict__", {}):
            advice = f"it is a name of {parent} and no module; write: from {parent} import {name}"
        if advice is not None:
            # Without `name=`, because Python would replace the text of the error of `from wayfare import jit`.
            raise ModuleNotFoundError(f"{fullname}: {advice}")
