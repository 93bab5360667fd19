"""The structure epoch: any change to the structure of any module begins a new one, and nothing else does."""

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core.structure_epoch import EPOCH
from wayfare.func import functional_call
from wayfare.nn.modes import in_mode


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.by_name = nn.ModuleDict({"a": nn.ReLU()})
        self.seq = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        self.list = nn.ParameterList([wf.ones(2)])
        self.dict = nn.ParameterDict({"p": wf.ones(2)})
        self.register_buffer("count", wf.zeros(1))
        self.scale = 2.0

    def forward(self, x):
        return self.seq(x) * self.scale


def add_hook(net):
    net.register_forward_hook(lambda *_: None)


CHANGES = {
    "plain attribute": lambda net: setattr(net, "scale", 3.0),
    "same value again": lambda net: setattr(net, "scale", 2.0),
    "new attribute": lambda net: setattr(net, "other", [1]),
    "deleted attribute": lambda net: delattr(net, "scale"),
    "deleted module": lambda net: delattr(net, "seq"),
    "attribute of a layer": lambda net: setattr(net.seq[1], "p", 0.1),
    "training by hand": lambda net: setattr(net.seq[1], "training", False),
    "eval": lambda net: net.eval(),
    "requires_grad_": lambda net: net.requires_grad_(False),
    "parameter": lambda net: setattr(net.seq[0], "weight", nn.Parameter(wf.ones(2, 2))),
    "parameter taken out": lambda net: setattr(net.seq[0], "bias", None),
    "buffer": lambda net: setattr(net, "count", wf.ones(1)),
    "register_parameter": lambda net: net.register_parameter("q", nn.Parameter(wf.ones(1))),
    "register_buffer": lambda net: net.register_buffer("q", wf.ones(1)),
    "register_module": lambda net: net.register_module("q", nn.ReLU()),
    "set_submodule": lambda net: net.set_submodule("seq.1", nn.ReLU()),
    "list append": lambda net: net.layers.append(nn.Linear(2, 2)),
    "list extend": lambda net: net.layers.extend([nn.ReLU()]),
    "list +=": lambda net: net.layers.__iadd__([nn.ReLU()]),
    "list insert": lambda net: net.layers.insert(0, nn.ReLU()),
    "list pop": lambda net: net.layers.pop(0),
    "list item": lambda net: net.layers.__setitem__(0, nn.ReLU()),
    "list del": lambda net: net.layers.__delitem__(0),
    "list emptied": lambda net: net.layers.__delitem__(slice(None)),
    "sequential item": lambda net: net.seq.__setitem__(1, nn.ReLU()),
    "sequential del": lambda net: net.seq.__delitem__(1),
    "dict item": lambda net: net.by_name.__setitem__("b", nn.ReLU()),
    "dict update": lambda net: net.by_name.update({"a": nn.Tanh()}),
    "dict del": lambda net: net.by_name.__delitem__("a"),
    "dict clear": lambda net: net.by_name.clear(),
    "parameter list append": lambda net: net.list.append(wf.ones(2)),
    "parameter list item": lambda net: net.list.__setitem__(0, wf.ones(2)),
    "parameter dict item": lambda net: net.dict.__setitem__("r", wf.ones(2)),
    "parameter dict del": lambda net: net.dict.__delitem__("p"),
    "state assigned": lambda net: net.load_state_dict(net.state_dict(), assign=True),
    "forward hook": add_hook,
    "forward pre-hook": lambda net: net.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda net: net.register_full_backward_hook(lambda *_: None),
    "backward pre-hook": lambda net: net.register_full_backward_pre_hook(lambda *_: None),
    "hook of a parameter": lambda net: net.seq[0].weight.register_hook(print),
    "post-hook of a parameter": lambda net: net.seq[0].weight.register_post_accumulate_grad_hook(print),
    "functional_call": lambda net: functional_call(net, {"seq.0.weight": wf.ones(2, 2)}, wf.ones(1, 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_begins_a_new_epoch(change):
    net = Net()
    before = EPOCH[0]
    change(net)
    assert EPOCH[0] > before


def test_removing_a_hook_begins_one_too():
    net = Net()
    handle = net.register_forward_hook(lambda *_: None)
    before = EPOCH[0]
    handle.remove()
    middle = EPOCH[0]
    with net.register_forward_pre_hook(lambda *_: None):
        entered = EPOCH[0]
    assert before < middle < entered < EPOCH[0]


def test_hooks_of_leaves_and_of_what_is_computed():
    leaf = wf.ones(2, requires_grad=True)
    handle = leaf.register_hook(print)
    before = EPOCH[0]
    handle.remove()
    assert EPOCH[0] > before
    before = EPOCH[0]
    (leaf * 2).register_hook(lambda g: None).remove()
    assert EPOCH[0] == before


def test_the_hook_is_there_when_the_epoch_begins():
    """A hook that was entered after the number would be missed by whoever looks in between."""
    net = Net()
    seen = []

    class Watched(dict):
        def __setitem__(self, key, value):
            seen.append(EPOCH[0])
            super().__setitem__(key, value)

    net.register_forward_hook(lambda *_: None)
    net._hooks.forward = Watched()
    net.register_forward_hook(lambda *_: None)
    assert EPOCH[0] > seen[-1]


NO_CHANGES = {
    "call": lambda net: net(wf.ones(1, 2)),
    "train when it trains": lambda net: net.train(),
    "backward": lambda net: net(wf.ones(1, 2)).sum().backward(),
    "zero_grad": lambda net: net.zero_grad(),
    "reading": lambda net: (net.state_dict(), list(net.named_parameters()), repr(net), len(net.layers), net.layers[0]),
    "state copied in": lambda net: net.load_state_dict(net.state_dict()),
    "in-place write": lambda net: net.count.add_(1),
}


@pytest.mark.parametrize("use", NO_CHANGES.values(), ids=NO_CHANGES.keys())
def test_using_a_module_is_no_change(use):
    net = Net()
    before = EPOCH[0]
    use(net)
    assert EPOCH[0] == before


def test_batch_norm_runs_without_a_new_epoch():
    norm = nn.BatchNorm1d(2)
    before = EPOCH[0]
    norm(wf.randn(4, 2))
    assert EPOCH[0] == before
    assert norm.num_batches_tracked.item() == 1


def test_a_mode_for_a_block_begins_one_at_each_end():
    net = Net()
    before = EPOCH[0]
    with in_mode(net, training=False):
        inside = EPOCH[0]
    assert before < inside < EPOCH[0]
    assert net.training and net.seq[1].training


def test_train_still_reaches_every_module():
    net = Net()
    net.seq[1].eval()
    net.train()
    assert all(module.training for module in net.modules())
    net.layers[1].training = 1  # true, but not True
    net.train()
    assert net.layers[1].training is True


def test_numbers_never_come_again():
    net = Net()
    numbers = set()
    for _ in range(50):
        net.scale = 1.0
        numbers.add(EPOCH[0])
    assert len(numbers) == 50


def test_a_removed_hook_may_be_removed_again():
    net = Net()
    handle = net.register_forward_hook(print)
    handle.remove()
    handle.remove()
    assert net._hooks.forward == {}
