"""Whole scenes as people write them, with many things going on; and what must not stay alive."""

from tests.compiler.hostile.harness import family

case = family("scenes")

case("two networks against each other", """
gen, dis = nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Linear(3, 1)
opt_g, opt_d = wf.optim.Adam(gen.parameters(), lr=0.1), wf.optim.SGD(dis.parameters(), lr=0.1, momentum=0.9)
every, log = 3, []
@way
def train_dis(real):
    opt_d.zero_grad()
    fake = gen(wf.randn(2, 2)).detach()
    loss = F.softplus(-dis(real)).mean() + F.softplus(dis(fake)).mean()
    loss.backward()
    opt_d.step()
    return loss.detach()
@way
def train_gen():
    opt_g.zero_grad()
    loss = F.softplus(-dis(gen(wf.randn(2, 2)))).mean()
    loss.backward()
    opt_g.step()
    return loss.detach()
def f(x):
    out = [train_dis(x)]
    if k % every == 0:
        out.append(train_gen())
    return out
""",
    "every = 1", "dis.zero_grad()", "dis.requires_grad_(False)", "opt_g.param_groups[0]['lr'] = 0.5",
    "gen[1] = nn.ReLU()", "dis.weight.grad = None", "dis = nn.Linear(3, 1)", "wf.manual_seed(3)",
    args="num(4, 3, seed=k),", fails=True)  # fmt: skip

case("teacher that follows", """
import copy
student = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
teacher = copy.deepcopy(student).requires_grad_(False)
opt, decay = wf.optim.SGD(student.parameters(), lr=0.05, momentum=0.9), 0.9
@way
def f(x):
    opt.zero_grad()
    with wf.no_grad():
        goal = teacher(x + 0.1)
    loss = F.mse_loss(student(x), goal)
    loss.backward()
    opt.step()
    with wf.no_grad():
        for p, q in zip(teacher.parameters(), student.parameters()):
            p.mul_(decay).add_(q, alpha=1 - decay)
        for p, q in zip(teacher.buffers(), student.buffers()):
            p.copy_(q)
    return loss.detach()
""",
    "decay = 0.5", "each: decay = 1 - 1 / (k + 1)", "teacher.eval()", "teacher[0].weight = student[0].weight",
    "teacher.load_state_dict(student.state_dict())", "teacher.requires_grad_()", "student[1].momentum = 0.5",
    "teacher = student", args="num(4, 3, seed=k),", fails=True)  # fmt: skip

case("recurrent state carried over", """
cell = nn.GRUCell(3, 4)
opt = wf.optim.SGD(cell.parameters(), lr=0.1)
class State:
    h = None
state = State()
@way
def f(x):
    h = wf.zeros(2, 4) if state.h is None else state.h.detach()
    loss = 0.0
    for row in x:
        h = cell(row, h)
        loss = loss + h.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    state.h = h
    return loss.detach()
""",
    "state.h = None", "state.h = num(2, 4)", "state = State()", "cell = nn.GRUCell(3, 4)", "State.h = num(2, 4)",
    "del state.h", "each: state.h = None if k % 3 == 0 else state.h", args="num(2 + k % 2, 2, 3, seed=k),")

case("recurrent state as argument and result", """
cell, h = nn.GRUCell(3, 4), None
@way
def g(x, h=None):
    return cell(x, h)
def f(x):
    global h
    h = g(x, h)
    return h
""",
    "h = None", "h = h.detach() if h is not None else None", "cell.bias_hh.data.zero_()", args="num(2, 3, seed=k),",
    after="")  # fmt: skip

case("cache that grows", """
keys, values = [], []
lin = nn.Linear(4, 4)
@way
def f(x):
    keys.append(lin(x).detach())
    values.append(x.detach())
    a = F.softmax(x @ wf.stack(keys).transpose(0, 1).transpose(1, 2).reshape(4, -1), -1)
    return a @ wf.stack(values).reshape(-1, 4)
""",
    "keys.clear(); values.clear()", "keys.pop(0); values.pop(0)", "lin.weight.data.mul_(2)",
    args="num(1, 4, seed=k),", fails=True)  # fmt: skip

case("cache in place", """
cache, at = wf.zeros(16, 4), [0]
@way
def f(x):
    cache[at[0]] = x
    at[0] += 1
    return F.softmax(cache[: at[0]] @ x, 0) @ cache[: at[0]]
""", "at[0] = 0", "cache.zero_()", "cache = wf.zeros(20, 4)", args="num(4, seed=k),")

case("replay memory", """
import collections, random
memory = collections.deque(maxlen=5)
net, target = nn.Linear(3, 2), nn.Linear(3, 2)
opt, count = wf.optim.Adam(net.parameters(), lr=0.1), 0
@way
def learn(s, a, r):
    q = net(s).gather(1, a[:, None])[:, 0]
    with wf.no_grad():
        goal = r + 0.9 * target(s).max(1).values
    loss = F.smooth_l1_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
def f(x):
    global count
    count += 1
    memory.append((x, wf.tensor(count % 2), x.sum()))
    batch = random.choices(memory, k=3)
    loss = learn(*(wf.stack(part) for part in zip(*batch)))
    if count % 4 == 0:
        target.load_state_dict(net.state_dict())
    return loss
""",
    "memory.clear()", "target = net", "target = nn.Linear(3, 2)", "random.seed(1)", "net.weight.grad = None",
    args="num(3, seed=k),")  # fmt: skip

case("accumulate, clip, schedule", """
net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
opt = wf.optim.AdamW(net.parameters(), lr=0.1)
sched = wf.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
seen, log, limit = 0, [], 1.0
@way
def f(x, last):
    loss = net(x).square().mean() / 3
    loss.backward()
    if last:
        norm = nn.utils.clip_grad_norm_(net.parameters(), limit)
        opt.step()
        sched.step()
        opt.zero_grad()
        log.append(norm.item())
    return loss.detach()
""",
    "limit = 0.01", "net.eval()", "opt.zero_grad()", "opt.zero_grad(set_to_none=False)",
    "net[0].weight.grad = None", "sched.last_epoch = 0", "log.clear()", "net[2].requires_grad_(False)",
    args="num(4, 3, seed=k), k % 3 == 0")  # fmt: skip

case("only part is trained at first", """
body, head = nn.Linear(3, 3), nn.Linear(3, 1)
body.requires_grad_(False)
opt = wf.optim.AdamW([*body.parameters(), *head.parameters()], lr=0.1, weight_decay=0.5)
@way
def f(x):
    opt.zero_grad()
    loss = head(body(x).tanh()).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
""",
    "body.requires_grad_()", "head.requires_grad_(False); body.requires_grad_()",
    ("body.requires_grad_()", "body.requires_grad_(False)"), "body.weight.grad = wf.ones(3, 3)",
    "each: body.requires_grad_(k % 3 == 0)", args="num(4, 3, seed=k),")  # fmt: skip

case("two heads, one used at a time", """
body, heads = nn.Linear(3, 3), nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 2)])
opt = wf.optim.AdamW([*body.parameters(), *heads.parameters()], lr=0.1, weight_decay=0.5)
@way
def f(x, which):
    opt.zero_grad()
    h = body(x).tanh()
    losses = [head(h).square().mean() for head in heads]
    losses[which].backward()
    opt.step()
    return [l.detach() for l in losses]
""",
    "heads[0] = nn.Linear(3, 1)", "heads[1].weight.grad = wf.ones(2, 3)", "opt.zero_grad(set_to_none=False)",
    args="num(4, 3, seed=k), k % 2")  # fmt: skip

case("early stopping", """
net, best, kept, patience = nn.Linear(3, 1), float("inf"), None, 0
opt = wf.optim.SGD(net.parameters(), lr=0.2)
@way
def step(x):
    opt.zero_grad()
    loss = (net(x) - 1).square().mean()
    loss.backward()
    opt.step()
    return loss.item()
def f(x):
    global best, kept, patience
    loss = step(x)
    if loss < best:
        best, kept, patience = loss, {n: p.clone() for n, p in net.state_dict().items()}, 0
    else:
        patience += 1
        if patience > 1:
            net.load_state_dict(kept)
    return loss, patience
""", "best = 0.0", "net.weight.data.zero_()", args="num(4, 3, seed=k),")

case("evaluation between steps", """
net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
opt = wf.optim.SGD(net.parameters(), lr=0.1)
@way
def step(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
@way
def evaluate(x):
    return net(x).mean()
def f(x):
    loss = step(x)
    net.eval()
    with wf.no_grad():
        found = evaluate(x)
    if back:
        net.train()
    return loss, found, net.training
back = True
""",
    "back = False", "net[2].p = 0.1", "net[1].running_mean.zero_()", ("back = False", "back = True; net.train()"),
    args="num(4, 3, seed=k),")  # fmt: skip

case("batches of a loader", """
from wayfare.utils.data import DataLoader, TensorDataset
data = TensorDataset(num(7, 3), num(7, 1, seed=1))
net = nn.Linear(3, 1)
opt = wf.optim.SGD(net.parameters(), lr=0.1)
@way
def step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss.item()
def f(size):
    return [step(x, y) for x, y in DataLoader(data, batch_size=size, shuffle=shuffle)]
shuffle = False
""", "shuffle = True", "data = TensorDataset(num(4, 3), num(4, 1))", "net.weight.data.zero_()", args="2 + k % 2,")

case("configuration object", """
import types
config = types.SimpleNamespace(act="relu", norm=True, scale=2.0, layers=[4, 4])
lin = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
@way
def f(x):
    for i, size in enumerate(config.layers):
        x = lin[i](x)[:, :size]
        x = getattr(F, config.act)(x)
        if config.norm:
            x = x / (x.norm() + 1)
    return x * config.scale
""",
    "config.act = 'tanh'", "config.norm = False", "config.layers.append(4)", "config.layers[1] = 3",
    "config = types.SimpleNamespace(**{**vars(config), 'scale': 5.0})", "config.__dict__.update(scale=7.0)",
    "each: config.scale = k * 0.1", "each: config.act = ('relu', 'tanh', 'sigmoid')[k % 3]",
    ("del config.norm", "config.norm = True"), args="num(3, 4, seed=k, grad=True),", fails=True)  # fmt: skip

case("the compiled module itself", """
import copy
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
f = way(net)
""",
    "f.eval()", "f.train(False); f.train()", "f.load_state_dict({n: p * 2 for n, p in f.state_dict().items()})",
    "f.requires_grad_(False)", "f[0] = nn.Linear(4, 4)", "f.append(nn.Tanh())", "f = copy.deepcopy(f)",
    "f.zero_grad()", "f.register_forward_hook(lambda m, a, y: y * 2)", "f.double()", "f.extra = 3", "f = way(f)",
    "net = nn.Sequential(net, nn.Tanh()); f = way(net)", "[p.data.zero_() for p in f.parameters()]",
    "f = nn.Sequential(f, nn.Tanh())", "f.forward = lambda x: x * 2")  # fmt: skip

case("StopIteration inside", """
log = []
@way
def f(x):
    log.append(1)
    if x.sum() > 0:
        raise StopIteration(3)
    return x
""", args="num(3, seed=k),", fails=True)

alive = family("alive")

for name, make in [
    ("module", "nn.Linear(3, 3)"), ("list of modules", "Kept([nn.Linear(3, 3)])"), ("object", "Box()"),
    ("list", "Kept([num(3)])"), ("function", "(lambda q: lambda x: x * q)(k)"),
    ("optimiser", "wf.optim.SGD([num(3, grad=True)], lr=0.1)"), ("tensor", "num(3, seed=k)"),
    ("large tensor", "num(300, seed=k)"), ("parameter", "nn.Parameter(num(3))"), ("view", "num(2, 3)[1]"),
]:  # fmt: skip
    alive(f"{name} given", f"""
import gc, weakref
class Box:
    pass
class Kept(list):
    pass
__refs = []
@way
def f(x, thing):
    if isinstance(thing, nn.Module):
        return thing(x)
    return x * 2
def call(k):
    thing = {make}
    __refs.append(weakref.ref(thing))
    y = f(num(3, seed=k), thing).sum().item()
    del thing
    return y
def look():
    if k < 12:
        return None
    gc.collect()
    return [i for i in range(len(__refs)) if __refs[i]() is not None]
""")  # fmt: skip
    alive(f"{name} captured", f"""
import gc, weakref
class Box:
    pass
class Kept(list):
    pass
k = 0
__refs, thing = [], {make}
@way
def f(x):
    return x * (2 if thing is not None else 1)
def call(k):
    __refs.append(weakref.ref(thing))
    return f(num(3, seed=k))
def look():
    if k < 12:
        return None
    gc.collect()
    return [i for i in range(len(__refs)) if __refs[i]() is not None]
""", f"each: thing = {make}")  # fmt: skip

alive("results", """
import gc, weakref
w, __refs = num(3, grad=True), []
@way
def f(x):
    return x * w, (x * 2).exp()
def call(k):
    x = num(3, seed=k, grad=True)
    a, b = f(x)
    __refs.extend([weakref.ref(x), weakref.ref(a), weakref.ref(b)])
    (a * b).sum().backward()
    return x.grad
def look():
    if k < 12:
        return None
    gc.collect()
    return [i for i in range(len(__refs)) if __refs[i]() is not None]
""", "w = num(3, seed=3, grad=True)")
