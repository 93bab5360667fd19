"""Optimisers, schedules and modules that are changed, read or patched between calls."""

from tests.compiler.hostile.harness import family

case = family("optim")

STEP = """
import copy
w, v = num(3, grad=True), num(3, seed=1, grad=True)
opt = wf.optim.{opt}
sched = wf.optim.lr_scheduler.{sched}
log = []
@way
def f(x):
    opt.zero_grad()
    loss = ((x * w) ** 2 + v.sin()).sum()
    loss.backward()
    opt.step()
    {step}
    return loss.detach()
"""
CHANGES = [
    "opt.param_groups[0]['lr'] = 0.5", "each: opt.param_groups[0]['lr'] = 0.1 / k",
    "opt.param_groups[0]['weight_decay'] = 0.5",
    "opt.add_param_group({'params': [num(3, seed=2, grad=True)], 'lr': 0.3})", "opt.state.clear()",
    "opt.param_groups[0]['params'].pop()",
    "u = num(3, seed=6, grad=True); u.grad = wf.ones(3); opt.add_param_group({'params': [u], 'lr': 0.3})",
    "opt.load_state_dict(opt.state_dict())",
    "saved = copy.deepcopy(opt.state_dict()); saved['param_groups'][0]['lr'] = 0.01; opt.load_state_dict(saved)",
    "opt.param_groups[0]['maximize'] = True", "opt.state.pop(w, None)", "opt.defaults['lr'] = 9.0",
    "opt = wf.optim.SGD([w], lr=0.2)", "w.data.mul_(2); v.data = num(3, seed=7)",
    "opt.step = lambda: log.append('mine')", "opt.zero_grad = lambda: None",
    "opt.param_groups[0]['params'][0] = num(3, seed=8, grad=True)", "opt.param_groups[0]['params'].reverse()",
    "opt.param_groups[0] = dict(opt.param_groups[0], lr=0.7)",
    "opt.param_groups.append(dict(opt.param_groups[0], params=[], lr=0.7))", "w.requires_grad_(False)",
    "w = num(3, seed=9, grad=True)",
    "old = type(opt).step; patch(type(opt), 'step', lambda s, *a: (log.append(1), old(s, *a))[1])",
    "old = type(opt).zero_grad; patch(type(opt), 'zero_grad', lambda s: log.append(2))",
    "opt = copy.deepcopy(opt)", "opt.param_groups[0]['lr'] = wf.tensor(0.3)",
]  # fmt: skip
for opt in ("SGD([w, v], lr=0.1)", "SGD([w, v], lr=0.1, momentum=0.9)", "Adam([w, v], lr=0.1)"):
    case(
        opt, STEP.format(opt=opt, sched="StepLR(opt, 100)", step="pass"), *CHANGES, args="num(3, seed=k),",
        fails=True)  # fmt: skip
for opt in [
    "AdamW([w, v], lr=0.1, amsgrad=True)", "RMSprop([w, v], lr=0.1)", "Adagrad([w, v], lr=0.1)",
    "Adadelta([w, v], lr=0.1)", "NAdam([w, v], lr=0.1)", "RAdam([w, v], lr=0.1)", "Adamax([w, v], lr=0.1)",
    "SGD([{'params': [w]}, {'params': [v], 'lr': 0.01}], lr=0.1, nesterov=True, momentum=0.5)",
]:  # fmt: skip
    case(
        opt, STEP.format(opt=opt, sched="StepLR(opt, 100)", step="pass"), CHANGES[1], CHANGES[3], CHANGES[7],
        args="num(3, seed=k),", fails=True)  # fmt: skip

for sched, step in [
    ("StepLR(opt, 3, 0.5)", "sched.step()"), ("CosineAnnealingLR(opt, 10)", "sched.step()"),
    ("OneCycleLR(opt, 0.5, total_steps=40)", "sched.step()"), ("ExponentialLR(opt, 0.9)", "sched.step()"),
    ("LambdaLR(opt, lambda e: 1 / (e + 1))", "sched.step()"),
    ("ReduceLROnPlateau(opt, patience=1)", "sched.step(loss)"), ("LinearLR(opt)", "sched.step()"),
    ("MultiStepLR(opt, [2, 5])", "sched.step()"), ("CyclicLR(opt, 0.01, 0.1, step_size_up=3)", "sched.step()"),
    ("CosineAnnealingWarmRestarts(opt, 3)", "sched.step()"), ("PolynomialLR(opt, 8)", "sched.step()"),
    ("MultiplicativeLR(opt, lambda e: 0.9)", "sched.step()"),
]:  # fmt: skip
    case(
        sched.split("(")[0], STEP.format(opt="SGD([w, v], lr=0.1, momentum=0.9)", sched=sched, step=step),
        "opt.param_groups[0]['lr'] = 0.5", "sched.last_epoch = 5",
        "sched.step()" if "Plateau" not in sched else "sched.step(0.1)",
        "sched.load_state_dict(sched.state_dict())",
        "sched = wf.optim.lr_scheduler.StepLR(opt, 2, 0.3)" if "Plateau" not in sched else "sched.best = -5.0",
        "sched.base_lrs = [0.7]" if "Plateau" not in sched else "sched.factor = 0.9",
        "opt.param_groups[0]['initial_lr'] = 0.9", args="num(3, seed=k),")  # fmt: skip

for name, body, *changes in [
    ("step count read", "y = x * opt.state[w]['step'] if opt.state.get(w) else x",
     "opt.state[w]['step'] += 5 if opt.state else 0", "opt.state.clear()"),
    ("step count read as a number",
     "y = x * float(opt.state[w]['step']) if w in opt.state and 'step' in opt.state[w] else x", "opt.state.clear()"),
    ("moment read", "y = x * opt.state[w]['exp_avg'] if w in opt.state and opt.state[w] else x",
     "opt.state[w]['exp_avg'].zero_()", "opt.state.clear()"),
    ("moment written", "y = x\n    if w in opt.state and opt.state[w]:\n        opt.state[w]['exp_avg'].mul_(0.5)",
     "opt.state.clear()"),
    ("learning rate read", "y = x * opt.param_groups[0]['lr']", "opt.param_groups[0]['lr'] = 0.7",
     "each: opt.param_groups[0]['lr'] = 0.1 * k"),
    ("learning rate written", "opt.param_groups[0]['lr'] *= 0.9\n    y = x", "opt.param_groups[0]['lr'] = 0.7"),
    ("learning rate from a counter", "count[0] += 1\n    opt.param_groups[0]['lr'] = 0.1 / count[0]\n    y = x",
     "count[0] = 50"),
    ("all groups", "for g in opt.param_groups:\n        g['lr'] = 0.01 * k\n    y = x", "k = 3"),
    ("defaults read", "y = x * opt.defaults['lr']", "opt.defaults['lr'] = 0.7"),
    ("schedule read", "y = x * sched.get_last_lr()[0] + sched.last_epoch", "sched.step()", "sched.last_epoch = 7",
     "sched._last_lr = [0.5]"),
    ("schedule stepped and read", "sched.step()\n    y = x * sched.get_last_lr()[0]", "sched.last_epoch = 1"),
    ("state dict read", "y = x * len(opt.state_dict()['state']) + opt.state_dict()['param_groups'][0]['lr']",
     "opt.state.clear()", "opt.param_groups[0]['lr'] = 0.5"),
    ("number of parameters", "y = x * sum(p.numel() for g in opt.param_groups for p in g['params'])",
     "opt.add_param_group({'params': [num(5, grad=True)]})"),
    ("own attribute", "opt.calls = getattr(opt, 'calls', 0) + 1\n    y = x * opt.calls", "opt.calls = 9"),
    ("gradient norm", "y = x * sum(p.grad.norm() for p in (w, v) if p.grad is not None)", "w.grad = None",
     "v.grad = wf.ones(3)"),
    ("step skipped on a value", "y = x\n    if x.sum() < 0:\n        return x.detach()",
     "opt.param_groups[0]['lr'] = 0.5"),
    ("step on a count", "count[0] += 1\n    y = x\n    if count[0] % 3:\n        return x.detach()", "count[0] = 0"),
    ("two steps", "y = x\n    w.grad = x.detach() * 2\n    opt.step()", "opt.param_groups[0]['lr'] = 0.5",
     "opt.state.clear()"),
    ("other optimiser", "y = x\n    v.grad = x.detach()\n    other.step()\n    other.zero_grad()",
     "other.param_groups[0]['lr'] = 0.9", "other = wf.optim.Adam([v], lr=0.2)"),
    ("average of weights", "y = x\n    with wf.no_grad():\n        mean.lerp_(w, decay)", "decay = 0.9",
     "mean = wf.zeros(3)", "each: decay = 1 / (k + 1)"),
    ("weights clamped", "y = x\n    with wf.no_grad():\n        w.clamp_(-limit, limit)", "limit = 0.1",
     "w.data.fill_(3.0)"),
]:  # fmt: skip
    case(f"inside: {name}", f"""
w, v = num(3, grad=True), num(3, seed=1, grad=True)
opt, other = wf.optim.Adam([w, v], lr=0.1), wf.optim.SGD([v], lr=0.1, momentum=0.9)
sched = wf.optim.lr_scheduler.StepLR(opt, 2, 0.5)
count, mean, decay, limit = [0], wf.zeros(3), 0.1, 0.5
@way
def f(x):
    {body}
    opt.zero_grad()
    loss = (y * w).square().sum()
    loss.backward()
    opt.step()
    return loss.detach()
""", *changes, args="num(3, seed=k),", fails=True)  # fmt: skip

case("an optimiser of one's own", """
class Mine(wf.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.count = 0
    def step(self):
        self.count += 1
        with wf.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad / self.count)
w = num(3, grad=True)
opt = Mine([w], 0.1)
@way
def f(x):
    opt.zero_grad()
    (x * w).square().sum().backward()
    opt.step()
    return w.detach().clone()
""", "opt.count = 9", "opt.param_groups[0]['lr'] = 0.5", "Mine.step = lambda s: None", args="num(3, seed=k),")

case("optimiser as an argument", """
w, v = num(3, grad=True), num(3, seed=1, grad=True)
opt = wf.optim.SGD([w], lr=0.1)
@way
def f(x, opt, w):
    opt.zero_grad()
    (x * w).square().sum().backward()
    opt.step()
""",
    "opt = wf.optim.SGD([w], lr=0.5)", "opt = wf.optim.Adam([w], lr=0.5)", "w = v",
    "opt, w = wf.optim.SGD([v], lr=0.3), v", "each: opt = wf.optim.SGD([w], lr=0.1 / k)",
    args="num(3, seed=k), opt, w")  # fmt: skip

case("learning rate as an argument", """
w = num(3, grad=True)
opt = wf.optim.SGD([w], lr=0.1, momentum=0.9)
@way
def f(x, lr):
    for group in opt.param_groups:
        group["lr"] = lr
    opt.zero_grad()
    (x * w).square().sum().backward()
    opt.step()
""", "w.data.zero_()", args="num(3, seed=k), 0.1 / k")

case("optimiser made inside", """
w = num(3, grad=True)
@way
def f(x):
    opt = wf.optim.SGD([w], lr=0.1)
    opt.zero_grad()
    (x * w).square().sum().backward()
    opt.step()
""", "w.data.zero_()", "w = num(3, seed=2, grad=True)", args="num(3, seed=k),")

module = family("modules")

NET = """
import copy
class Net(nn.Module):
    scale = 1.0
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2))
        self.c = nn.ModuleList([nn.Linear(4, 4, bias=False)])
        self.norm = nn.BatchNorm1d(4)
        self.gain = nn.Parameter(wf.ones(4))
        self.register_buffer("shift", wf.zeros(4))
        self.table = {{"q": 1.0}}
    def forward(self, x):
        x = self.b(self.a(x).relu())
        for layer in self.c:
            x = layer(x)
        return self.norm(x) * self.gain * self.scale + self.shift * self.table["q"]
net = Net()
other = Net()
{}
"""
CHANGES = [
    "net.a = nn.Linear(4, 4)", "net.b[0] = nn.Linear(4, 4)", "net.b[1] = nn.ReLU()",
    "net.b.append(nn.Linear(4, 4))", "del net.b[1]", "net.c.append(nn.Linear(4, 4))", "net.c = nn.ModuleList()",
    "net.c.insert(0, net.a)", "net.gain = nn.Parameter(wf.full((4,), 2.0))", "net.gain.data.mul_(3)",
    "net.gain = net.a.bias", "net.a.weight = net.b[0].weight", "net.shift = wf.ones(4)", "net.shift.add_(1)",
    "net.register_buffer('shift', wf.full((4,), 2.0))", "net.register_buffer('more', wf.ones(1))", "net.extra = 5",
    "net.scale = 2.0", "Net.scale = 3.0", "net.__dict__['scale'] = 4.0", "vars(net)['scale'] = 5.0",
    "net.__dict__.update(scale=6.0)", "object.__setattr__(net, 'scale', 7.0)", "net.table['q'] = 3.0",
    "net.table = {'q': 4.0}", "net.eval()", ("net.eval()", "net.train()"), "net.norm.eval()", "net.b[2].p = 0.9",
    "net.norm.momentum = 0.9", "net.norm.eps = 0.5", "net.norm.running_mean.fill_(2.0); net.eval()",
    "net.norm.track_running_stats = False", "net.norm.reset_running_stats()",
    "net.load_state_dict(other.state_dict())", "net.requires_grad_(False)", "net.a.requires_grad_(False)",
    "net.a.bias = None", "net.forward = lambda x: x * 2", "net.a.forward = lambda x: x * 2",
    "Net.forward = lambda s, x: x - 1", "net.__class__ = type('N', (Net,), {'forward': lambda s, x: x + 1})",
    "net.float(); net.double()", "net.zero_grad(set_to_none=False)",
    "net.a.register_parameter('weight', nn.Parameter(num(4, 4)))", "net.set_submodule('a', nn.Linear(4, 4))",
    "net.add_module('a', nn.Tanh())", "net.b[0].weight.data = num(4, 4)",
    "net.apply(lambda m: setattr(m, 'seen', 1))", "nn.init.ones_(net.a.weight)", "net.training = False",
    "copied = copy.deepcopy(net); copied.a.weight.data.zero_()", "net.a.in_features = 7", "net.b = nn.Identity()",
    "net.a.weight, net.b[0].weight = net.b[0].weight, net.a.weight", "each: net.train(k % 3 != 0)",
    "each: net.scale = k * 0.1", "net.c[0].weight = net.a.weight; net.a.weight.data.mul_(2)",
    "with wf.no_grad(): net.a.weight.copy_(wf.eye(4))", "net.norm = nn.LayerNorm(4)",
    "net.to(wf.float32).to(wf.float64)",
]  # fmt: skip
module("module compiled", NET.format("f = way(net)"), *CHANGES, args="num(3, 4, seed=k, grad=True),", fails=True)
module("step", NET.format("""opt = wf.optim.SGD(net.parameters(), lr=0.1)
@way
def f(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()"""),
    *CHANGES[:9], *CHANGES[10:13], *CHANGES[17:38:2], *CHANGES[44:62:3], args="num(3, 4, seed=k),", fails=True)
module("by name", NET.format("""name = "a"
@way
def f(x):
    for key, p in net.named_parameters():
        if "weight" in key:
            x = x + p.sum()
    return getattr(net, name)(x) * len(list(net.children())) + len(net.state_dict())"""),
    *CHANGES[:17:2], CHANGES[37], "name = 'b'", "name = 'norm'", args="num(3, 4, seed=k),", fails=True)  # fmt: skip

for kind, given in [
    ("nn.LSTM(3, 4)", "num(5, 2, 3, seed=k),"),
    ("nn.GRU(3, 4, num_layers=2, dropout=0.5)", "num(5, 2, 3, seed=k),"),
    ("nn.Embedding(5, 3, max_norm=1.0)", "wf.tensor([k % 5, 1]),"),
    ("nn.Conv1d(3, 2, 2)", "num(2, 3, 5, seed=k),"),
    ("nn.MultiheadAttention(4, 2)", "*[num(3, 1, 4, seed=k)] * 3,"),
    ("nn.BatchNorm1d(3, momentum=None)", "num(4, 3, seed=k),"), ("nn.LayerNorm(3)", "num(4, 3, seed=k),"),
    ("nn.TransformerEncoderLayer(4, 2, 8)", "num(3, 2, 4, seed=k),"), ("nn.LSTMCell(3, 4)", "num(2, 3, seed=k),"),
    ("nn.InstanceNorm1d(3, affine=True, track_running_stats=True)", "num(2, 3, 5, seed=k),"),
    ("nn.EmbeddingBag(5, 3)", "wf.tensor([[k % 5, 1]]),"), ("nn.PReLU()", "num(3, seed=k),"),
    ("nn.Dropout1d(0.5)", "num(2, 3, 4, seed=k),"), ("nn.RMSNorm(3)", "num(4, 3, seed=k),"),
    ("nn.Bilinear(3, 3, 2)", "*[num(2, 3, seed=k)] * 2,"),
]:  # fmt: skip
    module(
        kind, f"m = {kind}\nf = way(m)\n", "m.eval()", ("m.eval()", "m.train()"),
        "[p.data.mul_(1.5) for p in m.parameters()]", "m.requires_grad_(False)", args=given)  # fmt: skip
