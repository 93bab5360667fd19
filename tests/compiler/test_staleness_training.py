"""Never stale: modules, parameters, optimisers and schedules are changed between compiled calls and training steps."""

import functools

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from tests.compiler.worlds import CALLS, stay_equal
from wayfare import nn
from wayfare.func import functional_call
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.extra = nn.ParameterList([numbers(4, seed=9)])
        self.register_buffer("bias", numbers(4, seed=8))
        self.options = {"power": 2, "act": "tanh"}
        self.scale = 2.0
        self.steps = 0

    def body(self, x):
        for layer in self.layers:
            x = getattr(F, self.options["act"])(layer(x))
        return x

    def forward(self, x):
        x = self.norm(self.drop(self.body(x)))
        for head in self.heads.values():
            x = head(x)
        for p in self.extra:
            x = x + p
        return x ** self.options["power"] * self.scale + self.bias


def net_of(seed=0):
    wf.manual_seed(seed)
    return Net().double()


def linear(seed, bias=True):
    wf.manual_seed(seed)
    return nn.Linear(4, 4, bias=bias).double()


CHANGES = {
    "training flag": [lambda net: net.eval(), lambda net: net.train(), lambda net: net.drop.eval()],
    "plain attribute": [lambda net: setattr(net, "scale", 3.0), lambda net: setattr(net, "scale", numbers(4))],
    "attribute nobody reads": [lambda net: setattr(net, "steps", 1), lambda net: setattr(net, "note", "new")],
    "in a dictionary": [lambda net: net.options.update(power=3), lambda net: net.options.update(act="sigmoid"),
                        lambda net: setattr(net, "options", {"power": 1, "act": "relu"})],
    "attribute of a layer": [lambda net: setattr(net.drop, "p", 0.0), lambda net: setattr(net.drop, "p", 0.9),
                             lambda net: setattr(net.norm, "eps", 0.5), lambda net: setattr(net.norm, "momentum", 0.9)],
    "replaced parameter": [
        lambda net: setattr(net.layers[0], "weight", nn.Parameter(numbers(4, 4, seed=1))),
        lambda net: setattr(net.layers[1], "bias", None),
        lambda net: setattr(net.layers[0], "weight", net.layers[1].weight),
    ],
    "parameter's memory": [
        lambda net: setattr(net.layers[0].weight, "data", numbers(4, 4, seed=1)),
        lambda net: setattr(net.layers[0].weight, "data", numbers(4, 4, seed=2).T),
        lambda net: setattr(net.layers[0].weight, "data", net.layers[1].weight.data),
    ],
    "parameter written": [lambda net: net.layers[0].weight.data.mul_(2), lambda net: nn.init.ones_(net.layers[1].bias)],
    "frozen": [lambda net: net.layers[0].requires_grad_(False), lambda net: net.requires_grad_(False),
               lambda net: net.layers[0].weight.requires_grad_(True)],
    "buffer": [lambda net: setattr(net, "bias", numbers(4, seed=3)), lambda net: net.bias.fill_(2.0)],
    "list": [lambda net: net.layers.append(linear(5)), lambda net: net.layers.insert(0, linear(6)),
             lambda net: net.layers.__setitem__(1, linear(7, bias=False)), lambda net: net.layers.pop(0),
             lambda net: net.layers.__delitem__(slice(1, None)), lambda net: net.layers.__delitem__(0)],
    "dictionary of modules": [lambda net: net.heads.update({"b": linear(5)}), lambda net: net.heads.pop("a"),
                              lambda net: net.heads.clear()],
    "list of parameters": [lambda net: net.extra.append(numbers(4, seed=1)),
                           lambda net: net.extra.__setitem__(0, numbers(4, seed=2))],
    "replaced module": [lambda net: setattr(net, "drop", nn.Identity()), lambda net: setattr(net, "norm", linear(3)),
                        lambda net: net.set_submodule("layers.0", nn.Tanh())],
    "state": [lambda net: net.load_state_dict(net_of(4).state_dict()),
              lambda net: net.load_state_dict(net_of(5).state_dict(), assign=True)],
    "own method": [lambda net: setattr(net, "body", lambda x: x * 2), lambda net: delattr(net, "body"),
                   lambda net: setattr(net, "forward", lambda x: net.body(x))],
    "hook": [lambda net: net.register_forward_hook(lambda m, a, out: out * 2),
             lambda net: net.layers[0].register_forward_pre_hook(lambda m, a: (a[0] + 1,)),
             lambda net: net._hooks.forward.clear() or net.train(False)],
    "statistics": [lambda net: net.norm.reset_running_stats(), lambda net: net.eval(),
                   lambda net: net.norm.running_mean.fill_(1.0),
                   lambda net: setattr(net.norm, "track_running_stats", False)],
    "converted": [lambda net: net.double()],
}  # fmt: skip


def state_of(net, x):
    named = [*net.named_parameters(), *net.named_buffers()]
    return [x.grad, {name: [t.detach().clone(), None if t.grad is None else t.grad.clone()] for name, t in named}]


@pytest.mark.parametrize("form", ["captured", "module", "argument"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_model(name, form):
    def make(way):
        net = net_of()
        if form == "captured":
            call = way(lambda x: net(x))
        elif form == "module":
            call = way(net)
        else:
            given = way(lambda net, x: net(x))
            call = functools.partial(given, net)

        def both(number):
            x = numbers(3, 4, seed=number, grad=True)
            out = call(x)
            if out.requires_grad:
                out.sum().backward()
            return [out.detach(), state_of(net, x)]

        return both, *[functools.partial(change, net) for change in CHANGES[name]]

    stay_equal(make)


def test_a_method_of_a_class_of_modules(monkeypatch):
    net = net_of().eval()
    compiled = wf.compile(net)
    x = numbers(3, 4)
    for _ in range(CALLS):
        equal(compiled(x), net(x))
    monkeypatch.setattr(Net, "body", lambda self, x: x * 3)
    for _ in range(CALLS):
        equal(compiled(x), net(x))


def test_a_model_called_with_other_tensors():
    net = net_of().eval()
    compiled = wf.compile(lambda x: net(x))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return compiled(x)

    outer, x = Outer(), numbers(3, 4)
    for number in range(CALLS):
        equal(compiled(x), net(x))
        other = numbers(4, 4, seed=number)
        want = functional_call(net, {"layers.0.weight": other}, x)
        equal(functional_call(outer, {"net.layers.0.weight": other}, x), want)


# -- training steps


def sgd(parameters):
    return wf.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return wf.optim.Adam(parameters, lr=0.01)


STEP_CHANGES = {
    "learning rate": [lambda w: w.opt.param_groups[0].update(lr=0.5), lambda w: w.opt.param_groups[0].update(lr=0.0)],
    "weight decay": [lambda w: w.opt.param_groups[0].update(weight_decay=0.3)],
    "maximise": [lambda w: w.opt.param_groups[0].update(maximize=True)],
    "schedule": [lambda w: w.schedule.step(), lambda w: w.schedule.step()],
    "swapped optimiser": [lambda w: setattr(w, "opt", wf.optim.SGD(w.net.parameters(), lr=0.3)),
                          lambda w: setattr(w, "opt", wf.optim.Adagrad(w.net.parameters(), lr=0.3))],
    "optimiser of fewer": [lambda w: setattr(w, "opt", wf.optim.SGD(w.net.layers.parameters(), lr=0.3))],
    "one more group": [lambda w: w.opt.add_param_group({"params": [w.spare], "lr": 0.7})],
    "optimiser's state": [lambda w: w.opt.load_state_dict(w.first), lambda w: w.opt.state.clear()],
    "state of the model": [lambda w: w.net.load_state_dict(net_of(3).state_dict())],
    "training flag": [lambda w: w.net.eval(), lambda w: w.net.train()],
    "frozen": [lambda w: w.net.layers[0].requires_grad_(False), lambda w: w.net.layers[0].requires_grad_(True)],
    "gradients that lie there": [lambda w: [p.sum().backward() for p in w.net.parameters()]],
    "gradients of zero": [lambda w: w.net.zero_grad(set_to_none=False)],
    "gradient hook": [lambda w: w.net.layers[0].weight.register_hook(lambda g: g * w.most),
                      lambda w: setattr(w, "most", 0.1)],
    "clipping": [lambda w: setattr(w, "most", 0.01), lambda w: setattr(w, "most", 10.0)],
    "grown and handed over": [lambda w: w.grow()],
    "loss": [lambda w: setattr(w, "loss", F.l1_loss)],
}  # fmt: skip


class World:
    def __init__(self, optimizer):
        self.net = net_of()
        self.spare = nn.Parameter(numbers(4, seed=2))
        self.opt = optimizer(self.net.parameters())
        self.first = self.opt.state_dict()
        self.schedule = wf.optim.lr_scheduler.StepLR(self.opt, 1, gamma=0.5)
        self.most = 1.0
        self.loss = F.mse_loss

    def grow(self):
        self.net.layers.append(linear(5))
        self.opt.add_param_group({"params": list(self.net.layers[-1].parameters())})

    def step(self, x, y):
        loss = self.loss(self.net(x) + self.spare, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.most)
        self.opt.step()
        self.opt.zero_grad()
        return loss.detach()


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("name", STEP_CHANGES)
def test_a_training_step(name, optimizer):
    def make(way):
        world = World(optimizer)
        step = way(world.step)

        def call(number):
            x, y = numbers(5, 4, seed=number), numbers(5, 4, seed=number + 100)
            loss = step(x, y)
            state = [value for entry in world.opt.state_dict()["state"].values() for value in entry.values()]
            return [loss, state_of(world.net, x), world.spare.detach(), state, world.opt.param_groups[0]["lr"]]

        return call, *[functools.partial(change, world) for change in STEP_CHANGES[name]]

    stay_equal(make)


def test_a_schedule_inside_the_step():
    def make(way):
        net = linear(0)
        opt = wf.optim.SGD(net.parameters(), lr=0.5)
        schedule = wf.optim.lr_scheduler.CosineAnnealingLR(opt, 10)

        def step(x):
            net(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
            schedule.step()

        step = way(step)

        def call(number):
            step(numbers(3, 4, seed=number))
            return [opt.param_groups[0]["lr"], schedule.last_epoch, [p.detach().clone() for p in net.parameters()]]

        return call, lambda: opt.param_groups[0].update(lr=0.1), lambda: setattr(schedule, "T_max", 4)

    stay_equal(make)
