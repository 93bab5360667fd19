"""Modules with a state: buffers, attributes written in forward, modes, batch norm, loading and freezing."""

from tests.batch.scenarios.harness import family

scenario, case = family("modules")

COUNTER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("n", wf.tensor(0))
        self.register_buffer("mean", wf.zeros(3).double())
        self.last, self.calls, self.seen = None, 0, []
    def forward(self, x):
        {forward}
net = mod(Net())
{more}
"""
for name, forward, more, body, state in [
    ("self.last", "self.last = self.lin(x)\nreturn self.last * 2", "", "return net(x)", "net, net.last"),
    ("self.last read by the next", "old, self.last = self.last, self.lin(x)\nreturn self.last if old is None else "
     "self.last + old", "", "return net(x)", "net"),
    ("self.last after", "self.last = self.lin(x).tanh()\nreturn self.last", "", "net(x)\nreturn net.last + 1", "net"),
    ("self.calls", "self.calls += 1\nreturn self.lin(x) * self.calls", "", "return net(x)", "net.calls"),
    ("self.calls read outside", "self.calls += 1\nreturn self.lin(x)", "", "return net(x), net.calls", "net.calls"),
    ("self.seen", "h = self.lin(x)\nself.seen.append(h)\nreturn h.tanh()", "", "return net(x)", "net.seen"),
    ("self.seen of values", "h = self.lin(x)\nself.seen.append(h.sum().item())\nreturn h", "", "return net(x)",
     "net.seen"),
    ("buffer counter", "self.n += 1\nreturn self.lin(x)", "", "return net(x)", "net"),
    ("buffer counter used", "self.n += 1\nreturn self.lin(x) / self.n", "", "return net(x)", "net"),
    ("buffer counter add_", "self.n.add_(1)\nreturn self.lin(x) * self.n", "", "return net(x), int(net.n)", "net"),
    ("buffer replaced", "self.n = self.n + 1\nreturn self.lin(x) * self.n", "", "return net(x)", "net"),
    ("buffer, state_dict held", "self.n += 1\nreturn self.lin(x)", "held = net.state_dict()", "return net(x)",
     "net, held"),
    ("buffer, view held", "self.mean.add_(x.detach())\nreturn self.lin(x)", "held = net.mean[1:]", "return net(x)",
     "net, held"),
    ("buffer, numpy held", "self.mean.add_(x.detach())\nreturn self.lin(x)", "held = net.mean.numpy()",
     "return net(x)", "net, held"),
    ("buffer, detach held", "self.n += 1\nreturn self.lin(x)", "held = net.n.detach()", "return net(x)", "net, held"),
    ("buffer from numpy", "self.mean += x.detach()\nreturn self.lin(x)",
     "held = np.zeros(3)\nnet.mean = wf.from_numpy(held)", "return net(x)", "net, held"),
    ("buffer, expand held", "self.n += 1\nreturn self.lin(x)", "held = net.n.expand(2)", "return net(x)", "net, held"),
    ("buffer assigned by load", "self.n += 1\nreturn self.lin(x)",
     "held = {k: v.clone() for k, v in net.state_dict().items()}\nnet.load_state_dict(held, assign=True)",
     "return net(x)", "net, held"),
    ("running mean", "self.mean.lerp_(x.detach(), 0.1)\nreturn self.lin(x - self.mean)", "", "return net(x)", "net"),
    ("running mean in training only", "if self.training:\n    self.mean.lerp_(x.detach(), 0.1)\nreturn self.lin(x)",
     "", "net.train(i % 2 == 0)\nreturn net(x)", "net"),
    ("mode read in forward", "return self.lin(x) if self.training else self.lin(x) * 0", "",
     "if i == 2:\n    net.eval()\nreturn net(x)", "net"),
    ("eval and back", "return self.lin(x) if self.training else self.lin(x) * 0", "",
     "net.eval()\na = net(x)\nnet.train()\nreturn a, net(x)", "net"),
    ("eval, look, and back", "return self.lin(x) if self.training else self.lin(x) * 0", "",
     "net.eval()\na = net(x)\ngood = a.sum().item() > -9\nnet.train()\nreturn a, net(x), good", "net"),
    ("attribute set from outside", "return self.lin(x) * self.calls", "", "net.calls = i\nreturn net(x)", "net.calls"),
    ("attribute set after a look", "return self.lin(x) * self.calls", "",
     "h = net(x)\nif h.sum() > -9:\n    net.calls += 1\nreturn h", "net.calls"),
    ("attribute is a tensor, replaced", "return self.lin(x) * self.w", "net.w = wf.ones(3).double()",
     "h = net(x)\nnet.w = net.w * 2\nreturn h", "net.w"),
    ("attribute is a tensor, written", "return self.lin(x) * self.w", "net.w = wf.ones(3).double()",
     "h = net(x)\nnet.w.mul_(2)\nreturn h.detach()", "net.w"),
    ("prints in forward", "print('call', tuple(x.shape))\nreturn self.lin(x)", "", "return net(x)", "()"),
    ("prints values in forward", "h = self.lin(x)\nprint(round(h.sum().item(), 4))\nreturn h", "", "return net(x)",
     "()"),
    ("layer swapped", "return self.lin(x)", "other = mod(nn.Linear(3, 3), 30)",
     "if i == 2:\n    net.lin = other\nreturn net(x)", "net"),
    ("weight replaced", "return self.lin(x)", "", "if i == 2:\n    net.lin.weight = nn.Parameter(num(3, 3, seed=8))\n"
     "return net(x)", "net"),
    ("load_state_dict on the way", "return self.lin(x)", "other = {k: v * 2 for k, v in net.state_dict().items()}",
     "if i == 2:\n    net.load_state_dict(other)\nreturn net(x).detach()", "net"),
    ("zero_grad on the way", "return self.lin(x)", "", "net.zero_grad()\nreturn net(x)", "net"),
    ("half of the model frozen by one", "return self.lin(x)", "",
     "if i == 2:\n    net.lin.bias.requires_grad_(False)\nreturn net(x)", "net"),
    ("frozen by one", "return self.lin(x)", "", "if i == 2:\n    net.requires_grad_(False)\nreturn net(x.detach())",
     "net"),
    ("frozen by one after a look", "return self.lin(x)", "",
     "h = net(x.detach())\nif i == 1 and h.sum() > -99:\n    net.requires_grad_(False)\nreturn h", "net"),
    ("thawed by one", "return self.lin(x)", "net.requires_grad_(False)",
     "if i == 2:\n    net.requires_grad_(True)\nreturn net(x.detach())", "net"),
    ("weight.requires_grad set", "return self.lin(x)", "",
     "net.lin.weight.requires_grad = bool(i % 2)\nreturn net(x.detach())", "net"),
    ("forward replaced", "return self.lin(x)", "", "if i == 2:\n    net.forward = lambda y: y * 5\nreturn net(x)",
     "()"),
    ("returns self attribute", "self.last = x * 2\nreturn None", "", "net(x)\nreturn net.last", "()"),
    ("submodule called twice", "return self.lin(self.lin(x))", "", "return net(x) + net.lin(x)", "net"),
    ("keyword argument", "return self.lin(x)", "", "return net(x=x)", "net"),
    ("deepcopy of the model by each", "return self.lin(x)", "",
     "own = copy.deepcopy(net)\nwith wf.no_grad():\n    own.lin.weight.add_(i)\nreturn own(x)", "net"),
    ("state_dict taken by each", "self.n += 1\nreturn self.lin(x)", "", "net(x)\n"
     "return net.state_dict()['n'].clone()", "net"),
    ("state_dict of each, held", "self.n += 1\nreturn self.lin(x)", "", "net(x)\nreturn net.state_dict()['n']", "net"),
    ("parameters counted", "return self.lin(x)", "", "return net(x), sum(p.numel() for p in net.parameters())", "net"),
    ("norm of parameters", "return self.lin(x)", "",
     "return net(x).sum() + sum((p ** 2).sum() for p in net.parameters())", "net"),
    ("dtype changed and back", "return self.lin(x)", "", "h = net.float()(x.float())\nnet.double()\n"
     "return h.dtype, net(x.detach())", "()"),
]:  # fmt: skip
    text = COUNTER.replace("        {forward}", "\n".join("        " + line for line in forward.split("\n")))
    case(name, text.replace("{more}", more), body, state)

for name, layer, shape, more in [
    ("batch norm", "nn.BatchNorm1d(3)", "4, 3", ""),
    ("batch norm 2d", "nn.BatchNorm2d(2)", "2, 2, 3, 3", ""),
    ("batch norm without momentum", "nn.BatchNorm1d(3, momentum=None)", "4, 3", ""),
    ("batch norm without a track", "nn.BatchNorm1d(3, track_running_stats=False)", "4, 3", ""),
    ("batch norm in a sequence", "nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())", "4, 3", ""),
    ("batch norm, statistics held", "nn.BatchNorm1d(3)", "4, 3", "held = net.running_mean"),
    ("batch norm, state held", "nn.BatchNorm1d(3)", "4, 3", "held = net.state_dict()"),
    ("instance norm with a track", "nn.InstanceNorm1d(3, track_running_stats=True)", "2, 3, 4", ""),
    ("layer norm", "nn.LayerNorm(3)", "4, 3", ""),
    ("group norm", "nn.GroupNorm(1, 3)", "4, 3", ""),
]:
    setup = f"net = mod({layer})\nxs = [num({shape}, seed=i, grad=True) for i in range(3)]\nheld = None\n{more}"
    case(name, setup, "return net(x)", "net, held")
    if "norm" in name and "batch" in name:
        case(name + ", then eval", setup, "h = net(x)\nnet.eval()\nk = net(x)\nnet.train()\nreturn h.sum(), k", "net")

case("batch norm of one row", "net = mod(nn.BatchNorm1d(3))", "return net(x[None])", "net", raises=True)
case("batch norm reset by one", "net = mod(nn.BatchNorm1d(3))\nxs = [num(4, 3, seed=i) for i in range(4)]",
     "h = net(x)\nif i == 2:\n    net.reset_running_stats()\nreturn h.sum()", "net")  # fmt: skip
case("batch norm read on the way", "net = mod(nn.BatchNorm1d(3))\nxs = [num(4, 3, seed=i) for i in range(4)]",
     "net(x)\nreturn net.running_mean.sum().item(), net.num_batches_tracked.item()", "net")  # fmt: skip
case("dropout", "net = mod(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))", "return net(x), net(x)", "net",
     random=True)
case("dropout off by one", "net = nn.Dropout(0.5)", "net.train(i != 1)\nreturn net(x)", "()", random=True)
case("functional dropout by value", "", "return F.dropout(x, 0.5) if x.sum() > 0 else x * wf.rand(3)", random=True)
case("random walk", "", "while (s := wf.randn(())) < 0.5:\n    x = x + s\nreturn x", random=True)
case("seed set by each", "", "wf.manual_seed(i)\nreturn wf.rand(2)", random=True)
case("own generator", "g = wf.Generator().manual_seed(3)", "return wf.rand(2, generator=g)", random=True)
case("own generator after a look", "g = wf.Generator().manual_seed(3)",
     "return wf.rand(2, generator=g) if x.sum() > 0 else x", random=True)  # fmt: skip
case("multinomial", "lin = mod(nn.Linear(3, 5))", "p = lin(x).softmax(0)\nk = wf.multinomial(p, 1)\nreturn p[k].log()",
     "lin", random=True)  # fmt: skip
