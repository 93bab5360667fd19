"""Module: parameters, buffers and other modules under names, and a `forward`.

What is registered lies in the instance itself, like any attribute, so reading `self.weight` costs nothing extra; the
module only remembers which names are registered, and as what.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from wayfare.core.errors import ArgumentError, ArgumentTypeError, NotReadyError, WayfareError
from wayfare.core.mode import UNUSUAL, executor
from wayfare.core.node import Handle
from wayfare.core.spec import DType, bfloat16, float16, float32, float64
from wayfare.core.structure_epoch import EPOCH, NUMBERS, structure_changed
from wayfare.core.tensor import Tensor
from wayfare.nn import hooks as around
from wayfare.nn.converting import target_of
from wayfare.nn.parameter import Buffer, Parameter, is_saved
from wayfare.nn.state import collect_state, load_state
from wayfare.nn.tables import BUFFER, MODULE, PARAMETER, TRANSIENT, table

__all__ = ["Module"]

_TENSORS = (PARAMETER, BUFFER, TRANSIENT)
T = TypeVar("T")
P = ParamSpec("P")
Result = TypeVar("Result", covariant=True)


class HasForward(Protocol[P, Result]):
    """What a type checker needs to infer the signature of a call of a module."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """What the module computes."""


class KeyChanges(NamedTuple):
    """The keys that `load_state_dict` did not use."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class Module:
    """Base of all layers and models: assign parameters, buffers and modules to `self`, and write `forward`.

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden = nn.Linear(10, 16)
                self.out = nn.Linear(16, 1)

            def forward(self, x):
                return self.out(self.hidden(x).tanh())
    """  # fmt: skip

    training: bool

    def __init__(self) -> None:
        set_ = super().__setattr__
        set_("_names", {})  # registered name → what it is registered as, in order
        set_("_hooks", None)
        set_("training", True)
        if UNUSUAL:
            executor().born(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes: to be written by each kind of module."""
        raise NotImplementedError(f"{type(self).__name__} has no forward, so it cannot be called. "
                                  "Define forward(self, …) in it, or call the modules inside it.")  # fmt: skip

    @around.in_front_of_call
    def __call__(self: HasForward[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        module: Any = self  # for the type checker: a call takes and gives what `forward` does
        try:
            if module._hooks is None:
                made = around.as_one(module, args, kwargs) if UNUSUAL else NotImplemented
                return module.forward(*args, **kwargs) if made is NotImplemented else made  # type: ignore[no-any-return]
            return around.call(module, module._hooks, args, kwargs)  # type: ignore[no-any-return]
        except WayfareError as error:
            around.name_the_way(module, error)
            raise
        except AttributeError as error:
            raise (error if "_names" in module.__dict__ else module._not_ready()) from None

    # -- registering ----------------------------------------------------------------------------------------------

    _names: dict[str, str]
    _hooks: around.Hooks | None
    _modules = table((MODULE,), "register_module")
    _parameters = table((PARAMETER,), "register_parameter")
    _buffers = table((BUFFER, TRANSIENT), "register_buffer")

    def __setattr__(self, name: str, value: Any) -> None:
        if UNUSUAL:
            executor().changes(self, f"it sets `{name}` of a module that all examples see")
        kind = _kind_of(value)
        names = self.__dict__.get("_names")
        if names is None:
            if kind is not None:
                raise self._not_ready(name)
            super().__setattr__(name, value)
            return
        registered = names.get(name)
        if registered is None:
            if kind is None:
                super().__setattr__(name, value)
                EPOCH[0] = next(NUMBERS)
                return
        elif value is None or (registered in (BUFFER, TRANSIENT) and isinstance(value, Tensor) and kind != PARAMETER):
            kind = registered
        elif kind is None or (registered == PARAMETER and kind != PARAMETER):
            wanted = {PARAMETER: "an nn.Parameter", MODULE: "an nn.Module"}.get(registered, "a Tensor")
            raise ArgumentTypeError(
                f"{type(self).__name__}.{name} is a registered {registered}: it takes {wanted} or None, not "
                f"{type(value).__name__}", fix=f"Wrap it, or del module.{name} first.")  # fmt: skip
        self._enter(name, kind, value)

    def _not_ready(self, name: str = "") -> WayfareError:
        what = f"{type(self).__name__}: cannot " + (f"take in {name!r}" if name else "be used")
        return NotReadyError(f"{what} before Module.__init__ has run", fix="Call super().__init__() first in __init__.")

    def _enter(self, name: str, kind: str, value: Any) -> None:
        if self._names.get(name, kind) != kind:
            del self._names[name]
        self._names[name] = kind
        self.__dict__[name] = value
        EPOCH[0] = next(NUMBERS)

    def __delattr__(self, name: str) -> None:
        executor().changes(self, f"it deletes `{name}` of a module that all examples see")
        super().__delattr__(name)
        self._names.pop(name, None)
        structure_changed()

    def _check_name(self, name: str, what: str) -> None:
        if "_names" not in self.__dict__:
            raise self._not_ready(name)
        if not isinstance(name, str):
            raise ArgumentTypeError(f"the name of a {what} must be a str, not {type(name).__name__}")
        if "." in name or not name:
            raise KeyError(f"the name of a {what} cannot be {name!r}: it must not be empty or contain a dot")
        if hasattr(self, name) and not self._names.get(name, "").startswith(what):
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter under a name; None reserves the name."""
        self._check_name(name, "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentTypeError(f"register_parameter: {name!r} must be an nn.Parameter or None, not "
                                    f"{type(param).__name__}", fix="Wrap it: nn.Parameter(tensor).")  # fmt: skip
        self._enter(name, PARAMETER, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but not learnt; if it is not persistent, `state_dict` leaves it out."""
        self._check_name(name, "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"register_buffer: {name!r} must be a Tensor or None, not {type(tensor).__name__}")
        self._enter(name, BUFFER if persistent else TRANSIENT, tensor)

    def register_module(self, name: str, module: Module | None) -> None:
        """Register a module under a name."""
        self._check_name(name, "module")
        if module is not None and not isinstance(module, Module):
            raise ArgumentTypeError(f"add_module: {name!r} must be an nn.Module or None, not {type(module).__name__}")
        self._enter(name, MODULE, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a module under a name."""
        self.register_module(name, module)

    # -- looking around -------------------------------------------------------------------------------------------

    def _registered(self, *kinds: str) -> Iterator[tuple[str, Any]]:
        """(name, value) of what is registered as one of these kinds and is there."""
        held = self.__dict__
        if "_names" not in held:
            raise self._not_ready()
        for name, kind in list(self._names.items()):
            if kind in kinds and held[name] is not None:
                yield name, held[name]

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules directly inside, each once."""
        seen: set[Module] = set()
        for name, module in self._registered(MODULE):
            if module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly inside."""
        for _, module in self.named_children():
            yield module

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) of this module and all inside it, parents first."""
        memo = set() if memo is None else memo
        waiting: list[tuple[str, Module]] = [(prefix, self)]
        while waiting:
            path, module = waiting.pop()
            if module in memo:
                continue
            if remove_duplicate:
                memo.add(module)
            yield path, module
            inside = [(f"{path}.{name}" if path else name, child) for name, child in module._registered(MODULE)]
            waiting.extend(reversed(inside))

    def modules(self) -> Iterator[Module]:
        """This module and all inside it."""
        for _, module in self.named_modules():
            yield module

    def _named_tensors(
        self, kinds: tuple[str, ...], prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, tensor in module._registered(*kinds):
                if remove_duplicate:
                    if id(tensor) in seen:
                        continue
                    seen.add(id(tensor))
                yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(path, parameter) of all parameters; one that is shared comes once."""
        return self._named_tensors((PARAMETER,), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, to give to an optimiser."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(path, buffer) of all buffers."""
        return self._named_tensors((BUFFER, TRANSIENT), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The module at a path such as `"encoder.layers.3"`; the empty path is this one."""
        module: Any = self
        for step in target.split(".") if target else []:
            if not isinstance(module, Module) or module._names.get(step) != MODULE:
                raise AttributeError(f"{type(self).__name__}: there is no module {target!r} (nothing at {step!r})")
            module = module.__dict__[step]
        return module  # type: ignore[no-any-return]

    def set_submodule(self, target: str, module: Module) -> None:
        """Put a module at a path, in the place of what is there."""
        parent, _, name = target.rpartition(".")
        if not name:
            raise ArgumentError("set_submodule: the path is empty", fix="Name the module to be replaced.")
        self.get_submodule(parent).register_module(name, module)

    def _get_tensor(self, target: str, kinds: tuple[str, ...]) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if module._names.get(name) not in kinds:
            raise AttributeError(f"{type(self).__name__}: there is no {kinds[0]} {target!r}")
        return module.__dict__[name]

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path."""
        return self._get_tensor(target, (PARAMETER,))  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path."""
        return self._get_tensor(target, (BUFFER, TRANSIENT))  # type: ignore[no-any-return]

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Parameters and buffers by path. They share the module's memory; `wf.save` writes them to a file."""
        into: Any = OrderedDict() if destination is None else destination
        collect_state(self, into, prefix, keep_vars)
        return into  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> KeyChanges:
        """Copy values in from a `state_dict`: everything, or nothing and an error that lists all that does not fit.

        Without `strict`, keys on one side only are accepted. With `assign` the tensors themselves are taken over.
        """
        return KeyChanges(*load_state(self, state_dict, strict, assign))

    # -- modes and types ------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Put this module and all inside it into training mode (dropout drops, batch norm follows the batch)."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"train: mode must be True or False, not {mode!r}")
        for module in self.modules():
            if module.__dict__.get("training") is not mode:
                module.training = mode
        return self

    def eval(self) -> Self:
        """Out of training mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Ask for gradients of all parameters, or (False) freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        structure_changed()
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.detach().zero_()

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module inside, children first, and on this one."""
        if not callable(fn):
            raise ArgumentTypeError(f"apply: takes a function of a module, not {type(fn).__name__}")
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _convert(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Give every parameter and buffer new memory; the tensor objects stay the same."""
        for _, tensor in self._named_tensors(_TENSORS, "", True, True):
            grad = tensor.grad
            tensor.grad = None
            tensor.data = change(tensor.data)
            if grad is not None:
                tensor.grad = change(grad.detach())
        return self

    def to(self, *args: Any, **options: Any) -> Self:
        """Convert to a dtype (floating-point tensors only), a device, or those of another tensor."""
        dtype, device = target_of(args, options)
        return self._convert(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None))

    def type(self, dst_type: DType) -> Self:
        """Convert all parameters and buffers to a dtype."""
        return self._convert(lambda t: t.to(dst_type))

    def float(self) -> Self:
        """Floating-point parameters and buffers as float32."""
        return self.to(float32)

    def double(self) -> Self:
        """Floating-point parameters and buffers as float64."""
        return self.to(float64)

    def half(self) -> Self:
        """Floating-point parameters and buffers as float16."""
        return self.to(float16)

    def bfloat16(self) -> Self:
        """Floating-point parameters and buffers as bfloat16."""
        return self.to(bfloat16)

    def cpu(self) -> Self:
        """All parameters and buffers on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        """All parameters and buffers on a GPU."""
        return self._convert(lambda t: t.cuda(device))

    # -- hooks ----------------------------------------------------------------------------------------------------

    def _own_hooks(self) -> around.Hooks:
        if self._hooks is None:
            self._hooks = around.Hooks()
        return self._hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        """Call `hook(module, args)` before each forward; what it returns replaces the arguments."""
        return around.add(self._own_hooks().forward_pre, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Handle:
        """Call `hook(module, args, output)` after each forward; what it returns replaces the output."""
        return around.add(self._own_hooks().forward, (hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call `hook(module, grad_output)` when the gradients of the outputs are known; it may replace them."""
        return around.add(self._own_hooks().backward_pre, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs are; it may replace those."""
        return around.add(self._own_hooks().backward, hook, prepend)

    # -- reading --------------------------------------------------------------------------------------------------

    # Set by `wayfare.nn.summary`: a table of the layers, given inputs with what each puts out and how often it runs.
    summary: Callable[..., Any]

    def extra_repr(self) -> str:
        """What a layer shows of itself inside the brackets."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._shown_children()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + children) + "\n)"

    def _shown_children(self) -> Iterator[tuple[str, Any]]:
        if "_names" not in self.__dict__:
            raise self._not_ready()
        return iter([(name, self.__dict__[name]) for name, kind in self._names.items() if kind == MODULE])


def _kind_of(value: Any) -> str | None:
    """As what a value is registered when it is assigned; None for any other value."""
    if isinstance(value, Tensor):
        if isinstance(value, Buffer):
            return BUFFER if is_saved(value) else TRANSIENT
        return PARAMETER if isinstance(value, Parameter) else None
    return MODULE if isinstance(value, Module) else None
