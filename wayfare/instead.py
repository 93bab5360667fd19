"""Names of PyTorch that Wayfare leaves out, and what to write in their place: said where somebody asks for one."""

from __future__ import annotations

__all__ = ["LEFT_OUT", "no_such_name"]

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
        **_each("amp autocast GradScaler", "there is no mixed precision; leave autocast and GradScaler out"),
        **_each("bfloat16 float8_e4m3fn float8_e5m2", "use wf.float32, or wf.float16 to store numbers in less room"),
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
        "distributed": "training runs in one process; leave torch.distributed out",
        "multiprocessing": "use Python's multiprocessing: tensors can be pickled",
        "hub": "there is no hub; wf.load reads safetensors files",
        **_each("channels_last channels_last_3d contiguous_format preserve_format memory_format",
                "memory formats change nothing here; leave memory_format= out"),
        **_each("strided layout", "every tensor is strided; leave layout= out"),
        "set_default_tensor_type": "use wf.set_default_dtype",
        "range": "use wf.arange, which leaves the end out",
    },
    "wayfare.nn": {
        **{f"Lazy{name}": f"there are no lazy modules; give nn.{name} its size (the error of a call names it)"
           for name in ("Linear", *(f"{kind}{n}d" for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
                                    for n in (1, 2, 3)))},
        **_each("DataParallel SyncBatchNorm parallel", "training runs on one device; use the module itself"),
        **_each("AdaptiveLogSoftmaxWithLoss LinearCrossEntropyLoss", "use nn.Linear and nn.CrossEntropyLoss"),
        "CrossMapLRN2d": "use nn.LocalResponseNorm",
        "NLLLoss2d": "use nn.NLLLoss, which takes images too",
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
    "wayfare.autograd": {
        "Variable": "use the tensor itself; t.requires_grad_() makes it a leaf that gets a gradient",
        "profiler": "use wf.profile()",
        "forward_ad": "use wf.func.jvp",
    },
}  # fmt: skip


def no_such_name(package: str, name: str, advice: str | None = None) -> AttributeError:
    """The error for a name that a package does not have, with what to write if that is known."""
    known = advice or LEFT_OUT.get(package, {}).get(name)
    if known:
        return AttributeError(f"{package}.{name}: {known}")
    return AttributeError(f"module {package!r} has no attribute {name!r}")
