"""nn.Module without a referee: states that load whole or not at all, errors that name the layer, models that change."""

import copy
import gc
import weakref

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn


class Affine(nn.Module):
    """A layer whose weight counts upward, so that two of them are told apart."""

    def __init__(self, inside, outside, start=0.0):
        super().__init__()
        self.weight = nn.Parameter(wf.arange(inside * outside).float().reshape(outside, inside) / 10 + start)
        self.bias = nn.Parameter(wf.zeros(outside))

    def forward(self, x):
        return x @ self.weight.t() + self.bias

    def extra_repr(self):
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"


class Encoder(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList([Affine(a, b) for a, b in sizes])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Net(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.encoder = Encoder(sizes)
        self.head = Affine(sizes[-1][1], 1)

    def forward(self, x):
        return self.head(self.encoder(x))


def values(module):
    return {key: value.numpy().copy() for key, value in module.state_dict().items()}


# -- errors name the layer ---------------------------------------------------------------------------------------------


def test_an_error_names_the_layer_by_its_path():
    net = Net((3, 4), (5, 6))
    with pytest.raises(wf.errors.ShapeError) as raised:
        net(wf.ones(2, 3))
    message = str(raised.value)
    assert "in encoder.layers.1 = Affine(5, 6)" in message
    assert "f32[2,4]" in message
    assert "test_module.py:" in message


def test_an_error_in_a_layer_on_its_own_shows_the_layer():
    with pytest.raises(wf.errors.ShapeError, match=r", in Affine\(3, 4\) \(test_module.py:\d+\)"):
        Affine(3, 4)(wf.ones(2, 2))


def test_an_error_in_a_layer_kept_outside_the_module_names_its_class():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.secret = [Affine(3, 4)]

        def forward(self, x):
            return self.secret[0](x)

    with pytest.raises(wf.errors.ShapeError, match=r"in Affine = Affine\(3, 4\)"):
        Hidden()(wf.ones(2, 2))


def test_an_error_caught_in_the_middle_keeps_its_words():
    class Careful(Net):
        def forward(self, x):
            try:
                return super().forward(x)
            except wf.errors.ShapeError as error:
                assert "encoder.layers.0" not in str(error)  # the way is known as far as it has come
                raise

    with pytest.raises(wf.errors.ShapeError, match=r"in encoder\.layers\.0 ="):
        Careful((3, 4))(wf.ones(2, 2))


def test_errors_outside_modules_name_no_layer():
    with pytest.raises(wf.errors.ShapeError) as raised:
        wf.ones(2, 3) @ wf.ones(2, 3)
    assert ", in " not in str(raised.value)


# -- states ------------------------------------------------------------------------------------------------------------


def test_a_state_that_does_not_fit_changes_nothing_and_all_is_listed():
    net = Net((3, 4), (4, 5))
    before = values(net)
    state = {key: value + 1 for key, value in net.state_dict().items()}
    del state["head.bias"]
    state["head.weight"] = wf.ones(2, 2)
    state["encoder.layers.0.bias"] = "words"
    state["extra"] = wf.ones(1)
    with pytest.raises(wf.errors.OperationError) as raised:
        net.load_state_dict(state)
    message = str(raised.value)
    for part in ("missing from the state: head.bias", "not in the model: extra",
                 "head.weight: [2, 2] in the state, [1, 5]", "encoder.layers.0.bias: a str is no tensor"):  # fmt: skip
        assert part in message
    for key, value in values(net).items():
        np.testing.assert_array_equal(value, before[key])


def test_numpy_arrays_are_taken_from_a_state():
    net = Affine(3, 2)
    net.load_state_dict({"weight": np.full((2, 3), 7.0), "bias": np.ones(2, np.float32)})
    assert net.weight.tolist() == [[7.0] * 3] * 2 and net.weight.dtype is wf.float32


def test_a_loaded_state_shares_no_memory():
    net = Affine(3, 2)
    given = wf.ones(2, 3)
    net.load_state_dict({"weight": given, "bias": wf.ones(2)})
    given.zero_()
    assert net.weight.sum().item() == 6


def test_loading_is_noticed_by_a_graph_that_kept_the_old_weight():
    net = Affine(3, 2)
    x = wf.ones(1, 3, requires_grad=True)
    loss = net(x).sum()
    net.load_state_dict(Affine(3, 2, start=1.0).state_dict())
    with pytest.raises(wf.errors.InPlaceError):
        loss.backward()


# -- models that change while they train -------------------------------------------------------------------------------


def train_step(net, x):
    net.zero_grad()
    net(x).sum().backward()
    with wf.no_grad():
        for p in net.parameters():
            if p.grad is not None:
                p.sub_(p.grad * 0.01)


def test_the_structure_changes_between_steps():
    net = Net((3, 3), (3, 3))
    x = wf.ones(2, 3)
    train_step(net, x)
    net.encoder.layers.append(Affine(3, 3))
    train_step(net, x)
    assert net.encoder.layers[2].weight.grad is not None
    net.head = Affine(3, 2)
    train_step(net, x)
    assert net(x).shape == (2, 2)
    net.encoder.layers[0].requires_grad_(False)
    frozen = net.encoder.layers[0].weight.clone()
    train_step(net, x)
    np.testing.assert_array_equal(net.encoder.layers[0].weight.numpy(), frozen.numpy())
    del net.encoder.layers[1]
    train_step(net, x)
    assert [name for name, _ in net.named_parameters()] == [
        "encoder.layers.0.weight", "encoder.layers.0.bias", "encoder.layers.1.weight", "encoder.layers.1.bias",
        "head.weight", "head.bias",
    ]  # fmt: skip


def test_a_removed_layer_is_freed(no_cycle_collector):
    net = Net((3, 3), (3, 3))
    train_step(net, wf.ones(2, 3))
    gone = weakref.ref(net.encoder.layers[1])
    del net.encoder.layers[1]
    assert gone() is None
    assert gc.collect() >= 0


def test_reading_a_registered_value_is_reading_an_attribute():
    net = Affine(3, 2)
    assert net.__dict__["weight"] is net.weight
    with pytest.raises(AttributeError, match="wieght"):
        net.wieght


# -- text --------------------------------------------------------------------------------------------------------------


def test_summary_counts_calls_shapes_and_parameters():
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Affine(2, 3)
            self.join = Affine(6, 3)
            self.idle = Affine(1, 1)

        def forward(self, tree):
            if isinstance(tree, wf.Tensor):
                return self.leaf(tree)
            return self.join(wf.cat([self(part) for part in tree], dim=-1))

    net = Recursive()
    net.leaf.requires_grad_(False)
    a = wf.ones(2)
    table = net.summary(((a, a), (a, (a, a))))
    calls = {layer.path: (layer.calls, layer.output, layer.parameters) for layer in table.layers}
    assert calls == {
        "": (9, "f32[3]", 0), "leaf": (5, "f32[3]", 9), "join": (4, "f32[3]", 21), "idle": (0, "not called", 2),
    }  # fmt: skip
    assert (table.parameters, table.trainable, table.bytes) == (32, 23, 128)
    text = str(table)
    assert "32 parameters (23 trainable, 9 frozen), 128 B" in text
    assert max(map(len, text.splitlines())) <= 80


def test_summary_leaves_no_trace():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", wf.zeros(1))

        def forward(self, x):
            if self.training:
                self.count.add_(1)
            return x + wf.rand(1)

    net = nn.Sequential(Noisy(), Noisy())
    net[1].eval()
    wf.manual_seed(3)
    state = wf.get_rng_state()
    net.summary(wf.ones(2))
    assert net[0].count.item() == 0
    assert [module.training for module in net] == [True, False]
    assert wf.get_rng_state().tolist() == state.tolist()
    assert not net[0]._hooks.forward


def test_a_wide_summary_fits_the_page():
    net = nn.ModuleDict({"a_very_long_name_of_a_layer_that_goes_on_and_on": nn.Sequential(Affine(3, 3), Affine(3, 3))})
    table = nn.summary(net["a_very_long_name_of_a_layer_that_goes_on_and_on"], wf.ones(1, 2, 3, 1, 1, 2, 3))
    assert max(map(len, str(nn.Sequential(net).summary()).splitlines())) <= 80
    assert max(map(len, str(table).splitlines())) <= 80


def test_a_module_without_forward_says_so():
    class Bare(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Bare has no forward"):
        Bare()(1)


def test_a_buffer_registers_itself():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Buffer(wf.ones(2))

    net = Scaled()
    assert list(net.state_dict()) == ["scale"] and not list(net.parameters())
    assert not isinstance(net.scale, nn.Parameter) and isinstance(net.scale, nn.Buffer)


def test_parameters_take_tensors_only():
    with pytest.raises(wf.errors.ArgumentTypeError, match=r"takes a Tensor, not list .*nn.Parameter\(wf.tensor"):
        nn.Parameter([1.0])


def test_a_functional_call_leaves_shared_layers_as_they_were():
    net = nn.Sequential(Affine(3, 3), Affine(3, 3))
    net.append(net[0])
    before = values(net)
    others = {key: value * 2 for key, value in net.state_dict().items() if not key.startswith("2")}
    changed = wf.func.functional_call(net, others, wf.ones(1, 3))
    assert not np.array_equal(changed.numpy(), net(wf.ones(1, 3)).detach().numpy())
    with pytest.raises(wf.errors.ShapeError):
        wf.func.functional_call(net, others, wf.ones(1, 4))
    for key, value in values(net).items():
        np.testing.assert_array_equal(value, before[key])


def test_a_functional_call_restores_a_buffer_that_forward_replaces():
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", wf.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return x

    net, given = Count(), {"seen": wf.tensor(4.0)}
    own = net.seen
    wf.func.functional_call(net, given, wf.ones(1))
    assert net.seen is own and own.item() == 0.0
    assert given["seen"].item() == 5.0
    vmapped = wf.vmap(lambda seen: wf.func.functional_call(net, {"seen": seen}, wf.ones(1)), out_dims=None)
    vmapped(wf.zeros(3))
    assert net.seen is own


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wf.func.functional_call(lambda x: x, {}, wf.ones(1)), "takes an nn.Module, not function"),
        (lambda: wf.func.functional_call(Affine(1, 1), [wf.ones(1)], wf.ones(1)), "by path, one of them is a Tensor"),
        (lambda: wf.func.functional_call(Affine(1, 1), 3, wf.ones(1)), "by path, not int"),
        (lambda: wf.func.stack_module_state(Affine(1, 1)), "takes a list of models, not Affine"),
        (lambda: Affine(1, 1).register_forward_hook(None), "a hook must be a function, not NoneType"),
        (lambda: Affine(1, 1).register_full_backward_hook(3), "a hook must be a function, not int"),
        (lambda: Affine(1, 1).apply(None), "apply: takes a function of a module, not NoneType"),
        (lambda: nn.ModuleDict([Affine(1, 1)]), r"ModuleDict: takes a dictionary or pairs \(name, module\)"),
        (lambda: nn.ParameterDict(3), r"ParameterDict: takes a dictionary or pairs"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(call, words):
    with pytest.raises(wf.errors.WayfareError, match=words):
        call()


def test_a_module_whose_init_never_ran_says_so():
    class Forgotten(nn.Module):
        def __init__(self):
            self.size = 3

        def forward(self, x):
            return x

    for use in (lambda m: m(wf.ones(1)), lambda m: list(m.parameters()), repr, lambda m: m.train()):
        with pytest.raises(wf.errors.NotReadyError, match=r"Forgotten: .*Call super\(\).__init__\(\) first"):
            use(Forgotten())
    assert not hasattr(Affine(1, 1), "wieght")


def test_a_hook_may_be_there_twice_and_in_front():
    layer, seen = Affine(2, 2), []

    def hook(*_):
        seen.append(1)

    layer.register_full_backward_hook(hook)
    layer.register_full_backward_hook(hook, prepend=True).remove()
    layer.register_full_backward_hook(hook, prepend=True)
    layer(wf.ones(1, 2, requires_grad=True)).sum().backward()
    assert len(seen) == 2


def test_a_copied_model_has_no_gradients():
    layer = Affine(2, 2)
    layer(wf.ones(1, 2)).sum().backward()
    copied = copy.deepcopy(layer)
    assert layer.weight.grad is not None and copied.weight.grad is None


def test_keys_with_a_prefix_in_common_are_recognised():
    layer = Affine(2, 2)
    state = {f"module.{key}": value for key, value in layer.state_dict().items()}
    with pytest.raises(wf.errors.OperationError, match="All its keys begin with 'module.'"):
        layer.load_state_dict(state)


def test_a_whole_checkpoint_is_recognised():
    layer = Affine(2, 2)
    optimizer = {"state": {}, "param_groups": []}
    for state in (layer.state_dict(), {"weight": wf.ones(2, 2)}):
        with pytest.raises(wf.errors.OperationError, match=r"give state\['net'\]"):
            layer.load_state_dict({"optimizer": optimizer, "net": state, "epoch": 3})
    with pytest.raises(wf.errors.OperationError, match="a model of the same structure"):
        layer.load_state_dict({"optimizer": optimizer, "epoch": 3, "nothing": {}})


def test_what_a_dictionary_does_not_have_is_said_with_what_it_has():
    layers = nn.ModuleDict({f"layer{n}": Affine(1, 1) for n in range(12)})
    weights = nn.ParameterDict({"left": wf.ones(1), "right": wf.ones(1)})
    with pytest.raises(KeyError) as raised:
        layers["layer12"]
    assert str(raised.value).startswith("ModuleDict: there is no 'layer12', it has 'layer0', 'layer1', ")
    assert "'layer9', … (12 in all)" in str(raised.value) and "layer10" not in str(raised.value)
    for use in (lambda: weights["middle"], lambda: weights.pop("middle"), lambda: weights.__delitem__("middle")):
        with pytest.raises(KeyError) as raised:
            use()
        assert "ParameterDict: there is no 'middle', it has 'left', 'right'" in str(raised.value)
    with pytest.raises(KeyError, match="it is empty"):
        nn.ModuleDict()["a"]
    assert "middle" not in weights and "left" in weights and weights.get("middle", 3) == 3


def test_keys_on_one_side_are_shown_by_name():
    found = Affine(2, 2).load_state_dict({"weight": wf.ones(2, 2), "scale": wf.ones(2)}, strict=False)
    assert repr(found) == "_IncompatibleKeys(missing_keys=['bias'], unexpected_keys=['scale'])"


def test_a_list_in_a_sequential_is_refused_with_the_way_out():
    layers = [nn.Linear(2, 3), nn.ReLU()]
    with pytest.raises(TypeError, match=r"takes modules one by one, not a list of them .*nn\.Sequential\(\*layers\)"):
        nn.Sequential(layers)


def test_a_tensor_of_another_library_is_named_in_full():
    foreign = type("Tensor", (), {"__module__": "otherlib"})
    with pytest.raises(TypeError, match=r"expected a tensor, not otherlib\.Tensor, in Linear"):
        nn.Linear(2, 2)(foreign())
